"""What a directory holds: read at the start, and whole or not at all. Nothing is changed here.

A directory is the file ``meta`` (:mod:`.owner`), segments ``*.log`` with numbers in a row (:mod:`.segment_format`),
their indexes ``*.index`` (:mod:`.segment_index`) and the newest snapshot (:mod:`.snapshots`). An index is written
when the next segment is on the disk to stay. Of the oldest segments the indexes alone may be left. A file that is made
anew has a name with ``.tmp`` until it is synced. What an interrupted change left behind is ``stale``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs

from raft_client.errors import StorageDamagedError, StorageOwnerError, StorageVersionError
from raft_client.server.node.stored_log import HardState
from raft_client.server.runtime.storage.owner import BACKUP_NAME, OWNER_NAME, Owner
from raft_client.server.runtime.storage.segment import Segment, SegmentWriter, scan_last_segment, scan_segment
from raft_client.server.runtime.storage.segment_format import HEADER_BYTES
from raft_client.server.runtime.storage.segment_index import SegmentIndex
from raft_client.server.runtime.storage.segment_list import SegmentList
from raft_client.server.runtime.storage.snapshots import StoredSnapshot

if TYPE_CHECKING:
    from raft_client.server.runtime.storage.filesystem import Folder

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
