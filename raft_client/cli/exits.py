"""The exit codes of the command line; :mod:`raft_client.cli.app` documents them."""

from typing import Final

__all__ = ["DONE", "INTERRUPTED", "NEGATIVE", "NO_ANSWER", "OUTPUT", "PARTLY", "REFUSED", "USAGE"]

DONE: Final = 0
NEGATIVE: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
NO_ANSWER: Final = 4
PARTLY: Final = 5
OUTPUT: Final = 7
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it
