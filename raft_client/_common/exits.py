"""The exit codes of both commands; ``statestore_client.cli.app`` and ``raft_client.cli.app`` document them."""

from typing import Final

DONE: Final = 0
NEGATIVE: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
NO_CONNECTION: Final = 4
LEASE_LOST: Final = 5
DATA: Final = 6
OUTPUT: Final = 7
PARTLY: Final = 8
NOT_ADMITTED: Final = 9  # of statestore
ADDRESS: Final = 10
NOT_EXECUTABLE: Final = 126  # of the command that lock or watch should run, as shells have it
NOT_FOUND: Final = 127  # the same
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it
