"""What a calling task sleeps on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, Final

from statestore_client.clocks import monotonic
from statestore_client.errors import BusyError, StateStoreError


class Waiter(asyncio.Future[Any]):
    """One outcome for one calling task; the first one counts."""

    __slots__ = ()

    def resolve(self, result: object) -> None:
        # The caller may have been cancelled in this very turn of the loop; one whose loop is closed waits no more.
        if not self.done() and not self.get_loop().is_closed():
            self.set_result(result)

    def reject(self, error: StateStoreError) -> None:
        if not self.done() and not self.get_loop().is_closed():
            self.set_exception(error)

    async def wait(self, timeout: float | None) -> bool:
        """Whether the outcome came within ``timeout`` seconds; raises it if it is an error. Later ones reach nobody."""
        try:
            await asyncio.wait([self], timeout=timeout)
            if self.done():
                self.result()
                return True
            return False
        finally:
            if not self.cancel() and not self.cancelled():
                self.exception()  # the caller may have been cancelled in the very turn in which it came


async def pause(seconds: float) -> None:
    """Let this much time pass; others have a turn at least."""
    await asyncio.sleep(seconds)


class Mutex:
    """Held by one task at a time; the others wait for it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def within(self, timeout: float | None, too_late: Callable[[], Exception]) -> AsyncIterator[None]:
        """For an ``async with`` statement that raises ``too_late()`` if it cannot be had within so many seconds.

        None waits for ever, and 0 tries once.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._lock.acquire()
        except TimeoutError:
            raise too_late() from None
        try:
            yield
        finally:
            self._lock.release()

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class OneCaller:
    """Held by one task. A second one is not made to wait: it gets a :class:`BusyError` with this message."""

    __slots__ = ("_is_held", "_refusal")

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        self._is_held = False

    def __enter__(self) -> None:
        if self._is_held:
            raise BusyError(self._refusal)
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False


class OneReader(OneCaller):
    """Held while a task reads. A second one is told at once: each would get a part of what there is to read."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("another task reads here at this moment; give each reader one of its own")


class Guard(nullcontext[None]):
    """What threads do one at a time. Tasks do one thing at a time anyway, up to where they wait."""


def _set(event: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop of a task that waits is closed; by then the event is set
        asyncio.Event.set(event)


class Flag(asyncio.Event):
    """Something that happens once, and that tasks may wait for."""

    def set(self) -> None:
        """It happens. Also where the loop of those that wait is closed, who will never hear of it."""
        _set(self)

    async def wait_for(self, seconds: float) -> bool:
        """Whether it happens within this many seconds."""
        try:
            async with asyncio.timeout(seconds):
                return await self.wait()
        except TimeoutError:
            return False


class Bell(asyncio.Event):
    """Wakes the task that waits for something new. ``lock`` is held by whoever changes, or looks at, what is new.

    It guards nothing: tasks take turns only where they wait.
    """

    lock: Final = Guard()

    def ring(self) -> None:
        """Wake the one that waits, or the next one to wait."""
        _set(self)

    async def wait_until(self, deadline: float | None) -> bool:
        """Until it rings. False once the deadline (monotonic seconds, None: never) has passed: look for a last time.

        Also then the loop makes a turn: whoever only looks, again and again, lets in what there is to be seen.
        """
        self.clear()
        if deadline is None:
            return await self.wait()
        try:
            async with asyncio.timeout(max(0.0, deadline - monotonic())):
                return await self.wait()
        except TimeoutError:
            return False


class Batch:
    """Many outcomes for one calling task, which is woken when room for more requests has come, not for each."""

    __slots__ = ("_room", "low_water", "outcomes", "outstanding")

    def __init__(self) -> None:
        self.outcomes: list[object] = []
        self.outstanding: int = 0
        self.low_water: int = 0  # it is woken when so many are outstanding, and at the end
        self._room = asyncio.Event()

    def slot(self) -> BatchSlot:
        """The waiter of the next request."""
        self.outcomes.append(None)
        self.outstanding += 1
        return BatchSlot(self, len(self.outcomes) - 1)

    def settle(self, position: int, outcome: object) -> None:
        self.outcomes[position] = outcome
        self.outstanding -= 1
        if self.outstanding in (self.low_water, 0):
            self._room.set()

    async def wait(self, at_most: int) -> None:
        """Wait until at most this many requests are without an outcome."""
        while self.outstanding > at_most:
            self._room.clear()
            await self._room.wait()


class BatchSlot:
    """One position of a :class:`Batch`."""

    __slots__ = ("_position", "batch")

    def __init__(self, batch: Batch, position: int) -> None:
        self.batch: Batch = batch
        self._position = position

    def resolve(self, result: object) -> None:
        self.batch.settle(self._position, result)

    def reject(self, error: StateStoreError) -> None:
        self.batch.settle(self._position, error)
