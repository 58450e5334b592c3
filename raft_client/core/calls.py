"""What can be asked of a cluster, and what each answer means. Who is asked, and how often, is not decided here.

A *call* knows its frames and reads the answers to them; the request machine finds the leader, sends, repeats and gives
up. A call is asked for its frames each time it is sent, so that a stream can go on where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import attrs

from raft_client.core.results import ClusterConfig
from raft_client.errors import (
    ClusterBusyError,
    ConfigError,
    InvalidArgumentError,
    InvalidDataError,
    RaftError,
    RequestExpiredError,
)
from raft_client.wire.calls import ClientDispatch, ConfigReply, LogInfoReply, RequestConfig, RequestLogInfo
from raft_client.wire.entries import MAX_ENTRY_DATA_BYTES, Peer
from raft_client.wire.frames import decode_json
from raft_client.wire.updates import ConfigUpdate, ConfigUpdateReply, Outcome, RequestUpdate, UpdateReply

if TYPE_CHECKING:
    from attrs import frozen as hot_value
else:
    #: ``attrs.frozen`` for the type checker only: setting the fields of a frozen object takes three times as long.
    hot_value = attrs.define

__all__ = [
    "ACCEPTED",
    "Accepted",
    "Again",
    "Append",
    "Call",
    "Custom",
    "Failed",
    "Finished",
    "FollowUps",
    "GetConfig",
    "GetLogInfo",
    "NotLeader",
    "Retry",
    "UpdatePeers",
    "Verdict",
]

_UPDATE: Final = RequestUpdate.TYPE
_OK: Final = b"\x01"


# -- verdicts ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Accepted:
    """The request is being worked on: wait on, with a fresh clock."""


ACCEPTED: Final = Accepted()


@hot_value
class Finished:
    """The answer is complete. ``last`` is for the peer, to say that nothing more is wanted."""

    result: Any
    last: list[bytes] | None = None


@attrs.frozen
class Failed:
    """The answer is final, and it is no. ``last`` as in :class:`Finished`."""

    error: RaftError
    last: list[bytes] | None = None


@attrs.frozen
class Again:
    """Send ``last``, if any, under the present request id and then ask again, under a new one, on the same link."""

    last: list[bytes] | None = None


@attrs.frozen
class NotLeader:
    """The peer that was asked is not the leader; it may know who is.

    Also for a leader that should not be believed: with None it is asked again only after the election grace time.
    """

    leader_id: str | None


@attrs.frozen
class Retry:
    """The cluster is busy: ask again after a pause of this many seconds. At the deadline ``error`` is raised."""

    after_s: float
    error: RaftError


@hot_value
class FollowUps:
    """Send these on the same link, with the same request id. ``wake``: the call's queue has something new."""

    frames: tuple[list[bytes], ...] = ()
    wake: bool = False


Verdict: TypeAlias = Accepted | Finished | Failed | NotLeader | Retry | FollowUps | Again


class Call(Protocol):
    """One thing to ask."""

    #: The first frame: 12 bytes for what is written into the log. None: any number; a new one each time it is sent.
    request_id: bytes | None
    #: Whether it may be sent again when its answer does not come.
    repeatable: bool
    #: Whether it changes the cluster: then a missing answer means that it may have been applied.
    changes: bool
    #: True while the peer owes nothing, because this side has not asked for more.
    paused: bool

    def frames(self) -> list[bytes]:
        """What to send after the request id, now."""
        ...

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        """What the frames after the request id mean. Raises ProtocolError."""
        ...


# -- the calls that are answered once ----------------------------------------------------------------------------------


class _Question:
    """A call that changes nothing and may be repeated at will."""

    __slots__ = ("_frames",)

    request_id: bytes | None = None
    repeatable = True
    changes = False
    paused = False

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = frames

    def frames(self) -> list[bytes]:
        return self._frames


class GetConfig(_Question):
    """RequestConfig, answered by the leader. Result: :class:`ClusterConfig`."""

    __slots__ = ()

    def __init__(self, ident: bytes) -> None:
        super().__init__(RequestConfig(ident).to_frames())

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        reply = ConfigReply.from_frames(frames)
        if not reply.is_leader or reply.leader_id is None:
            return NotLeader(reply.leader_id)
        return Finished(ClusterConfig(reply.leader_id, reply.peers or ()))


class GetLogInfo(_Question):
    """RequestLogInfo, answered by the leader or by the one peer that is asked. Result: ``LogInfoReply``."""

    __slots__ = ("_of_leader",)

    def __init__(self, ident: bytes, *, of_leader: bool) -> None:
        super().__init__(RequestLogInfo(ident).to_frames())
        self._of_leader = of_leader

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        reply = LogInfoReply.from_frames(frames)
        if self._of_leader and not reply.is_leader:
            return NotLeader(reply.leader_id)
        return Finished(reply)


class Append:
    """RequestUpdate: one entry. Result: its log index. Raises InvalidDataError for data that no peer would take."""

    __slots__ = ("_frames", "request_id")

    repeatable = True  # the request id makes the log take it once
    changes = True
    paused = False

    def __init__(self, ident: bytes, data: object, request_id: bytes) -> None:
        """``request_id`` has the 12 bytes of a RequestId."""
        # The checks of RequestUpdate without making one: this is the path of every append.
        payload = data if type(data) is bytes else _entry_data(data)
        if not 0 < len(payload) <= MAX_ENTRY_DATA_BYTES:
            raise InvalidDataError(f"an entry holds 1 to {MAX_ENTRY_DATA_BYTES} bytes of data, not {len(payload)}")
        self._frames = [_UPDATE, ident, payload]
        self.request_id: bytes | None = request_id

    def frames(self) -> list[bytes]:
        return self._frames

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        """Committed, accepted, not the leader, expired (ØMQ Raft protocol, "RequestUpdate RPC")."""
        if frames and frames[0] == _OK:  # the two answers that every append gets, without the ceremony
            if len(frames) == 1:
                return ACCEPTED
            index = decode_json(frames[1])
            if type(index) is int and index > 0:
                return Finished(index)
        reply = UpdateReply.from_frames(frames)
        if reply.outcome is Outcome.NOT_LEADER:
            return NotLeader(reply.leader_id)
        if reply.outcome is Outcome.EXPIRED:
            return Failed(_expired())
        return ACCEPTED if reply.index is None else Finished(reply.index)


class UpdatePeers:
    """ConfigUpdate: the new list of all peers. Result: the log index of the transition."""

    __slots__ = ("_frames", "request_id")

    repeatable = True
    changes = True
    paused = False

    #: "The client should repeat its request after some reasonable time interval (e.g. a few seconds)", or less.
    _BUSY_PAUSE_S: Final = 0.5

    def __init__(self, ident: bytes, peers: Iterable[object], request_id: bytes) -> None:
        """``request_id`` has the 12 bytes of a RequestId."""
        self._frames = ConfigUpdate(ident, _peers(peers)).to_frames()
        self.request_id: bytes | None = request_id

    def frames(self) -> list[bytes]:
        return self._frames

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        """ØMQ Raft protocol, "ConfigUpdate RPC"."""
        reply = ConfigUpdateReply.from_frames(frames)
        match reply.outcome:
            case Outcome.COMMITTED:
                return Finished(reply.index)
            case Outcome.ACCEPTED:
                return ACCEPTED
            case Outcome.NOT_LEADER:
                return NotLeader(reply.leader_id)
            case Outcome.REFUSED:
                return Failed(ConfigError(reply.error_name, reply.error_message))
            case Outcome.BUSY:
                return Retry(self._BUSY_PAUSE_S, ClusterBusyError("another change of the peers is under way"))
        return Failed(_expired())


class Custom:
    """ClientDispatch: a message for the cluster's own state machine. Result: the frames of its answer.

    It is sent once: whether repeating it would do harm is known to the state machine alone.
    """

    __slots__ = ("_frames",)

    request_id: bytes | None = None
    repeatable = False
    changes = True
    paused = False

    def __init__(self, ident: bytes, message_type: object, frames: Iterable[object]) -> None:
        kind = _entry_data(message_type, "the message type")
        self._frames = ClientDispatch(kind, ident, tuple(_entry_data(f, "a frame") for f in frames)).to_frames()

    def frames(self) -> list[bytes]:
        return self._frames

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        return Finished(list(frames))


def _expired() -> RaftError:
    return RequestExpiredError(
        "the request id has expired: it is older than the cluster remembers (8 hours, unless configured otherwise), "
        "or this machine's clock is more than 15 minutes ahead"
    )


def _entry_data(data: object, name: str = "the data") -> bytes:
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise InvalidDataError(f"{name} is no valid text: {error}") from None
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise InvalidDataError(f"{name} must be bytes or text, not {type(data).__name__}")


def _peers(peers: Iterable[object]) -> tuple[Peer, ...]:
    """Peers, or pairs of id and URL."""
    if isinstance(peers, (str, bytes)) or not isinstance(peers, Iterable):
        raise InvalidArgumentError(f"peers must be an iterable of pairs of id and URL, not {type(peers).__name__}")
    return tuple(_peer(p) for p in peers)


def _peer(peer: object) -> Peer:
    match peer:
        case Peer():
            return peer
        case (str(peer_id), str(url)) | [str(peer_id), str(url)]:
            return Peer(peer_id, url)
    raise InvalidArgumentError(f"a peer must be a pair of id and URL, not {peer!r}")
