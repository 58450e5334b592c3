"""One segment of the log as the peer knows it: what is in it, and where. Writing fills it, or reading its file."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import attrs

from raft_client.errors import ProtocolError, StorageDamagedError
from raft_client.server.node.ready import Configuration, HardState
from raft_client.server.runtime.storage.segment_format import (
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    Mark,
    SegmentHeader,
    decode_mark,
    encode_entries,
    encode_mark,
    is_power_loss,
    read_record,
    record_end,
)
from raft_client.server.runtime.storage.segment_index import SegmentIndex, Summary, encode_index, index_name
from raft_client.wire.configuration import ConfigChange, decode_config, encode_config
from raft_client.wire.log_entry import ENTRY_HEADER_BYTES, EntryKind
from raft_client.wire.request_id import REQUEST_ID_BYTES, ZERO_REQUEST_ID

if TYPE_CHECKING:
    from collections.abc import Collection

    from raft_client.wire.log_entry import LogEntry

# -- request ids -------------------------------------------------------------------------------------------------------


_NONE = ZERO_REQUEST_ID.raw


class RequestTable:
    """Ids of entries in the order of their indexes; those at the end may be taken back.

    Invariant: ``get`` finds the newest entry with an id. An id twice is rare: the older entries of it stand aside.
    """

    __slots__ = ("_newest", "_older")

    def __init__(self) -> None:
        self._newest: dict[bytes, int] = {}
        self._older: list[tuple[bytes, int]] = []

    def add(self, raw: bytes, index: int) -> None:
        """An entry that no client asked for has no id."""
        if raw == _NONE:
            return
        before = self._newest.get(raw)
        if before is not None:
            self._older.append((raw, before))
        self._newest[raw] = index

    def get(self, raw: bytes, last: int) -> int | None:
        """The newest entry with this id that is not behind ``last``."""
        index = self._newest.get(raw)
        if index is None or index <= last:
            return index
        return max((older for other, older in self._older if other == raw and older <= last), default=None)

    def truncate(self, last: int) -> None:
        """Forget the entries behind ``last``."""
        for raw in [raw for raw, index in self._newest.items() if index > last]:
            del self._newest[raw]
        kept = [(raw, index) for raw, index in self._older if index <= last]
        self._older.clear()
        for raw, index in kept:
            newest = self._newest.get(raw)
            if newest is None:
                self._newest[raw] = index
            else:
                self._older.append((raw, min(newest, index)))
                self._newest[raw] = max(newest, index)

    @property
    def ids(self) -> Collection[bytes]:
        """Each once."""
        return self._newest.keys()

    def items(self) -> list[tuple[bytes, int]]:
        """All of them, an id as often as it was added."""
        return [*self._newest.items(), *self._older]


# -- segment -----------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class SegmentTables:
    """Where the entries of a segment begin, and which request ids they have: in memory, until the index file is there.

    They are those of the time when the segment was written last, whatever later segments cut.
    """

    offsets: array[int] = attrs.field(factory=lambda: array("I"), repr=False)
    requests: RequestTable = attrs.field(factory=RequestTable, repr=False)


@attrs.define(eq=False)
class Segment:
    """Entries ``first`` to ``last`` of the log, and the hard state after its last job.

    When later segments cut the log, these two fall. The offsets begin with the entry ``origin``. ``contents`` is
    exchanged for the index in the thread of :meth:`.disk_log.DiskLog.maintain`: read it once.
    """

    header: SegmentHeader
    origin: int
    first: int
    last: int
    size: int
    hard_state: HardState
    configurations: list[Configuration]
    contents: SegmentTables | SegmentIndex

    @classmethod
    def of_index(cls, index: SegmentIndex) -> Segment:
        """One that is written no more. Raises StorageDamagedError."""
        summary = index.summary
        last = summary.first + summary.count - 1
        try:
            configs = [Configuration(at, decode_config(data)) for at, data in summary.configs]
        except ProtocolError as error:
            raise StorageDamagedError(f"{index.name} holds no configuration: {error}", file=index.name) from None
        return cls(summary.header, summary.first, summary.first, last, summary.size, summary.hard_state, configs, index)

    @property
    def name(self) -> str:
        """Of the file."""
        return self.header.name

    @property
    def index_name(self) -> str:
        """Of the file of its index."""
        return index_name(self.header.sequence)

    @property
    def index(self) -> SegmentIndex | None:
        """None until the file of it is there."""
        contents = self.contents
        return contents if isinstance(contents, SegmentIndex) else None

    def cut(self, last: int) -> None:
        """A later segment says that the log ends at ``last`` there."""
        if last < self.last:
            self.first = min(self.first, last + 1)
            self.last = last
            self.configurations = [each for each in self.configurations if each.index <= last]

    def encode_index(self, tables: SegmentTables) -> bytes:
        """The file. Any thread, once the segment is written no more."""
        configs = tuple((each.index, encode_config(each.change)) for each in self.configurations)
        summary = Summary(self.header, self.origin, len(tables.offsets), self.size, self.hard_state, configs)
        return encode_index(summary, tables.offsets, tables.requests.items())


@attrs.define(eq=False)
class SegmentWriter:
    """The end of the log: a segment that is written, or whose file is read."""

    segment: Segment
    tables: SegmentTables
    #: Where the last mark is that says that everything before it was synced.
    synced_at: int = 0
    #: Whether nothing follows the last mark.
    ends_with_mark: bool = False

    @classmethod
    def begin(cls, header: SegmentHeader) -> SegmentWriter:
        """With an empty segment."""
        tables = SegmentTables()
        after = header.index + 1
        return cls(Segment(header, after, after, header.index, HEADER_BYTES, HardState(), [], tables), tables)

    def add_job(self, mark: Mark, entries: tuple[LogEntry, ...]) -> list[bytes]:
        """The records of a job that is written at the end: the mark, then twice as many parts as entries."""
        segment, tables = self.segment, self.tables
        parts = [encode_mark(mark, segment.header.salt, segment.size)]
        self.add_mark(mark, segment.size)
        segment.size = encode_entries(entries, segment.size + len(parts[0]), parts, tables.offsets)
        add = tables.requests.add
        for entry in entries:
            add(entry.frame[:REQUEST_ID_BYTES], entry.index)
            if not entry.is_state and entry.kind is EntryKind.CONFIG:
                self.add_configuration(entry.index, decode_config(entry.data))
        if entries:
            segment.last = entries[-1].index
            self.ends_with_mark = False
        return parts

    def add_mark(self, mark: Mark, offset: int) -> None:
        """What a mark at this place does to what came before it."""
        self._truncate(mark.index)
        self.segment.hard_state = mark.hard_state
        self.ends_with_mark = True
        if mark.synced:
            self.synced_at = offset

    def add_configuration(self, index: int, change: ConfigChange) -> None:
        """Of the CONFIG entry at ``index``."""
        self.segment.configurations.append(Configuration(index, change))

    def _truncate(self, last: int) -> None:
        """The log ends at ``last``, even if that lies in an earlier segment."""
        segment = self.segment
        if last >= segment.last:
            return
        segment.cut(last)
        segment.origin = segment.first
        del self.tables.offsets[last + 1 - segment.origin :]
        self.tables.requests.truncate(last)


# -- reading a whole segment -------------------------------------------------------------------------------------------


def scan_segment(name: str, data: bytes) -> SegmentWriter:
    """One that is followed by another: all of it was synced.

    What is not as it was written raises StorageDamagedError; newer versions raise StorageVersionError.
    """
    writer = _scan_records(name, data)
    if _is_cut_off(writer.segment, data):
        raise _no_record(name, writer.segment.size, "it is not the end of the log")
    return writer


def scan_last_segment(name: str, data: bytes) -> SegmentWriter | None:
    """The last one. None for one that was never written whole, because the power failed as it was begun.

    The last job may have been cut off by a power failure, before it was synced: the segment's ``size`` says how much of
    the file counts. Everything else that is not as it was written raises StorageDamagedError; newer versions raise
    StorageVersionError.
    """
    if len(data) < HEADER_BYTES or not any(data[:HEADER_BYTES]):
        return None
    writer = _scan_records(name, data)
    if _is_cut_off(writer.segment, data):
        _check_torn(name, data, writer.segment)
    return writer if writer.segment.size > HEADER_BYTES else None


def _is_cut_off(segment: Segment, data: bytes) -> bool:
    return segment.size < len(data) or segment.size == HEADER_BYTES


def _scan_records(name: str, data: bytes) -> SegmentWriter:
    """Up to the first record that is not whole: there its ``size`` ends."""
    writer = SegmentWriter.begin(SegmentHeader.decode(name, data))
    segment, salt, offsets = writer.segment, writer.segment.header.salt, writer.tables.offsets
    at, size, add = HEADER_BYTES, len(data), writer.tables.requests.add
    while at < size:
        index = segment.last + 1
        found = read_record(data, at, index, at)
        if found is None:
            break
        is_mark, begin, end = found
        if is_mark:
            mark = decode_mark(data[begin:end], salt)
            if mark is None or mark.index > segment.last:
                raise StorageDamagedError(f"{name} has a mark of another place at {at}", file=name, offset=at)
            writer.add_mark(mark, at)
        elif at == HEADER_BYTES or end - begin < ENTRY_HEADER_BYTES:
            raise StorageDamagedError(f"{name} has an entry without a job at {at}", file=name, offset=at)
        else:
            offsets.append(at)
            add(data[begin : begin + REQUEST_ID_BYTES], index)
            segment.last = index
            writer.ends_with_mark = False
            if data[begin + REQUEST_ID_BYTES] == EntryKind.CONFIG:
                writer.add_configuration(index, decode_config(data[begin + ENTRY_HEADER_BYTES : end]))
        at = end
    segment.size = at
    return writer


def _check_torn(name: str, data: bytes, segment: Segment) -> None:
    """Raises StorageDamagedError unless what follows the segment is the rest of a job that was never synced."""
    at = segment.size
    if not is_power_loss(data, at, record_end(data, at, segment.last + 1, at)):
        raise _no_record(name, at, "nothing of it is missing")
    if _is_synced_behind(data, at, segment.header.salt):
        raise _no_record(name, at, "what follows it says that it had been synced")


def _no_record(name: str, at: int, why: str) -> StorageDamagedError:
    return StorageDamagedError(f"{name} is damaged at byte {at}: no whole record, and {why}", file=name, offset=at)


def _is_synced_behind(data: bytes, at: int, salt: bytes) -> bool:
    """Whether a mark behind ``at`` says that everything before it had been synced."""
    place = data.find(salt, at)
    while place >= 0:
        begin = place - RECORD_HEADER_BYTES
        found = read_record(data, begin, 0, begin) if begin > at else None
        mark = decode_mark(data[found[1] : found[2]], salt) if found is not None and found[0] else None
        if mark is not None and mark.synced:
            return True
        place = data.find(salt, place + 1)
    return False
