"""What a calling task sleeps on."""

from __future__ import annotations

import asyncio
from typing import Any

from raft_client.errors import BusyError, RaftError


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


class BatchSlot:
    """One position of a :class:`BatchWaiter`."""

    __slots__ = ("_position", "batch")

    def __init__(self, batch: BatchWaiter, position: int) -> None:
        self.batch: BatchWaiter = batch
        self._position = position

    def resolve(self, result: object) -> None:
        self.batch.settle(self._position, result)

    def reject(self, error: RaftError) -> None:
        self.batch.settle(self._position, error)
