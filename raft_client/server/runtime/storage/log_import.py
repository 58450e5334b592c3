"""The data folder of a Node peer, made into a directory that one of our peers starts with in its place.

It has the same entries under the same indexes, with their terms and request ids, the snapshot, the term and the vote.
What the folder has twice (where a snapshot ends, who the members are) must agree, because a log that has lost what was
acknowledged must not vote.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from raft_client.errors import InvalidArgumentError, ProtocolError, StorageDamagedError, StorageInUseError
from raft_client.server.node.ready import Persist
from raft_client.server.node.stored_log import Configuration, HardState, SnapshotMeta
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.server.runtime.storage.filesystem import SystemFolder, storage_error
from raft_client.server.runtime.storage.inspection import inspect_folder
from raft_client.server.runtime.storage.new_directory import new_directory
from raft_client.server.runtime.storage.node_peer_files import NodePeerFolder
from raft_client.server.runtime.storage.owner import Owner
from raft_client.wire.configuration import ConfigChange
from raft_client.wire.log_entry import EntryKind, SnapshotChunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from raft_client.server.runtime.storage.inspection import Inspection
    from raft_client.server.runtime.storage.node_peer_files import NodeSnapshot
    from raft_client.wire.configuration import Peers
    from raft_client.wire.log_entry import LogEntry

#: Written, and synced, at once; one entry may be longer.
_BATCH_ENTRIES: Final = 4096
_BATCH_BYTES: Final = 8 * 1024 * 1024


def import_log(
    source: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    peer_id: str,
    ident: bytes,
    peers: Peers = (),
) -> Inspection:
    """Make the new directory of the peer ``peer_id`` of a Node peer's folder. Returns what is in it.

    ``peers`` are the members that the Node peer was configured with; they count unless the folder says who the members
    are, as it does once they have changed. The Node peer must be stopped, and never started again.

    Raises StorageDamagedError with the file and the byte, StorageVersionError, StorageInUseError if the folder changes
    meanwhile, InvalidArgumentError if it does not say who the members are or the peer is none of them, and
    StorageError; nothing is left then.
    """
    path = Path(source)
    try:
        found = NodePeerFolder.read(path)
    except OSError as error:
        raise storage_error(error, f"reading {path}") from error
    change = found.state.change or ConfigChange(peers)
    if not change.new:
        raise InvalidArgumentError(f"{path} does not say who the members are: give them as the Node peer has them")
    owner = Owner(peer_id, ident, ConfigChange(change.new))
    with new_directory(directory, f"importing {path}") as part:
        target = SystemFolder(part)
        with DiskLog.open_in(target, owner) as log:
            _Import(found, log).run()
            _check_member(log, peer_id)
        if found.has_changed:
            raise StorageInUseError(f"{path} has changed meanwhile: stop the Node peer, and import it again")
        return inspect_folder(target)


def _check_member(log: DiskLog, peer_id: str) -> None:
    """Raises InvalidArgumentError: a wrong id would have two peers vote under it."""
    change = log.configurations[-1].change
    members = sorted({peer.id for peer in (*change.new, *(change.old or ()))})
    if peer_id not in members:
        raise InvalidArgumentError(f"{peer_id!r} is none of the members, who are {', '.join(members)}")


def _check_term(snapshot: NodeSnapshot, term: int | None) -> None:
    if term != snapshot.term:
        reason = f"the snapshot up to {snapshot.index} has the term {snapshot.term}, and the log {term}"
        raise StorageDamagedError(reason, file="snap")


def _batches(entries: Iterable[LogEntry]) -> Iterator[tuple[LogEntry, ...]]:
    """Some at once, as many as fit, one at least."""
    batch: list[LogEntry] = []
    room = _BATCH_BYTES
    for entry in entries:
        if batch and (entry.size > room or len(batch) == _BATCH_ENTRIES):
            yield tuple(batch)
            batch, room = [], _BATCH_BYTES
        batch.append(entry)
        room -= entry.size
    if batch:
        yield tuple(batch)


class _Import:
    """Writes what was found into an empty log."""

    def __init__(self, found: NodePeerFolder, log: DiskLog) -> None:
        self._found = found
        self._log = log
        self._last_term = 0

    def run(self) -> None:
        """Raises StorageError and OSError."""
        found, snapshot = self._found, self._found.snapshot
        self._check_range()
        first = found.files[0].first if found.files else None
        if snapshot is not None and (first is None or first >= snapshot.index):
            self._install(snapshot)
        elif first is not None and first > 1:
            self._begin_at(first)
        self._append()
        if snapshot is not None and self._snapshot_index < snapshot.index:
            self._compact(snapshot)
        self._check_members()
        self._vote()

    def _check_range(self) -> None:
        """The files of entries reach from the snapshot, or from 1, to what was applied."""
        found = self._found
        covered = 0 if found.snapshot is None else found.snapshot.index
        last = found.files[-1].last if found.files else covered
        if found.files and found.files[0].first > covered + 1:
            reason = f"the entries {covered + 1} to {found.files[0].first - 1} are missing"
            raise StorageDamagedError(reason, file=found.files[0].name)
        if last < covered:
            raise StorageDamagedError(f"the log ends at {last}, before the snapshot does, at {covered}", file="log")
        if last < found.last_applied:
            reason = f"the log ends at {last}, and {found.last_applied} entries were applied"
            raise StorageDamagedError(reason, file="log")

    # -- snapshots -----------------------------------------------------------------------------------------------------

    @property
    def _snapshot_index(self) -> int:
        snapshot = self._log.snapshot
        return 0 if snapshot is None else snapshot.index

    def _meta(self, index: int, term: int, size: int) -> SnapshotMeta:
        """What a snapshot says of the members; ``members_known`` only if no change of them can be missing."""
        state, log = self._found.state, self._log
        configuration = max((each for each in log.configurations if each.index <= index), key=lambda each: each.index)
        if state.change is not None and configuration.index < (state.change_index or 0) <= index:
            configuration = Configuration(state.change_index or 0, state.change)
        is_whole = log.first_index <= max(configuration.index, 1) and log.last_index >= index
        return SnapshotMeta(index, term, size, configuration, members_known=is_whole)

    def _install(self, snapshot: NodeSnapshot) -> None:
        """As if a leader had sent it: the log begins after it."""
        if self._found.files and self._found.files[0].first == snapshot.index:
            _check_term(snapshot, next(iter(self._found.entries(snapshot.index - 1))).term)
        meta, at = self._meta(snapshot.index, snapshot.term, snapshot.size), 0
        for piece in self._found.snapshot_pieces(snapshot):
            self._do(Persist(chunk=SnapshotChunk(meta.index, meta.term, at, meta.size, piece)))
            at += len(piece)
        if not at:
            self._do(Persist(chunk=SnapshotChunk(meta.index, meta.term, 0, 0, b"")))
        self._do(Persist(install=meta))
        self._last_term = meta.term

    def _begin_at(self, first: int) -> None:
        """The files before ``first`` were removed. A log begins after an entry whose term is known: after this one."""
        entry = next(iter(self._found.entries(first - 1)))
        meta = attrs.evolve(self._meta(first, entry.term, 0), members_known=False)
        self._do(Persist(chunk=SnapshotChunk(first, entry.term, 0, 0, b""), install=meta))
        self._last_term = entry.term

    def _compact(self, snapshot: NodeSnapshot) -> None:
        """The log goes back further, so that request ids are known: end it as our peers do, with a snapshot."""
        log = self._log
        _check_term(snapshot, log.term_at(snapshot.index))
        meta = self._meta(snapshot.index, snapshot.term, snapshot.size)
        with log.new_snapshot() as writer:
            for piece in self._found.snapshot_pieces(snapshot):
                writer.write(piece)
            writer.finish(meta)
        log.maintain()
        log.compact(meta)
        log.maintain()

    # -- entries, term and vote ----------------------------------------------------------------------------------------

    def _append(self) -> None:
        for batch in _batches(self._found.entries(self._log.last_index)):
            if batch[0].term < self._last_term:
                reason = f"the entry {batch[0].index} has the term {batch[0].term} after {self._last_term}"
                raise StorageDamagedError(reason, file="log")
            try:
                self._do(Persist(entries=batch))
            except (InvalidArgumentError, ProtocolError) as error:
                raise StorageDamagedError(f"of the entries from {batch[0].index} on one is damaged: {error}") from error
            self._last_term = batch[-1].term
            self._log.maintain()

    def _check_members(self) -> None:
        """The log has the last list of members that the peer knew."""
        state, log = self._found.state, self._log
        index = state.change_index
        if index is None and state.change_request is not None:
            index = log.index_of_request(state.change_request)
            if index is None:
                raise StorageDamagedError("raft.pers has a list of members that the log has not", file="raft.pers")
        if index is None or index <= self._snapshot_index:
            return
        entries = log.entries(index - 1, index, 0)
        if not entries or entries[0].kind is not EntryKind.CONFIG:
            reason = f"the log has no list of members at {index}, where raft.pers says that it is"
            raise StorageDamagedError(reason, file="raft.pers")

    def _vote(self) -> None:
        """A term that is lower than that of the last entry is raised, as by Node peers: one that only copies the log
        does not note it.
        """
        term, vote = self._found.state.term, self._found.state.voted_for
        state = HardState(term, vote) if term >= self._last_term else HardState(self._last_term)
        self._do(Persist(hard_state=state))

    def _do(self, job: Persist) -> None:
        self._log.write(job)
        self._log.sync()
