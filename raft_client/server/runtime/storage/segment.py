"""One segment of the log as the peer knows it: what is in it, and where. Writing fills it, or reading a file."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import attrs

from raft_client.errors import ProtocolError, StorageDamagedError
from raft_client.server.node.stored_log import Configuration, HardState
from raft_client.server.runtime.storage.request_table import RequestTable
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
from raft_client.wire.configuration import decode_config, encode_config
from raft_client.wire.log_entry import ENTRY_HEADER_BYTES, EntryKind
from raft_client.wire.request_id import REQUEST_ID_BYTES

if TYPE_CHECKING:
    from raft_client.wire.log_entry import LogEntry

__all__ = ["Segment", "scan_segment"]


@attrs.define(eq=False)
class Segment:
    """Entries ``first`` to ``last`` of the log, and the hard state after its last job.

    When later segments cut the log, these two fall. ``offsets``, which begin with the entry ``origin``, and ``table``
    are those of the time when it was written last, and None once the index file has them.
    """

    header: SegmentHeader
    origin: int
    first: int
    last: int
    size: int = HEADER_BYTES
    hard_state: HardState = attrs.Factory(HardState)
    configurations: list[Configuration] = attrs.Factory(list)
    offsets: array[int] | None = attrs.field(factory=lambda: array("I"), repr=False)
    table: RequestTable | None = attrs.field(factory=RequestTable, repr=False)
    index: SegmentIndex | None = None
    #: Where the last mark is that says that everything before it was synced.
    synced_at: int = 0
    #: Whether nothing follows the last mark.
    ends_with_mark: bool = False

    @classmethod
    def begin(cls, header: SegmentHeader) -> Segment:
        """An empty one."""
        return cls(header, header.index + 1, header.index + 1, header.index)

    @classmethod
    def of_index(cls, index: SegmentIndex) -> Segment:
        """One that is written no more. Raises StorageDamagedError."""
        summary = index.summary
        last = summary.first + summary.count - 1
        try:
            configs = [Configuration(at, decode_config(data)) for at, data in summary.configs]
        except ProtocolError as error:
            raise StorageDamagedError(f"{index.name} holds no configuration: {error}", file=index.name) from None
        return cls(
            summary.header, summary.first, summary.first, last, summary.size, summary.hard_state, configs,
            offsets=None, table=None, index=index,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """Of the file."""
        return self.header.name

    @property
    def index_name(self) -> str:
        """Of the file of its index."""
        return index_name(self.header.sequence)

    # -- what jobs do --------------------------------------------------------------------------------------------------

    def add_job(self, mark: Mark, entries: tuple[LogEntry, ...]) -> list[bytes]:
        """The records of a job that is written at the end: the mark, then twice as many parts as entries."""
        parts = [encode_mark(mark, self.header.salt, self.size)]
        self.add_mark(mark, self.size)
        assert self.offsets is not None  # noqa: S101 - only segments with an index have none
        assert self.table is not None  # noqa: S101 - the same
        self.size = encode_entries(entries, self.size + len(parts[0]), parts, self.offsets)
        add = self.table.add
        for entry in entries:
            add(entry.frame[:REQUEST_ID_BYTES], entry.index)
            if not entry.is_state and entry.kind is EntryKind.CONFIG:
                self.configurations.append(Configuration(entry.index, decode_config(entry.data)))
        if entries:
            self.last = entries[-1].index
            self.ends_with_mark = False
        return parts

    def add_mark(self, mark: Mark, offset: int) -> None:
        """What a mark at this place does to what came before it."""
        self.truncate(mark.index)
        self.hard_state = mark.hard_state
        self.ends_with_mark = True
        if mark.synced:
            self.synced_at = offset

    def truncate(self, last: int) -> None:
        """While it is the last segment: the log ends at ``last``, even if that lies in an earlier one."""
        if last >= self.last:
            return
        assert self.offsets is not None  # noqa: S101 - only segments with an index have none
        assert self.table is not None  # noqa: S101 - the same
        self.first = self.origin = min(self.first, last + 1)
        self.last = last
        del self.offsets[last + 1 - self.origin :]
        self.table.truncate(last)
        self.configurations = [each for each in self.configurations if each.index <= last]

    def cut(self, last: int) -> None:
        """A later segment says that the log ends at ``last`` there."""
        if last < self.last:
            self.first = min(self.first, last + 1)
            self.last = last
            self.configurations = [each for each in self.configurations if each.index <= last]

    # -- its index -----------------------------------------------------------------------------------------------------

    def encode_index(self) -> bytes:
        """The file. Any thread, once the segment is written no more."""
        offsets, table = self.offsets, self.table
        assert offsets is not None  # noqa: S101 - only segments with an index have none
        assert table is not None  # noqa: S101 - the same
        summary = Summary(
            self.header,
            self.origin,
            len(offsets),
            self.size,
            self.hard_state,
            tuple((each.index, encode_config(each.change)) for each in self.configurations),
        )
        return encode_index(summary, offsets, table.items())

    def use_index(self, index: SegmentIndex) -> None:
        """From now on the index file is asked."""
        self.index = index
        self.table = None
        self.offsets = None


def scan_segment(name: str, data: bytes, *, may_be_torn: bool) -> Segment | None:
    """What a segment holds. None for one that was never written whole, because the power failed as it was begun.

    ``may_be_torn``: the last job may have been cut off by a power failure, before it was synced: the segment's ``size``
    says how much of the file counts. Everything else that is not as it was written raises StorageDamagedError; newer
    versions raise StorageVersionError.
    """
    if may_be_torn and (len(data) < HEADER_BYTES or not any(data[:HEADER_BYTES])):
        return None
    header = SegmentHeader.decode(name, data)
    segment = Segment.begin(header)
    at = _scan_records(name, data, segment)
    segment.size = at
    if at < len(data) or at == HEADER_BYTES:
        _check_torn(name, data, at, segment, may_be_torn=may_be_torn)
    return segment if at > HEADER_BYTES else None


def _scan_records(name: str, data: bytes, segment: Segment) -> int:
    """Where the first record is that is not whole."""
    salt = segment.header.salt
    offsets, table = segment.offsets, segment.table
    assert offsets is not None  # noqa: S101 - it has just begun
    assert table is not None  # noqa: S101 - the same
    at, size, add = HEADER_BYTES, len(data), table.add
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
            segment.add_mark(mark, at)
        elif at == HEADER_BYTES or end - begin < ENTRY_HEADER_BYTES:
            raise StorageDamagedError(f"{name} has an entry without a job at {at}", file=name, offset=at)
        else:
            offsets.append(at)
            add(data[begin : begin + REQUEST_ID_BYTES], index)
            segment.last = index
            segment.ends_with_mark = False
            if data[begin + REQUEST_ID_BYTES] == EntryKind.CONFIG:
                change = decode_config(data[begin + ENTRY_HEADER_BYTES : end])
                segment.configurations.append(Configuration(index, change))
        at = end
    return at


def _check_torn(name: str, data: bytes, at: int, segment: Segment, *, may_be_torn: bool) -> None:
    """Raises StorageDamagedError unless what begins at ``at`` is the rest of a job that was never synced."""
    end = record_end(data, at, segment.last + 1, at)
    if not may_be_torn:
        reason = "and it is not the end of the log"
    elif not is_power_loss(data, at, end):
        reason = "and nothing of it is missing"
    elif _is_synced_behind(data, at, segment.header.salt):
        reason = "and what follows it says that it had been synced"
    else:
        return
    raise StorageDamagedError(f"{name} is damaged at byte {at}: no whole record, {reason}", file=name, offset=at)


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
