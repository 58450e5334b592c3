"""All segments of a log: which one has which entry, and which one knows which request id.

Belongs to the loop's thread.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from raft_client.errors import StorageDamagedError
from raft_client.server.runtime.storage.filesystem import storage_error
from raft_client.server.runtime.storage.segment import SegmentTables
from raft_client.server.runtime.storage.segment_format import RECORD_HEADER_BYTES, read_entry

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator

    from raft_client.server.node.stored_log import Configuration, SnapshotMeta
    from raft_client.server.runtime.storage.filesystem import File, Folder
    from raft_client.server.runtime.storage.segment import Segment, SegmentWriter
    from raft_client.wire.log_entry import LogEntry

#: Of files that are open for reading, and of segments whose offsets are in memory.
_OPEN_FILES: Final = 128
_LOADED_OFFSETS: Final = 4
#: Read at once where short entries may follow each other; and at most, unless one entry is longer.
_READ_AHEAD: Final = 4096
_MAX_READ: Final = 1024 * 1024
_FOREVER: Final = 1 << 32
#: Segments, the newest ones, that have a filter for request ids in memory: at most 128 KiB each.
_FILTERS: Final = 128

_first = attrgetter("first")
_sequence = attrgetter("header.sequence")


class SegmentList:
    """``segments`` have their entries; of those in ``retired`` only the request ids are left. Oldest first, both.

    ``active`` writes the last one.

    Invariant: the entries of all, one segment after the other, are the log, without a gap.
    """

    def __init__(self, folder: Folder, retired: list[Segment], ended: list[Segment], active: SegmentWriter) -> None:
        self._folder = folder
        self.retired: list[Segment] = retired
        self.segments: list[Segment] = [*ended, active.segment]
        self.active: SegmentWriter = active
        self._files: OrderedDict[str, File] = OrderedDict()
        self._offsets: OrderedDict[int, array[int]] = OrderedDict()
        self._horizon: list[int] | None = None
        self._forgotten = 0  # the sequence up to which request ids do not count any more

    @property
    def last(self) -> Segment:
        """The one that is written."""
        return self.active.segment

    @property
    def first_index(self) -> int:
        """Of the oldest entry; one more than the last if there is none."""
        return self.segments[0].first

    @property
    def prune_index(self) -> int:
        """The index before the first entry whose request id is known."""
        if self.retired:
            return self.retired[0].first - 1
        at = bisect_right(self.segments, self._forgotten, key=_sequence)
        return self.segments[at].first - 1

    def newest_request_s(self) -> float:
        """When the newest request id of the segments that have ended was made; minus infinity if there is none."""
        indexes = (each.index for each in (*self.retired, *self.segments))
        return max((each.max_seconds for each in indexes if each is not None and each.id_count), default=-math.inf)

    @property
    def configurations(self) -> Iterator[Configuration]:
        """Of the CONFIG entries that are in the log, oldest first."""
        return (each for segment in self.segments for each in segment.configurations)

    # -- changes -------------------------------------------------------------------------------------------------------

    def add(self, active: SegmentWriter) -> None:
        """The one that is written from now on."""
        self.segments.append(active.segment)
        self.active = active
        self._horizon = None
        for segment in [*self.retired, *self.segments][:-_FILTERS]:
            if segment.index is not None:
                segment.index.filter = None

    def truncate(self, last: int) -> None:
        """Cut those before the active one."""
        for segment in self.segments[:-1]:
            segment.cut(last)

    def replace_all(self, active: SegmentWriter) -> list[str]:
        """A snapshot took the place of the log, and ``active`` goes on after it. Returns what may be removed."""
        gone = [each for segment in self.segments for each in (segment.name, segment.index_name)]
        gone += [segment.index_name for segment in self.retired]
        self._forget_files(gone)
        self.retired, self.segments, self.active = [], [active.segment], active
        self._horizon = None
        return gone

    def retire(self, snapshot: SnapshotMeta) -> list[str]:
        """Drop the segments all of whose entries the snapshot replaces. Returns what may be removed.

        One with a CONFIG entry that is newer than the snapshot's configuration stays, and so do those after it: a
        snapshot from another peer may have an outdated one.
        """
        gone: list[str] = []
        while len(self.segments) > 1 and self._is_replaced(self.segments[0], snapshot):
            segment = self.segments.pop(0)
            gone.append(segment.name)
            if segment.header.sequence <= self._forgotten:
                gone.append(segment.index_name)
            else:
                self.retired.append(segment)
        self._forget_files(gone)
        self._horizon = None
        return gone

    @staticmethod
    def _is_replaced(segment: Segment, snapshot: SnapshotMeta) -> bool:
        newest = max((each.index for each in segment.configurations), default=0)
        is_known = newest <= snapshot.configuration.index
        return segment.last <= snapshot.index and segment.index is not None and is_known

    def forget(self, before_s: int, up_to: int) -> list[str]:
        """Forget the oldest request ids, segment by segment, while all ids of one were made before that time, or all
        its entries are up to ``up_to``.

        Returns what may be removed.
        """
        gone: list[str] = []
        for segment in (*self.retired, *self.segments):
            index = segment.index
            if index is None or (segment.last > up_to and index.id_count and index.max_seconds >= before_s):
                break
            self._forgotten = max(self._forgotten, segment.header.sequence)
        while self.retired and self.retired[0].header.sequence <= self._forgotten:
            gone.append(self.retired.pop(0).index_name)
        self._forget_files(gone)
        self._horizon = None
        return gone

    # -- entries -------------------------------------------------------------------------------------------------------

    def term_at(self, index: int) -> int | None:
        """The term of an entry that is on the disk, or of the one before the first; None if unknown.

        Raises StorageError.
        """
        if self.first_index <= index <= self.last.last:
            return next(self.read(index, index, 0)).term
        first = self.segments[0]
        return first.header.term if index == first.header.index == first.first - 1 else None

    def read(self, index: int, last: int, max_bytes: int) -> Iterator[LogEntry]:
        """The entries from ``index`` to ``last``, all of which are on the disk. ``max_bytes`` is how far to read ahead.

        Raises StorageError.
        """
        while index <= last:
            segment = self._segment_of(index)
            for entry in self._read_segment(segment, index, min(last, segment.last), max_bytes):
                yield entry
                index = entry.index + 1

    def _segment_of(self, index: int) -> Segment:
        """The last one that begins at or before it: of those that begin at the same place, the others are empty."""
        return self.segments[bisect_right(self.segments, index, key=_first) - 1]

    def _read_segment(self, segment: Segment, index: int, last: int, max_bytes: int) -> Iterator[LogEntry]:
        offsets = self._offsets_of(segment)
        try:
            file = self._file(segment.name)
            data, base = b"", 0
            while index <= last:
                offset = offsets[index - segment.origin]
                entry = read_entry(data, offset - base, index) if data else None
                if entry is None:
                    data, base = self._read_from(file, offset, max_bytes), offset
                    entry = read_entry(data, 0, index)
                if entry is None:
                    message = f"{segment.name} is damaged at byte {offset}: not the entry {index}"
                    raise StorageDamagedError(message, file=segment.name, offset=offset)
                yield entry
                index += 1
        except OSError as error:
            raise storage_error(error, f"reading {segment.name}") from error

    @staticmethod
    def _read_from(file: File, offset: int, max_bytes: int) -> bytes:
        """Enough for the record that begins there."""
        data = file.read(min(max_bytes + _READ_AHEAD, _MAX_READ), offset)
        if len(data) < RECORD_HEADER_BYTES:
            return data
        length = int.from_bytes(data[:4], "little") & 0x0FFFFFFF
        missing = RECORD_HEADER_BYTES + length - len(data)
        return data + file.read(missing, offset + len(data)) if missing > 0 else data

    def _offsets_of(self, segment: Segment) -> array[int]:
        contents = segment.contents
        if isinstance(contents, SegmentTables):
            return contents.offsets
        sequence = segment.header.sequence
        offsets = self._offsets.get(sequence)
        if offsets is None:
            try:
                offsets = contents.read_offsets(self._file(segment.index_name))
            except OSError as error:
                raise storage_error(error, f"reading {segment.index_name}") from error
            self._offsets[sequence] = offsets
            if len(self._offsets) > _LOADED_OFFSETS:
                self._offsets.popitem(last=False)
        return offsets

    # -- request ids ---------------------------------------------------------------------------------------------------

    def find_request(self, raw: bytes) -> int | None:
        """The newest entry with this request id. Raises StorageError."""
        seconds = int.from_bytes(raw[:4], "big")
        horizon = self._seconds_up_to()
        everything = len(self.retired)
        for number in range(everything + len(self.segments) - 1, -1, -1):
            if horizon[number] < seconds:
                return None
            segment = self.retired[number] if number < everything else self.segments[number - everything]
            if segment.header.sequence <= self._forgotten:
                return None
            found = self._find_in(segment, raw, seconds)
            if found is not None:
                return found
        return None

    def _find_in(self, segment: Segment, raw: bytes, seconds: int) -> int | None:
        contents = segment.contents
        if isinstance(contents, SegmentTables):
            return contents.requests.get(raw, segment.last)
        if not contents.may_have(raw, seconds):
            return None
        try:
            return contents.find(raw, segment.last, self._file(contents.name))
        except OSError as error:
            raise storage_error(error, f"reading {contents.name}") from error

    def _seconds_up_to(self) -> list[int]:
        """For each segment, the newest time of an id in it or before it: no need to look any further back."""
        if self._horizon is None:
            horizon, newest = [], 0
            for segment in (*self.retired, *self.segments):
                index = segment.index
                newest = max(newest, _FOREVER if index is None else index.max_seconds)
                horizon.append(newest)
            self._horizon = horizon
        return self._horizon

    def indexes_changed(self) -> None:
        """Some segments have an index now."""
        self._horizon = None

    # -- files ---------------------------------------------------------------------------------------------------------

    def _file(self, name: str) -> File:
        file = self._files.pop(name, None)
        if file is None:
            file = self._folder.open(name)
            if len(self._files) >= _OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        self._files[name] = file
        return file

    def _forget_files(self, names: list[str]) -> None:
        for name in names:
            file = self._files.pop(name, None)
            if file is not None:
                file.close()

    def close(self) -> None:
        """Of all files."""
        self._forget_files(list(self._files))
