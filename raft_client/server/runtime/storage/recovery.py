"""What a directory holds: read at the start, and whole or not at all. Nothing is changed here.

A directory is the file ``meta`` (:mod:`.owner`), segments ``*.log`` with numbers in a row (:mod:`.segment_format`),
their indexes ``*.index`` (:mod:`.segment_index`) and the newest snapshot (:mod:`.snapshots`). An index is written
when the next segment is on the disk to stay. Of the oldest segments the indexes alone may be left. A file that is made
anew has a name with ``.tmp`` until it is synced. What an interrupted change left behind is ``stale``.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import OrderedDict
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import attrs

from raft_client.errors import StorageDamagedError, StorageOwnerError, StorageVersionError
from raft_client.server.node.ready import HardState
from raft_client.server.runtime.storage.directory import BACKUP_NAME, OWNER_NAME, Owner, storage_error
from raft_client.server.runtime.storage.read_ahead import ReadAhead
from raft_client.server.runtime.storage.segment import (
    Segment,
    SegmentTables,
    SegmentWriter,
    scan_last_segment,
    scan_segment,
)
from raft_client.server.runtime.storage.segment_format import HEADER_BYTES, RECORD_HEADER_BYTES, read_entry
from raft_client.server.runtime.storage.segment_index import SegmentIndex
from raft_client.server.runtime.storage.snapshots import StoredSnapshot

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator

    from raft_client._common.durable_files import File, Folder
    from raft_client.server.node.ready import Configuration, SnapshotMeta
    from raft_client.wire.log_entry import LogEntry

# -- the segments ------------------------------------------------------------------------------------------------------
# Belongs to the loop's thread.


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
        self.ahead: ReadAhead = ReadAhead(folder)
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

    def last_at_hand(self, after: int, max_bytes: int) -> int:
        """The last entry of the file with the one behind ``after``, if this one, that one and what follows it up to
        ``max_bytes`` can be read without waiting for the disk. If not, ``after``, and these parts of files are wanted
        (:class:`ReadAhead`). Raises StorageError.
        """
        sizes = [(index, size) for index, size in ((after, 0), (after + 1, max_bytes)) if index >= self.first_index]
        segments = [self._segment_of(index) for index, _ in sizes]
        try:
            if not self.ahead.are_at_hand(place for each in segments for place in self._offsets_place(each)):
                return after
            places = [
                (each.name, self._file(each.name), *self._place_of(each, *size))
                for each, size in zip(segments, sizes, strict=True)
            ]
            return segments[-1].last if self.ahead.are_at_hand(places) else after
        except OSError as error:
            raise storage_error(error, f"reading {segments[-1].name}") from error

    def _offsets_place(self, segment: Segment) -> Iterator[tuple[str, File, int, int]]:
        """Where the offsets are, unless they are in memory."""
        if isinstance(segment.contents, SegmentIndex) and segment.header.sequence not in self._offsets:
            yield segment.index_name, self._file(segment.index_name), *segment.contents.offsets_place

    def _place_of(self, segment: Segment, index: int, max_bytes: int) -> tuple[int, int]:
        """How many bytes are read of the file for the entry and those behind it, and from where on."""
        offsets, number = self._offsets_of(segment), index - segment.origin
        begin = offsets[number]
        least = offsets[number + 1] if number + 1 < len(offsets) else segment.size
        return max(least, min(begin + min(max_bytes + _READ_AHEAD, _MAX_READ), segment.size)) - begin, begin

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


# -- finding them again ------------------------------------------------------------------------------------------------


FIRST_SEQUENCE: Final = 1
_LOG: Final = re.compile(r"([0-9a-f]{16})\.log")
_INDEX: Final = re.compile(r"([0-9a-f]{16})\.index")
_SNAPSHOT: Final = re.compile(r"snapshot-([0-9a-f]{16})")


@attrs.frozen
class FileNames:
    """The files of a log: logs and indexes by their sequence, snapshots by the index of their last entry."""

    logs: dict[int, str]
    indexes: dict[int, str]
    snapshots: dict[int, str]
    unfinished: tuple[str, ...]
    #: The name of the owner's; None if there is none.
    owner: str | None

    @property
    def data(self) -> tuple[str, ...]:
        """All but the owner's."""
        return (*self.unfinished, *self.logs.values(), *self.indexes.values(), *self.snapshots.values())


@attrs.define(eq=False)
class Recovered:
    """What a peer left behind."""

    owner: Owner
    segments: SegmentList
    snapshot: StoredSnapshot | None
    #: Whether the snapshot arrived whole, and the log still is the one that it replaces.
    snapshot_is_ahead: bool
    #: Names that nothing needs any more.
    stale: list[str]
    #: The last segment from its last mark on: the system may have it in memory and the disk not, after a failed sync.
    tail: bytes
    tail_at: int
    #: Bytes behind it that were never synced, and do not count.
    torn_bytes: int


def list_files(folder: Folder) -> FileNames:
    """Files with other names are left alone."""
    names = sorted(folder.names())
    logs, indexes, snapshots = (
        {int(found[1], 16): found[0] for found in map(kind.fullmatch, names) if found}
        for kind in (_LOG, _INDEX, _SNAPSHOT)
    )
    unfinished = tuple(name for name in names if name.endswith(".tmp"))
    owner = next((name for name in (OWNER_NAME, BACKUP_NAME) if name in names), None)
    return FileNames(logs, indexes, snapshots, unfinished, owner)


def read_file(folder: Folder, name: str) -> bytes:
    """All of it."""
    file = folder.open(name)
    try:
        return file.read(file.size, 0)
    finally:
        file.close()


def is_new(folder: Folder, files: FileNames) -> bool:
    """Whether the directory was never made whole: a peer may make it anew.

    Raises StorageOwnerError for a backup, StorageDamagedError if it does not say any more whose it is; and OSError.
    """
    if files.owner == BACKUP_NAME:
        raise StorageOwnerError("the directory is a backup, with which no peer starts; zmqraft restore makes one of it")
    if files.owner is None:
        _check_unused(folder, files)
    return files.owner is None


def recover(folder: Folder, files: FileNames) -> Recovered:
    """Of a directory that is not new, or of a backup.

    Raises StorageDamagedError with the file and the byte, StorageVersionError, and OSError.
    """
    owner = Owner.read(folder, files.owner or OWNER_NAME)
    active, data = _read_last(folder, files)
    last = active.segment
    retired, ended = _read_earlier_ones(folder, files, last)
    _check_in_a_row([*retired, *ended, last])
    segments = SegmentList(folder, retired, ended, active)
    snapshot = _read_snapshot(folder, files)
    is_ahead = _is_ahead(segments, snapshot)
    used = {each.name for each in segments.segments} | {each.index_name for each in (*retired, *segments.segments)}
    if snapshot is not None:
        used.add(snapshot.name)
    stale = [name for name in files.data if name not in used]
    tail_at = active.synced_at if active.synced_at > HEADER_BYTES else 0
    tail = data[tail_at : last.size]
    return Recovered(owner, segments, snapshot, is_ahead, stale, tail, tail_at, len(data) - last.size)


def _check_unused(folder: Folder, files: FileNames) -> None:
    """Raises StorageDamagedError if more is there than the first steps of making a directory."""
    begun = None
    if files.logs.keys() == {FIRST_SEQUENCE}:
        name = files.logs[FIRST_SEQUENCE]
        begun = scan_last_segment(name, read_file(folder, name))
    is_used = begun is not None and (begun.segment.last > 0 or begun.segment.hard_state != HardState())
    if is_used or files.indexes or files.snapshots or files.logs.keys() - {FIRST_SEQUENCE}:
        raise StorageDamagedError(f"the file {OWNER_NAME} is missing beside a log", file=OWNER_NAME)


def _read_last(folder: Folder, files: FileNames) -> tuple[SegmentWriter, bytes]:
    """The last segment and its file."""
    sequence = max(files.logs, default=0)
    newest_index = max(files.indexes, default=0)
    if not sequence or newest_index >= sequence:
        raise _missing(newest_index + 1)
    name = files.logs[sequence]
    data = read_file(folder, name)
    found = scan_last_segment(name, data)
    if found is not None:
        return found, data
    before = files.logs.get(sequence - 1)
    if before is None or sequence - 1 in files.indexes:
        raise StorageDamagedError(f"{name} holds nothing, but it had begun", file=name)
    data = read_file(folder, before)
    return scan_segment(before, data), data


def _read_earlier_ones(folder: Folder, files: FileNames, last: Segment) -> tuple[list[Segment], list[Segment]]:
    """Those of which the index is left, and those that have their entries; back to where a snapshot replaced all."""
    retired: list[Segment] = []
    ended: list[Segment] = []
    segment = last
    while not segment.header.replaces_all:
        sequence = segment.header.sequence - 1
        has_log = sequence in files.logs and not retired
        found = _read_earlier(folder, files, sequence, has_log=has_log)
        if found is None:
            break
        segment = found
        (ended if has_log else retired).append(segment)
    return retired[::-1], ended[::-1]


def _read_earlier(folder: Folder, files: FileNames, sequence: int, *, has_log: bool) -> Segment | None:
    """One that is written no more. An index that cannot be read is made again, while its segment is there.

    One of another version, too: an index says nothing that its segment does not say, and a newer format of the segment
    is refused when that is read.
    """
    if sequence in files.indexes:
        try:
            return _read_index(folder, files, sequence, has_log=has_log)
        except (StorageDamagedError, StorageVersionError):
            if not has_log:
                raise
    if not has_log:
        return None
    name = files.logs[sequence]
    return scan_segment(name, read_file(folder, name)).segment


def _read_index(folder: Folder, files: FileNames, sequence: int, *, has_log: bool) -> Segment:
    file = folder.open(files.indexes[sequence])
    try:
        segment = Segment.of_index(SegmentIndex.read(files.indexes[sequence], file))
    finally:
        file.close()
    if has_log:
        file = folder.open(segment.name)
        try:
            size = file.size
        finally:
            file.close()
        if size != segment.size:
            reason = f"{segment.name} has {size} bytes, and {segment.index_name} says {segment.size}"
            raise StorageDamagedError(reason, file=segment.name, offset=min(size, segment.size))
    return segment


def _check_in_a_row(segments: list[Segment]) -> None:
    """What each one says of those before it holds. Raises StorageDamagedError."""
    begin = segments[0].first - 1
    last = segments[0].header.index
    for number, segment in enumerate(segments):
        if segment.header.index != last:
            reason = f"{segment.name} begins after {segment.header.index}, but the log ended at {last}"
            raise StorageDamagedError(reason, file=segment.name)
        cut = segment.first - 1
        if cut < begin:
            raise StorageDamagedError(f"{segment.name} cuts what is gone", file=segment.name)
        for earlier in segments[:number] if cut < last else ():
            earlier.cut(cut)
        last = segment.last


def _read_snapshot(folder: Folder, files: FileNames) -> StoredSnapshot | None:
    if not files.snapshots:
        return None
    name = files.snapshots[max(files.snapshots)]
    file = folder.open(name)
    try:
        return StoredSnapshot.read(name, file)
    finally:
        file.close()


def _is_ahead(segments: SegmentList, snapshot: StoredSnapshot | None) -> bool:
    """Whether the log still has to be replaced by the snapshot. Raises StorageDamagedError if entries are missing."""
    header, begin = segments.segments[0].header, segments.first_index - 1
    if snapshot is None:
        if begin or header.replaces_all:
            raise _missing(header.sequence - 1 if not header.replaces_all else 0)
        return False
    meta = snapshot.meta
    if meta.index < begin:
        raise _missing(header.sequence - 1)
    if meta.index == begin or segments.term_at(meta.index) == meta.term:
        return False  # what is before the first entry was committed: it is the same everywhere
    if not snapshot.may_be_ahead:
        reason = f"{snapshot.name} was made of this log, but the log has not the entry {meta.index}"
        raise StorageDamagedError(reason, file=segments.last.name, offset=segments.last.size)
    return True


def _missing(sequence: int) -> StorageDamagedError:
    name = f"{sequence:016x}.log" if sequence > 0 else "snapshot"
    return StorageDamagedError(f"{name} is missing", file=name)
