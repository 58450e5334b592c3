"""Entries of the log, places in it, and the chunks of snapshots: bytes <-> values.

::

    entry  =  request id (12 bytes)  kind (1 byte)  term (7 bytes, little endian)  data

An entry in hand is its frame: nothing is copied or parsed until somebody asks. Half a million of them pass per second.

A snapshot is the state after ``index``, ``size`` bytes long; its content is the state machine's own affair. Chunks have
up to 64 KiB and arrive in order, but their sender may change on the way. The next one has a snapshot of its own: even
one with the same index, term and size may have other bytes, so it starts again.

Source: ØMQ Raft protocol, "entry", "RequestEntries RPC" (status 3) and "InstallSnapshot RPC"; facts §1.2 and §1.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, Final

import attrs

from raft_client.errors import InvalidArgumentError, InvalidDataError, ProtocolError
from raft_client.wire.fields import check_bytes, check_uint
from raft_client.wire.frames import MAX_UINT, Buffer, hot_value
from raft_client.wire.request_id import REQUEST_ID_BYTES, ZERO_REQUEST_ID, RequestId

# -- places in the log -------------------------------------------------------------------------------------------------


_TEXT: Final = re.compile(r"(\d{1,16})(?:@(\d{1,16})(?:@([0-9a-f]{24}))?)?", re.ASCII)


def _check_number(_position: object, attribute: attrs.Attribute[int], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_UINT:
        raise InvalidArgumentError(
            f"the {attribute.name} of a position is an integer from 0 to 2^53 - 1, not {value!r}"
        )


def _check_id(_position: object, _attribute: object, value: object) -> None:
    if not isinstance(value, bytes) or len(value) not in (0, REQUEST_ID_BYTES):
        raise InvalidArgumentError(f"the entry_id of a position has {REQUEST_ID_BYTES} bytes or none, not {value!r}")


@attrs.frozen(order=True)
class Position:
    """Everything up to the entry at ``index`` is done with; give it back as ``after`` to go on after it.

    ``term`` is that of the entry at ``index``, and ``entry_id`` are the 12 bytes of its request id, which no other
    entry has in any log. The mark that a new leader writes has none: then it is that of the entry before. So a reader
    that comes back to another log, or to a cluster that lost its disks, gets :class:`~raft_client.TermMismatchError`
    instead of entries that do not follow what it has. What is not known, a term of 0 or an empty id, is not checked.

    ``str(position)`` is ``"INDEX@TERM@ID"``, with the id in 24 hex digits, or as much of it as is known; :meth:`parse`
    reads each. Positions of one log are ordered; the id does not count when they are compared. (Raft, "Log Matching
    Property")
    """

    index: int = attrs.field(validator=_check_number)
    term: int = attrs.field(default=0, validator=_check_number)
    entry_id: bytes = attrs.field(default=b"", validator=_check_id, eq=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read ``str(position)``. Raises InvalidArgumentError."""
        found = _TEXT.fullmatch(text) if type(text) is str else None
        if found is None:
            raise InvalidArgumentError(f"a position is INDEX, INDEX@TERM or INDEX@TERM@ID, as 41@3, not {text!r}")
        return cls(int(found[1]), int(found[2] or 0), bytes.fromhex(found[3] or ""))

    @classmethod
    def of(cls, after: Position | int) -> Position:
        """What was given as ``after``: a position, or the index alone. Raises InvalidArgumentError."""
        if isinstance(after, Position):
            return after
        if isinstance(after, bool) or not isinstance(after, int) or not 0 <= after <= MAX_UINT:
            raise InvalidArgumentError(
                f"after is an index from 0 to 2^53 - 1 or a Position (of a text: Position.parse()), not {after!r}"
            )
        return cls(after)

    def contradicts(self, found: Position) -> bool:
        """Whether it is of another log than this one of the same index, as far as both are known."""
        is_other_term = found.term != self.term and 0 not in (self.term, found.term)
        return is_other_term or (found.entry_id != self.entry_id and b"" not in (self.entry_id, found.entry_id))

    def __str__(self) -> str:
        if self.entry_id:
            return f"{self.index}@{self.term}@{self.entry_id.hex()}"
        return f"{self.index}@{self.term}" if self.term else str(self.index)

    def __getstate__(self) -> dict[str, Any]:
        return {"index": self.index, "term": self.term, "entry_id": self.entry_id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in ({"entry_id": b""} | state).items():  # a pickle of an earlier version has no id
            object.__setattr__(self, name, value)


def position_after(batch: Sequence[LogEntry] | SnapshotChunk, before: Position) -> Position:
    """Where a reader is that was at ``before`` and took ``batch``. Within a snapshot, it is where it was."""
    if isinstance(batch, SnapshotChunk):
        return Position(batch.index, batch.term) if batch.is_last else before
    if not batch:
        return before
    found = batch[-1].position
    return found if found.entry_id else attrs.evolve(found, entry_id=newest_id(batch) or before.entry_id)


def newest_id(entries: Sequence[LogEntry]) -> bytes:
    """The request id of the last of them that has one; empty if none has."""
    return next((entry.entry_id for entry in reversed(entries) if entry.entry_id), b"")


# -- entries -----------------------------------------------------------------------------------------------------------

ENTRY_HEADER_BYTES: Final = 20
#: A peer silently ignores updates with more (``maxLogEntryDataSize``), and so never answers them.
MAX_ENTRY_DATA_BYTES: Final = 10 * 1024 * 1024
#: The data of a checkpoint: MessagePack nil.
CHECKPOINT_DATA: Final = b"\xc0"

_NO_ID: Final = ZERO_REQUEST_ID.raw
_KIND_OFFSET: Final = REQUEST_ID_BYTES
_TERM_OFFSET: Final = _KIND_OFFSET + 1
_TERM_BYTES: Final = 7
_LAST_TERM_BYTE: Final = ENTRY_HEADER_BYTES - 1
_MAX_TERM_BYTE: Final = MAX_UINT >> 8 * (_TERM_BYTES - 1)


class EntryKind(IntEnum):
    """What wrote the entry, and what for."""

    STATE = 0  # a client's data
    CONFIG = 1  # the peers of the cluster, see decode_config()
    CHECKPOINT = 2  # a new leader's mark; no content


_KINDS: Final = tuple(EntryKind)
_MAX_KIND: Final = max(EntryKind)


@hot_value
class LogEntry:
    """One entry of the replicated log.

    ``index`` is its place in the log, from 1; 0 where it is not known (an entry on the wire does not carry it).
    Properties are cut out of the frame at each access: keep ``data`` in a variable when it is needed twice.
    """

    index: int
    frame: bytes = attrs.field(repr=False)

    @classmethod
    def of(
        cls,
        data: bytes,
        *,
        term: int,
        kind: EntryKind = EntryKind.STATE,
        request_id: RequestId = ZERO_REQUEST_ID,
        index: int = 0,
    ) -> LogEntry:
        """Put an entry together. Raises InvalidDataError when ``term`` is out of range, or there is no data."""
        if not 0 <= term <= MAX_UINT:
            raise InvalidArgumentError("a term lies between 0 and 2^53 - 1")
        if not data:
            raise InvalidDataError("an entry has at least one byte of data")
        return cls(index, b"%b%c%b%b" % (request_id.raw, kind, term.to_bytes(_TERM_BYTES, "little"), data))

    @classmethod
    def from_frame(cls, frame: Buffer, index: int = 0) -> LogEntry:
        """Raises ProtocolError when the header is too short or holds an unknown kind or an impossible term."""
        _check_frame(frame)
        return cls(index, bytes(frame))

    @property
    def request_id(self) -> RequestId:
        """The id of the update that wrote the entry; all zeros when no client did."""
        return RequestId(self.frame[:_KIND_OFFSET])

    @property
    def entry_id(self) -> bytes:
        """The bytes of that; empty if it is all zeros."""
        raw = self.frame[:_KIND_OFFSET]
        return b"" if raw == _NO_ID else raw

    @property
    def kind(self) -> EntryKind:
        """STATE for the entries that clients append."""
        return _KINDS[self.frame[_KIND_OFFSET]]

    @property
    def is_state(self) -> bool:
        """Whether a client appended it; quicker than asking for the kind."""
        return not self.frame[_KIND_OFFSET]

    @property
    def term(self) -> int:
        """The term of the leader that appended it."""
        return int.from_bytes(self.frame[_TERM_OFFSET:ENTRY_HEADER_BYTES], "little")

    @property
    def position(self) -> Position:
        """The place of the entry: store it when the entry is dealt with, and come back after it."""
        return Position(self.index, self.term, self.entry_id)

    @property
    def data(self) -> bytes:
        """What the client appended."""
        return self.frame[ENTRY_HEADER_BYTES:]

    @property
    def data_view(self) -> memoryview:
        """The same without a copy; for large data."""
        return memoryview(self.frame)[ENTRY_HEADER_BYTES:]

    @property
    def size(self) -> int:
        """Bytes on the wire: header and data."""
        return len(self.frame)

    def encode(self) -> bytes:
        """The frame."""
        return self.frame


def decode_entries(frames: Sequence[bytes], first_index: int) -> list[LogEntry]:
    """Consecutive entries, the first with ``first_index``. Raises ProtocolError. The hot path of streaming."""
    for frame in frames:
        if (
            len(frame) < ENTRY_HEADER_BYTES
            or frame[_KIND_OFFSET] > _MAX_KIND
            or frame[_LAST_TERM_BYTE] > _MAX_TERM_BYTE
        ):
            _check_frame(frame)
    return [LogEntry(index, frame) for index, frame in enumerate(frames, first_index)]


def first_index_of(last_index: int, count: int) -> int:
    if count > last_index:
        raise ProtocolError(f"{count} entries that end with the index {last_index}")
    return last_index - count + 1


def _check_frame(frame: Buffer) -> None:
    if len(frame) < ENTRY_HEADER_BYTES:
        raise ProtocolError(f"a log entry of {len(frame)} bytes; its header alone has {ENTRY_HEADER_BYTES}")
    if frame[_KIND_OFFSET] > _MAX_KIND:
        raise ProtocolError(f"a log entry of the unknown kind {frame[_KIND_OFFSET]}", offset=_KIND_OFFSET)
    if frame[_LAST_TERM_BYTE] > _MAX_TERM_BYTE:
        raise ProtocolError("a log entry with a term of more than 53 bits", offset=_TERM_OFFSET)


def as_entries(entries: Iterable[LogEntry]) -> tuple[LogEntry, ...]:
    """For attrs: keep what cannot change."""
    return tuple(entries)


def show_count(entries: Sequence[LogEntry]) -> str:
    """For attrs: thousands of entries are of no use in a message."""
    return f"<{len(entries)}>"


# -- snapshots ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class SnapshotChunk:
    """``data`` are the bytes from ``offset`` on, of ``size``; ``index`` and ``term`` those of the last entry in it."""

    index: int = attrs.field(validator=check_uint)
    term: int = attrs.field(validator=check_uint)
    offset: int = attrs.field(validator=check_uint)
    size: int = attrs.field(validator=check_uint)
    data: bytes = attrs.field(repr=False, validator=check_bytes)

    def __attrs_post_init__(self) -> None:
        if self.end > self.size:
            raise InvalidArgumentError("a snapshot chunk beyond the end of the snapshot")

    @property
    def end(self) -> int:
        """The offset of the byte after the last one."""
        return self.offset + len(self.data)

    @property
    def is_first(self) -> bool:
        """Whether a snapshot starts here; forget what came of another one before."""
        return self.offset == 0

    @property
    def is_last(self) -> bool:
        """Whether the snapshot is complete with it."""
        return self.end == self.size


class SnapshotProgress:
    """How much of a snapshot has arrived, in order and without a gap.

    Invariant: the chunks that :meth:`take` returned since the last one with offset 0 are, one after the other, the
    first ``position`` bytes of one snapshot.
    """

    __slots__ = ("_snapshot", "position")

    def __init__(self, after: SnapshotChunk | None = None) -> None:
        """``after`` is the last chunk that was taken before."""
        self._snapshot: tuple[int, int, int] | None = None  # index, term, size
        self.position: int = 0  # bytes; where the next chunk must start
        if after is not None:
            self._snapshot, self.position = (after.index, after.term, after.size), after.end

    @property
    def complete(self) -> bool:
        """Whether the last byte was taken."""
        return self._snapshot is not None and self.position == self._snapshot[2]

    def take(self, chunk: SnapshotChunk) -> SnapshotChunk | None:
        """The part of ``chunk`` that is new; None when nothing is.

        A chunk of another snapshot counts only from its start. Raises ProtocolError when bytes before it are missing:
        ask again from :attr:`position`, after :meth:`restart` if the snapshot is another one.
        """
        snapshot = (chunk.index, chunk.term, chunk.size)
        if snapshot != self._snapshot:
            self.restart()
        if chunk.offset > self.position:
            raise ProtocolError(f"a snapshot chunk at {chunk.offset} instead of {self.position}")
        self._snapshot = snapshot
        if chunk.end <= self.position and chunk.size:
            return None
        new = chunk if chunk.offset == self.position else _from(chunk, self.position)
        self.position = chunk.end
        return new

    def restart(self) -> None:
        """Forget the snapshot: the next one starts at 0."""
        self._snapshot = None
        self.position = 0


def _from(chunk: SnapshotChunk, position: int) -> SnapshotChunk:
    return attrs.evolve(chunk, offset=position, data=chunk.data[position - chunk.offset :])
