"""What a calling task sleeps on."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from statestore_client.errors import BusyError, StateStoreError

__all__ = ["Batch", "BatchSlot", "OneReader", "Waiter", "wait"]


class Waiter(Protocol):
    """What a request is waited for with: a future, or a place in a batch."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, error: StateStoreError, /) -> None: ...


async def wait(future: asyncio.Future[object], timeout: float | None) -> bool:
    """Whether the outcome came within ``timeout`` seconds; raises it when it is an error. Later ones reach nobody."""
    try:
        await asyncio.wait([future], timeout=timeout)
        if future.done():
            future.result()
            return True
        return False
    finally:
        if not future.cancel() and not future.cancelled():
            future.exception()  # the caller may have been cancelled in the very turn in which it came


class OneReader:
    """Held while a task reads. A second one is told at once: each would get a part of what there is to read."""

    __slots__ = ("_is_held",)

    def __init__(self) -> None:
        self._is_held = False

    def __enter__(self) -> None:
        if self._is_held:
            raise BusyError("another task reads here at this moment; give each reader one of its own")
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False


class Batch:
    """Many outcomes for one calling task, which is woken when room for more requests has come, not for each."""

    __slots__ = ("_low_water", "_room", "outcomes", "outstanding")

    def __init__(self, low_water: int) -> None:
        self.outcomes: list[object] = []
        self.outstanding = 0
        self._low_water = low_water
        self._room = asyncio.Event()

    def slot(self) -> BatchSlot:
        """The waiter of the next request."""
        self.outcomes.append(None)
        self.outstanding += 1
        return BatchSlot(self, len(self.outcomes) - 1)

    def settle(self, position: int, outcome: object) -> None:
        self.outcomes[position] = outcome
        self.outstanding -= 1
        if self.outstanding in (self._low_water, 0):
            self._room.set()

    async def wait(self, at_most: int) -> None:
        """Wait until at most so many requests are without an outcome."""
        while self.outstanding > at_most:
            self._room.clear()
            await self._room.wait()


class BatchSlot:
    """One position of a :class:`Batch`."""

    __slots__ = ("_position", "batch")

    def __init__(self, batch: Batch, position: int) -> None:
        self.batch = batch
        self._position = position

    def done(self) -> bool:
        return False  # cancelling a batch takes its requests back first

    def set_result(self, result: object) -> None:
        self.batch.settle(self._position, result)

    def set_exception(self, error: StateStoreError) -> None:
        self.batch.settle(self._position, error)
