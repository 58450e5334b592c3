"""How the demo ends when it cannot go on."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Final, NoReturn

__all__ = ["DIFFERENT", "LOST", "NOT_INSTALLED", "DemoError", "Interrupted", "interruptible"]

# Exit codes, numbered as those of the command `statestore`.
DIFFERENT: Final = 1  # a state is wrong, or a stale write got through
NOT_INSTALLED: Final = 2
LOST: Final = 4  # the server or the connection to it


class DemoError(Exception):
    """The demo cannot go on; says why in one line, and with which exit code to end."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM: unwinds the stack, which ends the demo's processes. No KeyboardInterrupt: py4j logs those."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise :class:`Interrupted` on Ctrl-C and SIGTERM. PySpark takes Ctrl-C for itself: enter this again after it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _frame: object) -> NoReturn:
    raise Interrupted(number)
