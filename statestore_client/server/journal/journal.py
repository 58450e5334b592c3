"""What changed since the last cut, by stream and subject.

Only the last state of a subject counts, so a record that is replaced or removed before the cut never reaches the disk.
Records are values, taken when the change happens; they become bytes at the cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import attrs

from statestore_client.server.journal.codec import seal
from statestore_client.server.journal.storage import Changes, WriteBatch
from statestore_client.server.journal.streams import ALL_STREAMS, Stream
from statestore_client.server.journal.timeline import TIME, Timeline, TimeRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore_client.server.journal.storage import StoredRecords
    from statestore_client.server.journal.streams import Subject
    from statestore_client.wire.instant import Instant

__all__ = ["Journal", "JournalStream", "Record", "Row"]

#: Bytes of records that wait for the disk, above which clients are not read any longer. A fast disk takes this in a
#: tenth of a second; a slow one must not fill the memory.
_MOST_BYTES: Final = 32 * 1024 * 1024

#: What a record holds beside its payload, roughly.
_RECORD_BYTES: Final = 256


class Record(Protocol):
    """A frozen value."""

    def fields(self, timeline: Timeline) -> Sequence[object]:
        """What goes to disk, deadlines in log time."""


#: What is written of a subject; None: nothing.
Row: TypeAlias = "tuple[Stream, Subject, Record | None]"


class JournalStream:
    """The changes of one stream. ``next_number`` is for the subjects of streams with numbers."""

    __slots__ = ("_changes", "_journal", "_new", "next_number", "stream")

    def __init__(self, stream: Stream, journal: Journal) -> None:
        self.stream: Stream = stream
        self.next_number: int = 1
        self._journal = journal
        self._changes: dict[Subject, Record | None] = {}
        self._new: set[Subject] = set()  # put for the first time since the last cut

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return bool(self._changes)

    def add(self, record: Record, payload_bytes: int = 0) -> int:
        """Put a record under a new number."""
        number = self.take_number()
        self.create(number, record, payload_bytes)
        return number

    def take_number(self) -> int:
        """The next number, greater than all before."""
        number = self.next_number
        self.next_number = number + 1
        return number

    def create(self, subject: Subject, record: Record, payload_bytes: int = 0) -> None:
        """Put a record under a subject that has none: if it had one since the last cut, the disk may have it still."""
        if subject not in self._changes:
            self._new.add(subject)
        self._changes[subject] = record
        journal = self._journal
        journal.waiting_bytes += payload_bytes + _RECORD_BYTES
        journal.is_urgent = True

    def put(self, subject: Subject, record: Record, payload_bytes: int = 0) -> None:
        """Put a record under a subject, in place of the one it may have."""
        self._changes[subject] = record
        journal = self._journal
        journal.waiting_bytes += payload_bytes + _RECORD_BYTES
        journal.is_urgent = True

    def note(self, subject: Subject, record: Record, payload_bytes: int = 0) -> None:
        """As :meth:`put`, for what nobody has to wait for. It is written no later than what comes after it."""
        self._changes[subject] = record
        self._journal.waiting_bytes += payload_bytes + _RECORD_BYTES

    def remove(self, subject: Subject) -> None:
        """The subject has no record any longer. One that never reached the disk leaves no trace."""
        self._journal.is_urgent = True
        self.remove_lazily(subject)

    def remove_lazily(self, subject: Subject) -> None:
        """The same for what nobody has to wait for: if it is lost in a crash, something is done twice that may be."""
        if subject in self._new:
            self._new.discard(subject)
            del self._changes[subject]
        else:
            self._changes[subject] = None
            self._journal.waiting_bytes += _RECORD_BYTES

    def is_changed(self, subject: Subject) -> bool:
        """Whether its record is another one since the last cut, or gone."""
        return subject in self._changes

    def cut(self, timeline: Timeline) -> Changes:
        """Take the changes out."""
        puts: list[tuple[Subject, bytes]] = []
        removals: list[Subject] = []
        for subject, record in self._changes.items():
            if record is None:
                removals.append(subject)
            else:
                puts.append((subject, seal(self.stream, subject, record.fields(timeline))))
        self._changes.clear()
        self._new.clear()
        return Changes(self.stream, tuple(puts), tuple(removals))


class Journal:
    """All streams. A change that must survive is written here, before anybody hears of it."""

    __slots__ = ("_origin", "_streams", "_timeline", "is_draining", "is_urgent", "waiting_bytes")

    def __init__(self, origin: int | None = None) -> None:
        """``origin`` names the monotonic clock that ``now`` is read from: in another life of the server, an equal one
        is the same clock, which went on meanwhile. None if that is not known.
        """
        self._origin = origin
        self._timeline: Timeline | None = None
        self._streams = {stream: JournalStream(stream, self) for stream in ALL_STREAMS}
        #: Roughly what the records since the last cut hold.
        self.waiting_bytes: int = 0
        #: Whether what is said to clients from now on depends on these records.
        self.is_urgent: bool = False
        #: Whether clients are not read any longer, so that there comes an end.
        self.is_draining: bool = False

    def __getitem__(self, stream: Stream) -> JournalStream:
        return self._streams[stream]

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return any(self._streams.values())

    @property
    def is_full(self) -> bool:
        """Whether to take nothing more from clients before the disk has caught up."""
        return self.is_draining or self.waiting_bytes >= _MOST_BYTES

    # -- time ---------------------------------------------------------------------------------------------------------

    def resume(self, storage: StoredRecords, now: Instant) -> None:
        """Go on with the time of the lives before, if there were any. Raises DamagedRecordError. Call it before the
        machines are filled from the ``storage``.
        """
        last = TimeRecord.last(storage)
        self._timeline = Timeline.begin(now) if last is None else Timeline.after(last, self._origin, now)
        self.note_time(now)

    def follow(self, now: Instant) -> None:
        """Write nothing for now: another life does, and machines here hold what it has written. How far log time is
        ahead is not known before :meth:`take_over`, so the machines hold deadlines of a clock of their own.
        """
        self._timeline = Timeline.begin(now)

    def take_over(self, timeline: Timeline, now: Instant) -> float:
        """After :meth:`follow`, write from now on, in the log time of ``timeline``. Returns by how many seconds the
        clock of the machines, whose deadlines stay as they are, is ahead of the one that ``now`` is read from.
        """
        ahead_s = (timeline.ahead_ms - self.timeline.ahead_ms) / 1000
        self.note_time(attrs.evolve(now, monotonic=now.monotonic + ahead_s))
        return ahead_s

    @property
    def timeline(self) -> Timeline:
        """The clock of all deadlines that are written down. After :meth:`resume`, :meth:`follow` or :meth:`cut`."""
        if self._timeline is None:
            raise RuntimeError("the time of this journal has not begun: call resume()")
        return self._timeline

    def note_time(self, now: Instant) -> None:
        """Write the time down. Each batch has it; without batches, that of the last one is all that a start knows."""
        self[Stream.CLOCK].put(TIME, TimeRecord.at(now, self.timeline, self._origin))

    def cut(self, now: Instant) -> WriteBatch:
        """Take out everything since the last cut. Call it between two calls of the broker: what belongs together then
        is in one batch.
        """
        if self._timeline is None:
            self._timeline = Timeline.begin(now)
        timeline = self._timeline
        self.note_time(now)
        self.waiting_bytes, self.is_urgent = 0, False
        return WriteBatch(tuple(stream.cut(timeline) for stream in self._streams.values() if stream))
