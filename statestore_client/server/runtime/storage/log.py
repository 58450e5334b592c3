"""The log in front of the tables: a batch is one row of it, whatever is in the batch.

Most records live for milliseconds: a message is written, delivered and acknowledged. To insert each of them into the
table of its stream and to delete it there costs more than all else that the broker does for the message. So a batch is
appended to the log as it is, and the log is folded into the tables when it has become long: what came and went in the
meantime then leaves only its removal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statestore_client.server.journal import Changes, DamagedRecordError, Stream, seal, unseal
from statestore_client.server.runtime.storage.tables import apply, transaction

if TYPE_CHECKING:
    import sqlite3

    from statestore_client.server.journal import Batch, Subject

__all__ = ["Log"]

#: Subjects and bytes in the log, above which it is folded. To read as much again takes a start a tenth of a second.
_MOST_SUBJECTS: Final = 65_536
_MOST_BYTES: Final = 16 * 1024 * 1024


class Log:
    """Belongs to one thread at a time.

    Invariant: the tables with ``_latest`` on top of them are what the batches come to, and ``_latest`` is what the rows
    of the log come to. After an error, neither holds: nothing may be appended or folded any more.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Fold what a process left that was killed. Raises DamagedRecordError, and what sqlite raises."""
        self._connection = connection
        self._latest: dict[Stream, dict[Subject, bytes | None]] = {stream: {} for stream in Stream}
        self._bytes = 0
        for number, data in connection.execute("SELECT number, value FROM log ORDER BY number"):
            try:
                for name, puts, removals in unseal(data):
                    self._note(Changes(Stream(name), puts, removals))
            except (DamagedRecordError, TypeError, ValueError) as error:
                raise DamagedRecordError(f"batch {number} of the log: {error}") from error
        self.fold()

    @property
    def is_long(self) -> bool:
        """Whether to :meth:`fold` it."""
        return self._bytes > _MOST_BYTES or sum(map(len, self._latest.values())) > _MOST_SUBJECTS

    def append(self, batch: Batch) -> None:
        """Make a batch durable: by one statement, which is a transaction. A very large one goes into the tables at
        once, instead of to the disk twice; sqlite has a limit for one value, too.
        """
        size = sum(len(data) for changes in batch.changes for _, data in changes.puts)
        for changes in batch.changes:
            self._note(changes)
        if size > _MOST_BYTES:
            self.fold()
            return
        data = seal([(each.stream.value, each.puts, each.removals) for each in batch.changes])
        self._connection.execute("INSERT INTO log VALUES (NULL, ?)", (data,))
        self._bytes += len(data)

    def fold(self) -> None:
        """Bring the tables up to date, and empty the log."""
        if not any(self._latest.values()):
            return
        with transaction(self._connection):
            for stream, latest in self._latest.items():
                puts = tuple((subject, data) for subject, data in latest.items() if data is not None)
                removals = tuple(subject for subject, data in latest.items() if data is None)
                apply(self._connection, Changes(stream, puts, removals))
            self._connection.execute("DELETE FROM log")
        for latest in self._latest.values():
            latest.clear()
        self._bytes = 0

    def _note(self, changes: Changes) -> None:
        latest = self._latest[changes.stream]
        latest.update(changes.puts)
        latest.update(dict.fromkeys(changes.removals))
