"""What clients ask of our peers to keep logs short, and the document does not have: frames <-> values.

They are sent only to a peer that said hello with the capability (:mod:`raft_client.wire.hello`).

===============  =========  ==============================  ============================================
request          type       its frames                      frames of the reply
===============  =========  ==============================  ============================================
Trim             ``00 4c``  ident, sender, index            status, leader id, index, reason
TakeSnapshot     ``00 53``  ident                           status, index, size, reason
===============  =========  ==============================  ============================================

Source: ours; ``docs/decisions/0042-trim-and-snapshots-on-request.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from raft_client.errors import InvalidArgumentError, ProtocolError
from raft_client.wire.fields import FrameReader, build, check_bytes, check_leader_id, check_uint
from raft_client.wire.frames import encode_json, encode_string, encode_uint
from raft_client.wire.update_requests import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TakeSnapshot", "TakeSnapshotReply", "Trim", "TrimReply"]

_STATUS: Final = {Outcome.NOT_LEADER: 0, Outcome.COMMITTED: 1, Outcome.REFUSED: 2}
_OUTCOMES: Final = {status: outcome for outcome, status in _STATUS.items()}


def _check_outcome(_message: object, _attribute: object, outcome: Outcome) -> None:
    if outcome not in _STATUS:
        raise InvalidArgumentError(f"this is never {outcome.value}")


def _read_outcome(reader: FrameReader) -> Outcome:
    outcome = _OUTCOMES.get(reader.uint())
    if outcome is None:
        raise ProtocolError("an unknown status", frame=0)
    return outcome


@attrs.frozen
class Trim:
    """Nobody needs the entries up to ``index`` any more. A client tells the leader, and that one (``sender``) others.

    For a client ``sender`` is empty. It stands where all that peers say has the id of the peer.
    """

    TYPE: ClassVar[bytes] = b"\x00\x4c"

    ident: bytes = attrs.field(validator=check_bytes)
    index: int = attrs.field(validator=check_uint)
    sender: str = attrs.field(default="", validator=attrs.validators.instance_of(str))

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident, encode_string(self.sender), encode_uint(self.index)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> Trim:
        """Raises ProtocolError."""
        reader = FrameReader.of_request(frames, cls.TYPE)
        ident, sender = reader.raw(), reader.text()
        return build(cls, ident, reader.uint(), sender)


@attrs.frozen
class TrimReply:
    """COMMITTED, with the highest ``index`` that was told so far; NOT_LEADER; or REFUSED, with a ``reason``."""

    TYPE: ClassVar[bytes] = Trim.TYPE

    outcome: Outcome = attrs.field(validator=_check_outcome)
    leader_id: str | None = attrs.field(default=None, validator=check_leader_id)
    index: int = attrs.field(default=0, validator=check_uint)
    reason: str = ""

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        numbers = [encode_uint(_STATUS[self.outcome]), encode_json(self.leader_id), encode_uint(self.index)]
        return [*numbers, encode_string(self.reason)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> TrimReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return build(cls, _read_outcome(reader), reader.leader_id(), reader.uint(), reader.text())


@attrs.frozen
class TakeSnapshot:
    """Make a snapshot of your state machine now, to take the place of your log when its request ids have expired."""

    TYPE: ClassVar[bytes] = b"\x00\x53"

    ident: bytes = attrs.field(validator=check_bytes)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> TakeSnapshot:
        """Raises ProtocolError."""
        return cls(FrameReader.of_request(frames, cls.TYPE).raw())


@attrs.frozen
class TakeSnapshotReply:
    """COMMITTED: there is one, of ``size`` bytes, of the entries up to ``index``; or REFUSED, with a ``reason``."""

    TYPE: ClassVar[bytes] = TakeSnapshot.TYPE

    outcome: Outcome = attrs.field(validator=_check_outcome)
    index: int = attrs.field(default=0, validator=check_uint)
    size: int = attrs.field(default=0, validator=check_uint)
    reason: str = ""

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        numbers = (_STATUS[self.outcome], self.index, self.size)
        return [*map(encode_uint, numbers), encode_string(self.reason)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> TakeSnapshotReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return build(cls, _read_outcome(reader), reader.uint(), reader.uint(), reader.text())
