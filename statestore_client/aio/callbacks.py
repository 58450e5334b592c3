"""Calls of the user's functions, in tasks of the client: plain ones are called, coroutine functions awaited as well.

The tasks belong to the client: none of them outlives it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from statestore_client.core.arguments import check_function

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


class Calls:
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
