"""Looks who the peers are while nobody asks for anything."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING

from raft_client import thread_locks
from raft_client.core.calls import GetConfig
from raft_client.errors import RaftError
from raft_client.thread_locks import Flag

if TYPE_CHECKING:
    from raft_client.settings import RaftSettings
    from raft_client.sync.engine import Engine


class Heartbeat:
    """A thread, if the settings want one. It ends with the client, also when nobody closes that."""

    def __init__(self, settings: RaftSettings, engine: Engine) -> None:
        self._settings = settings
        self._engine = weakref.ref(engine)
        self._stopped = Flag()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._settings.heartbeat is not None and self._thread is None:
            thread = threading.Thread(target=self._run, name="raft heartbeat", daemon=True)
            thread_locks.start(thread)
            self._thread = thread

    def stop(self) -> None:
        """It asks nothing more; one question may be under way."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._settings.heartbeat):
            engine = self._engine()
            if engine is None:
                return
            try:
                with contextlib.suppress(RaftError):  # whoever asks for something will find out by himself
                    engine.call(GetConfig(self._settings.ident), timeout=self._settings.request_timeout)
            finally:
                del engine
