"""What is one thing among tasks and another among threads: waiting, workers, callbacks, listeners.

:mod:`raft_client.sync.primitives` has the same names.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from raft_client.action_runner import BatchSlot
from raft_client.core import arguments
from raft_client.core.requests import ConnectionState, StateChanged
from raft_client.errors import BusyError, RaftError
from raft_client.reports import LeaderListener, StateListener, calls_of, log_change


class ReadySignal:
    """A task that is woken when what it waits for is there (``ready``)."""

    __slots__ = ("_future", "ready")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self.ready: bool = False

    def notify(self) -> None:
        """Say that there is something, and wake the task."""
        self.ready = True
        if self._future is not None and not self._future.done() and not self._future.get_loop().is_closed():
            self._future.set_result(None)

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until ``ready``, at most for this many seconds."""
        if not self.ready:
            self._future = asyncio.get_running_loop().create_future()
            if timeout is None:
                await self._future
            else:
                await asyncio.wait([self._future], timeout=timeout)


class Waiter:
    """Waits for one outcome."""

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()

    def resolve(self, result: Any) -> None:
        # The caller may have been cancelled in this very turn of the loop; one whose loop is closed waits no more.
        if not self.future.done() and not self.future.get_loop().is_closed():
            self.future.set_result(result)

    def reject(self, error: RaftError) -> None:
        if not self.future.done() and not self.future.get_loop().is_closed():
            self.future.set_exception(error)


class StreamWaiter(ReadySignal):
    """One outcome, and before it any number of times something new in the call's own queue."""

    __slots__ = ("error", "is_over")

    def __init__(self) -> None:
        super().__init__()
        self.error: RaftError | None = None
        self.is_over: bool = False

    def resolve(self, _result: Any) -> None:
        self.is_over = True
        self.notify()

    def reject(self, error: RaftError) -> None:
        self.error = error
        self.is_over = True
        self.notify()


class OneReader:
    """Held while a task reads. A second one is told at once: of two that wait, one would not be woken."""

    __slots__ = ("_is_held",)

    def __init__(self) -> None:
        self._is_held = False

    def __enter__(self) -> None:
        if self._is_held:
            raise BusyError("another task reads here at this moment; give each reader one of its own")
        self._is_held = True

    def __exit__(self, *_exception: object) -> None:
        self._is_held = False


class Whole:
    """Keeps readers out while several values change together. Never hold it while you wait."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Nobody else runs between two awaits."""

    def __exit__(self, *_exception: object) -> None:
        """As above."""


class BatchWaiter(ReadySignal):
    """Many outcomes for one calling task, which is woken when there is room for more requests."""

    __slots__ = ("_at_most", "outcomes", "outstanding")

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[Any] = []
        self.outstanding: int = 0
        self._at_most = 0

    def slot(self) -> BatchSlot:
        """The waiter of the next request."""
        self.outcomes.append(None)
        self.outstanding += 1
        return BatchSlot(self, len(self.outcomes) - 1)

    def expect(self, at_most: int) -> None:
        """``ready`` means from now on that no more than this many requests are without an outcome."""
        self._at_most = at_most
        self.ready: bool = self.outstanding <= at_most

    def settle(self, position: int, outcome: object) -> None:
        self.outcomes[position] = outcome
        self.outstanding -= 1
        if self.outstanding <= self._at_most:
            self.notify()


# -- the user's functions ----------------------------------------------------------------------------------------------


def check_callback(callback: object) -> None:
    """A function or coroutine function of one event. None without a callback."""
    arguments.check_callback(callback, may_await=True)


async def call_back(function: Callable[..., object], *event: object) -> None:
    """Call, and await what is to be awaited."""
    outcome = function(*event)
    if inspect.isawaitable(outcome):
        await outcome


class Worker:
    """A task that works beside its owner until the work is done."""

    __slots__ = ("_name", "_task", "_work")

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._work = work
        self._name = name
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in a later turn of the loop, whatever task factory it has."""
        self._task = asyncio.Task(self._work(), loop=asyncio.get_running_loop(), name=self._name)

    @property
    def is_current(self) -> bool:
        """Whether it is this worker that asks."""
        return self._task is asyncio.current_task()


# -- changes of the connection -----------------------------------------------------------------------------------------


logger: logging.Logger = logging.getLogger("raft_client")


class Listeners:
    """Listeners run in a task of their own, so they may wait, may fail and may use the client."""

    def __init__(
        self, seeds: Sequence[str], on_state: StateListener | None = None, on_leader: LeaderListener | None = None
    ) -> None:
        self._seeds: Final = seeds
        self._listeners: Final = (on_state, on_leader)
        self._queue: asyncio.Queue[StateChanged] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """The client is open: changes may come."""
        if self._task is None and any(self._listeners):
            self._task = asyncio.Task(self._run(), loop=asyncio.get_running_loop(), name="raft listeners")

    def note(self, change: StateChanged) -> None:
        """Tell the log, and the listeners in the order in which things happened."""
        log_change(self._seeds, change)
        if self._task is not None and not self._task.get_loop().is_closed():
            self._queue.put_nowait(change)

    async def _run(self) -> None:
        while True:
            change = await self._queue.get()
            for name, call in calls_of(change, *self._listeners):
                try:
                    await call_back(call)
                except Exception:
                    logger.exception("the listener %s of a raft client failed", name)
            if change.state is ConnectionState.CLOSED:
                return
