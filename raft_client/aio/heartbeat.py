"""Asks for the peers of the cluster while the client is idle."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import TYPE_CHECKING

from raft_client.core.calls import GetConfig
from raft_client.errors import RaftError

if TYPE_CHECKING:
    from raft_client.aio.engine import Engine
    from raft_client.settings import RaftSettings


class Heartbeat:
    """A task, if the settings want one. It ends with the client, also when nobody closes that."""

    def __init__(self, settings: RaftSettings, engine: Engine) -> None:
        self._settings = settings
        self._engine = weakref.ref(engine)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._settings.heartbeat is not None and self._task is None:
            self._task = asyncio.Task(
                self._run(self._settings.heartbeat), loop=asyncio.get_running_loop(), name="raft heartbeat"
            )

    def stop(self) -> None:
        """End the questions."""
        if self._task is not None and not self._task.get_loop().is_closed():
            self._task.cancel()

    async def _run(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            engine = self._engine()
            if engine is None:
                return
            try:
                with contextlib.suppress(RaftError):  # the next call will find that out
                    await engine.call(GetConfig(self._settings.ident), timeout=self._settings.request_timeout)
            finally:
                del engine
