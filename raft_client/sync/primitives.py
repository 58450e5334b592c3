"""What is one thing among threads and another among tasks: waiting, workers, callbacks, listeners.

:mod:`raft_client.aio.primitives` has the same names. Outcomes are handed in inside the engine's section; anyone may
wake.

Invariant: an outcome may be handed in again, if an exception came in the middle of the first time: it wakes, no more.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

from raft_client import thread_locks
from raft_client.action_runner import BatchSlot
from raft_client.clocks import monotonic
from raft_client.core import arguments
from raft_client.core.requests import ConnectionState, StateChanged
from raft_client.errors import BusyError, RaftError
from raft_client.reports import LeaderListener, StateListener, calls_of, log_change
from raft_client.thread_locks import LONGEST_NAP_S, Mutex, Within, closed_gate


class ReadySignal:
    """A thread that is woken when what it waits for is there (``ready``), or when it has to read.

    A gate, closed while there is nothing to wake up for: an Event costs three times as much. And only for those who
    sleep: the one thread of many a program always reads.
    """

    __slots__ = ("_gate", "ready")

    def __init__(self) -> None:
        self._gate: threading.Lock | None = None  # noqa: TID251 - to sleep on, see closed_gate()
        self.ready: bool = False

    def prepare_sleep(self) -> None:
        """What :meth:`sleep` needs; ``ready`` is looked at after it, so that no outcome is missed."""
        if self._gate is None:
            self._gate = closed_gate()

    def wake(self) -> None:
        """Let the thread look again."""
        if self._gate is not None and self._gate.locked():
            with suppress(RuntimeError):  # another thread has woken it at this moment
                self._gate.release()

    def notify(self) -> None:
        """Say that there is something, and wake the thread."""
        self.ready = True
        self.wake()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until ``ready``, at most for this many seconds: for what another thread of the client does."""
        self.prepare_sleep()
        deadline = math.inf if timeout is None else monotonic() + timeout
        while not self.ready and (left := deadline - monotonic()) > 0.0:
            self.sleep(left)

    def sleep(self, timeout: float | None) -> None:
        """Sleep until somebody wakes this thread, or has since it last slept, or time is over; perhaps less."""
        assert self._gate is not None  # noqa: S101 - prepare_sleep() was called
        self._gate.acquire(timeout=LONGEST_NAP_S if timeout is None else min(max(0.0, timeout), LONGEST_NAP_S))


class Waiter(ReadySignal):
    """Waits for one outcome."""

    __slots__ = ("error", "result")

    def __init__(self) -> None:
        self._gate = None
        self.ready: bool = False
        self.result: Any = None
        self.error: RaftError | None = None

    def resolve(self, result: Any) -> None:
        self.result = result
        self.ready = True
        if self._gate is not None:
            self.wake()

    def reject(self, error: RaftError) -> None:
        self.error = error
        self.ready = True
        self.wake()


class StreamWaiter(Waiter):
    """One outcome, and before it any number of times something new in the call's own queue."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        super().__init__()
        self.is_over: bool = False

    def resolve(self, result: Any) -> None:
        self.is_over = True
        super().resolve(result)

    def reject(self, error: RaftError) -> None:
        self.is_over = True
        super().reject(error)


class OneReader(Within):
    """Held while a thread reads. A second one gets an error at once: of two that wait, one would not be woken.

    The thread itself may come again: a signal's handler.
    """

    __slots__ = ()

    def __init__(self) -> None:
        text = "another thread reads here at this moment; give each reader one of its own"
        super().__init__(Mutex(), 0.0, lambda: BusyError(text))


class Whole(Mutex):
    """Keeps readers out while several values change together. Never hold it while you wait."""

    __slots__ = ()


_PENDING: Final = object()


class BatchWaiter(ReadySignal):
    """Many outcomes for one calling thread, which is woken when there is room for more requests."""

    __slots__ = ("_at_most", "outcomes", "outstanding")

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[Any] = []
        self.outstanding: int = 0
        self._at_most = 0

    def slot(self) -> BatchSlot:
        """The waiter of the next request."""
        self.outcomes.append(_PENDING)
        self.outstanding += 1
        return BatchSlot(self, len(self.outcomes) - 1)

    def expect(self, at_most: int) -> None:
        """``ready`` means from now on that no more than this many requests are without an outcome."""
        self._at_most = at_most
        self.ready: bool = self.outstanding <= at_most

    def settle(self, position: int, outcome: object) -> None:
        if self.outcomes[position] is _PENDING:
            self.outcomes[position] = outcome
            self.outstanding -= 1
        if self.outstanding <= self._at_most:
            self.ready = True
            self.wake()


# -- the user's functions ----------------------------------------------------------------------------------------------


def check_callback(callback: object) -> None:
    """A function of one event, and not a coroutine function: nobody would await it. None without a callback."""
    arguments.check_callback(callback, may_await=False)


def call_back(function: Callable[..., object], *event: object) -> None:
    """Call; what it returns is of no interest."""
    function(*event)


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

    @property
    def is_current(self) -> bool:
        """Whether it is this worker that asks."""
        return self._thread is threading.current_thread()


# -- changes of the connection -----------------------------------------------------------------------------------------


logger: logging.Logger = logging.getLogger("raft_client")


class Listeners:
    """Listeners run in a thread of their own, so they may be slow, may fail and may use the client."""

    def __init__(
        self, seeds: Sequence[str], on_state: StateListener | None = None, on_leader: LeaderListener | None = None
    ) -> None:
        self._seeds: Final = seeds
        self._listeners: Final = (on_state, on_leader)
        #: What the log was not told yet. To be looked at: whoever finds something calls :meth:`log`.
        self.news: deque[StateChanged] = deque()
        self._queue: SimpleQueue[StateChanged | None] | None = None  # of the thread, once it runs

    def open(self) -> None:
        """The client is open: changes may come."""
        if self._queue is None and any(self._listeners):
            queue: SimpleQueue[StateChanged | None] = SimpleQueue()
            try:
                thread_locks.start(
                    threading.Thread(target=self._run, args=(queue,), name="raft listeners", daemon=True)
                )
            except BaseException:
                queue.put(None)  # it may run, and another one will be started
                raise
            self._queue = queue

    def note(self, change: StateChanged) -> None:
        """With the engine's lock held, so that everybody is told in the order in which things happened."""
        self.news.append(change)
        if self._queue is not None:
            self._queue.put(change)

    def log(self) -> None:
        """Without that lock: handlers of the log may do anything."""
        while self.news:
            try:
                change = self.news.popleft()
            except IndexError:  # another thread was quicker
                return
            log_change(self._seeds, change)

    def _run(self, queue: SimpleQueue[StateChanged | None]) -> None:
        while (change := queue.get()) is not None:
            for name, call in calls_of(change, *self._listeners):
                try:
                    call()
                except Exception:
                    logger.exception("the listener %s of a raft client failed", name)
            if change.state is ConnectionState.CLOSED:
                return
