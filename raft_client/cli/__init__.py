"""The ``zmqraft`` command. click and rich load when it runs, never with the package itself."""

from raft_client.cli.entry import main

__all__ = ["main"]
