"""One segment of the log as the peer knows it: what is in it, and where. Writing fills it, or reading its file."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import attrs

from raft_client.errors import ProtocolError, StorageDamagedError
from raft_client.server.node.stored_log import Configuration, HardState
from raft_client.server.runtime.storage.request_table import RequestTable
from raft_client.server.runtime.storage.segment_format import (
    HEADER_BYTES,
    Mark,
    SegmentHeader,
    encode_entries,
    encode_mark,
)
from raft_client.server.runtime.storage.segment_index import SegmentIndex, Summary, encode_index, index_name
from raft_client.wire.configuration import ConfigChange, decode_config, encode_config
from raft_client.wire.log_entry import EntryKind
from raft_client.wire.request_id import REQUEST_ID_BYTES

if TYPE_CHECKING:
    from raft_client.wire.log_entry import LogEntry


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
