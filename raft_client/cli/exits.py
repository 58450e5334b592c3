"""The exit codes of the command line; :mod:`raft_client.cli.app` documents them; ``statestore`` has the same."""

from typing import Final

__all__ = ["DONE", "INTERRUPTED", "NEGATIVE", "NO_CONNECTION", "OUTPUT", "PARTLY", "REFUSED", "USAGE"]

DONE: Final = 0
NEGATIVE: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
NO_CONNECTION: Final = 4
OUTPUT: Final = 7
PARTLY: Final = 8
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it
