"""The RPCs that change the log or the cluster: frames <-> values. The table stands in :mod:`raft_client.wire.messages`.

Their request ids are :class:`~raft_client.wire.request_id.RequestId`: what is sent twice is done once.

Source: ØMQ Raft protocol, "RequestUpdate RPC" and "ConfigUpdate RPC"; facts §1.3 and §1.4.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from raft_client.errors import InvalidArgumentError, InvalidDataError, ProtocolError
from raft_client.wire.configuration import Peers, peers_from_json, peers_to_json
from raft_client.wire.fields import (
    FrameReader,
    build,
    check_bytes,
    check_leader_id,
    check_peers,
    leader_id_from_json,
)
from raft_client.wire.frames import JsonValue, encode_bool, encode_json, encode_uint
from raft_client.wire.log_entry import MAX_ENTRY_DATA_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ConfigProposal", "ConfigUpdate", "ConfigUpdateReply", "Outcome", "RequestUpdate", "UpdateReply"]


class Outcome(Enum):
    """What became of an update."""

    COMMITTED = "committed"  # final: it is in the log, at ``index``
    ACCEPTED = "accepted"  # it is in the leader's log; another reply follows
    NOT_LEADER = "not leader"  # ask the leader, with the same id; ``leader_id`` if known
    EXPIRED = "expired"  # final: the request id is too old, or too far in the future
    BUSY = "busy"  # another change of the peers is under way
    REFUSED = "refused"  # final: the new peers cannot be; ``error_name`` and ``error_message``


@attrs.frozen
class RequestUpdate:
    """Append ``data`` to the log. Its request id is a :class:`~raft_client.wire.request_id.RequestId`."""

    TYPE: ClassVar[bytes] = b"\x3d"

    ident: bytes = attrs.field(validator=check_bytes)
    data: bytes = attrs.field(repr=False)

    @data.validator
    def _check_data(self, _attribute: object, data: object) -> None:
        # A peer ignores both without a word, and its client would repeat them for ever (facts §1.4).
        if not isinstance(data, bytes):
            raise InvalidDataError(f"the data of an entry is bytes, not {type(data).__name__}")
        if not 0 < len(data) <= MAX_ENTRY_DATA_BYTES:
            raise InvalidDataError(f"an entry holds 1 to {MAX_ENTRY_DATA_BYTES} bytes of data, not {len(data)}")

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident, self.data]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> RequestUpdate:
        """Raises ProtocolError."""
        reader = FrameReader.of_request(frames, cls.TYPE)
        return build(cls, reader.raw(), reader.raw())


@attrs.frozen
class UpdateReply:
    """One of COMMITTED with ``index``, ACCEPTED, NOT_LEADER with or without ``leader_id``, and EXPIRED."""

    TYPE: ClassVar[bytes] = RequestUpdate.TYPE

    outcome: Outcome
    index: int | None = None
    leader_id: str | None = attrs.field(default=None, validator=check_leader_id)

    def __attrs_post_init__(self) -> None:
        if self.outcome in (Outcome.BUSY, Outcome.REFUSED):
            raise InvalidArgumentError(f"an update is never {self.outcome.value}")
        _check_outcome(self.outcome, self.index, self.leader_id)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        frames = [encode_bool(self.outcome in (Outcome.COMMITTED, Outcome.ACCEPTED))]
        if self.outcome is Outcome.COMMITTED:
            frames.append(encode_json(self.index))
        elif self.outcome is Outcome.NOT_LEADER:
            frames.append(encode_json(self.leader_id))
        return frames

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> UpdateReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        ok = reader.flag()
        if not reader.more:
            return cls(Outcome.ACCEPTED if ok else Outcome.EXPIRED)
        if ok:
            return build(cls, Outcome.COMMITTED, reader.json())
        return build(cls, Outcome.NOT_LEADER, None, reader.leader_id())


@attrs.frozen
class ConfigUpdate:
    """Make ``peers`` the members of the cluster. Its request id is that of an update.

    The peers' own rules come on top of what is checked here: URLs are ``tcp://`` with an IP address and a port, and a
    peer that stays keeps its URL. A change that breaks them is REFUSED.
    """

    TYPE: ClassVar[bytes] = b"\x26"

    ident: bytes = attrs.field(validator=check_bytes)
    peers: Peers = attrs.field(validator=check_peers)

    def __attrs_post_init__(self) -> None:
        if not self.peers:
            raise InvalidArgumentError("a cluster has at least one peer")
        for name, values in (("id", {peer.id for peer in self.peers}), ("URL", {peer.url for peer in self.peers})):
            if len(values) < len(self.peers):
                raise InvalidArgumentError(f"two peers with the same {name}")

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident, encode_json(peers_to_json(self.peers))]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> ConfigUpdate:
        """Raises ProtocolError."""
        reader = FrameReader.of_request(frames, cls.TYPE)
        return build(cls, reader.raw(), peers_from_json(reader.json()))


#: Of the list of a ConfigProposal: a peer takes some 60. A list as long as a frame may be, of empty values, is 1 GB in
#: memory, and a peer that reads it does nothing else for ten seconds.
_MAX_PEERS_BYTES: Final = 16 * 1024


@attrs.frozen
class ConfigProposal:
    """A ConfigUpdate as a peer receives it: any json, for clients may be wrong, and are told so (status 2).

    Peers take three forms that :class:`ConfigUpdate` does not send: URLs, arrays of id and URL, and objects with both
    (facts §1.4).
    """

    TYPE: ClassVar[bytes] = ConfigUpdate.TYPE

    ident: bytes = attrs.field(validator=check_bytes)
    peers: JsonValue

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident, encode_json(self.peers)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> ConfigProposal:
        """Raises ProtocolError."""
        reader = FrameReader.of_request(frames, cls.TYPE)
        ident = reader.raw()
        size = len(frames[2]) if reader.more else 0
        if size > _MAX_PEERS_BYTES:
            raise ProtocolError(f"a list of peers of {size} bytes; the longest has {_MAX_PEERS_BYTES}", frame=2)
        return build(cls, ident, reader.json())


#: The status of a ConfigUpdate on the wire; 1 is ACCEPTED without an index and COMMITTED with one.
_STATUS: Final = {
    Outcome.NOT_LEADER: 0,
    Outcome.ACCEPTED: 1,
    Outcome.COMMITTED: 1,
    Outcome.REFUSED: 2,
    Outcome.BUSY: 3,
    Outcome.EXPIRED: 4,
}


@attrs.frozen
class ConfigUpdateReply:
    """``index`` is that of the transitional entry (old and new peers): the final one is appended, not yet committed."""

    TYPE: ClassVar[bytes] = ConfigUpdate.TYPE

    outcome: Outcome
    index: int | None = None
    leader_id: str | None = attrs.field(default=None, validator=check_leader_id)
    error_name: str = ""
    error_message: str = ""

    def __attrs_post_init__(self) -> None:
        _check_outcome(self.outcome, self.index, self.leader_id)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        frames = [encode_uint(_STATUS[self.outcome])]
        if self.outcome is Outcome.NOT_LEADER:
            frames.append(encode_json(self.leader_id))
        elif self.outcome is Outcome.COMMITTED:
            frames.append(encode_json(self.index))
        elif self.outcome is Outcome.REFUSED:
            frames.append(encode_json({"name": self.error_name, "message": self.error_message}))
        return frames

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> ConfigUpdateReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        status = reader.uint()
        value = reader.json() if reader.more else None
        match status:
            case 0:
                return build(cls, Outcome.NOT_LEADER, None, leader_id_from_json(value))
            case 1:
                return build(cls, Outcome.ACCEPTED if value is None else Outcome.COMMITTED, value)
            case 2:
                return build(cls, Outcome.REFUSED, None, None, *_error_from_json(value))
            case 3:
                return cls(Outcome.BUSY)
            case 4:
                return cls(Outcome.EXPIRED)
        raise ProtocolError(f"an unknown status of a change of peers: {status}", frame=0)


def _check_outcome(outcome: Outcome, index: object, leader_id: object) -> None:
    if outcome is Outcome.COMMITTED:
        if type(index) is not int or index < 1:
            raise InvalidArgumentError("a committed update has an index, counted from 1")
    elif index is not None:
        raise InvalidArgumentError("only a committed update has an index")
    if leader_id is not None and outcome is not Outcome.NOT_LEADER:
        raise InvalidArgumentError("only a peer that is not the leader names another one")


def _error_from_json(value: JsonValue) -> tuple[str, str]:
    """Name and message. A refusal stays one however badly it is explained."""
    error = value if isinstance(value, dict) else {}
    name, message = error.get("name"), error.get("message")
    return name if isinstance(name, str) else "", message if isinstance(message, str) else ""
