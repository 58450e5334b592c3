"""Batches into sqlite, one transaction each, in a thread."""

from __future__ import annotations

import queue
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from statestore_client.errors import DataDirectoryError
from statestore_client.server.runtime.events import LOGGER
from statestore_client.server.runtime.storage.database import (
    DATABASE_NAME,
    close_database,
    log_path,
    open_database,
    refusals,
)
from statestore_client.server.runtime.storage.log import Log
from statestore_client.server.runtime.storage.tables import apply, transaction
from statestore_client.server.runtime.storage.watched_files import WatchedFiles

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from statestore_client.server.journal import Batch, Done, Stream, Subject

__all__ = ["SqliteStorage"]


class SqliteStorage:
    """Implements :class:`~statestore_client.server.journal.StreamStorage`. Errors are DataDirectoryErrors.

    After a batch that failed, all others fail, too: what depends on it must not become durable without it.
    """

    def __init__(self, directory: str | os.PathLike[str], *, create: bool = True) -> None:
        """Open and lock the directory, and make it if need be."""
        self._path = Path(directory)
        self._connection = open_database(directory, create=create)
        try:
            with refusals(self._path):
                self._files = WatchedFiles(self._path / DATABASE_NAME, log_path(self._path))
                self._files.committed()
                self._log = Log(self._connection)
        except BaseException:
            close_database(self._connection, self._path)
            raise
        self._queue: queue.SimpleQueue[tuple[Batch, Done] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: DataDirectoryError | None = None
        self._is_closed = False

    def load(self, stream: Stream) -> Iterator[tuple[Subject, bytes]]:
        order = " ORDER BY subject" if stream.is_numbered else ""
        with refusals(self._path):
            yield from self._connection.execute(f"SELECT subject, value FROM {stream.value}{order}")  # noqa: S608 - ours

    def append(self, batch: Batch, done: Done) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="statestore-disk", daemon=True)
            self._thread.start()
        self._queue.put((batch, done))

    def write(self, batch: Batch) -> None:
        """The same, in this thread and before the first :meth:`append`. Raises DataDirectoryError."""
        with refusals(self._path):
            with transaction(self._connection):
                for changes in batch.changes:
                    apply(self._connection, changes)
            self._files.committed()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        failure = self._error
        self._try(self._log.fold)  # if it fails, the next start does it
        if self._error is not failure:
            LOGGER.error("%s", self._error)
        self._files.close()
        if self._files.are_there:
            close_database(self._connection, self._path)
        else:
            self._connection.close()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            batch, done = item
            self._try(partial(self._log.append, batch))
            done(self._error)
            if self._log.is_long:
                self._try(self._log.fold)

    def _try(self, action: Callable[[], None]) -> None:
        """Unless something failed before."""
        if self._error is not None:
            return
        try:
            with refusals(self._path):
                action()
                self._files.committed()
        except DataDirectoryError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing may count as durable any longer
            self._error = DataDirectoryError(f"writing to {self._path} failed: {error!r}")
