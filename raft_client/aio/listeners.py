"""Tells the log and the application of changes of the connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from raft_client.aio.callbacks import call_back
from raft_client.core.requests import ConnectionState, StateChanged
from raft_client.reports import LeaderListener, StateListener, calls_of, log_change

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
