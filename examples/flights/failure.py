"""How the demo ends when it cannot go on."""

from __future__ import annotations

from typing import Final

__all__ = ["DIFFERENT", "LOST", "NOT_INSTALLED", "DemoError"]

# Exit codes, numbered as those of the command `statestore`.
DIFFERENT: Final = 1  # a state is wrong, or a stale write got through
NOT_INSTALLED: Final = 2
LOST: Final = 4  # the server or the connection to it


class DemoError(Exception):
    """The demo cannot go on; says why in one line, and with which exit code to end."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
