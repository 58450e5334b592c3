"""Exceptions from a signal's handler, at any moment of what a program does: Ctrl-C, a time-out by SIGALRM."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest

__all__ = ["AlarmError", "interrupting", "is_free", "needs_timer"]

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


def is_free(enter: Callable[[], object]) -> bool:
    """Whether another thread gets through."""
    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    thread.join(5)
    return not thread.is_alive()
