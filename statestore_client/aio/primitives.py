"""What a calling task sleeps on, and the tasks that call the user's functions.

Plain functions are called, coroutine functions awaited as well. The tasks belong to the client: none of them outlives
it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, Final

from statestore_client.clocks import monotonic
from statestore_client.core.arguments import check_function
from statestore_client.errors import BusyError, StateStoreError
from statestore_client.shell import BatchSlot


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


class ExclusiveUse:
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


class SingleReader(ExclusiveUse):
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


logger: logging.Logger = logging.getLogger("statestore_client")


class Tasks:
    """What a client does beside its callers: it connects, keeps leases, calls the user's functions."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._enders: set[asyncio.Task[Any] | None] = set()  # wait in end()

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Begin in a later turn of the loop, whatever task factory it has; what it raises is logged."""
        task = asyncio.Task(work, loop=asyncio.get_running_loop(), name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)

    async def end(self, patience: float) -> None:
        """Return when all have ended, except the calling one. One that takes longer than this (seconds) is cancelled.

        Of the client's own tasks, those that wait here as well do not wait for each other.
        """
        self._enders.add(asyncio.current_task())
        try:
            try:
                await self._wait(patience)
            finally:  # also if the caller is cancelled
                for task in self._others():
                    task.cancel()
            await self._wait(patience)
        finally:
            self._enders.discard(asyncio.current_task())

    async def _wait(self, seconds: float) -> None:
        if others := self._others():
            await asyncio.wait(others, timeout=seconds)

    def _others(self) -> set[asyncio.Task[Any]]:
        return self._running - self._enders if asyncio.current_task() in self._running else self._running


def check_callback(what: str, function: object) -> None:
    """Raise :class:`InvalidArgumentError` for what cannot be called; coroutine functions are welcome."""
    check_function(what, function, awaited=True)


async def call_back(what: str, function: Callable[..., object], *arguments: object) -> None:
    """Call, and await what is to be awaited; what it raises is logged."""
    try:
        outcome = function(*arguments)
    except Exception:
        logger.exception("%s failed", what)
    else:
        if inspect.isawaitable(outcome):
            await finish(what, outcome)


async def finish(what: str, outcome: Awaitable[object]) -> None:
    """Await the outcome of a call; what it raises is logged."""
    try:
        await outcome
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        logger.exception("%s was cancelled", what)  # something that it waited for was, and not this task
    except Exception:
        logger.exception("%s failed", what)


class CallbackQueue:
    """The calls of one function, in order: the next one begins when the one before has ended."""

    def __init__(self, what: str, function: Callable[..., object], tasks: Tasks) -> None:
        self._what = what
        self._function = function
        self._tasks = tasks
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._worker: asyncio.Task[None] | None = None

    def put(self, *arguments: object) -> None:
        """Call it with these, in a later turn of the loop."""
        self._waiting.append(arguments)
        if self._worker is None or self._worker.done():
            self._worker = self._tasks.start(self._work(), name=self._what)

    async def _work(self) -> None:
        while self._waiting:
            await call_back(self._what, self._function, *self._waiting.popleft())


class Worker:
    """A task of the client that works beside its owner until the work is done, or the client is closed."""

    __slots__ = ("_name", "_task", "_tasks", "_work")

    def __init__(self, tasks: Tasks, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._tasks = tasks
        self._work = work
        self._name = name
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in a later turn of the loop."""
        self._task = self._tasks.start(self._work(), name=self._name)

    def stop(self) -> None:
        """It does not take another step, unless it is this worker that asks."""
        if self._task is not None and not self.is_current and not self._task.get_loop().is_closed():
            self._task.cancel()

    def settle(self) -> None:
        """Nothing that it sends follows what is sent next: so it is once it was stopped."""

    @property
    def is_current(self) -> bool:
        """Whether it is this worker that asks."""
        return self._task is asyncio.current_task()
