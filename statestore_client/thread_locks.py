"""Locks and flags that an exception from a signal handler leaves whole: Ctrl-C, a time-out by SIGALRM.

Python runs signal handlers in the main thread, between two instructions: where a function begins, after a call, at the
end of a loop's body. An exception raised just after a lock was taken, and before the ``with`` statement knows of it,
leaves the lock locked for ever. Where that can happen:

* in an ``__enter__`` or ``__exit__`` that is written in Python, in its first or last line, on every version;
* on 3.14 behind every ``__enter__``. A plain ``with threading.Lock()`` in a loop is left locked by every second
  exception there, and never on 3.11 to 3.13 and 3.15.

Invariant: a mutex is taken as the next item of a ``for`` loop that returns at once, where Python looks for no signals,
and given back by an ``__exit__`` that is written in C.
What the standard library makes of locks in Python (Event, Condition, Semaphore, Queue) has both faults, so the linter
refuses it here. A thread's ``start()`` waits on such an Event: :func:`start` is to be used in its place.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat
from types import TracebackType
from typing import Final, TypeAlias

from statestore_client.clocks import monotonic
from statestore_client.errors import BusyError

__all__ = ["LONGEST_NAP_S", "Flag", "Mutex", "Within", "closed_gate", "start"]

#: What a ``with`` statement calls at its end.
Exit: TypeAlias = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]

#: Python takes a signal that arrives just before a thread falls asleep for one that comes when it is awake again. So
#: nobody sleeps longer at a time, and Ctrl-C is not lost.
LONGEST_NAP_S: Final = 0.5


class Mutex:
    """Held by one thread at a time, in a ``with`` statement; the others wait for it in naps.

    The same thread may come again: a function that it calls, a signal's handler, a finalizer.
    """

    __slots__ = ("__exit__", "acquire", "is_mine", "release")

    def __init__(self) -> None:
        lock = threading.RLock()  # noqa: TID251 - the lock that Mutex makes safe
        #: The lock's own, in C. ``acquire`` and ``release`` are for code with a handler of its own for interruptions.
        self.__exit__: Exit = lock.__exit__
        self.acquire: Callable[[bool, float], bool] = lock.acquire
        self.release: Callable[[], None] = lock.release
        #: Ask whether this thread holds it, as threading.Condition does; RLock has no public way.
        self.is_mine: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001

    def __enter__(self) -> None:
        for is_taken in map(self.acquire, repeat(True), repeat(LONGEST_NAP_S)):
            if is_taken:
                return

    def within(self, timeout: float | None, too_late: Callable[[], Exception]) -> Within:
        """For a ``with`` statement that raises ``too_late()`` if it cannot be had within so many seconds.

        None waits for ever, and 0 tries once.
        """
        return Within(self, timeout, too_late)


class Within:
    """Holds a mutex that can be had in time, in a ``with`` statement; also again and again."""

    __slots__ = ("__exit__", "_mutex", "_timeout", "_too_late")

    def __init__(self, mutex: Mutex, timeout: float | None, too_late: Callable[[], Exception]) -> None:
        self.__exit__: Exit = mutex.__exit__
        self._mutex = mutex
        self._timeout = timeout
        self._too_late = too_late

    def __enter__(self) -> None:
        for is_taken in map(self._mutex.acquire, repeat(True), self._naps()):
            if is_taken:
                return
        raise self._too_late()

    def _naps(self) -> Iterator[float]:
        """How long to wait for it, attempt by attempt."""
        deadline = math.inf if self._timeout is None else monotonic() + self._timeout
        remaining = math.inf
        while remaining > 0:
            remaining = deadline - monotonic()
            yield max(0.0, min(remaining, LONGEST_NAP_S))


class Flag:
    """Something that happens once, and that threads may wait for: the part of an Event that needs no Condition."""

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._gate = closed_gate()

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """Let it happen, and wake those who wait. Any thread, a signal's handler too, any number of times."""
        self._is_set = True
        self._open()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it happens within this many seconds, None for ever."""
        deadline = math.inf if timeout is None else monotonic() + timeout
        while not self._is_set and (remaining := deadline - monotonic()) > 0:
            if self._gate.acquire(timeout=min(remaining, LONGEST_NAP_S)):
                self._open()  # for the next one that waits; if an exception comes before, that one looks after its nap
        return self._is_set

    def _open(self) -> None:
        with suppress(RuntimeError):  # it is open
            self._gate.release()


def closed_gate() -> threading.Lock:  # noqa: TID251 - to sleep on, no mutex
    """A lock to sleep on: held from the beginning, released by whoever wakes the thread that tries to take it."""
    gate = threading.Lock()  # noqa: TID251 - as above
    gate.acquire()
    return gate


def start(thread: threading.Thread) -> None:
    """Start a thread. Raises BusyError if the system has no room for one.

    What a signal's handler raises meanwhile comes out as it is; nobody knows then whether the thread runs, and whoever
    starts it must bear both. ``Thread.start()`` may have made a RuntimeError of it, in a Condition that finds its lock
    released.
    """
    handled = sys.exc_info()[1]  # by our caller: it is the context of each error here
    try:
        thread.start()
    except RuntimeError as error:
        cut = error.__context__
        if cut is None or cut is handled:
            text = f"no thread could be started for {thread.name!r}: {error} (is there a limit?)"
            raise BusyError(text) from error
    else:
        return
    raise cut
