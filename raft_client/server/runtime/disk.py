"""What a peer's node wants on the disk, written and synced beside everything else, in a thread of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from raft_client.server.node.stored_log import StoredLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from raft_client.server.node.ready import Persist

__all__ = ["DiskWorker", "Storage"]


class Storage(StoredLog, Protocol):
    """A log that can be written. ``write`` runs in the loop's thread, ``sync`` in any one, while the log is read."""

    def write(self, persist: Persist) -> None:
        """Take a job; it can be read from now on, and is durable after :meth:`sync`. Raises StorageError."""
        ...

    def sync(self) -> None:
        """Return when what was written is durable. Raises StorageError; then nothing more can be written."""
        ...

    def close(self) -> None:
        """Give the directory back."""
        ...


class DiskWorker:
    """One job at a time. A stalled disk holds up its own thread, not the heartbeats."""

    def __init__(
        self, storage: Storage, loop: asyncio.AbstractEventLoop, done: Callable[[Exception | None], None]
    ) -> None:
        """``done`` is called in the loop's thread, with what went wrong or None."""
        self._storage = storage
        self._loop = loop
        self._done = done
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="raft-disk")
        self.is_busy = False

    def begin(self, persist: Persist) -> None:
        """Write the job; ``done`` tells when it is durable. Raises StorageError."""
        self.is_busy = True
        self._storage.write(persist)
        self._thread.submit(self._sync)

    def _sync(self) -> None:
        error: Exception | None = None
        try:
            self._storage.sync()
        except Exception as failed:  # noqa: BLE001  # whatever it is, the job is not durable, and the loop must hear
            error = failed
        self._loop.call_soon_threadsafe(self._finish, error)

    def _finish(self, error: Exception | None) -> None:
        self.is_busy = False
        self._done(error)

    async def close(self) -> None:
        """Wait for the job that runs, if there is one."""
        await asyncio.to_thread(self._thread.shutdown)
