"""The ``statestore`` command. click and rich load when it runs, never with the package itself."""

from statestore_client.cli.entry import main

__all__ = ["main"]
