"""What a calling thread sleeps on, and calls of the user's functions, in whatever thread makes them."""

from __future__ import annotations

import logging
import math
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from statestore_client import thread_locks
from statestore_client.clocks import monotonic
from statestore_client.core.arguments import check_function, refuse_awaitable
from statestore_client.errors import BusyError, StateStoreError
from statestore_client.shell import BatchSlot
from statestore_client.thread_locks import LONGEST_NAP_S, Within, closed_gate
from statestore_client.thread_locks import Mutex as Mutex

_HAS_POLL: Final = hasattr(select, "poll")  # Windows has only select()


class InputPoller:
    """Waits for input on one descriptor at a time.

    A poll object takes one call at a time, and another may come while it has one: on top of it, in a handler of a
    signal, or from a thread that borrowed the socket because this one was not heard of for too long. That one makes
    a poll object of its own.
    """

    __slots__ = ("_unused",)

    def __init__(self) -> None:
        self._unused: list[tuple[int, Callable[[int], object]]] = []  # with the descriptor that it knows

    def wait_for_input(self, fileno: int, timeout: float) -> None:
        """Sleep until a descriptor becomes readable, at most ``timeout`` seconds; for any reason it may be earlier."""
        if not _HAS_POLL:
            select.select([fileno], [], [], timeout)
            return
        try:
            known, poll = self._unused.pop()
        except IndexError:
            known, poll = -1, None
        if poll is None or known != fileno:
            poller = select.poll()  # anew: no descriptor of before may be left in it
            poller.register(fileno, select.POLLIN)
            poll = poller.poll
        poll(math.ceil(timeout * 1000))
        self._unused.append((fileno, poll))


def acquired(acquire: Callable[[bool, float], bool], timeout: float | None) -> bool:
    """Whether ``acquire(True, seconds)`` succeeded within this many seconds, None for ever."""
    remaining = math.inf if timeout is None else max(timeout, 0.0)
    while not acquire(True, min(remaining, LONGEST_NAP_S)):
        remaining -= LONGEST_NAP_S
        if remaining <= 0:
            return False
    return True


def pause(seconds: float) -> None:
    """Let this much time pass."""
    thread_locks.Flag().wait(seconds)


class Guard(Mutex):
    """For what threads do one at a time; a signal's handler comes in the thread that it interrupts."""

    __slots__ = ()


class Flag(thread_locks.Flag):
    """Something that happens once, and that threads may wait for."""

    __slots__ = ()

    def wait_for(self, seconds: float) -> bool:
        """Whether it happens within this many seconds."""
        return self.wait(seconds)


class SingleReader(Within):
    """Held while a thread reads. A second one gets an error at once: each would get a part of what there is to read.

    The thread itself may come again: a signal's handler.
    """

    __slots__ = ()

    def __init__(self) -> None:
        text = "another thread reads here at this moment; give each reader one of its own"
        super().__init__(Mutex(), 0.0, lambda: BusyError(text))


class ExclusiveUse(Within):
    """Held by one call. A second one is not made to wait: it gets a :class:`BusyError` with this message."""

    __slots__ = ()

    def __init__(self, refusal: str) -> None:
        super().__init__(Mutex(), 0.0, lambda: BusyError(refusal))

    def _naps(self) -> Iterator[float]:
        return iter(()) if self._mutex.is_mine() else super()._naps()  # not even a handler's call


class Bell:
    """Wakes the thread that waits for something new. ``lock`` is held by whoever changes, or looks at, what is new.

    A gate, for the reason that a :class:`Batch` has. A signal's handler may come in the thread that holds ``lock``.
    """

    __slots__ = ("_rung", "lock")

    def __init__(self) -> None:
        self.lock: Mutex = Mutex()
        self._rung = closed_gate()

    def ring(self) -> None:
        """Wake the one that waits, or the next one to wait."""
        with suppress(RuntimeError):  # it has rung already: a signal's handler, too, may come in between
            self._rung.release()

    def wait_until(self, deadline: float | None) -> bool:
        """Until it rings, or has rung since the last time; it may be earlier. Without the lock.

        False once the deadline (monotonic seconds, None: never) has passed: look for a last time.
        """
        remaining = LONGEST_NAP_S if deadline is None else min(deadline - monotonic(), LONGEST_NAP_S)
        if remaining > 0:
            self._rung.acquire(timeout=remaining)
        return remaining > 0


class Waiter:
    """One outcome for one calling thread; the first one counts.

    A gate, closed until the outcome is there: an Event costs three times as much, once per request.
    """

    __slots__ = ("_gate", "error", "is_pending", "result")

    def __init__(self) -> None:
        # :func:`closed_gate`, in line. By its name each time: gevent replaces it, perhaps after the import of this.
        self._gate = gate = threading.Lock()  # noqa: TID251 - to sleep on, no mutex
        gate.acquire()
        #: Whether there is no outcome yet.
        self.is_pending: Callable[[], bool] = gate.locked
        self.result: object = None
        self.error: StateStoreError | None = None

    def resolve(self, result: object) -> None:
        if self._gate.locked():
            self.result = result
            self._gate.release()

    def reject(self, error: StateStoreError) -> None:
        if self._gate.locked():
            self.error = error
            self._gate.release()

    def wait(self, timeout: float | None) -> bool:
        """Whether the outcome came within ``timeout`` seconds."""
        return acquired(self._gate.acquire, timeout)


_PENDING: Final = object()


class Batch:
    """Many outcomes for one calling thread, which is woken when room for more requests has come, not for each.

    A gate, closed until it is woken. What the standard library makes of locks is left half done by a signal's exception
    in the thread that waits, and the thread that brings the outcome would have to bear that.
    """

    __slots__ = ("_room", "low_water", "outcomes", "outstanding")

    def __init__(self) -> None:
        self.outcomes: list[object] = []
        self.outstanding: int = 0
        self.low_water: int = 0  # it is woken when so many are outstanding, and at the end
        self._room = closed_gate()

    def slot(self) -> BatchSlot:
        """The waiter of the next request."""
        self.outcomes.append(_PENDING)
        self.outstanding += 1
        return BatchSlot(self, len(self.outcomes) - 1)

    def reject(self, error: StateStoreError) -> None:
        """The outcome of all that have none yet."""
        for position, outcome in enumerate(self.outcomes):
            if outcome is _PENDING:
                self.settle(position, error)
        self._wake()  # also if an exception came between the last outcome and this

    def settle(self, position: int, outcome: object) -> None:
        if self.outcomes[position] is not _PENDING:
            return
        self.outcomes[position] = outcome
        self.outstanding -= 1
        if self.outstanding in (self.low_water, 0):
            self._wake()

    def _wake(self) -> None:
        if self._room.locked():
            self._room.release()

    def wait(self, timeout: float | None) -> bool:
        """Wait until room may have come; whether it did within ``timeout`` seconds."""
        return acquired(self._room.acquire, timeout)


logger: logging.Logger = logging.getLogger("statestore_client")

#: How long (seconds) to wait for the end of a worker.
_SETTLES_S: Final = 0.1


def check_callback(what: str, function: object) -> None:
    """Raise :class:`InvalidArgumentError` for what cannot be called, and for coroutine functions."""
    check_function(what, function)


def call_back(what: str, function: Callable[..., object], *arguments: object) -> None:
    """Call; what it raises is logged, and that it returned what nobody awaits."""
    try:
        refuse_awaitable(what, function(*arguments))
    except Exception:
        logger.exception("%s failed", what)


class Worker:
    """A thread that works beside its owner until the work is done; it keeps no program from ending."""

    __slots__ = ("_thread",)

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=work, name=name, daemon=True)

    def start(self) -> None:
        """Begin. Raises :class:`BusyError` if the system has no room for a thread. After any other exception it may
        work, or never will: its owner must end.
        """
        thread_locks.start(self._thread)

    def stop(self) -> None:
        """Nobody can stop a thread: it looks at a flag by itself."""

    def settle(self) -> None:
        """Nothing that it sends follows what is sent next, unless it is this worker that asks.

        It was told to end, and that takes longer only while it waits for an answer; what it asked has left before then.
        """
        if not self.is_current:
            self._thread.join(_SETTLES_S)

    @property
    def is_current(self) -> bool:
        """Whether it is this worker that asks."""
        return self._thread is threading.current_thread()
