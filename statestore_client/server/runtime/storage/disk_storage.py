"""The log-structured store in a data directory, in a thread."""

from __future__ import annotations

import gc
import os
import queue
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from statestore_client.errors import DataDirectoryError
from statestore_client.server.journal import Journal
from statestore_client.server.runtime.clock import monotonic_origin
from statestore_client.server.runtime.observability.logs import LOGGER
from statestore_client.server.runtime.storage.directory import (
    DirectoryLock,
    check_finished,
    check_ours,
    open_folder,
    refusals,
)
from statestore_client.server.runtime.storage.group_commit import GroupCommit
from statestore_client.server.runtime.storage.log_store import LogStore

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from statestore_client.server.journal import Done, StoredRecords, Stream, Subject, WriteBatch
    from statestore_client.server.runtime.clock import Clock
    from statestore_client.server.service.service import StateStoreService
    from statestore_client.wire.instant import Instant

# -- disk --------------------------------------------------------------------------------------------------------------
#
# Opens a data directory for a server, fills the machines from it, and closes it.


class Restored(Protocol):
    """What has records of its own beside those of the state store."""

    def restore(self, storage: StoredRecords, now: Instant) -> None:
        """Take what was written down in an earlier life. Raises DamagedRecordError."""


class Disk:
    """A data directory of one server, for one life of it."""

    def __init__(self, directory: str | os.PathLike[str], clock: Clock, failed: Callable[[Exception], None]) -> None:
        """Nothing is touched before :meth:`open`."""
        self.journal: Journal = Journal(monotonic_origin())
        self._directory = directory
        self._clock = clock
        self._failed = failed
        self._storage: DiskStorage | None = None
        self._is_loaded = False
        self._group_commit: GroupCommit | None = None

    def open(self, broker: Restored, service: StateStoreService, loop: asyncio.AbstractEventLoop) -> GroupCommit:
        """Read everything. Raises DataDirectoryError and its kinds."""
        check_finished(Path(self._directory))
        self._storage = storage = DiskStorage(self._directory)
        try:
            now = self._clock()
            with refusals(Path(self._directory)), _without_collections():
                self.journal.resume(storage, now)
                service.restore(storage, self.journal.timeline)
                broker.restore(storage, now)
        except BaseException:
            self.close()
            raise
        self._is_loaded = True
        self._group_commit = GroupCommit(self.journal, storage, self._clock, loop, self._failed)
        return self._group_commit

    def close(self) -> None:
        """Write what is left, and let go of the directory. Safe to call twice."""
        storage, self._storage = self._storage, None
        if storage is None:
            return
        if self._group_commit is not None:
            self._group_commit.close()
        if self._is_loaded:
            storage.append(self.journal.cut(self._clock()), _log_failure)
        storage.close()


def _log_failure(error: Exception | None) -> None:
    if error is not None:
        LOGGER.error("the last changes were not written: %s", error)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Hundreds of thousands of new objects, none of them garbage: nothing to look for, nor when collections go on."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # else they would thaw what somebody else froze
            gc.freeze()
            gc.unfreeze()  # both together: what is new counts as old
        if was_enabled:
            gc.enable()


# -- disk storage ------------------------------------------------------------------------------------------------------


_IDENTITY_BYTES: Final = 16

#: Without a batch for this long, nobody waits.
_QUIET_S: Final = 0.2


class DiskStorage:
    """Implements :class:`~statestore_client.server.journal.StreamStorage`. Errors are DataDirectoryErrors.

    After a batch that failed, all others fail, too: what depends on it must not become durable without it.
    """

    def __init__(self, directory: str | os.PathLike[str], *, create: bool = True) -> None:
        """Open and lock the directory, and make it if need be."""
        self._path = Path(directory)
        with refusals(self._path):
            folder = open_folder(self._path, create=create)
            check_ours(self._path)
            self._lock = DirectoryLock(self._path, folder)
            try:
                self._lock.check(folder)
                self._store = LogStore(folder, os.urandom(_IDENTITY_BYTES))
                try:
                    self._lock.note_data()
                except BaseException:
                    self._store.close()
                    raise
            except BaseException:
                self._lock.close()
                raise
        self._queue: queue.SimpleQueue[tuple[WriteBatch, Done] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: DataDirectoryError | None = None
        self._is_closed = False

    def load(self, stream: Stream) -> Iterator[tuple[Subject, bytes]]:
        with refusals(self._path):
            yield from self._store.load(stream)

    def append(self, batch: WriteBatch, done: Done) -> None:
        if self._thread is None:
            self._store.forget()
            thread = threading.Thread(target=self._run, name="statestore-disk", daemon=True)
            thread.start()
            self._thread = thread
        self._queue.put((batch, done))

    def write(self, batch: WriteBatch) -> None:
        """The same, in this thread and before the first :meth:`append`. Raises DataDirectoryError."""
        self._try(partial(self._append, batch))
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        failure = self._error
        self._try(self._finish)
        if self._error is not failure:
            LOGGER.error("%s", self._error)
        self._store.close()
        self._lock.close()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._next()) is not None:
            batch, done = item
            before = self._store.log_bytes
            self._try(partial(self._append, batch))
            done(self._error)
            if self._error is None and self._store.wants_work:
                self._try(partial(self._work, self._store.log_bytes - before))

    def _next(self) -> tuple[WriteBatch, Done] | None:
        """While there is nothing to write, what is over is cleared away, a little at a time."""
        while self._error is None and self._store.wants_work_when_quiet:
            try:
                return self._queue.get(timeout=0 if self._store.wants_work else _QUIET_S)
            except queue.Empty:
                self._try(self._work)
        return self._queue.get()

    def _append(self, batch: WriteBatch) -> None:
        self._check_lock()
        self._store.append(batch)
        self._check_place()

    def _work(self, appended: int = 0) -> None:
        self._check_lock()
        lacked_room = self._store.lacks_room
        self._store.work(appended)
        if self._store.lacks_room and not lacked_room:
            LOGGER.warning(
                "the disk with the data directory %s has no room for a new database without what is over, so the "
                "log of the directory grows. Free as much room as the directory takes, and start again.",
                self._path,
            )

    def _finish(self) -> None:
        self._store.finish()
        self._check_place()

    def _check_lock(self) -> None:
        """Before something is written: another server may have these files by now."""
        if not self._lock.is_in_place:
            raise self._removed()

    def _check_place(self) -> None:
        """After something was written, and before it counts."""
        if not (self._lock.is_in_place and self._store.is_in_place):
            raise self._removed()

    def _removed(self) -> DataDirectoryError:
        return DataDirectoryError(
            f"files in the data directory {self._path} were removed or replaced while it was in use: what was "
            "written does not survive. Restore it from a backup."
        )

    def _try(self, action: Callable[[], None]) -> None:
        """Unless something failed before."""
        if self._error is not None:
            return
        try:
            with refusals(self._path):
                action()
        except DataDirectoryError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing may count as durable any longer
            self._error = DataDirectoryError(f"writing to {self._path} failed: {error!r}")
