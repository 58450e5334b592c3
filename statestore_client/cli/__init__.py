"""The ``statestore`` command. click and rich load here, never with the package itself."""

from statestore_client.cli.app import main

__all__ = ["main"]
