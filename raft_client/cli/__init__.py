"""The ``zmqraft`` command. click and rich load here, never with the package itself."""

from raft_client.cli.app import main

__all__ = ["main"]
