"""The log of a Raft peer on a disk. It does what :class:`~raft_client.server.node.ready.Persist` says, and no more.

A job is :meth:`DiskLog.write`, which prepares it in memory, and :meth:`DiskLog.sync`, which does it: in the steady
state one write to the end of one file, and one fdatasync. A vote is the same. What is in which file, and how it is
found again, says :mod:`.recovery`; each format stands at the head of the module that reads and writes it.

Threads: everything is called in one thread, the loop's, but

* ``sync`` may run in another one, beside all calls but ``write``, ``compact`` and ``close``;
* ``maintain`` may run in another one, beside everything but ``close``; one at a time;
* a :class:`SnapshotWriter` belongs to one thread at a time, whichever.

After an error of the disk the log is unusable until it is opened again: a sync that failed is not repeated, because
the system may have dropped what it could not write, and would then say that all is well.
"""

from __future__ import annotations

import math
import os
from collections import deque
from enum import Enum
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, Self

import attrs

from raft_client.errors import BusyError, InvalidArgumentError, StorageError
from raft_client.server.node.ready import Configuration, HardState, as_many_as_fit
from raft_client.server.runtime.storage.directory import (
    DirectoryLock,
    Owner,
    make_directory,
    open_folder,
    storage_error,
)
from raft_client.server.runtime.storage.recovery import FIRST_SEQUENCE, is_new, list_files, recover
from raft_client.server.runtime.storage.segment import Segment, SegmentTables, SegmentWriter
from raft_client.server.runtime.storage.segment_format import MAX_BODY_BYTES, SALT_BYTES, Mark, SegmentHeader
from raft_client.server.runtime.storage.segment_index import write_index
from raft_client.server.runtime.storage.snapshots import SnapshotStore
from raft_client.wire.configuration import ConfigChange, Peers, decode_config
from raft_client.wire.log_entry import ENTRY_HEADER_BYTES, EntryKind

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from raft_client._common.durable_files import File, Folder
    from raft_client.server.node.ready import Persist, SnapshotMeta
    from raft_client.server.runtime.storage.recovery import Recovered
    from raft_client.server.runtime.storage.snapshots import SnapshotWriter
    from raft_client.wire.log_entry import LogEntry

# -- options -----------------------------------------------------------------------------------------------------------


_MIB: Final = 1024 * 1024


class Fsync(Enum):
    """When a job is durable."""

    #: Each entry is synced by itself. Slower than GROUP, and no safer: what a job promises is not said before its end.
    ALWAYS = "always"
    #: One sync for a job. Nothing that was acknowledged is ever lost.
    GROUP = "group"
    #: The system writes when it likes to. A process that dies loses nothing. If the *machine* stops, the peer forgets
    #: entries that count as committed, and votes, so that a cluster may lose acknowledged entries or have two leaders
    #: in one term. For tests, and for data that can be had again.
    OFF = "off"


@attrs.frozen(kw_only=True)
class StorageLimits:
    """Sizes; the defaults suit all."""

    #: A segment that has as much is ended. A job is never divided, so it may have more in the end.
    segment_bytes: int = 16 * _MIB
    segment_entries: int = 65_536
    #: What the newest entries may take in memory, where followers and clients that keep up find them.
    recent_bytes: int = 4 * _MIB


# -- a new log ---------------------------------------------------------------------------------------------------------


def make_log(folder: Folder, owner: Owner, salt: bytes) -> None:
    """A new directory. It counts when the owner's file is there, which is the last to come."""
    for name in list_files(folder).data:
        folder.remove(name)
    header = SegmentHeader(FIRST_SEQUENCE, salt, 0, 0)
    mark = SegmentWriter.begin(header).add_job(Mark(0, HardState(), True), ())
    file = folder.open(header.name, create=True)
    try:
        file.write(header.encode() + b"".join(mark), 0)
        file.sync()
    finally:
        file.close()
    owner.write(folder)


# -- disk log ----------------------------------------------------------------------------------------------------------


class DiskLog:
    """A log on a disk: the :class:`~raft_client.server.node.ready.StoredLog` of a node. :meth:`open` makes one."""

    def __init__(
        self,
        folder: Folder,
        found: Recovered,
        fsync: Fsync,
        limits: StorageLimits,
        random_bytes: Callable[[int], bytes],
        lock: DirectoryLock | None,
    ) -> None:
        self._owner = found.owner
        self._segments = found.segments
        self._snapshots = SnapshotStore(folder, found.snapshot, is_log_synced=fsync is not Fsync.OFF)
        #: Of the last job: they may not be in the file yet.
        self._newest: tuple[LogEntry, ...] = ()
        self._failure: str | None = None
        self._folder = folder
        self._fsync = fsync
        self._limits = limits
        self._random_bytes = random_bytes
        self._lock = lock
        self._steps: list[Callable[[], None]] = []  # of the job that is not done
        self._garbage: deque[str] = deque()
        #: Segments without an index, and the next one is on the disk to stay.
        self._ended = deque(each for each in self._segments.segments[:-1] if each.index is None)
        self._has_new_index = False
        self._file: File = folder.open(self._segments.last.name)  # for the thread that syncs

    # -- open and close ------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        peer_id: str,
        ident: bytes,
        peers: Peers,
        fsync: Fsync = Fsync.GROUP,
        limits: StorageLimits | None = None,
    ) -> Self:
        """Open the directory, or make it. ``peers`` count when it is made: later the log says who they are.

        Raises StorageInUseError, StorageOwnerError, StorageVersionError, StorageDamagedError and StorageError; nothing
        was changed then.
        """
        try:
            make_directory(path)
            lock = DirectoryLock(path)
        except OSError as error:
            raise storage_error(error, f"opening {os.fspath(path)}") from error
        try:
            owner = Owner(peer_id, ident, ConfigChange(peers))
            return cls.open_in(open_folder(path), owner, fsync=fsync, limits=limits, lock=lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open_in(
        cls,
        folder: Folder,
        owner: Owner,
        *,
        fsync: Fsync = Fsync.GROUP,
        limits: StorageLimits | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        lock: DirectoryLock | None = None,
    ) -> Self:
        """As :meth:`open`, any folder that nobody else uses."""
        try:
            files = list_files(folder)
            if is_new(folder, files):
                make_log(folder, owner, random_bytes(SALT_BYTES))
                files = list_files(folder)
            found = recover(folder, files)
            found.owner.check(owner.peer_id, owner.ident)
            log = cls(folder, found, fsync, limits or StorageLimits(), random_bytes, lock)
            try:
                log._repair(found)
            except BaseException:
                log._close_files()
                raise
        except OSError as error:
            raise storage_error(error, "opening the log") from error
        return log

    def _repair(self, found: Recovered) -> None:
        """Make durable what was read, for it counts from now on; and undo what was begun.

        What was written since the last mark is written again: after a sync that failed the system has it in its memory,
        as if it were on the disk.
        """
        self._folder.sync()
        for name in found.stale:
            self._folder.remove(name)
        if found.torn_bytes:
            self._file.truncate(self._segments.last.size)
        self._file.write(found.tail, found.tail_at)
        self._file.sync()
        if found.stale:
            self._folder.sync()
        if found.snapshot_is_ahead and found.snapshot is not None:
            self._begin_segment(found.snapshot.meta.index, found.snapshot.meta.term, replaces_all=True)
            self.sync()
        self.maintain()

    def close(self) -> None:
        """End it. All that was synced stays, and with ``Fsync.OFF`` all that was written. Safe to call twice."""
        try:
            if self._failure is None and not self._steps:
                self.maintain()
                self._end()
        finally:
            self._failure = self._failure or "the log is closed"
            self._close_files()
            if self._lock is not None:
                self._lock.release()

    def _close_files(self) -> None:
        self._segments.close()
        self._snapshots.close()
        self._file.close()

    def _end(self) -> None:
        """The last mark says that the last job was synced: if it is damaged later, that is seen."""
        try:
            self._file.sync()
            active, last = self._segments.active, self._segments.last
            if not active.ends_with_mark or self._fsync is Fsync.OFF:
                at = last.size
                self._file.write(b"".join(active.add_job(Mark(last.last, last.hard_state, True), ())), at)
                self._file.sync()
        except OSError as error:
            raise self._fail(error, "closing the log") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what is read --------------------------------------------------------------------------------------------------

    @property
    def peer_id(self) -> str:
        """Whose log it is."""
        return self._owner.peer_id

    @property
    def hard_state(self) -> HardState:
        """As it was persisted last."""
        return self._segments.last.hard_state

    @property
    def configurations(self) -> Sequence[Configuration]:
        """That of the snapshot, or of the start; then those of the CONFIG entries behind it, oldest first."""
        base = Configuration(0, self._owner.change) if self.snapshot is None else self.snapshot.configuration
        return [base, *(each for each in self._segments.configurations if each.index > base.index)]

    @property
    def snapshot(self) -> SnapshotMeta | None:
        """The newest one."""
        current = self._snapshots.current
        return None if current is None else current.meta

    @property
    def recent_bytes(self) -> int:
        """See :class:`StorageLimits`."""
        return self._limits.recent_bytes

    @property
    def first_index(self) -> int:
        """Of the oldest entry that is kept; ``last_index + 1`` if there is none."""
        return self._segments.first_index

    @property
    def last_index(self) -> int:
        """Of the newest entry; that of the snapshot if no entry follows it; 0 if there is nothing."""
        return self._segments.last.last

    def term_at(self, index: int) -> int | None:
        """The term of the entry, or of the snapshot that ends there; 0 for 0; None if unknown. Raises StorageError."""
        self._check_usable()
        if index == 0:
            return 0
        if self._newest and self._newest[0].index <= index <= self.last_index:
            return self._newest[index - self._newest[0].index].term
        snapshot = self.snapshot
        return snapshot.term if snapshot is not None and index == snapshot.index else self._segments.term_at(index)

    def entries(self, after: int, last: int, max_bytes: int) -> list[LogEntry]:
        """The entries after the index ``after`` up to ``last``, as many as fit into ``max_bytes``; see StoredLog.

        Empty if the first one is compacted. Raises StorageError.
        """
        self._check_usable()
        index, last = after + 1, min(last, self.last_index)
        if index < self.first_index:
            return []
        newest = self._newest[0].index if self._newest else last + 1
        stored = self._segments.read(index, min(last, newest - 1), max_bytes)
        return as_many_as_fit(
            chain(stored, self._newest[max(0, index - newest) : max(0, last + 1 - newest)]), max_bytes
        )

    def last_at_hand(self, after: int, max_bytes: int) -> int:
        """The index up to which reading waits for no disk; see StoredLog. Raises StorageError."""
        self._check_usable()
        if not self.first_index <= after + 1 <= self.last_index:
            return self.last_index
        return self._segments.last_at_hand(after, max_bytes)

    def is_snapshot_at_hand(self, offset: int, size: int) -> bool:
        """Whether :meth:`read_snapshot` waits for no disk; see StoredLog. Raises StorageError."""
        self._check_usable()
        return self._snapshots.is_at_hand(offset, size, self._segments.ahead)

    @property
    def wants_reading(self) -> bool:
        """Whether :meth:`read_ahead` has something to do."""
        return bool(self._segments.ahead.wanted)

    def read_ahead(self) -> None:
        """Read what the loop's thread waits for. Any thread."""
        self._segments.ahead.read()

    def read_snapshot(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes of the newest snapshot; fewer at its end. Raises StorageError.

        BusyError between the write and the end of the sync that installs it.
        """
        self._check_usable()
        return self._snapshots.read(offset, size)

    def snapshot_pieces(self) -> Generator[bytes]:
        """All of the newest snapshot, also if another one takes its place meanwhile; close it. Raises StorageError."""
        self._check_usable()
        return self._snapshots.pieces()

    def index_of_request(self, request_id: bytes) -> int | None:
        """The newest entry with this request id (12 bytes), as far back as ids are known. Raises StorageError."""
        self._check_usable()
        return self._segments.find_request(request_id)

    @property
    def prune_index(self) -> int:
        """The index before the first entry whose request id is known; ``last_index`` if none is."""
        return self._segments.prune_index

    def newest_request_s(self) -> float:
        """When the newest request id was made, or a time before that: those of the last segment are not looked at."""
        return self._segments.newest_request_s()

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def write(self, persist: Persist) -> None:
        """Prepare a job. From now on the log reads as if it was done; it is durable after :meth:`sync`.

        Raises InvalidArgumentError or ProtocolError if it does not fit to the log, which is unchanged then, BusyError
        if the job before was not synced, and StorageError.
        """
        self._check_usable()
        if self._steps:
            raise BusyError("the job before was not synced")
        meta = persist.install
        self._snapshots.check(persist.chunk, meta)
        replaces = meta is not None and not self._has(meta)
        last = self._check_entries(persist, replaces=replaces)
        try:
            self._prepare(persist, last, replaces=replaces)
        except BaseException:
            self._failure = "a job was prepared in part; open the log again"
            raise

    def _prepare(self, persist: Persist, last: int, *, replaces: bool) -> None:
        meta, hard_state = persist.install, persist.hard_state or self.hard_state
        if self._has_new_index:
            self._has_new_index = False
            self._segments.indexes_changed()
        if persist.chunk is not None:
            self._snapshots.take(persist.chunk)
            self._do(self._snapshots.write_chunk, persist.chunk)
        if meta is not None:
            if persist.hard_state is not None:
                self._append(self.last_index, hard_state, ())
            self._install(meta, replaces=replaces)
        is_hard_state_due = persist.hard_state is not None and meta is None
        if persist.entries or last < self.last_index or is_hard_state_due:
            self._append(last, hard_state, persist.entries)

    def sync(self) -> None:
        """Do the job that was prepared. What it says is durable when this returns. Nothing happens if there is none.

        Blocks; may run in another thread. Raises StorageError, StorageFullError if there is no room: what the job said
        may then be durable or not, and the log is unusable until it is opened again.
        """
        self._check_usable()
        try:
            for step in self._steps:
                step()
        except OSError as error:
            raise self._fail(error, "writing the log") from error
        except BaseException:
            self._failure = "a job was interrupted; open the log again"
            raise
        self._steps = []

    def _has(self, meta: SnapshotMeta) -> bool:
        """Whether the log has the last entry that the snapshot replaces. Raises InvalidArgumentError, StorageError."""
        if meta.index < max(self._snapshots.index, self.first_index - 1):
            raise InvalidArgumentError(f"a snapshot up to {meta.index}, which was compacted already")
        return meta.index <= self.last_index and self.term_at(meta.index) == meta.term

    def _check_entries(self, persist: Persist, *, replaces: bool) -> int:
        """Where the log is to end before the new entries. Raises InvalidArgumentError, ProtocolError."""
        snapshot = persist.install.index if persist.install else self._snapshots.index
        end = snapshot if replaces else self.last_index
        begin = snapshot if replaces else max(self.first_index - 1, snapshot)
        last = end if persist.truncate_after is None else persist.truncate_after
        if persist.install is not None:
            last = max(last, begin)  # what lies before the snapshot is gone already
        if not begin <= last <= end:
            raise InvalidArgumentError(f"the log cannot be cut after {last}: it goes from {begin + 1} to {end}")
        for index, entry in enumerate(persist.entries, last + 1):
            if entry.index != index:
                raise InvalidArgumentError(f"the entry {entry.index} instead of {index}")
            if not ENTRY_HEADER_BYTES <= len(entry.frame) <= MAX_BODY_BYTES:
                raise InvalidArgumentError(f"an entry of {len(entry.frame)} bytes")
            if not entry.is_state and entry.kind is EntryKind.CONFIG:
                decode_config(entry.data_view)
        return last

    def _append(self, last: int, hard_state: HardState, entries: tuple[LogEntry, ...]) -> None:
        """Cut the log after ``last``, and go on with ``entries``."""
        end = self._segments.last
        if end.size >= self._limits.segment_bytes or end.last - end.first + 1 >= self._limits.segment_entries:
            self._begin_segment(self.last_index, self.term_at(self.last_index) or 0)
        if last < self.last_index:
            self._segments.truncate(last)
        at = self._segments.last.size
        parts = self._segments.active.add_job(Mark(last, hard_state, self._fsync is not Fsync.OFF), entries)
        self._newest = entries
        if self._fsync is Fsync.ALWAYS:
            pieces = [parts[:3], *(parts[begin : begin + 2] for begin in range(3, len(parts), 2))]
        else:
            pieces = [parts]
        for piece in map(b"".join, pieces):
            self._do(self._write_file, piece, at)
            at += len(piece)
            if self._fsync is not Fsync.OFF:
                self._do(self._sync_file)

    def _install(self, meta: SnapshotMeta, *, replaces: bool) -> None:
        """End the snapshot that arrived, and drop what it replaces: only then, and all of it or nothing."""
        gone = self._snapshots.begin_install(meta)
        self._do(self._snapshots.install, meta, replaces)
        if replaces:
            self._begin_segment(meta.index, meta.term, replaces_all=True)
        else:
            gone += self._segments.retire(meta)
        self._do(self._garbage.extend, gone)

    def _begin_segment(self, index: int, term: int, *, replaces_all: bool = False) -> None:
        """The next one, after the entry ``index``. It is on the disk to stay before anything else is written to it."""
        before = self._segments.last
        sequence = before.header.sequence + 1
        header = SegmentHeader(sequence, self._random_bytes(SALT_BYTES), index, term, replaces_all)
        active = SegmentWriter.begin(header)
        mark = active.add_job(Mark(index, before.hard_state, True), ())
        if self._fsync is Fsync.OFF:
            self._do(self._sync_file)
        self._do(self._create_file, header.name)
        self._do(self._write_file, header.encode() + b"".join(mark), 0)
        self._do(self._sync_file)
        self._do(self._folder.sync)
        if replaces_all:
            self._do(self._garbage.extend, self._segments.replace_all(active))
            self._newest = ()
        else:
            self._do(self._ended.append, before)
            self._segments.add(active)

    def _do(self, step: Callable[..., None], *args: object) -> None:
        self._steps.append(partial(step, *args))

    # -- steps of a job, in the thread of sync() -----------------------------------------------------------------------

    def _write_file(self, data: bytes, at: int) -> None:
        self._file.write(data, at)

    def _sync_file(self) -> None:
        self._file.sync()

    def _create_file(self, name: str) -> None:
        self._file.close()
        self._file = self._folder.open(name, create=True)

    # -- compaction, and what can wait ---------------------------------------------------------------------------------

    def new_snapshot(self) -> SnapshotWriter:
        """Begin a snapshot of this peer's own state machine. Raises BusyError if one is being made, StorageError."""
        self._check_usable()
        return self._snapshots.begin_local(self._fail)

    def abort_snapshot(self) -> None:
        """Give up the one that was begun; nobody may write to it any more."""
        self._snapshots.end_local()

    def compact(self, meta: SnapshotMeta) -> None:
        """The snapshot that was finished with this ``meta`` takes the place of the entries before it.

        Whole segments go, except the last; the request ids in them stay known. Raises InvalidArgumentError,
        StorageError.
        """
        self._check_usable()
        if meta.index <= self._snapshots.index or self.term_at(meta.index) != meta.term:
            raise InvalidArgumentError(f"no snapshot of this log, or an old one: {meta.index} of term {meta.term}")
        gone = self._snapshots.use_local(meta)
        gone += self._segments.retire(meta)
        self._garbage.extend(gone)

    def forget_requests(self, before_s: float, up_to: int = 0) -> None:
        """Request ids made before that time (seconds since 1970), and those of the entries up to ``up_to``, may be
        forgotten, so that ``prune_index`` rises.

        Whole segments at a time, the oldest first; the last one's stay known. A peer that is opened again knows them
        again, while their files are there. Call it now and then, with the time of the oldest id that the peer takes.
        """
        self._check_usable()
        self._garbage.extend(self._segments.forget(math.ceil(before_s), up_to))

    @property
    def wants_maintenance(self) -> bool:
        """Whether :meth:`maintain` has something to do; it can wait, but memory grows meanwhile."""
        return bool(self._garbage or self._ended)

    def maintain(self) -> None:
        """Write the indexes of segments that have ended, remove files that nothing needs. Blocks.

        May run in another thread, beside everything else. Raises StorageError, and the log is unusable then.
        """
        self._check_usable()
        try:
            while self._garbage:
                self._folder.remove(self._garbage.popleft())
            while self._ended:
                self._write_index(self._ended.popleft())
        except OSError as error:
            raise self._fail(error, "maintaining the log") from error

    def _write_index(self, segment: Segment) -> None:
        """The segment may be removed after it. Not for one that has it, or that was replaced meanwhile."""
        tables, name = segment.contents, segment.index_name
        is_gone = segment.header.sequence < self._segments.segments[0].header.sequence
        if is_gone or not isinstance(tables, SegmentTables):
            return
        segment.contents = write_index(self._folder, name, segment.encode_index(tables), tables.requests.ids)
        self._has_new_index = True

    # -- failure -------------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise StorageError(self._failure)

    def _fail(self, error: OSError, doing: str) -> StorageError:
        """No more from now on."""
        self._failure = f"the log failed ({error}); open it again"
        return storage_error(error, doing)
