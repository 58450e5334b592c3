"""Calls of the user's functions, in tasks of the client: plain ones are called, coroutine functions awaited as well."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from statestore_client.aio.tasks import Tasks
from statestore_client.core.arguments import check_function

__all__ = ["Calls", "Worker", "call_back", "check_callback", "finish"]

logger: logging.Logger = logging.getLogger("statestore_client")


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
