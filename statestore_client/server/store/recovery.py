"""Keys, fencing marks and the clock from their records: all at once after a restart, or batch by batch while another
server writes them.

Both come to the same, because a record is the whole state of its subject. Nothing expires here: the removal of a key is
a change like others, which the server that writes has to make.
"""

from __future__ import annotations

from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Final

import attrs

from statestore_client.server.journal import TIME, DamagedRecordError, Stream, TimeRecord, load, records_in
from statestore_client.server.store.keyspace import Entry, Keyspace
from statestore_client.server.store.records import ClockRecord, KeyRecord
from statestore_client.server.store.survival import Kept, Survival

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.server.journal import Row, StoredRecords, Timeline, WriteBatch
    from statestore_client.server.store.localclock import LocalClock
    from statestore_client.server.timer_heap import TimerHeap
    from statestore_client.wire.hlc import HybridLogicalClock

__all__ = ["StoreRecovery"]

#: Keys that are looked at in one go.
_SOME: Final = 256


@attrs.frozen(eq=False)
class StoreRecovery:
    """Fills the parts of a store, and writes nothing down before :meth:`go_on`."""

    _keyspace: Keyspace
    _survival: Survival
    _expiries: TimerHeap[tuple[float, bytes]]
    _clock: HybridLogicalClock
    _local_clock: LocalClock

    def restore(self, storage: StoredRecords, timeline: Timeline) -> None:
        """All that there is. Raises DamagedRecordError."""
        try:
            for key, fields in load(storage, Stream.KEYS):
                self._put(key, KeyRecord.read(fields, timeline))
            for subject, fields in load(storage, Stream.CLOCK):
                self._resume(subject, fields, timeline)
        except (TypeError, ValueError) as error:
            raise _damaged(error) from error

    def absorb(self, batch: WriteBatch, timeline: Timeline) -> None:
        """What a batch has changed. Raises DamagedRecordError."""
        try:
            for changes in batch.changes:
                if changes.stream is Stream.KEYS:
                    for key in changes.removals:
                        if isinstance(key, bytes):
                            self._remove(key)
                    for key, fields in records_in(changes):
                        self._put(key, KeyRecord.read(fields, timeline))
                elif changes.stream is Stream.CLOCK:
                    for subject, fields in records_in(changes):
                        self._resume(subject, fields, timeline)
        except (TypeError, ValueError) as error:
            raise _damaged(error) from error

    def go_on(self, storage: StoredRecords, timeline: Timeline) -> None:
        """The server that wrote is gone, and this store is in use from now on. ``storage`` has the time of its last
        batch. Raises DamagedRecordError.
        """
        last = TimeRecord.last(storage)
        stopped_at = 0.0 if last is None else timeline.monotonic(last.log_ms) or 0.0
        for key, expires_at in self._survival.shorten_marks(stopped_at):
            self._reschedule(key, expires_at, self._survival.marks[key].expires_at)

    def rows(self) -> Iterator[Row]:
        """What is written of each key, as it is when the iterator comes to it. Keys may come and go in between: each
        that is there all the time comes.
        """
        keyspace, marks = self._keyspace, self._survival.marks
        some = [*islice(keyspace.keys_from(b"", inclusive=True), _SOME)]
        while some:
            for key in some:
                entry = keyspace.get(key)
                yield Stream.KEYS, key, None if entry is None else _kept(entry)
            some = [*islice(keyspace.keys_from(some[-1], inclusive=False), _SOME)]
        for key in [*marks]:
            mark = marks.get(key)
            yield Stream.KEYS, key, None if mark is None else mark.record()

    def _put(self, key: bytes, record: KeyRecord) -> None:
        before, entry = self._deadline(key), self._keyspace.get(key)
        value, after = record.value, record.expires_at
        if value is None:
            self._survival.restored_mark(key, record)
            if entry is not None:
                self._keyspace.remove(key)
        elif entry is None:
            self._survival.marks.pop(key, None)
            self._keyspace.add(key, Entry(value, record.version, record.fence, after, Kept.VALUE, record.user))
        else:
            self._keyspace.replace_value(key, entry, value, record.user)
            entry.version, entry.fence, entry.expires_at, entry.kept = record.version, record.fence, after, Kept.VALUE
        self._reschedule(key, before, inf if after is None else after)

    def _remove(self, key: bytes) -> None:
        before = self._deadline(key)
        self._survival.marks.pop(key, None)
        if self._keyspace.get(key) is not None:
            self._keyspace.remove(key)
        self._reschedule(key, before, inf)

    def _deadline(self, key: bytes) -> float:
        found = self._keyspace.get(key) or self._survival.marks.get(key)
        return inf if found is None or found.expires_at is None else found.expires_at

    def _reschedule(self, key: bytes, before: float, after: float) -> None:
        if before == after:
            return
        if before != inf:
            self._expiries.forget_one()
        if after != inf:
            self._expiries.add((after, key))

    def _resume(self, subject: bytes, fields: Any, timeline: Timeline) -> None:
        if subject != TIME:
            clock = ClockRecord.read(fields, timeline)
            self._clock.resume(clock.last)
            self._local_clock.resume(clock.ahead_ms)


def _kept(entry: Entry) -> KeyRecord | None:
    record = KeyRecord(entry.value, entry.version, entry.fence, entry.expires_at, entry.user)
    if entry.kept is Kept.NOTHING:
        return None
    return record if entry.kept is Kept.VALUE else record.mark()


def _damaged(error: Exception) -> DamagedRecordError:
    return DamagedRecordError(f"records of the state store: {error!r}")
