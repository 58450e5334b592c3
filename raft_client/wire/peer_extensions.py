"""RPCs of our peers that the document does not have: frames <-> values.

They are sent only to a peer that said hello with the capability (:mod:`raft_client.wire.hello`). Their types have two
bytes, the first one ``00``: the document leaves types of one byte to itself and longer ones to state machines, and ours
take none of these.

===============  =========  =========================================  ==============================
request          type       its frames                                 frames of the reply
===============  =========  =========================================  ==============================
PreVote          ``00 50``  ident, candidate, term, last index, last   term, granted
                            term
TimeoutNow       ``00 54``  ident, leader, term                        term, started
ReadIndex        ``00 52``  ident                                      leader id, index?
HandOver         ``00 48``  ident, member?                             status, leader id, reason
===============  =========  =========================================  ==============================

A peer that knows ``transfer`` takes TimeoutNow from the leader, and HandOver from clients.

Source: ours; ``docs/decisions/0031-the-wire-of-our-peers.md``. Ongaro, *Consensus: Bridging Theory and Practice*, §9.6
(pre-vote), §3.10 (transfer of leadership), §6.4 (reads).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from raft_client.errors import InvalidArgumentError, ProtocolError
from raft_client.wire.fields import (
    FrameReader,
    build,
    check_bytes,
    check_leader_id,
    check_name,
    check_optional_uint,
    check_uint,
)
from raft_client.wire.frames import encode_bool, encode_json, encode_string, encode_uint
from raft_client.wire.update_requests import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "HandOver",
    "HandOverReply",
    "PreVote",
    "PreVoteReply",
    "ReadIndex",
    "ReadIndexReply",
    "TimeoutNow",
    "TimeoutNowReply",
]


@attrs.frozen
class PreVote:
    """Would you vote for me in ``term``, which I am not yet in? It changes nothing at the receiver."""

    TYPE: ClassVar[bytes] = b"\x00\x50"

    ident: bytes = attrs.field(validator=check_bytes)
    candidate_id: str = attrs.field(validator=check_name)
    term: int = attrs.field(validator=check_uint)
    last_index: int = attrs.field(validator=check_uint)
    last_term: int = attrs.field(validator=check_uint)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        numbers = map(encode_uint, (self.term, self.last_index, self.last_term))
        return [self.TYPE, self.ident, encode_string(self.candidate_id), *numbers]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> PreVote:
        """Raises ProtocolError."""
        reader = FrameReader.of_request(frames, cls.TYPE)
        return build(cls, reader.raw(), reader.text(), reader.uint(), reader.uint(), reader.uint())


@attrs.frozen
class PreVoteReply:
    """``term`` is that of the one who answers."""

    TYPE: ClassVar[bytes] = PreVote.TYPE

    term: int = attrs.field(validator=check_uint)
    granted: bool

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [encode_uint(self.term), encode_bool(self.granted)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> PreVoteReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return cls(reader.uint(), reader.flag())


@attrs.frozen
class TimeoutNow:
    """Your log is as long as mine: stand for election at once. Only the leader of ``term`` says so."""

    TYPE: ClassVar[bytes] = b"\x00\x54"

    ident: bytes = attrs.field(validator=check_bytes)
    leader_id: str = attrs.field(validator=check_name)
    term: int = attrs.field(validator=check_uint)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident, encode_string(self.leader_id), encode_uint(self.term)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> TimeoutNow:
        """Raises ProtocolError."""
        reader = FrameReader.of_request(frames, cls.TYPE)
        return build(cls, reader.raw(), reader.text(), reader.uint())


@attrs.frozen
class TimeoutNowReply:
    """``started``: the election has begun, in ``term``."""

    TYPE: ClassVar[bytes] = TimeoutNow.TYPE

    term: int = attrs.field(validator=check_uint)
    started: bool

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [encode_uint(self.term), encode_bool(self.started)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> TimeoutNowReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return cls(reader.uint(), reader.flag())


@attrs.frozen
class ReadIndex:
    """Which index must be applied by who wants to read what is newest now? Clients and peers ask the leader."""

    TYPE: ClassVar[bytes] = b"\x00\x52"

    ident: bytes = attrs.field(validator=check_bytes)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> ReadIndex:
        """Raises ProtocolError."""
        return cls(FrameReader.of_request(frames, cls.TYPE).raw())


@attrs.frozen
class ReadIndexReply:
    """``index`` if the peer leads; otherwise whom to ask, if it is known."""

    TYPE: ClassVar[bytes] = ReadIndex.TYPE

    leader_id: str | None = attrs.field(validator=check_leader_id)
    index: int | None = attrs.field(default=None, validator=check_optional_uint)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        index = [] if self.index is None else [encode_uint(self.index)]
        return [encode_json(self.leader_id), *index]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> ReadIndexReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return cls(reader.leader_id(), reader.optional_uint())


@attrs.frozen
class HandOver:
    """Let the member ``to`` lead, or (None) any other one. A client asks the leader. (Raft, §3.10)"""

    TYPE: ClassVar[bytes] = b"\x00\x48"

    ident: bytes = attrs.field(validator=check_bytes)
    to: str | None = attrs.field(default=None, validator=check_leader_id)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident, encode_json(self.to)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> HandOver:
        """Raises ProtocolError."""
        reader = FrameReader.of_request(frames, cls.TYPE)
        return build(cls, reader.raw(), reader.leader_id())


#: The statuses of a ConfigUpdate that a hand-over can have.
_STATUS: Final = {Outcome.NOT_LEADER: 0, Outcome.REFUSED: 2, Outcome.BUSY: 3}
_OUTCOMES: Final = {status: outcome for outcome, status in _STATUS.items()}


@attrs.frozen
class HandOverReply:
    """One of NOT_LEADER, at first or at last, with or without the ``leader_id``; REFUSED, with a ``reason``; and BUSY.

    There is no *done*: whether a hand-over succeeded, the new leader says.
    """

    TYPE: ClassVar[bytes] = HandOver.TYPE

    outcome: Outcome
    leader_id: str | None = attrs.field(default=None, validator=check_leader_id)
    reason: str = ""

    def __attrs_post_init__(self) -> None:
        if self.outcome not in _STATUS:
            raise InvalidArgumentError(f"a hand-over is never {self.outcome.value}")

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [encode_uint(_STATUS[self.outcome]), encode_json(self.leader_id), encode_string(self.reason)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> HandOverReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        outcome = _OUTCOMES.get(reader.uint())
        if outcome is None:
            raise ProtocolError("an unknown status of a hand-over", frame=0)
        return build(cls, outcome, reader.leader_id(), reader.text())
