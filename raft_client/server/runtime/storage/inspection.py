"""What is in a directory, and what is wrong with it: everything is read, nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from raft_client.errors import StorageDamagedError, StorageError
from raft_client.server.runtime.storage.filesystem import DirectoryLock, SystemFolder, storage_error
from raft_client.server.runtime.storage.owner import BACKUP_NAME, Owner
from raft_client.server.runtime.storage.recovery import is_new, list_files, read_file, recover
from raft_client.server.runtime.storage.segment import scan_last_segment, scan_segment
from raft_client.server.runtime.storage.segment_index import SegmentIndex
from raft_client.server.runtime.storage.snapshots import StoredSnapshot

if TYPE_CHECKING:
    from raft_client.server.node.stored_log import HardState, SnapshotMeta
    from raft_client.server.runtime.storage.filesystem import File, Folder
    from raft_client.server.runtime.storage.recovery import Recovered


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
    folder = SystemFolder(path, read_only=True)
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
