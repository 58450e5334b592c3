"""The data folder of a Node peer, made into a directory that one of our peers starts with in its place.

It has the same entries under the same indexes, with their terms and request ids, the snapshot, the term and the vote.
What the folder has twice (where a snapshot ends, who the members are) must agree, because a log that has lost what was
acknowledged must not vote.
"""

from __future__ import annotations

import base64
import os
import re
import struct
import sys
from array import array
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgpack

from raft_client.errors import (
    InvalidArgumentError,
    ProtocolError,
    StorageDamagedError,
    StorageError,
    StorageInUseError,
    StorageVersionError,
)
from raft_client.server.node.ready import Configuration, HardState, Persist, SnapshotMeta
from raft_client.server.runtime.storage.backup import inspect_folder
from raft_client.server.runtime.storage.directory import Owner, new_directory, open_folder, storage_error
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.wire.configuration import ConfigChange, Peers, peers_from_json
from raft_client.wire.frames import MAX_UINT
from raft_client.wire.log_entry import EntryKind, LogEntry, SnapshotChunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from raft_client._common.durable_files import File, SystemFolder
    from raft_client.server.runtime.storage.backup import Inspection

# -- the files of Node's peers -----------------------------------------------------------------------------------------
# ::
#
#     folder  =  raft.pers  state.pers  snap  log/<5 digits>/<2 digits>/<2 digits>/<14 hex digits>.rlog
#     pers    =  MessagePack maps, one after the other: each has what changed; the last one may be torn
#     token   =  name 4 bytes  length u32  body, padded to a multiple of 4 bytes
#     rlog    =  token RLOG: version u32  capacity u32  index of the first entry u64  where each entry ends u32, 0: none
#                other tokens;  token ITMZ, empty;  entries as on the wire, from here on their ends are counted
#     snap    =  token SNAP: version u32  index u64  term u64  size u64
#                other tokens;  token DATA, empty;  the snapshot, up to the end of the file
#
# There are no checksums: of damage only that is found which makes the files say what cannot be. (facts §3)


_STATE_NAME: Final = "raft.pers"
_APPLIED_NAME: Final = "state.pers"
_SNAPSHOT_NAME: Final = "snap"
_ENTRIES: Final = re.compile(r"log/([0-9a-f]{5})/([0-9a-f]{2})/([0-9a-f]{2})/(\1\2\3[0-9a-f]{5})\.rlog")
#: No map has one of them twice: what has is no torn end.
_KEYS: Final = (b"currentTerm", b"votedFor", b"peersIndex", b"lastApplied")
_VERSION: Final = 1
_TOKEN: Final = struct.Struct("<4sI")
_ENTRIES_HEAD: Final = struct.Struct("<4sIIIQ")
_SNAPSHOT_HEAD: Final = struct.Struct("<4sIIQQQ")
_MAX_CAPACITY: Final = 0x00FF_FFFF
_PIECE: Final = 1024 * 1024


@attrs.frozen
class NodePeerState:
    """What ``raft.pers`` says. ``change`` is None as long as the members are those of the peer's configuration."""

    term: int = 0
    voted_for: str = ""
    change: ConfigChange | None = None
    #: Of the CONFIG entry with it, and the request id of that; None before the first change.
    change_index: int | None = None
    change_request: bytes | None = None


@attrs.frozen
class NodeSnapshot:
    """What the file ``snap`` begins with; the data is ``size`` bytes from ``at`` on."""

    index: int
    term: int
    size: int
    at: int


@attrs.frozen
class EntryFile:
    """Entries of the log, from the index ``first`` on: where each one ends, counted from ``at``."""

    name: str
    first: int
    ends: array[int] = attrs.field(repr=False)
    at: int

    @property
    def last(self) -> int:
        """The index of the last entry; one less than ``first`` if there is none."""
        return self.first + len(self.ends) - 1


@attrs.define(eq=False)
class NodePeerFolder:
    """Everything but the entries and the snapshot is in memory. Raises StorageError, its subclasses, and OSError."""

    path: Path
    state: NodePeerState
    #: Up to where the state machine has applied the log; 0 if it does not tell.
    last_applied: int
    snapshot: NodeSnapshot | None
    #: One after the other, without a gap; those at the end that are empty are left out.
    files: list[EntryFile]
    _stamps: dict[str, tuple[int, int]] = attrs.field(repr=False)

    @classmethod
    def read(cls, path: Path) -> NodePeerFolder:
        """All but the entries is checked."""
        if not (path / _STATE_NAME).is_file():
            raise StorageError(f"{path} is not the data folder of a Node peer: there is no file {_STATE_NAME} in it")
        stamps = _stamps(path)
        folder = open_folder(path, read_only=True)
        state = _state(_read_maps(folder, _STATE_NAME))
        applied = _read_maps(folder, _APPLIED_NAME) if (path / _APPLIED_NAME).is_file() else {}
        snapshot = _read_snapshot(folder) if (path / _SNAPSHOT_NAME).is_file() else None
        files = [_read_entry_file(folder, name) for name in sorted(stamps) if _ENTRIES.fullmatch(name)]
        last_applied = _number(applied.get("lastApplied", 0), _APPLIED_NAME, "lastApplied")
        return cls(path, state, last_applied, snapshot, _in_a_row(files), stamps)

    @property
    def has_changed(self) -> bool:
        """Whether somebody has written to it since: the peer runs."""
        return _stamps(self.path) != self._stamps

    def entries(self, after: int) -> Iterator[LogEntry]:
        """Those after the index ``after``. Each is checked: its header, and that no term is lower than before."""
        folder = open_folder(self.path, read_only=True)
        term = 0
        for each in self.files:
            if each.last <= after:
                continue
            file = folder.open(each.name)
            try:
                for entry in _entries(each, file, max(after + 1 - each.first, 0)):
                    if entry.term < term:
                        reason = f"the entry {entry.index} has the term {entry.term} after {term}"
                        raise StorageDamagedError(f"{each.name} is damaged: {reason}", file=each.name)
                    term = entry.term
                    yield entry
            finally:
                file.close()

    def snapshot_pieces(self, snapshot: NodeSnapshot) -> Iterator[bytes]:
        """The data of the snapshot."""
        file = open_folder(self.path, read_only=True).open(_SNAPSHOT_NAME)
        try:
            for at in range(0, snapshot.size, _PIECE):
                yield file.read(min(_PIECE, snapshot.size - at), snapshot.at + at)
        finally:
            file.close()


def _stamps(path: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file that is read."""
    names = [_STATE_NAME, _APPLIED_NAME, _SNAPSHOT_NAME]
    names += [each.relative_to(path).as_posix() for each in (path / "log").rglob("*.rlog")]
    found = {name: (path / name).stat() for name in names if (path / name).is_file()}
    return {name: (each.st_size, each.st_mtime_ns) for name, each in found.items()}


def _damaged(name: str, why: str, offset: int = 0) -> StorageDamagedError:
    return StorageDamagedError(f"{name} is damaged at byte {offset}: {why}", file=name, offset=offset)


# -- raft.pers and state.pers ------------------------------------------------------------------------------------------


def _read_maps(folder: SystemFolder, name: str) -> dict[str, Any]:
    """All of them, the later ones over the earlier ones."""
    file = folder.open(name)
    try:
        data = file.read(file.size, 0)
    finally:
        file.close()
    found: dict[str, Any] = {}
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(data), 1))
    unpacker.feed(data)
    end = 0
    try:
        for value in unpacker:
            if not isinstance(value, dict):
                raise _damaged(name, "what stands there is no map", end)
            found |= value
            end = unpacker.tell()
    except (ValueError, TypeError, msgpack.UnpackException):
        raise _damaged(name, "what stands there is not MessagePack", end) from None
    if any(data.count(key, end) > 1 for key in _KEYS):
        raise _damaged(name, "several maps follow, of which the first is not whole", end)
    return found


def _state(values: dict[str, Any]) -> NodePeerState:
    name = _STATE_NAME
    vote, peers, index = values.get("votedFor"), values.get("peers"), values.get("peersIndex")
    request = values.get("peersUpdateRequest")
    if vote is not None and not isinstance(vote, str):
        raise _damaged(name, "votedFor is no peer id")
    try:
        raw = None if request is None else base64.b64decode(request, validate=True)
        change = None if peers is None else _change(peers)
    except (ValueError, TypeError, ProtocolError) as error:
        raise _damaged(name, f"the list of peers cannot be read: {error}") from None
    term = _number(values.get("currentTerm", 0), name, "currentTerm")
    return NodePeerState(term, vote or "", change, None if index is None else _number(index, name, "peersIndex"), raw)


def _change(value: Any) -> ConfigChange:
    """As in a CONFIG entry; a peer may also be a map, as in a configuration file."""
    if isinstance(value, dict):
        return ConfigChange(_peers(value.get("new")), _peers(value.get("old")))
    return ConfigChange(_peers(value))


def _peers(value: Any) -> Peers:
    if not isinstance(value, list):
        raise ProtocolError("a list of peers that is not an array")
    return peers_from_json([[each.get("id"), each.get("url")] if isinstance(each, dict) else each for each in value])


def _number(value: Any, name: str, field: str) -> int:
    """Node writes numbers of more than 31 bits as floats."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_UINT or value % 1:
        raise _damaged(name, f"{field} is a number that it cannot be")
    return int(value)


# -- files of tokens ---------------------------------------------------------------------------------------------------


def _find_token(file: File, name: str, wanted: bytes, at: int) -> int:
    """Where the body of the token begins that is at ``at`` or behind it."""
    while True:
        head = file.read(_TOKEN.size, at)
        if len(head) < _TOKEN.size:
            raise _damaged(name, f"there is no {wanted.decode()}", at)
        token, length = _TOKEN.unpack(head)
        at += _TOKEN.size
        if token == wanted:
            return at
        at += length + -length % 4


def _read_snapshot(folder: SystemFolder) -> NodeSnapshot | None:
    """None for that of a peer that has none: of the index 0."""
    name = _SNAPSHOT_NAME
    file = folder.open(name)
    try:
        head = file.read(_SNAPSHOT_HEAD.size, 0)
        if len(head) < _SNAPSHOT_HEAD.size or not head.startswith(b"SNAP"):
            raise _damaged(name, "it does not begin as a snapshot")
        _, length, version, index, term, size = _SNAPSHOT_HEAD.unpack(head)
        _check_version(name, version)
        if length != _SNAPSHOT_HEAD.size - _TOKEN.size or max(index, term, size) > MAX_UINT:
            raise _damaged(name, "its head says what cannot be")
        at = _find_token(file, name, b"DATA", _SNAPSHOT_HEAD.size)
        if file.size - at != size:
            raise _damaged(name, f"{file.size - at} bytes of a snapshot of {size}", at)
    finally:
        file.close()
    if not index and (term or size):
        raise _damaged(name, "a snapshot of the index 0 that is not empty")
    return NodeSnapshot(index, term, size, at) if index else None


def _check_version(name: str, version: int) -> None:
    if version != _VERSION:
        raise StorageVersionError(f"{name} has version {version}; this package knows {_VERSION}")


# -- entries -----------------------------------------------------------------------------------------------------------


def _read_entry_file(folder: SystemFolder, name: str) -> EntryFile:
    file = folder.open(name)
    try:
        head = file.read(_ENTRIES_HEAD.size, 0)
        if len(head) < _ENTRIES_HEAD.size or not head.startswith(b"RLOG"):
            raise _damaged(name, "it does not begin as a file of entries")
        _, length, version, capacity, first = _ENTRIES_HEAD.unpack(head)
        _check_version(name, version)
        table = file.read(4 * min(capacity, _MAX_CAPACITY), _ENTRIES_HEAD.size)
        is_head = length == _ENTRIES_HEAD.size - _TOKEN.size + 4 * capacity and len(table) == 4 * capacity
        if not is_head or name[-19:-5] != f"{first:014x}":
            raise _damaged(name, "its head says what cannot be, or is not whole")
        at = _find_token(file, name, b"ITMZ", _ENTRIES_HEAD.size + len(table))
        ends = _ends(table)
        if any(end <= before for before, end in pairwise((0, *ends))):
            raise _damaged(name, "the places of its entries are not in order", _ENTRIES_HEAD.size)
        if ends and file.size < at + ends[-1]:
            raise _damaged(name, "its last entries are missing", file.size)
    finally:
        file.close()
    return EntryFile(name, first, ends, at)


def _ends(table: bytes) -> array[int]:
    """Up to the first 0; a cut that was interrupted may have left some behind it."""
    ends = array("I", table)
    if sys.byteorder != "little":
        ends.byteswap()
    return ends[: ends.index(0)] if 0 in ends else ends


def _in_a_row(files: list[EntryFile]) -> list[EntryFile]:
    while files and not files[-1].ends:
        files = files[:-1]
    for before, each in pairwise(files):
        if each.first != before.last + 1:
            raise _damaged(
                each.name, f"it begins with the entry {each.first}, and the one before it ends at {before.last}"
            )
    return files


def _entries(each: EntryFile, file: File, number: int) -> Iterator[LogEntry]:
    """From that with this number on, counted from 0; read in pieces of about a megabyte."""
    data, base = b"", 0
    begin = each.ends[number - 1] if number else 0
    for place in range(number, len(each.ends)):
        end = each.ends[place]
        if end > base + len(data):
            data, base = file.read(max(_PIECE, end - begin), each.at + begin), begin
        try:
            entry = LogEntry.from_frame(data[begin - base : end - base], each.first + place)
        except ProtocolError as error:
            raise _damaged(each.name, f"{error} instead of the entry {each.first + place}", each.at + begin) from None
        yield entry
        begin = end


# -- log import --------------------------------------------------------------------------------------------------------


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
        target = open_folder(part)
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
