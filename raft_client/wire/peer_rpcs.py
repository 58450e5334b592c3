"""The RPCs between peers: frames <-> values. Clients never send them; the reference peer does.

A peer sends them through a DEALER with a ``uint`` request id of its own. Peers never pipeline AppendEntries: each one,
even an empty one, cuts the receiver's log after ``prev_index`` (facts §1.4).

Source: ØMQ Raft protocol, "RequestVote RPC", "AppendEntries RPC", "InstallSnapshot RPC". Where the document puts the
conflict's term first, the peers send the index first (facts §1.5), and so do we.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs

from raft_client.errors import InvalidArgumentError
from raft_client.wire.fields import (
    FrameReader,
    as_entries,
    build,
    check_bytes,
    check_name,
    check_optional_uint,
    check_uint,
    show_count,
)
from raft_client.wire.frames import encode_bool, encode_string, encode_uint
from raft_client.wire.log_entry import ENTRY_HEADER_BYTES, LogEntry, decode_entries
from raft_client.wire.snapshots import SnapshotChunk

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AppendEntries", "AppendReply", "InstallSnapshot", "RequestVote", "SnapshotReply", "VoteReply"]


@attrs.frozen
class RequestVote:
    """Type 3f. Elect me for ``term``; my log ends at ``last_index``, in ``last_term``.

    ``leader_agrees``: the leader asked for this election (TimeoutNow), so those who hear it may vote all the same. It
    is a frame more than the document has, for those who know the capability *transfer*; Node peers would ignore it.
    """

    TYPE: ClassVar[bytes] = b"\x3f"

    ident: bytes = attrs.field(validator=check_bytes)
    candidate_id: str = attrs.field(validator=check_name)
    term: int = attrs.field(validator=check_uint)
    last_index: int = attrs.field(validator=check_uint)
    last_term: int = attrs.field(validator=check_uint)
    leader_agrees: bool = False

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        numbers = map(encode_uint, (self.term, self.last_index, self.last_term))
        more = [encode_bool(True)] if self.leader_agrees else []
        return [self.TYPE, self.ident, encode_string(self.candidate_id), *numbers, *more]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> RequestVote:
        """Raises ProtocolError."""
        reader = FrameReader.of_request(frames, cls.TYPE)
        ident, candidate_id = reader.raw(), reader.text()
        numbers = [reader.uint() for _ in range(3)]
        return build(cls, ident, candidate_id, *numbers, reader.flag() if reader.more else False)


@attrs.frozen
class VoteReply:
    """``term`` is that of the peer that answers; a candidate with a lower one steps down."""

    TYPE: ClassVar[bytes] = RequestVote.TYPE

    term: int = attrs.field(validator=check_uint)
    granted: bool

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [encode_uint(self.term), encode_bool(self.granted)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> VoteReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return cls(reader.uint(), reader.flag())


@attrs.frozen
class AppendEntries:
    """Type 2b. ``entries`` follow ``prev_index``; none is a heartbeat. Each has at least one byte of data."""

    TYPE: ClassVar[bytes] = b"\x2b"

    ident: bytes = attrs.field(validator=check_bytes)
    leader_id: str = attrs.field(validator=check_name)
    term: int = attrs.field(validator=check_uint)
    prev_index: int = attrs.field(validator=check_uint)
    prev_term: int = attrs.field(validator=check_uint)
    commit_index: int = attrs.field(validator=check_uint)
    entries: tuple[LogEntry, ...] = attrs.field(default=(), repr=show_count, converter=as_entries)

    def __attrs_post_init__(self) -> None:
        for entry in self.entries:
            if len(entry.frame) <= ENTRY_HEADER_BYTES:
                raise InvalidArgumentError("an entry to append without data")

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        numbers = map(encode_uint, (self.term, self.prev_index, self.prev_term, self.commit_index))
        frames = [self.TYPE, self.ident, encode_string(self.leader_id), *numbers]
        return frames + [entry.frame for entry in self.entries]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> AppendEntries:
        """Raises ProtocolError. The entries know their indexes."""
        reader = FrameReader.of_request(frames, cls.TYPE)
        ident, leader_id, term, prev_index = reader.raw(), reader.text(), reader.uint(), reader.uint()
        prev_term, commit_index = reader.uint(), reader.uint()
        entries = decode_entries(reader.rest(), prev_index + 1)
        return build(cls, ident, leader_id, term, prev_index, prev_term, commit_index, entries)


@attrs.frozen
class AppendReply:
    """``conflict_index`` is where the leader should go on, when the follower's log is shorter than it believed."""

    TYPE: ClassVar[bytes] = AppendEntries.TYPE

    term: int = attrs.field(validator=check_uint)
    success: bool
    conflict_index: int | None = attrs.field(default=None, validator=check_optional_uint)
    conflict_term: int | None = attrs.field(default=None, validator=check_optional_uint)

    def __attrs_post_init__(self) -> None:
        if self.conflict_index is None and self.conflict_term is not None:
            raise InvalidArgumentError("the term of a conflict without its index")

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        conflict = (self.conflict_index, self.conflict_term)
        known = [encode_uint(number) for number in conflict if number is not None]
        return [encode_uint(self.term), encode_bool(self.success), *known]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> AppendReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return cls(reader.uint(), reader.flag(), reader.optional_uint(), reader.optional_uint())


@attrs.frozen
class InstallSnapshot:
    """Type 24. One chunk; the next one is sent when this one is answered."""

    TYPE: ClassVar[bytes] = b"\x24"

    ident: bytes = attrs.field(validator=check_bytes)
    leader_id: str = attrs.field(validator=check_name)
    term: int = attrs.field(validator=check_uint)
    chunk: SnapshotChunk

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        chunk = self.chunk
        numbers = map(encode_uint, (self.term, chunk.index, chunk.term, chunk.offset, chunk.size))
        return [self.TYPE, self.ident, encode_string(self.leader_id), *numbers, chunk.data]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> InstallSnapshot:
        """Raises ProtocolError."""
        reader = FrameReader.of_request(frames, cls.TYPE)
        ident, leader_id, term = reader.raw(), reader.text(), reader.uint()
        numbers = [reader.uint() for _ in range(4)]
        return build(cls, ident, leader_id, term, build(SnapshotChunk, *numbers, reader.raw()))


@attrs.frozen
class SnapshotReply:
    """``position`` is the offset that the follower wants next; without it, go on after the chunk."""

    TYPE: ClassVar[bytes] = InstallSnapshot.TYPE

    term: int = attrs.field(validator=check_uint)
    position: int | None = attrs.field(default=None, validator=check_optional_uint)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [encode_uint(self.term)] if self.position is None else [*map(encode_uint, (self.term, self.position))]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> SnapshotReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return cls(reader.uint(), reader.optional_uint())
