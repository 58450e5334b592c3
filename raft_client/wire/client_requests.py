"""What a client asks a peer, and the answers, all but entries (:mod:`.streams`): frames <-> values.

The request ids of RequestUpdate and ConfigUpdate are :class:`~raft_client.wire.request_id.RequestId`: what is sent
twice is done once. What the document does not have is sent only to a peer that said hello with the capability
(:mod:`raft_client.wire.hello`): HandOver, Trim and TakeSnapshot.

Source: ØMQ Raft protocol, RequestConfig, RequestLogInfo, BroadcastStateUrl, ClientDispatch, RequestUpdate and
ConfigUpdate RPC; facts §1.1, §1.3 and §1.4. Ours: ``docs/decisions/raft-wire.md`` and ``docs/decisions/raft-log.md``.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from raft_client.errors import InvalidArgumentError, InvalidDataError, ProtocolError
from raft_client.wire.configuration import Peers
from raft_client.wire.fields import (
    FLAG,
    JSON,
    LEADER,
    PEERS,
    RAW,
    TEXT,
    UINT,
    FieldMessage,
    FrameReader,
    FrameType,
    build,
    check_bytes,
    check_leader_id,
    check_name,
    frame,
    leader_id_from_json,
    numbered,
    reply,
    request,
)
from raft_client.wire.frames import (
    JsonValue,
    decode_json,
    decode_string,
    encode_bool,
    encode_json,
    encode_string,
    encode_uint,
)
from raft_client.wire.log_entry import MAX_ENTRY_DATA_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

# -- RequestConfig -----------------------------------------------------------------------------------------------------


@request(b"\x5e")
class RequestConfig(FieldMessage):
    """Who is the leader, and who are the peers? Every peer answers."""

    ident: bytes = frame(RAW)


@reply(RequestConfig.TYPE)
class ConfigReply(FieldMessage):
    """``peers`` is None when the peer sent none; while the configuration changes it holds the old and the new ones."""

    is_leader: bool = frame(FLAG)
    leader_id: str | None = frame(LEADER)
    peers: Peers | None = frame(PEERS, default=None, optional=True)


# -- RequestLogInfo ----------------------------------------------------------------------------------------------------


@request(b"\x25")
class RequestLogInfo(FieldMessage):
    """How long is your log? Every peer answers for itself."""

    ident: bytes = frame(RAW)


@reply(RequestLogInfo.TYPE)
class LogInfoReply(FieldMessage):
    """The state of one peer's log.

    ``first_index`` is that of the first entry that was not compacted, ``prune_index`` the last one that a compaction
    may remove without forgetting a request id that is still fresh.
    """

    is_leader: bool = frame(FLAG)
    leader_id: str | None = frame(LEADER)
    current_term: int = frame(UINT)
    first_index: int = frame(UINT)
    last_applied: int = frame(UINT)
    commit_index: int = frame(UINT)
    last_index: int = frame(UINT)
    snapshot_bytes: int = frame(UINT)
    prune_index: int = frame(UINT)


# -- the state machine -------------------------------------------------------------------------------------------------


@request(b"\x2a")
class BroadcastStateUrl(FieldMessage):
    """Where do you publish what is applied? Every peer answers; only the leader publishes (facts §1.4)."""

    ident: bytes = frame(RAW)


#: Some say that they have none with an empty text.
_URL: Final = FrameType("string", encode_string, lambda frame: decode_string(frame) or None, check_name)


@reply(BroadcastStateUrl.TYPE)
class BroadcastStateUrlReply(FieldMessage):
    """``url`` of a PUB socket; None when the peer is not the leader, as the document has it."""

    url: str | None = frame(_URL, default=None, optional=True)


# -- ClientDispatch ----------------------------------------------------------------------------------------------------


@attrs.frozen
class ClientDispatch:
    """A message for a state machine of your own. Types of one byte are reserved for ØMQ Raft itself."""

    type: bytes = attrs.field(validator=check_bytes)
    ident: bytes = attrs.field(validator=check_bytes)
    frames: tuple[bytes, ...] = ()

    def __attrs_post_init__(self) -> None:
        if len(self.type) < 2:
            raise InvalidArgumentError("the type of a message of your own has at least two bytes")
        if not isinstance(self.frames, tuple) or not all(isinstance(frame, bytes) for frame in self.frames):
            raise InvalidArgumentError("frames is a tuple of bytes")

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.type, self.ident, *self.frames]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> ClientDispatch:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return build(cls, reader.raw(), reader.raw(), tuple(reader.rest()))


# -- RequestUpdate and ConfigUpdate ------------------------------------------------------------------------------------


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
        ok = reader.read(FLAG)
        if not reader.more:
            return cls(Outcome.ACCEPTED if ok else Outcome.EXPIRED)
        if ok:
            return build(cls, Outcome.COMMITTED, reader.read(JSON))
        return build(cls, Outcome.NOT_LEADER, None, reader.read(LEADER))


@request(b"\x26")
class ConfigUpdate(FieldMessage):
    """Make ``peers`` the members of the cluster. Its request id is that of an update.

    The peers' own rules come on top of what is checked here: URLs are ``tcp://`` with an IP address and a port, and a
    peer that stays keeps its URL. A change that breaks them is REFUSED.
    """

    ident: bytes = frame(RAW)
    peers: Peers = frame(PEERS)

    def __attrs_post_init__(self) -> None:
        if not self.peers:
            raise InvalidArgumentError("a cluster has at least one peer")
        for name, values in (("id", {peer.id for peer in self.peers}), ("URL", {peer.url for peer in self.peers})):
            if len(values) < len(self.peers):
                raise InvalidArgumentError(f"two peers with the same {name}")


#: Of the list of a ConfigProposal: a peer takes some 60. A list as long as a frame may be, of empty values, is 1 GB in
#: memory, and a peer that reads it does nothing else for ten seconds.
_MAX_PEERS_BYTES: Final = 16 * 1024


def _decode_proposed_peers(frame: bytes) -> JsonValue:
    if len(frame) > _MAX_PEERS_BYTES:
        raise ProtocolError(f"a list of peers of {len(frame)} bytes; the longest has {_MAX_PEERS_BYTES}")
    return decode_json(frame)


_PROPOSED_PEERS: Final = FrameType("json", encode_json, _decode_proposed_peers)


@request(ConfigUpdate.TYPE)
class ConfigProposal(FieldMessage):
    """A ConfigUpdate as a peer receives it: any json, for clients may be wrong, and are told so (status 2).

    Peers take three forms that :class:`ConfigUpdate` does not send: URLs, arrays of id and URL, and objects with both
    (facts §1.4).
    """

    ident: bytes = frame(RAW)
    peers: JsonValue = frame(_PROPOSED_PEERS)


#: The status of a ConfigUpdate on the wire; 1 is ACCEPTED without an index and COMMITTED with one.
_CONFIG_STATUS: Final = {
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
        frames = [encode_uint(_CONFIG_STATUS[self.outcome])]
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
        value = reader.read(JSON) if reader.more else None
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


# -- HandOver ----------------------------------------------------------------------------------------------------------


@request(b"\x00\x48")
class HandOver(FieldMessage):
    """Let the member ``to`` lead, or (None) any other one. A client asks the leader. (Raft, §3.10)"""

    ident: bytes = frame(RAW)
    to: str | None = frame(LEADER, default=None)


#: The statuses of a ConfigUpdate that a hand-over can have.
_HAND_OVER_OUTCOME: Final = numbered({Outcome.NOT_LEADER: 0, Outcome.REFUSED: 2, Outcome.BUSY: 3}, "a hand-over")


@reply(HandOver.TYPE)
class HandOverReply(FieldMessage):
    """One of NOT_LEADER, at first or at last, with or without the ``leader_id``; REFUSED, with a ``reason``; and BUSY.

    There is no *done*: whether a hand-over succeeded, the new leader says.
    """

    outcome: Outcome = frame(_HAND_OVER_OUTCOME)
    leader_id: str | None = frame(LEADER, default=None)
    reason: str = frame(TEXT, default="")


# -- Trim and TakeSnapshot ---------------------------------------------------------------------------------------------


_COMPACTION_OUTCOME: Final = numbered(
    {Outcome.NOT_LEADER: 0, Outcome.COMMITTED: 1, Outcome.REFUSED: 2}, "a trim or a snapshot"
)


@request(b"\x00\x4c")
class Trim(FieldMessage):
    """Nobody needs the entries up to ``index`` any more. A client tells the leader, and that one (``sender``) others.

    For a client ``sender`` is empty. It stands where all that peers say has the id of the peer.
    """

    ident: bytes = frame(RAW)
    sender: str = frame(TEXT)
    index: int = frame(UINT)


@reply(Trim.TYPE)
class TrimReply(FieldMessage):
    """COMMITTED, with the highest ``index`` that was told so far; NOT_LEADER; or REFUSED, with a ``reason``."""

    outcome: Outcome = frame(_COMPACTION_OUTCOME)
    leader_id: str | None = frame(LEADER, default=None)
    index: int = frame(UINT, default=0)
    reason: str = frame(TEXT, default="")


@request(b"\x00\x53")
class TakeSnapshot(FieldMessage):
    """Make a snapshot of your state machine now, to take the place of your log when its request ids have expired."""

    ident: bytes = frame(RAW)


@reply(TakeSnapshot.TYPE)
class TakeSnapshotReply(FieldMessage):
    """COMMITTED: there is one, of ``size`` bytes, of the entries up to ``index``; or REFUSED, with a ``reason``."""

    outcome: Outcome = frame(_COMPACTION_OUTCOME)
    index: int = frame(UINT, default=0)
    size: int = frame(UINT, default=0)
    reason: str = frame(TEXT, default="")
