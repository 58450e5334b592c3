"""What a peer's node wants on the disk, done beside everything else, in threads of its own."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol

from raft_client.server.node.ready import StoredLog

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from raft_client.server.node.ready import Persist, SnapshotMeta
    from raft_client.server.runtime.storage.snapshots import SnapshotWriter

#: Upper bounds of the classes in which jobs are counted by their time, in seconds; the last class has none.
SYNC_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class Storage(StoredLog, Protocol):
    """A log that can be written, as :class:`~raft_client.server.runtime.storage.disk_log.DiskLog` is."""

    def write(self, persist: Persist) -> None:
        """Take a job, in the loop's thread; it can be read from now on. Raises StorageError."""
        ...

    def sync(self) -> None:
        """Do the job that was taken, in any thread; it is durable then. Raises StorageError."""
        ...

    def forget_requests(self, before_s: float, up_to: int = 0) -> None:
        """Request ids made before that time (seconds since 1970) are taken no more, and need not be known; nor need
        those of the entries up to ``up_to``.
        """
        ...

    def newest_request_s(self) -> float:
        """When the newest request id was made (seconds since 1970), or a time before that; minus infinity for none."""
        ...

    @property
    def wants_reading(self) -> bool:
        """Whether :meth:`read_ahead` has something to do."""
        ...

    def read_ahead(self) -> None:
        """Read, in any thread, what the node waits for, so that the system has it in memory."""
        ...

    @property
    def wants_maintenance(self) -> bool:
        """Whether :meth:`maintain` has something to do."""
        ...

    def maintain(self) -> None:
        """Do what can wait, in any thread, beside everything else. Raises StorageError."""
        ...

    def snapshot_pieces(self) -> Generator[bytes]:
        """The newest snapshot, also if another one takes its place meanwhile; close it. Raises StorageError."""
        ...

    def new_snapshot(self) -> SnapshotWriter:
        """Begin a snapshot of this peer's own state machine. Raises BusyError if one is being made, StorageError."""
        ...

    def abort_snapshot(self) -> None:
        """Give up the one that was begun; nobody may write to it any more."""
        ...

    def compact(self, meta: SnapshotMeta) -> None:
        """The snapshot that was finished takes the place of the entries before it; while no job is under way."""
        ...

    def close(self) -> None:
        """Give the directory back."""
        ...


class SyncTimes:
    """How long the jobs of a disk took: how many in each class, and together."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(SYNC_BOUNDS_S) + 1)
        self.sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """One job is done."""
        self.counts[bisect_left(SYNC_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


class DiskWorker:
    """One job at a time. A stalled disk holds up its own thread, not the heartbeats."""

    def __init__(
        self,
        storage: Storage,
        loop: asyncio.AbstractEventLoop,
        done: Callable[[Exception | None], None],
        was_read: Callable[[Exception | None], None],
    ) -> None:
        """Both are called in the loop's thread, with what went wrong or None."""
        self.sync_times: SyncTimes = SyncTimes()
        self._storage = storage
        self._loop = loop
        self._done = done
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix="raft-disk")
        self._maintenance = ThreadPoolExecutor(1, thread_name_prefix="raft-disk-maintenance")
        self._maintains = False
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="raft-disk-reading")
        self._was_read = was_read
        self._reads = False
        #: Whether no job is under way.
        self.is_idle: bool = True

    def begin(self, persist: Persist) -> None:
        """Take the job; ``done`` tells when it is durable. Raises StorageError."""
        self._storage.write(persist)
        self.is_idle = False
        self._jobs.submit(self._do, self._sync, self._synced)
        if self._storage.wants_maintenance and not self._maintains:
            self._maintains = True
            self._maintenance.submit(self._do, self._storage.maintain, self._maintained)

    def read_ahead(self) -> None:
        """Start the thread that reads for the loop, if the node wants anything and it does not run."""
        if self._storage.wants_reading and not self._reads:
            self._reads = True
            self._reading.submit(self._do, self._storage.read_ahead, self._has_read)

    def run_in_background(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        """Do this in the thread for what can wait; ``done`` is called in the loop's thread."""
        self._maintenance.submit(self._do, work, done)

    def _sync(self) -> None:
        began = time.monotonic()
        self._storage.sync()
        self.sync_times.add(time.monotonic() - began)

    def _do(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        error: Exception | None = None
        try:
            work()
        except Exception as failed:  # noqa: BLE001  # whatever it is, it is not done, and the loop must hear of it
            error = failed
        self._loop.call_soon_threadsafe(done, error)

    def _synced(self, error: Exception | None) -> None:
        self.is_idle = True
        self._done(error)

    def _has_read(self, error: Exception | None) -> None:
        self._reads = False
        self._was_read(error)

    def _maintained(self, error: Exception | None) -> None:
        self._maintains = False
        if error is not None:
            self._done(error)

    async def close(self) -> None:
        """Wait for what runs."""
        for threads in (self._jobs, self._maintenance, self._reading):
            await asyncio.to_thread(threads.shutdown)
