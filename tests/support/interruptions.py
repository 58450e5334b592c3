"""Exceptions from a signal's handler, at any moment of what a program does: Ctrl-C, a time-out by SIGALRM.

By chance, from a timer; or at one line after the other, from a trace function, so that none is left out.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from types import FrameType, ModuleType
from typing import Any

import pytest

__all__ = ["AlarmError", "interrupted_at_call", "interrupted_at_line", "interrupting", "is_free", "needs_timer"]

needs_timer = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers that send signals")


class AlarmError(Exception):
    """What a signal handler of an application may raise."""


@contextmanager
def interrupting(kind: type[BaseException] = AlarmError) -> Iterator[Callable[[Callable[[], object], float], bool]]:
    """A function that repeats some work until it is interrupted, within so many seconds; False if an exception was
    swallowed on its way, as Python does in callbacks.
    """
    random = Random(7)

    armed: list[bool] = []

    def handler(*_: object) -> None:
        if armed:
            armed.clear()
            raise kind

    def interrupted(work: Callable[[], object], within_s: float) -> bool:
        try:
            armed.append(True)
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, within_s))
            until = time.monotonic() + within_s + 0.05
            while time.monotonic() < until:
                work()
        except kind:
            return True
        finally:
            armed.clear()  # an exception of the work's own
        return False

    before = signal.signal(signal.SIGALRM, handler)
    timer = signal.setitimer(signal.ITIMER_REAL, 0)  # of pytest-timeout
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def interrupted_at_line(number: int, work: Callable[[], object], package: ModuleType) -> str | None:
    """Do some work, and raise AlarmError before this line of the package's; lines count as this thread executes them.

    Returns where that was, None if there were not so many. What the package does about the exception is not cut.
    """
    lines = count()

    def at_line(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and next(lines) == number:
            raise AlarmError(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return at_line

    def at_call(frame: FrameType, _event: str, _argument: object) -> Any:
        return at_line if frame.f_code.co_filename.startswith(package.__path__[0]) else None

    return _traced(at_call, work)


def interrupted_at_call(number: int, work: Callable[[], object], module: ModuleType) -> str | None:
    """The same where a function of the module begins, for one that takes locks: Python hands no signal on between a
    lock and its ``with`` statement (before 3.14), and a trace function would.
    """
    calls = count()

    def at_call(frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_code.co_filename == module.__file__ and next(calls) == number:
            raise AlarmError(frame.f_code.co_qualname)

    return _traced(at_call, work)


def _traced(at_call: Callable[[FrameType, str, object], Any], work: Callable[[], object]) -> str | None:
    """Do some work under a trace function. Returns where that raised AlarmError, None if it did not."""
    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        work()
    except AlarmError as error:
        return str(error)
    finally:
        sys.settrace(before)
    return None


def is_free(enter: Callable[[], object]) -> bool:
    """Whether another thread gets through."""
    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    thread.join(5)
    return not thread.is_alive()
