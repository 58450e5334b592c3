"""How the examples behave as programs: they end on signals, and leave the log of the SDK to their own words."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

__all__ = ["Interrupted", "interruptible", "without_logs"]


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


@contextlib.contextmanager
def without_logs() -> Iterator[None]:
    """What the SDK would log (a lease or a connection lost, say) a demo tells in its own words."""
    loggers = [logging.getLogger(name) for name in ("statestore_client", "raft_client")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
