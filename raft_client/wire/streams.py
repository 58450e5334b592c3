"""RequestEntries and what a peer sends of its log: the stream that answers it, and what a leader broadcasts.

The reply to RequestEntries, after the request id::

    status 0  not the leader    00 | json leader id
    status 1  the last entries  01 | c0 | uint last index | entries...
    status 2  more will follow  02 | c0 | uint last index | entries...
    status 3  of the snapshot   03 | json [offset, size, term] | uint snapshot index | chunk

A peer sends five messages (two of a snapshot) ahead. Each with status 2 or 3 is answered with exactly one follow-up, in
order: RequestEntries under the same request id, ``after`` being the last index of the message (the whole of a snapshot
keeps the first ``after`` until its last chunk). A follow-up with ``count=0`` ends the stream, without a reply. Status 1
is not answered. A follow-up that the peer did not expect starts a new stream from its ``after``.

Source: ØMQ Raft protocol, "RequestEntries RPC" and "StateBroadcast"; facts §1.3 and §1.4.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

import attrs

from raft_client.errors import InvalidArgumentError, ProtocolError
from raft_client.wire.fields import (
    JSON,
    LEADER,
    NUINT,
    RAW,
    UINT,
    FieldMessage,
    FrameReader,
    build,
    check_bytes,
    check_leader_id,
    check_optional_uint,
    check_uint,
    frame,
    request,
)
from raft_client.wire.frames import JsonValue, decode_uint, encode_json, encode_uint
from raft_client.wire.log_entry import LogEntry, SnapshotChunk, as_entries, decode_entries, first_index_of, show_count

if TYPE_CHECKING:
    from collections.abc import Sequence

_NIL = b"\xc0"


@request(b"\x3c")
class RequestEntries(FieldMessage):
    """Send me what follows the index ``after``, up to ``count`` entries; None is up to what is applied.

    When the entries were compacted the snapshot comes, from byte ``snapshot_offset`` on, and ``count`` does not count.
    """

    ident: bytes = frame(RAW)
    after: int = frame(UINT)
    count: int | None = frame(NUINT, default=None, optional=True)
    snapshot_offset: int | None = frame(UINT, default=None, optional=True)


class EntriesStatus(IntEnum):
    """The first frame of the reply."""

    NOT_LEADER = 0
    LAST = 1
    MORE = 2
    CHUNK = 3


@attrs.frozen
class EntriesReply:
    """One message of the stream.

    ``last_index`` is the index of the last of the ``entries``, or of the snapshot. Without entries it is the index that
    the leader's log has been applied to, which may be *below* the one that was asked for (facts §1.4).
    """

    TYPE: ClassVar[bytes] = RequestEntries.TYPE

    status: EntriesStatus
    last_index: int | None = attrs.field(default=None, validator=check_optional_uint)
    entries: tuple[LogEntry, ...] = attrs.field(default=(), repr=show_count, converter=as_entries)
    chunk: SnapshotChunk | None = None
    leader_id: str | None = attrs.field(default=None, validator=check_leader_id)

    def __attrs_post_init__(self) -> None:
        if (self.chunk is not None) is not (self.status is EntriesStatus.CHUNK):
            raise InvalidArgumentError("status 3, and no other, has a snapshot chunk")
        if self.last_index is None and (self.entries or self.status >= EntriesStatus.MORE):
            raise InvalidArgumentError("entries without the index of the last one")
        if self.entries and (self.status not in _WITH_ENTRIES or len(self.entries) > (self.last_index or 0)):
            raise InvalidArgumentError("entries in a reply whose status or last index has no room for them")

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        if self.status is EntriesStatus.NOT_LEADER:
            return [encode_uint(self.status.value), encode_json(self.leader_id)]
        frames = [encode_uint(self.status.value), _NIL]
        if self.last_index is not None:
            frames.append(encode_uint(self.last_index))
        if self.chunk is None:
            return frames + [entry.frame for entry in self.entries]
        frames[1] = encode_json([self.chunk.offset, self.chunk.size, self.chunk.term])
        return [*frames, self.chunk.data]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> EntriesReply:
        """Raises ProtocolError. The entries know their indexes."""
        reader = FrameReader(frames)
        status = reader.uint()
        if status in _WITH_ENTRIES:
            return _read_entries(frames, EntriesStatus(status))
        if status == EntriesStatus.CHUNK:
            return _read_chunk(reader)
        if status == EntriesStatus.NOT_LEADER:
            return cls(EntriesStatus.NOT_LEADER, leader_id=reader.read(LEADER) if reader.more else None)
        raise ProtocolError(f"an unknown status of entries: {status}", frame=0)


_WITH_ENTRIES = (EntriesStatus.LAST, EntriesStatus.MORE)


def _read_entries(frames: Sequence[bytes], status: EntriesStatus) -> EntriesReply:
    if len(frames) < 3:  # the index is "optional" in the document; without it nothing can follow
        return build(EntriesReply, status)
    last_index = decode_uint(frames[2])
    return build(
        EntriesReply, status, last_index, decode_entries(frames[3:], first_index_of(last_index, len(frames) - 3))
    )


def _read_chunk(reader: FrameReader) -> EntriesReply:
    offset, size, term = _chunk_numbers(reader.read(JSON))
    index, data = reader.uint(), reader.raw() if reader.more else b""
    return EntriesReply(EntriesStatus.CHUNK, index, chunk=build(SnapshotChunk, index, term, offset, size, data))


def _chunk_numbers(value: JsonValue) -> tuple[int, int, int]:
    match value:
        case [int(offset), int(size), int(term)] if not any(isinstance(number, bool) for number in value):
            return offset, size, term
    raise ProtocolError("a snapshot chunk without offset, size and term", frame=1)


# -- StateBroadcast ----------------------------------------------------------------------------------------------------


@attrs.frozen
class StateBroadcast:
    """What a leader publishes: the entries it just applied, the last being ``last_applied``; none as a heartbeat.

    On the wire it is the whole message: the cluster ident first, no request id, no type. A SUB socket's filter compares
    only the start of the ident: compare it again.
    """

    TYPE: ClassVar[bytes] = b""

    ident: bytes = attrs.field(validator=check_bytes)
    term: int = attrs.field(validator=check_uint)
    last_applied: int = attrs.field(validator=check_uint)
    entries: tuple[LogEntry, ...] = attrs.field(default=(), repr=show_count, converter=as_entries)

    def __attrs_post_init__(self) -> None:
        if len(self.entries) > self.last_applied:
            raise InvalidArgumentError("more entries than the log can have")

    def to_frames(self) -> list[bytes]:
        """All frames of the message."""
        head = [self.ident, encode_uint(self.term), encode_uint(self.last_applied)]
        return head + [entry.frame for entry in self.entries]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> StateBroadcast:
        """Raises ProtocolError. The entries know their indexes."""
        reader = FrameReader(frames)
        ident, term, last_applied = reader.raw(), reader.uint(), reader.uint()
        entries = reader.rest()
        return cls(ident, term, last_applied, decode_entries(entries, first_index_of(last_applied, len(entries))))
