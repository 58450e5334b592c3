"""The exit codes of the command line; :mod:`raft_client.cli.app` documents them; ``statestore`` has the same."""

from typing import Final

DONE: Final = 0
NEGATIVE: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
NO_CONNECTION: Final = 4
DATA: Final = 6
OUTPUT: Final = 7
PARTLY: Final = 8
ADDRESS: Final = 10
NOT_EXECUTABLE: Final = 126  # of the command that watch should run, as shells have it
NOT_FOUND: Final = 127  # the same
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it
