"""Machines that follow the log of another server, batch by batch, and take its place.

Keys, answers, retained messages and sessions are in the machines at once: there may be a million, and a server that
takes over has no time to read them. Of what sessions are to get only the records are kept: they change with each
message, and mean something only together, so they become deliveries when this server takes over.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol

from statestore_client.server.journal import ALL_STREAMS, Changes, Stream, StreamTables, WriteBatch, seal
from statestore_client.wire.instant import Instant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.server.journal import Journal, Row, StoredRecords, Subject, Timeline
    from statestore_client.server.service.service import StateStoreService


class Machine(Protocol):
    """What has records of its own beside those of the state store: a broker, or the host of a store on another one."""

    def absorb(self, batch: WriteBatch, timeline: Timeline) -> None:
        """Follow another one, which wrote this. Raises DamagedRecordError."""

    def rows(self) -> Iterator[Row]:
        """What is written of it, but for what comes from the records that it is restored from."""

    def restore(self, storage: StoredRecords, now: Instant, *, is_warm: bool = False) -> None:
        """Take what was written in an earlier life, or was not absorbed. Raises DamagedRecordError."""


# -- rows --------------------------------------------------------------------------------------------------------------
#
# All rows of a server's state, a few at a time, while it goes on: what a snapshot in the log is made of.
#
# Nobody stands still for a snapshot, and there is no copy of the machines. Each row is as it is when its turn comes. It
# need not be the one that there was at the beginning: whatever has changed since is in a batch of the log, and a reader
# takes the row from there (:mod:`statestore_client.server.cluster.snapshots`).
#
# So a row may only come here when what it is made of is in the log. A standby has nothing else. A server that is active
# has changes that wait for a batch, or for the log to take their batch. Rows that wait are left out, because a reader
# gets them with that batch, and so are those that were removed; and the snapshot does not end before all that waited
# then is in the log: otherwise that batch might never come, and the row that was there before would be missing.


_OF_MACHINES: Final = frozenset((Stream.KEYS, Stream.RESPONSES, Stream.RETAINED))

#: Rows that are looked at in one go, and their bytes: a millisecond.
_MOST_ROWS: Final = 200
_MOST_BYTES: Final = 64 * 1024


class StateRows:
    """Of these machines; ``tables`` have the rows of all streams that the machines cannot give. A server that is active
    says which batch it has :meth:`appended` to the log, one at a time, and when it is :meth:`written`.
    """

    def __init__(self, journal: Journal, service: StateStoreService, broker: Machine) -> None:
        self._journal = journal
        self._service = service
        self._broker = broker
        self.tables: Final = StreamTables(stream for stream in ALL_STREAMS if stream not in _OF_MACHINES)
        self._in_flight: WriteBatch | None = None
        self._subjects: frozenset[tuple[Stream, Subject]] = frozenset()  # of the batch in flight
        self._written = 0

    def appended(self, batch: WriteBatch) -> None:
        """This batch was cut, and is on its way into the log."""
        self._in_flight, self._subjects = batch, batch.subjects()

    def written(self) -> None:
        """It is in the log."""
        if self._in_flight is None:
            raise RuntimeError("no batch is on its way: see appended()")
        self.tables.absorb(self._in_flight)
        self._in_flight, self._subjects = None, frozenset()
        self._written += 1

    def in_turn(self) -> Iterator[WriteBatch]:
        """All rows, in batches without removals, some of them empty. Anything may happen between two of them. When it
        begins, no batch is on its way.
        """
        puts: dict[Stream, list[tuple[Subject, bytes]]] = {}
        count = size = 0
        for stream, subject, record in chain(self._service.rows(), self._broker.rows(), self._rows_of_tables()):
            count += 1
            if isinstance(record, bytes):  # in the log, as all of the tables
                sealed = record
            elif record is None or self._waits(stream, subject):
                sealed = b""
            else:
                sealed = seal(stream, subject, record.fields(self._journal.timeline))
            if sealed:
                puts.setdefault(stream, []).append((subject, sealed))
                size += len(sealed)
            if count >= _MOST_ROWS or size >= _MOST_BYTES:
                yield _batch(puts)
                puts.clear()
                count = size = 0
        yield _batch(puts)
        enough = self._written + (self._in_flight is not None) + bool(self._journal)
        while self._written < enough:
            yield WriteBatch(())

    def _waits(self, stream: Stream, subject: Subject) -> bool:
        return self._journal[stream].is_changed(subject) or (stream, subject) in self._subjects

    def _rows_of_tables(self) -> Iterator[tuple[Stream, Subject, bytes | None]]:
        for stream, records in self.tables.streams.items():
            for subject in [*records]:
                yield stream, subject, records.get(subject)


def _batch(puts: dict[Stream, list[tuple[Subject, bytes]]]) -> WriteBatch:
    return WriteBatch(tuple(Changes(stream, tuple(rows), ()) for stream, rows in puts.items()))


# -- standby -----------------------------------------------------------------------------------------------------------


class Standby:
    """Empty machines, which nobody else calls before :meth:`take_over`. Raises DamagedRecordError, after which they are
    of no use.
    """

    def __init__(self, journal: Journal, service: StateStoreService, broker: Machine, now: Instant) -> None:
        """The machines write into the ``journal``."""
        journal.follow(now)
        self._journal = journal
        self._service = service
        self._broker = broker
        #: For snapshots, also when this server is active.
        self.rows: Final = StateRows(journal, service, broker)
        self._tables = self.rows.tables

    def absorb(self, batch: WriteBatch) -> None:
        """The next batch; or rows of a snapshot, without those that a batch has touched since."""
        timeline = self._journal.timeline
        self._tables.absorb(batch)
        self._service.absorb(batch, timeline)
        self._broker.absorb(batch, timeline)

    def settle(self) -> None:
        """All rows of a snapshot are here."""
        self._service.settle()

    def take_over(self, timeline: Timeline, now: Instant) -> float:
        """The other server is gone; log time is that of ``timeline``. Returns by how many seconds the clock by which
        the machines are called from now on is ahead of the one of ``now``.
        """
        ahead_s = self._journal.take_over(timeline, now)
        self._service.go_on(self._tables, self._journal.timeline)
        self._broker.restore(self._tables, Instant(now.monotonic + ahead_s, now.wall_ms), is_warm=True)
        return ahead_s
