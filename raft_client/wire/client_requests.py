"""What a client asks a peer, and the answers: frames <-> values. The tables of frames stand in :mod:`raft_client.wire`.

The request ids of RequestUpdate and ConfigUpdate are :class:`~raft_client.wire.request_id.RequestId`: what is sent
twice is done once. What the document does not have is sent only to a peer that said hello with the capability
(:mod:`raft_client.wire.hello`):

===============  =========  ==============================  ============================================
request          type       its frames                      frames of the reply
===============  =========  ==============================  ============================================
HandOver         ``00 48``  ident, member?                  status, leader id, reason
Trim             ``00 4c``  ident, sender, index            status, leader id, index, reason
TakeSnapshot     ``00 53``  ident                           status, index, size, reason
===============  =========  ==============================  ============================================

Source: ØMQ Raft protocol, RequestConfig, RequestLogInfo, BroadcastStateUrl, ClientDispatch, RequestUpdate and
ConfigUpdate RPC; facts §1.1, §1.3 and §1.4. Ours: ``docs/decisions/0031-the-wire-of-our-peers.md`` and
``docs/decisions/0042-trim-and-snapshots-on-request.md``.
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
    check_name,
    check_peers,
    check_uint,
    leader_id_from_json,
)
from raft_client.wire.frames import JsonValue, encode_bool, encode_json, encode_string, encode_uint
from raft_client.wire.log_entry import MAX_ENTRY_DATA_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

# -- RequestConfig -----------------------------------------------------------------------------------------------------


@attrs.frozen
class RequestConfig:
    """Who is the leader, and who are the peers? Every peer answers."""

    TYPE: ClassVar[bytes] = b"\x5e"

    ident: bytes = attrs.field(validator=check_bytes)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> RequestConfig:
        """Raises ProtocolError."""
        return cls(FrameReader.of_request(frames, cls.TYPE).raw())


@attrs.frozen
class ConfigReply:
    """``peers`` is None when the peer sent none; while the configuration changes it holds the old and the new ones."""

    TYPE: ClassVar[bytes] = RequestConfig.TYPE

    is_leader: bool
    leader_id: str | None = attrs.field(validator=check_leader_id)
    peers: Peers | None = attrs.field(default=None, validator=attrs.validators.optional(check_peers))

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        frames = [encode_bool(self.is_leader), encode_json(self.leader_id)]
        if self.peers is not None:
            frames.append(encode_json(peers_to_json(self.peers)))
        return frames

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> ConfigReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        is_leader, leader_id = reader.flag(), reader.leader_id()
        return build(cls, is_leader, leader_id, peers_from_json(reader.json()) if reader.more else None)


# -- RequestLogInfo ----------------------------------------------------------------------------------------------------


@attrs.frozen
class RequestLogInfo:
    """How long is your log? Every peer answers for itself."""

    TYPE: ClassVar[bytes] = b"\x25"

    ident: bytes = attrs.field(validator=check_bytes)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> RequestLogInfo:
        """Raises ProtocolError."""
        return cls(FrameReader.of_request(frames, cls.TYPE).raw())


@attrs.frozen
class LogInfoReply:
    """The state of one peer's log.

    ``first_index`` is that of the first entry that was not compacted, ``prune_index`` the last one that a compaction
    may remove without forgetting a request id that is still fresh.
    """

    TYPE: ClassVar[bytes] = RequestLogInfo.TYPE

    is_leader: bool
    leader_id: str | None = attrs.field(validator=check_leader_id)
    current_term: int = attrs.field(validator=check_uint)
    first_index: int = attrs.field(validator=check_uint)
    last_applied: int = attrs.field(validator=check_uint)
    commit_index: int = attrs.field(validator=check_uint)
    last_index: int = attrs.field(validator=check_uint)
    snapshot_bytes: int = attrs.field(validator=check_uint)
    prune_index: int = attrs.field(validator=check_uint)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        numbers = (
            self.current_term,
            self.first_index,
            self.last_applied,
            self.commit_index,
            self.last_index,
            self.snapshot_bytes,
            self.prune_index,
        )
        return [encode_bool(self.is_leader), encode_json(self.leader_id), *map(encode_uint, numbers)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> LogInfoReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return build(cls, reader.flag(), reader.leader_id(), *(reader.uint() for _ in range(7)))


# -- the state machine -------------------------------------------------------------------------------------------------


@attrs.frozen
class BroadcastStateUrl:
    """Where do you publish what is applied? Every peer answers; only the leader publishes (facts §1.4)."""

    TYPE: ClassVar[bytes] = b"\x2a"

    ident: bytes = attrs.field(validator=check_bytes)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> BroadcastStateUrl:
        """Raises ProtocolError."""
        return cls(FrameReader.of_request(frames, cls.TYPE).raw())


@attrs.frozen
class BroadcastStateUrlReply:
    """``url`` of a PUB socket; None when the peer is not the leader, as the document has it."""

    TYPE: ClassVar[bytes] = BroadcastStateUrl.TYPE

    url: str | None = attrs.field(default=None, validator=attrs.validators.optional(check_name))

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [] if self.url is None else [encode_string(self.url)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> BroadcastStateUrlReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return cls(reader.text() or None if reader.more else None)


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


# -- HandOver ----------------------------------------------------------------------------------------------------------


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
_HAND_OVER_STATUS: Final = {Outcome.NOT_LEADER: 0, Outcome.REFUSED: 2, Outcome.BUSY: 3}
_HAND_OVER_OUTCOMES: Final = {status: outcome for outcome, status in _HAND_OVER_STATUS.items()}


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
        if self.outcome not in _HAND_OVER_STATUS:
            raise InvalidArgumentError(f"a hand-over is never {self.outcome.value}")

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [encode_uint(_HAND_OVER_STATUS[self.outcome]), encode_json(self.leader_id), encode_string(self.reason)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> HandOverReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        outcome = _HAND_OVER_OUTCOMES.get(reader.uint())
        if outcome is None:
            raise ProtocolError("an unknown status of a hand-over", frame=0)
        return build(cls, outcome, reader.leader_id(), reader.text())


# -- Trim and TakeSnapshot ---------------------------------------------------------------------------------------------


_COMPACTION_STATUS: Final = {Outcome.NOT_LEADER: 0, Outcome.COMMITTED: 1, Outcome.REFUSED: 2}
_COMPACTION_OUTCOMES: Final = {status: outcome for outcome, status in _COMPACTION_STATUS.items()}


def _check_compaction_outcome(_message: object, _attribute: object, outcome: Outcome) -> None:
    if outcome not in _COMPACTION_STATUS:
        raise InvalidArgumentError(f"this is never {outcome.value}")


def _read_outcome(reader: FrameReader) -> Outcome:
    outcome = _COMPACTION_OUTCOMES.get(reader.uint())
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

    outcome: Outcome = attrs.field(validator=_check_compaction_outcome)
    leader_id: str | None = attrs.field(default=None, validator=check_leader_id)
    index: int = attrs.field(default=0, validator=check_uint)
    reason: str = ""

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        numbers = [encode_uint(_COMPACTION_STATUS[self.outcome]), encode_json(self.leader_id), encode_uint(self.index)]
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

    outcome: Outcome = attrs.field(validator=_check_compaction_outcome)
    index: int = attrs.field(default=0, validator=check_uint)
    size: int = attrs.field(default=0, validator=check_uint)
    reason: str = ""

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        numbers = (_COMPACTION_STATUS[self.outcome], self.index, self.size)
        return [*map(encode_uint, numbers), encode_string(self.reason)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> TakeSnapshotReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return build(cls, _read_outcome(reader), reader.uint(), reader.uint(), reader.text())
