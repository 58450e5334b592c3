"""Batches into sqlite, one transaction each, in a thread.

Statements take many rows at a time. sqlite lets go of Python's lock while a statement runs, and waits to have it back
for as long as the event loop is busy, which may be milliseconds: once per statement, so there should be few of them.
"""

from __future__ import annotations

import queue
import threading
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from statestore_client.errors import DataDirectoryError
from statestore_client.server.runtime.storage.database import open_database, refusals

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from statestore_client.server.journal import Batch, Changes, Done, Stream, Subject

__all__ = ["SqliteStorage"]

_Row = TypeVar("_Row")

#: Rows in one statement; powers of two below it for the rest, so that sqlite has all of them prepared.
_ROWS: Final = 4096


class SqliteStorage:
    """Implements :class:`~statestore_client.server.journal.StreamStorage`. Errors are DataDirectoryErrors.

    After a batch that failed, all others fail, too: what depends on it must not become durable without it.
    """

    def __init__(self, directory: str | os.PathLike[str], *, create: bool = True) -> None:
        """Open and lock the directory, and make it if need be."""
        self._path = Path(directory)
        self._connection = open_database(directory, create=create)
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
        """The same, in this thread; for programs that do nothing else. Raises DataDirectoryError."""
        with refusals(self._path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for changes in batch.changes:
                    self._apply(changes)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        self._connection.close()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            batch, done = item
            if self._error is None:
                try:
                    self.write(batch)
                except DataDirectoryError as error:
                    self._error = error
                except Exception as error:  # noqa: BLE001 - whatever it is, nothing may count as durable any longer
                    self._error = DataDirectoryError(f"writing to {self._path} failed: {error!r}")
            done(self._error)

    def _apply(self, changes: Changes) -> None:
        name = changes.stream.value
        for rows in _slices(changes.puts):
            places = ",".join(("(?,?)",) * len(rows))
            statement = f"INSERT OR REPLACE INTO {name} VALUES {places}"  # noqa: S608 - ours
            self._connection.execute(statement, tuple(chain.from_iterable(rows)))
        for subjects in _slices(changes.removals):
            places = ",".join("?" * len(subjects))
            self._connection.execute(f"DELETE FROM {name} WHERE subject IN ({places})", subjects)  # noqa: S608 - ours


def _slices(rows: tuple[_Row, ...]) -> Iterator[tuple[_Row, ...]]:
    """Slices whose lengths are powers of two, the longest first."""
    start, size = 0, _ROWS
    while start < len(rows):
        while size > len(rows) - start:
            size //= 2
        yield rows[start : start + size]
        start += size
