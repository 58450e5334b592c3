"""The tasks that a client owns: none of them outlives it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

__all__ = ["Tasks"]

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
