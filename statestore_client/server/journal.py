"""What changed since the last cut, by stream and subject.

Only the last state of a subject counts, so a record that is replaced or removed before the cut never reaches the disk.
Records are values, taken when the change happens; they become bytes at the cut.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from itertools import chain
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias
from zlib import crc32

import attrs
import msgpack

from statestore_client.wire.hot_value import hot_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from statestore_client.wire.instant import Instant

# -- streams -----------------------------------------------------------------------------------------------------------
#
# The streams: what is kept of what, and under which subject.
#
# ===================  =======================================  ========================================================
# stream               subject                                  record
# ===================  =======================================  ========================================================
# ``sessions``         client identifier                        expiry, user, will, when it ends
# ``subscriptions``    session number, blank, filter            what was granted
# ``walks``            session number, blank, filter            the place in the retained messages still to be sent
# ``wills``            client identifier                        will of a session that ends with its connection
# ``messages``         number                                   a QoS 1 or 2 message, once for several receivers
# ``deliveries``       number                                   who is to get which message, with what packet id
# ``releases``         number                                   a PUBREL that was not answered
# ``inbound``          session number × 65,536 + packet id      a QoS 2 message that was taken over and not released
# ``retained``         topic                                    the message
# ``losses``           client identifier                        how much it lost for lack of room, and since when
# ``copies``           number                                   to whom a message is still to be copied
# ``keys``             key                                      value, version, fencing token, expiry; or no value
# ``responses``        client identifier and correlation data   the answer that was given
# ``observations``     client identifier and key                of a host: who observes what, and since when
# ``notices``          number                                   of a host: a change that is still to be told
# ``tokens``           ``key``                                  the key that continuation tokens are sealed with
# ``clock``            empty                                    the greatest version so far, and the local clock
# ``clock``            ``time``                                 the time of the last batch
# ===================  =======================================  ========================================================
#
# A subject has at most one record: a new one replaces it. ``messages`` has *interest* retention: a message leaves with
# the last of its ``deliveries``, which are the acknowledgeable consumers of the sessions; a message that was sent at
# once to one of them only is inside that delivery. Numbers grow, so a stream with numbers is in the order in which
# things happened. Session numbers stand for client identifiers, which may be long.
#
# Source: the stream layout of the NATS server's MQTT implementation, without its known issues: redelivery keeps the
# order, what is in flight is finished after a reconnect, and each retained topic is a subject of its own.


#: Numbers for what is many and short-lived, names for what has one.
Subject: TypeAlias = int | str | bytes


class Stream(Enum):
    """The value is the name on disk."""

    SESSIONS = "sessions"
    SUBSCRIPTIONS = "subscriptions"
    CURSORS = "walks"
    WILLS = "wills"
    MESSAGES = "messages"
    DELIVERIES = "deliveries"
    RELEASES = "releases"
    INBOUND = "inbound"
    RETAINED = "retained"
    LOSSES = "losses"
    COPIES = "copies"
    KEYS = "keys"
    RESPONSES = "responses"
    OBSERVATIONS = "observations"
    NOTICES = "notices"
    TOKENS = "tokens"
    CLOCK = "clock"

    #: Members are looked up for each record. The hash that an Enum has is a function in Python.
    if not TYPE_CHECKING:  # for type checkers, a member of the base class stays what it is
        __hash__ = object.__hash__

    @property
    def is_numbered(self) -> bool:
        """Whether subjects are numbers (63 bits, not negative)."""
        return self in _NUMBERED


_NUMBERED: Final = frozenset(
    (Stream.MESSAGES, Stream.DELIVERIES, Stream.RELEASES, Stream.INBOUND, Stream.COPIES, Stream.NOTICES)
)

ALL_STREAMS: Final = tuple(Stream)


# -- codec -------------------------------------------------------------------------------------------------------------
#
# Records as bytes: a checksum, then MessagePack.


_CHECKSUM_BYTES: Final = 4

_STREAMS: Final = {stream: crc32(stream.value.encode()) for stream in ALL_STREAMS}

_pack: Final = msgpack.Packer(use_bin_type=True, autoreset=True).pack


class DamagedRecordError(Exception):
    """The bytes are not those that were written."""


def seal(stream: Stream, subject: Subject, fields: Sequence[object]) -> bytes:
    """Numbers, texts, bytes, None, and sequences of them. The checksum is also over the stream and the subject: under
    another name the record means something else. Packed, a text, the same as bytes, and a number differ.
    """
    packed: bytes = _pack(fields)
    return crc32(packed, crc32(_pack(subject), _STREAMS[stream])).to_bytes(_CHECKSUM_BYTES, "big") + packed


def unseal(stream: Stream, subject: Subject, data: bytes) -> Any:
    """The fields, sequences as tuples. Raises DamagedRecordError."""
    packed = data[_CHECKSUM_BYTES:]
    if crc32(packed, crc32(_pack(subject), _STREAMS[stream])) != int.from_bytes(data[:_CHECKSUM_BYTES], "big"):
        raise DamagedRecordError("the checksum is wrong")
    try:
        return msgpack.unpackb(packed, use_list=False)
    except (ValueError, msgpack.UnpackException) as error:  # sealed by another program
        raise DamagedRecordError(f"not MessagePack: {error}") from error


# -- storage -----------------------------------------------------------------------------------------------------------
#
# What keeps the batches: a directory (``server.runtime.storage``), or a log (``server.runtime.replication``).


#: None: the batch is durable. An error: it is not, and nothing after it will be.
Done: TypeAlias = Callable[[Exception | None], None]


@attrs.frozen
class Changes:
    """Of one stream. Invariant: no subject is in both, and none twice: their order does not matter."""

    stream: Stream
    puts: tuple[tuple[Subject, bytes], ...]
    removals: tuple[Subject, ...]


@attrs.frozen
class WriteBatch:
    """All or nothing."""

    changes: tuple[Changes, ...]

    def __len__(self) -> int:
        """How many records it writes or removes."""
        return sum(len(each.puts) + len(each.removals) for each in self.changes)

    def subjects(self) -> frozenset[tuple[Stream, Subject]]:
        """What it writes or removes."""
        puts = ((each.stream, subject) for each in self.changes for subject, _ in each.puts)
        removals = ((each.stream, subject) for each in self.changes for subject in each.removals)
        return frozenset(chain(puts, removals))


class StoredRecords(Protocol):
    """What batches came to."""

    def load(self, stream: Stream) -> Iterable[tuple[Subject, bytes]]:
        """All records of a stream, those with numbers in order. Before the next batch."""


class BatchStorage(Protocol):
    """Takes batches in order."""

    def append(self, batch: WriteBatch, done: Done) -> None:
        """Make a batch durable, after those before it. ``done`` is called from any thread."""


class StreamStorage(StoredRecords, BatchStorage, Protocol):
    """Keeps batches in order. Invariant: after a crash, what :meth:`load` gives is the outcome of a prefix of the
    batches that were appended, and at least of those that were done. It is asked before the first :meth:`append`.
    """

    def close(self) -> None:
        """Wait for what was appended, and let go of everything. Safe to call twice."""


def load(storage: StoredRecords, stream: Stream) -> Iterator[tuple[Any, Any]]:
    """Subjects and fields. Raises DamagedRecordError with the name of what is damaged."""
    return _unsealed(stream, storage.load(stream))


def records_in(changes: Changes) -> Iterator[tuple[Any, Any]]:
    """The same of what a batch puts."""
    return _unsealed(changes.stream, changes.puts)


def _unsealed(stream: Stream, rows: Iterable[tuple[Subject, bytes]]) -> Iterator[tuple[Any, Any]]:
    for subject, data in rows:
        try:
            fields = unseal(stream, subject, data)
        except DamagedRecordError as error:
            raise DamagedRecordError(f"the record {subject!r} of {stream.value}: {error}") from error
        yield subject, fields


# -- tables ------------------------------------------------------------------------------------------------------------
#
# What batches come to: the records of each stream, in dictionaries.


class StreamTables:
    """Implements StoredRecords."""

    def __init__(self, streams: Iterable[Stream] = ALL_STREAMS) -> None:
        """Records of other streams are left out."""
        self.streams: dict[Stream, dict[Subject, bytes]] = {stream: {} for stream in streams}

    def absorb(self, batch: WriteBatch) -> None:
        """Make the records of a batch so."""
        for changes in batch.changes:
            records = self.streams.get(changes.stream)
            if records is None:
                continue
            for subject, data in changes.puts:
                records.pop(subject, None)  # the latest is the last
                records[subject] = data
            for subject in changes.removals:
                records.pop(subject, None)

    def load(self, stream: Stream) -> Iterator[tuple[Subject, bytes]]:
        """All records of a stream, those with numbers in order."""
        records = self.streams.get(stream, {})
        yield from sorted(records.items()) if stream.is_numbered else records.items()


# -- timeline ----------------------------------------------------------------------------------------------------------
#
# The clock that survives the process: *log time*, in which all deadlines are written down.
#
# Log time is milliseconds that go on with the monotonic clock while a server runs, and at its next start from where
# they were. It begins as the wall clock of the very first start, so that people can read it, and never looks at a wall
# clock again: setting one moves no deadline. How long the server was away counts if the monotonic clock tells, that is
# while the machine has not been restarted (``origin`` is the same). Otherwise that time is in doubt and does not count:
# what was left of a lease is left. So nothing ends early, and what ends late does so by the time that was in doubt.
#
# A replicated log has the same clock: whoever becomes active goes on from the last log time that it has seen, or from
# its own monotonic clock and the offset between the two that it has observed, whichever is later.


#: The subject of the time in :attr:`Stream.CLOCK`.
TIME: Final = b"time"


@attrs.frozen
class Timeline:
    """Converts between this process's monotonic clock and log time.

    Invariant: no conversion makes a deadline earlier. On its way to the disk it is rounded up, and :meth:`after` gives
    a log time that is not later than the true one.
    """

    ahead_ms: float  # of the monotonic clock

    def log_ms(self, monotonic: float | None) -> int | None:
        """Log time of a moment in monotonic seconds; None stays None."""
        return None if monotonic is None else ceil(monotonic * 1000 + self.ahead_ms)

    def monotonic(self, log_ms: float | None) -> float | None:
        """The opposite: in this process, perhaps before its beginning."""
        return None if log_ms is None else (log_ms - self.ahead_ms) / 1000

    @classmethod
    def begin(cls, now: Instant) -> Self:
        """Of a journal without a past."""
        return cls(now.wall_ms - now.monotonic * 1000)

    @classmethod
    def after(cls, last: TimeRecord, origin: int | None, now: Instant) -> Self:
        """Of a life whose predecessor left ``last``. ``origin``: as of :class:`TimeRecord`, for ``now``."""
        stopped_ms = last.log_ms - now.monotonic * 1000  # as if no time had passed since
        knows_outage = origin is not None and origin == last.origin
        return cls(max(last.ahead_ms, stopped_ms) if knows_outage else stopped_ms)

    @classmethod
    def shown(cls, storage: StoredRecords) -> Self:
        """For people: :meth:`monotonic` gives seconds since the Unix epoch, by the wall clock of the last life.

        Raises DamagedRecordError.
        """
        last = TimeRecord.last(storage)
        return cls(0.0 if last is None else last.log_ms - last.wall_ms)


@attrs.frozen
class TimeRecord:
    """The time when a batch was cut. ``ahead_ms`` is :attr:`Timeline.ahead_ms`; monotonic clocks with the same
    ``origin`` are one clock, None for an unknown one. ``wall_ms`` is for people only.
    """

    log_ms: float
    ahead_ms: float
    origin: int | None
    wall_ms: int

    @classmethod
    def at(cls, now: Instant, timeline: Timeline, origin: int | None) -> Self:
        return cls(now.monotonic * 1000 + timeline.ahead_ms, timeline.ahead_ms, origin, now.wall_ms)

    def fields(self, timeline: Timeline) -> tuple[object, ...]:
        del timeline
        return (self.log_ms, self.ahead_ms, self.origin, self.wall_ms)

    @classmethod
    def last(cls, storage: StoredRecords) -> Self | None:
        """The one of the last batch; None in a new directory. Raises DamagedRecordError."""
        for subject, fields in load(storage, Stream.CLOCK):
            if subject == TIME:
                try:
                    log_ms, ahead_ms, origin, wall_ms = fields
                    return cls(float(log_ms), float(ahead_ms), origin, int(wall_ms))
                except (TypeError, ValueError) as error:
                    raise DamagedRecordError(f"the record of the time: {error!r}") from error
        return None


@hot_value
class PlainRecord:
    """A record whose fields are written as they are, in their order."""

    def fields(self, timeline: Timeline) -> tuple[object, ...]:
        del timeline
        return tuple([getattr(self, field.name) for field in attrs.fields(type(self))])

    @classmethod
    def read(cls, fields: Any) -> Self:
        return cls(*fields)


# -- journal -----------------------------------------------------------------------------------------------------------


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

    __slots__ = ("_journal", "_new", "changes", "next_number", "stream")

    def __init__(self, stream: Stream, journal: Journal) -> None:
        self.stream: Stream = stream
        self.next_number: int = 1
        self._journal = journal
        #: Since the last cut; to be looked at only.
        self.changes: dict[Subject, Record | None] = {}
        self._new: set[Subject] = set()  # put for the first time since the last cut

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
        if subject not in self.changes:
            self._new.add(subject)
        self.changes[subject] = record
        journal = self._journal
        journal.waiting_bytes += payload_bytes + _RECORD_BYTES
        journal.is_urgent = True

    def put(self, subject: Subject, record: Record, payload_bytes: int = 0) -> None:
        """Put a record under a subject, in place of the one it may have."""
        self.changes[subject] = record
        journal = self._journal
        journal.waiting_bytes += payload_bytes + _RECORD_BYTES
        journal.is_urgent = True

    def note(self, subject: Subject, record: Record, payload_bytes: int = 0) -> None:
        """As :meth:`put`, for what nobody has to wait for. It is written no later than what comes after it."""
        self.changes[subject] = record
        self._journal.waiting_bytes += payload_bytes + _RECORD_BYTES

    def remove(self, subject: Subject) -> None:
        """The subject has no record any longer. One that never reached the disk leaves no trace."""
        self._journal.is_urgent = True
        self.remove_lazily(subject)

    def remove_lazily(self, subject: Subject) -> None:
        """The same for what nobody has to wait for: if it is lost in a crash, something is done twice that may be."""
        if subject in self._new:
            self._new.discard(subject)
            del self.changes[subject]
        else:
            self.changes[subject] = None
            self._journal.waiting_bytes += _RECORD_BYTES

    def is_changed(self, subject: Subject) -> bool:
        """Whether its record is another one since the last cut, or gone."""
        return subject in self.changes

    def cut(self, timeline: Timeline) -> Changes:
        """Take the changes out, each sealed."""
        puts: list[tuple[Subject, bytes]] = []
        removals: list[Subject] = []
        named = _STREAMS[self.stream]
        for subject, record in self.changes.items():
            if record is None:
                removals.append(subject)
            else:  # as seal() does
                packed = _pack(record.fields(timeline))
                checksum = crc32(packed, crc32(_pack(subject), named))
                puts.append((subject, checksum.to_bytes(_CHECKSUM_BYTES, "big") + packed))
        self.changes.clear()
        self._new.clear()
        return Changes(self.stream, tuple(puts), tuple(removals))


#: In place of a generator, which would be a call for each of the streams.
_CHANGES: Final = attrgetter("changes")


class Journal:
    """All streams. A change that must survive is written here, before anybody hears of it."""

    __slots__ = ("_all", "_origin", "_streams", "_timeline", "is_urgent", "most_bytes", "waiting_bytes")

    def __init__(self, origin: int | None = None) -> None:
        """``origin`` names the monotonic clock that ``now`` is read from: in another life of the server, an equal one
        is the same clock, which went on meanwhile. None if that is not known.
        """
        self._origin = origin
        self._timeline: Timeline | None = None
        self._streams = {stream: JournalStream(stream, self) for stream in ALL_STREAMS}
        self._all = tuple(self._streams.values())
        #: Roughly what the records since the last cut hold.
        self.waiting_bytes: int = 0
        #: Whether what is said to clients from now on depends on these records.
        self.is_urgent: bool = False
        #: Of records that wait: with so many bytes or more, nothing more is taken from clients.
        self.most_bytes: int = _MOST_BYTES

    def __getitem__(self, stream: Stream) -> JournalStream:
        return self._streams[stream]

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return any(map(_CHANGES, self._all))

    @property
    def is_full(self) -> bool:
        """Whether to take nothing more from clients before the disk has caught up."""
        return self.waiting_bytes >= self.most_bytes

    @property
    def is_draining(self) -> bool:
        """Whether clients are not read any longer, so that there comes an end."""
        return not self.most_bytes

    @is_draining.setter
    def is_draining(self, is_draining: bool) -> None:
        self.most_bytes = 0 if is_draining else _MOST_BYTES

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
        self._streams[Stream.CLOCK].put(TIME, TimeRecord.at(now, self.timeline, self._origin))

    def cut(self, now: Instant) -> WriteBatch:
        """Take out everything since the last cut. Call it between two calls of the broker: what belongs together then
        is in one batch.
        """
        if self._timeline is None:
            self._timeline = Timeline.begin(now)
        timeline = self._timeline
        self.note_time(now)
        self.waiting_bytes, self.is_urgent = 0, False
        return WriteBatch(tuple([stream.cut(timeline) for stream in self._all if stream.changes]))
