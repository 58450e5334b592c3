"""Backups of a peer's directory, and the new cluster that one is restored as.

A backup holds the files of the directory, with another name for that of the owner (:data:`.directory.BACKUP_NAME`): no
peer starts with it. The peer may be running: segments only grow, and all but the last one are written no more; what is
copied is a first part of what it wrote, as after a crash.

What is restored is a new cluster: it has another ident, one member under an id that was never used, and terms that the
old cluster never had. So it cannot vote for the old one, and nothing that it forgot was promised in its name. Why says
``docs/decisions/raft-log.md``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from raft_client.errors import InvalidArgumentError, StorageDamagedError, StorageError
from raft_client.server.node.ready import HardState, Persist
from raft_client.server.runtime.storage.directory import (
    BACKUP_NAME,
    OWNER_NAME,
    DirectoryLock,
    Owner,
    new_directory,
    open_folder,
    storage_error,
)
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.server.runtime.storage.recovery import is_new, list_files, read_file, recover
from raft_client.server.runtime.storage.segment import scan_last_segment, scan_segment
from raft_client.server.runtime.storage.segment_index import SegmentIndex
from raft_client.server.runtime.storage.snapshots import StoredSnapshot
from raft_client.wire.configuration import ConfigChange, Peer, encode_config
from raft_client.wire.log_entry import EntryKind, LogEntry

if TYPE_CHECKING:
    from raft_client._common.durable_files import File, Folder, SystemFolder
    from raft_client.server.node.ready import SnapshotMeta
    from raft_client.server.runtime.storage.recovery import Recovered
    from raft_client.wire.request_id import RequestId

# -- looking at a directory --------------------------------------------------------------------------------------------


@attrs.frozen
class Problem:
    """``offset`` is the byte in the file where it begins, if that is known; else 0."""

    file: str
    offset: int
    message: str


@attrs.frozen
class Inspection:
    """What a peer would find. All but ``problems`` is None if they keep it from being opened, or nothing is there."""

    problems: tuple[Problem, ...]
    owner: Owner | None = None
    hard_state: HardState | None = None
    first_index: int | None = None
    last_index: int | None = None
    snapshot: SnapshotMeta | None = None
    #: Bytes at the end that were never synced, and will be cut off at the next start: as it should be.
    torn_bytes: int = 0
    #: Files that an interrupted change left behind, and that will be removed.
    stale: tuple[str, ...] = ()
    is_backup: bool = False
    #: Whether the log or the snapshot says for certain who the members are: otherwise the peer is not elected.
    members_known: bool = True
    #: Of all peers that were members, as far back as the directory tells.
    member_ids: frozenset[str] = frozenset()

    @property
    def entry_count(self) -> int:
        """How many entries there are; 0 if the directory cannot be opened."""
        return 0 if self.first_index is None or self.last_index is None else self.last_index + 1 - self.first_index


def inspect_directory(path: str | os.PathLike[str]) -> Inspection:
    """Raises StorageInUseError if a peer has it open, StorageError if it cannot be read."""
    if not Path(path).is_dir():
        raise StorageError(f"{os.fspath(path)} is no directory")
    folder = open_folder(path, read_only=True)
    try:
        try:
            lock = DirectoryLock(path, for_reading=True)
        except FileNotFoundError:
            return inspect_folder(folder)
        try:
            return inspect_folder(folder)
        finally:
            lock.release()
    except OSError as error:
        raise storage_error(error, f"reading {os.fspath(path)}") from error


def inspect_folder(folder: Folder) -> Inspection:
    """As :func:`inspect_directory`. Raises OSError."""
    files = list_files(folder)
    problems: list[Problem] = []
    last = max(files.logs, default=0)
    for sequence, name in files.logs.items():
        _note(problems, partial(_check_log, folder, name, is_last=sequence == last))
    for name in files.indexes.values():
        _note(problems, partial(_with_file, folder, name, _check_index))
    for name in files.snapshots.values():
        _note(problems, partial(_with_file, folder, name, _check_snapshot))
    found = None
    try:
        found = None if files.owner is None and is_new(folder, files) else recover(folder, files)
    except StorageError as error:
        _add(problems, error)
    if found is None:
        return Inspection(tuple(problems))
    segments = found.segments
    snapshot = None if found.snapshot is None else found.snapshot.meta
    newest = max((each.index for each in segments.configurations), default=0)
    segments.close()
    return Inspection(
        tuple(problems),
        found.owner,
        segments.last.hard_state,
        segments.first_index,
        segments.last.last,
        snapshot,
        found.torn_bytes,
        tuple(found.stale),
        files.owner == BACKUP_NAME,
        snapshot is None or snapshot.members_known or newest > snapshot.index,
        _member_ids(found),
    )


def _member_ids(found: Recovered) -> frozenset[str]:
    changes = [found.owner.change, *(each.change for each in found.segments.configurations)]
    if found.snapshot is not None:
        changes.append(found.snapshot.meta.configuration.change)
    return frozenset({found.owner.peer_id, *(peer.id for each in changes for peer in (*each.new, *(each.old or ())))})


def _note(problems: list[Problem], check: Callable[[], None]) -> None:
    try:
        check()
    except StorageError as error:
        _add(problems, error)


def _add(problems: list[Problem], error: StorageError) -> None:
    """Once, however often it is met."""
    file, offset = (error.file, error.offset) if isinstance(error, StorageDamagedError) else ("", 0)
    problem = Problem(file, offset, error.message)
    if problem not in problems:
        problems.append(problem)


def _check_log(folder: Folder, name: str, *, is_last: bool) -> None:
    scan = scan_last_segment if is_last else scan_segment
    scan(name, read_file(folder, name))


def _with_file(folder: Folder, name: str, check: Callable[[str, File], None]) -> None:
    file = folder.open(name)
    try:
        check(name, file)
    finally:
        file.close()


def _check_index(name: str, file: File) -> None:
    index = SegmentIndex.read(name, file)
    index.read_offsets(file)
    for number in range(index.block_count):
        index.read_block(number, file)


def _check_snapshot(name: str, file: File) -> None:
    snapshot = StoredSnapshot.read(name, file)
    for number in range(snapshot.block_count):
        snapshot.read_block(file, number)


# -- copying it --------------------------------------------------------------------------------------------------------


#: Added to the term when a backup is restored: more elections than the old cluster has had since the backup.
TERM_STEP: Final = 1 << 20
_PIECE: Final = 1024 * 1024
#: How often copying begins again when a running peer removes files meanwhile. One compaction can spoil several
#: attempts, each of which copies only what is new.
_ATTEMPTS: Final = 100


def back_up(directory: str | os.PathLike[str], target: str | os.PathLike[str]) -> Inspection:
    """Copy the directory of a peer, which may be running, to the new directory ``target``. Returns what is in it.

    All that the peer had on its disk when this began is in it. Everything is read again: damage raises
    StorageDamagedError. Raises StorageError if it is no peer's directory, or ``target`` exists; nothing is left then.
    """
    source = _open(directory, OWNER_NAME, "not the data directory of a peer")
    with new_directory(target, f"copying {os.fspath(directory)}") as part:
        return _copy_whole(source, open_folder(part))


def restore(
    source: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    peer: Peer,
    ident: bytes,
    request_id: RequestId,
) -> Inspection:
    """Make a directory of a backup: that of ``peer``, alone in a new cluster of the name ``ident``. Returns what is in
    it.

    It has all entries of the backup, their request ids and the snapshot, and one entry more, with ``request_id``, that
    says who the member is. Raises InvalidArgumentError if the cluster of the backup has that name, or had a member with
    that id; StorageError if ``source`` is no backup, is damaged, or ``directory`` exists; nothing is left then.
    """
    folder = _open(source, BACKUP_NAME, "no backup")
    with new_directory(directory, f"restoring {os.fspath(source)}") as part:
        target = open_folder(part)
        _check_identity(_copy_whole(folder, target), peer, ident)
        target.remove(BACKUP_NAME)
        owner = Owner(peer.id, ident, ConfigChange((peer,)))
        owner.write(target)
        with DiskLog.open_in(target, owner) as log:
            _begin_cluster(log, peer, request_id)
        return inspect_folder(target)


def _open(path: str | os.PathLike[str], owner: str, otherwise: str) -> SystemFolder:
    """Raises StorageError, which says that it is ``otherwise``, unless the directory has such an owner."""
    folder = open_folder(path, read_only=True)
    try:
        if not Path(path).is_dir() or list_files(folder).owner != owner:
            raise StorageError(f"{os.fspath(path)} is {otherwise}: there is no file {owner} in it")
    except OSError as error:
        raise storage_error(error, f"reading {os.fspath(path)}") from error
    return folder


def _check_identity(old: Inspection, peer: Peer, ident: bytes) -> None:
    """Raises InvalidArgumentError if the new cluster could be taken for the old one."""
    if old.owner is None or old.owner.ident == ident:
        name = ident.decode(errors="backslashreplace")
        raise InvalidArgumentError(f"the backup is of the cluster {name!r}: give the restored one a name of its own")
    if peer.id in old.member_ids:
        raise InvalidArgumentError(f"the peer id {peer.id!r} was used in the cluster of the backup: choose a new one")


def _begin_cluster(log: DiskLog, peer: Peer, request_id: RequestId) -> None:
    """The peer is the only member, as if it had been elected in a term that the old cluster never had."""
    term = max(log.hard_state.term, log.term_at(log.last_index) or 0) + TERM_STEP
    members = encode_config(ConfigChange((peer,)))
    entry = LogEntry.of(members, term=term, kind=EntryKind.CONFIG, request_id=request_id, index=log.last_index + 1)
    log.write(Persist(hard_state=HardState(term, peer.id), entries=(entry,)))
    log.sync()


# -- copying -----------------------------------------------------------------------------------------------------------


def _copy_whole(source: SystemFolder, target: SystemFolder) -> Inspection:
    """Copy the files, and read the copy. A running peer may remove some meanwhile: then copy those that came instead.

    Raises StorageDamagedError and OSError.
    """
    complete: set[str] = set()
    for _ in range(_ATTEMPTS):
        names = source.names()
        try:
            _copy_files(source, target, complete)
        except FileNotFoundError:
            continue
        found = inspect_folder(target)
        if not found.problems:
            _sync(target)
            return found
        if source.names() == names:
            problem = found.problems[0]
            raise StorageDamagedError(problem.message, file=problem.file, offset=problem.offset)
    raise StorageError("the peer removed files each time that they were to be copied; try it again")


def _copy_files(source: SystemFolder, target: SystemFolder, complete: set[str]) -> None:
    """``complete`` are those that an attempt before has copied, and that do not grow: all but the last segment."""
    files = list_files(source)
    last = files.logs[max(files.logs)] if files.logs else ""
    wanted = {name for name in files.data if name not in files.unfinished}
    for name in target.names() - wanted:
        target.remove(name)
    complete &= wanted
    for name in sorted(wanted - complete):
        _copy_file(source, target, name, name)
        if name != last:
            complete.add(name)
    if files.owner is not None:
        _copy_file(source, target, files.owner, BACKUP_NAME)


def _copy_file(source: SystemFolder, target: SystemFolder, name: str, new_name: str) -> None:
    """What it has when this begins."""
    file = source.open(name)
    try:
        size, at = file.size, 0
        copy = target.open(new_name, create=True)
        try:
            while at < size and (data := file.read(min(_PIECE, size - at), at)):
                copy.write(data, at)
                at += len(data)
        finally:
            copy.close()
    finally:
        file.close()


def _sync(folder: SystemFolder) -> None:
    """All that is in it: in the end, because a running peer does not wait for it."""
    for name in sorted(folder.names()):
        file = folder.open(name)
        try:
            file.sync()
        finally:
            file.close()
    folder.sync()
