"""Calls of the user's functions, in tasks of the client: plain ones are called, coroutine functions awaited as well."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from statestore_client.aio.tasks import Tasks

__all__ = ["Calls", "call_back", "finish"]

logger = logging.getLogger("statestore_client")


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
