"""What can be asked of a cluster, and what each answer means. Which peer is asked, and how often, is not decided here.

A *call* knows its frames and reads the answers to them; the request machine finds the leader, sends, repeats and gives
up. A call is asked for its frames each time it is sent, so that a stream can go on where it stopped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeAlias

import attrs

from raft_client.errors import (
    ClusterBusyError,
    CompactionError,
    ConfigError,
    HandOverError,
    InvalidArgumentError,
    InvalidDataError,
    LeasesUnsupportedError,
    ProtocolError,
    RaftError,
    RequestExpiredError,
)
from raft_client.wire.client_requests import (
    ClientDispatch,
    ConfigReply,
    ConfigUpdate,
    ConfigUpdateReply,
    HandOver,
    HandOverReply,
    LogInfoReply,
    Outcome,
    RequestConfig,
    RequestLogInfo,
    RequestUpdate,
    TakeSnapshot,
    TakeSnapshotReply,
    Trim,
    TrimReply,
    UpdateReply,
)
from raft_client.wire.configuration import Peer, Peers
from raft_client.wire.frames import decode_json, encode_json, hot_value
from raft_client.wire.hello import Capability, Hello, hello_in_reply
from raft_client.wire.key_value_messages import AskLeases, LeasesReply
from raft_client.wire.log_entry import MAX_ENTRY_DATA_BYTES

# -- what calls return -------------------------------------------------------------------------------------------------


#: What a peer says of its log; users know it by this name.
LogInfo: TypeAlias = LogInfoReply


@attrs.frozen
class ClusterConfig:
    """The leader of the cluster, and its peers. During a change of the peers it lists the old and the new ones."""

    leader_id: str
    peers: Peers

    @property
    def leader_url(self) -> str | None:
        """The URL of the leader's ROUTER as its peers see it; None when it is not among the peers."""
        return next((peer.url for peer in self.peers if peer.id == self.leader_id), None)


@attrs.frozen
class PeerConfig:
    """The leader and the peers of a cluster, as one peer knows them; ``leader_id`` is None if it knows of no leader.

    It may be out of date: a peer that was away knows nothing of a change that the others have made since.
    """

    is_leader: bool
    leader_id: str | None
    peers: Peers


@attrs.frozen
class TakenSnapshot:
    """A snapshot that a peer made of its state machine: ``size`` bytes, of the entries up to ``index``.

    It takes their place when no request id in them can be repeated any more, 8 hours later as a rule.
    """

    index: int
    size: int


# -- verdicts: what an answer means ------------------------------------------------------------------------------------


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
    """The answer is final, and an error. ``last`` as in :class:`Finished`."""

    error: RaftError
    last: list[bytes] | None = None


@attrs.frozen
class Again:
    """Send ``last``, if any, under the present request id and then ask again, under a new one, on the same link."""

    last: list[bytes] | None = None


@attrs.frozen
class NotLeader:
    """The peer that was asked says that it is not the leader; it may know who is."""

    leader_id: str | None


@attrs.frozen
class Retry:
    """Not now: ask again after a pause of this many seconds. At the deadline ``error`` is raised.

    ``doubts_leader``: what it said proves nothing, but if another peer leads in a later term, that one is to be asked.
    """

    after_s: float
    error: RaftError
    doubts_leader: bool = False


@hot_value
class FollowUps:
    """Send these on the same link, with the same request id. ``wake``: the call's queue has something new."""

    frames: tuple[list[bytes], ...] = ()
    wake: bool = False


#: The call has dealt with it.
HEARD: Final = FollowUps()

Verdict: TypeAlias = Accepted | Finished | Failed | NotLeader | Retry | FollowUps | Again


# -- the calls ---------------------------------------------------------------------------------------------------------

_UPDATE: Final = RequestUpdate.TYPE
_OK: Final = b"\x01"
#: "The client should repeat its request after some reasonable time interval (e.g. a few seconds)", or less.
BUSY_PAUSE_S: Final = 0.5


class Call(Protocol):
    """One thing to ask."""

    #: The first frame: 12 bytes for what is written into the log, more for a hello. None: any number; a new one each
    #: time it is sent.
    request_id: bytes | None
    #: Whether it may be sent again when its answer does not come.
    repeatable: bool
    #: Whether it changes the cluster: then a missing answer means that it may have been applied.
    changes: bool
    #: True while the peer owes nothing, because this side has not asked for more.
    paused: bool
    #: Whether it counts in ``max_in_flight``. A stream does not: it is open as long as its reader likes.
    needs_slot: bool
    #: False: it gives its slot back when its answer takes longer than a response time-out, for what answers is the
    #: user's own program. The next time it is sent it takes one again.
    keeps_slot: bool
    #: False when the request id was given by the caller, who may have used it before.
    has_new_id: bool

    def frames(self) -> list[bytes]:
        """What to send after the request id, now."""
        ...

    def moved(self) -> None:
        """The next frames go to another peer, or over a new link: what is not complete of the last answer is void."""
        ...

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        """What the frames after the request id mean. Raises ProtocolError."""
        ...


# -- the calls that are answered once ----------------------------------------------------------------------------------


class AnsweredOnce:
    """What the calls have in common that are answered with one message, or with "accepted" and one message."""

    __slots__ = ()

    repeatable = True
    changes = False
    paused = False
    needs_slot = True
    keeps_slot = True
    has_new_id = True

    def moved(self) -> None:
        """There is nothing incomplete."""


class Question(AnsweredOnce):
    """A call that changes nothing and may be repeated at will."""

    __slots__ = ("_frames",)

    request_id: bytes | None = None

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = frames

    def frames(self) -> list[bytes]:
        return self._frames


class GetConfig(Question):
    """RequestConfig, answered by the leader. Result: :class:`ClusterConfig`."""

    __slots__ = ()

    def __init__(self, ident: bytes) -> None:
        super().__init__(RequestConfig(ident).to_frames())

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        reply = ConfigReply.from_frames(frames)
        if not reply.is_leader:
            return NotLeader(reply.leader_id)
        if reply.leader_id is None:
            raise ProtocolError("a leader that does not know its own id", frame=1)
        return Finished(ClusterConfig(reply.leader_id, reply.peers or ()))


class GetPeerConfig(Question):
    """RequestConfig, answered by the one peer that is asked. Result: :class:`PeerConfig`."""

    __slots__ = ()

    def __init__(self, ident: bytes) -> None:
        super().__init__(RequestConfig(ident).to_frames())

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        reply = ConfigReply.from_frames(frames)
        return Finished(PeerConfig(reply.is_leader, reply.leader_id, reply.peers or ()))


class GetLogInfo(Question):
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


class Append(AnsweredOnce):
    """RequestUpdate: one entry. Result: its log index. Raises InvalidDataError for data that no peer would take."""

    __slots__ = ("_frames", "has_new_id", "request_id")

    changes = True  # and may be repeated, for its request id makes the log take it once

    def __init__(self, ident: bytes, data: object, request_id: bytes, *, has_new_id: bool = False) -> None:
        """``request_id`` has the 12 bytes of a RequestId; ``has_new_id``: it was made for this call."""
        # The checks of RequestUpdate without making one: this is the path of every append.
        payload = data if type(data) is bytes else _entry_data(data)
        if not 0 < len(payload) <= MAX_ENTRY_DATA_BYTES:
            raise InvalidDataError(f"an entry holds 1 to {MAX_ENTRY_DATA_BYTES} bytes of data, not {len(payload)}")
        self._frames = [_UPDATE, ident, payload]
        self.request_id: bytes | None = request_id
        self.has_new_id: bool = has_new_id

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


class UpdatePeers(AnsweredOnce):
    """ConfigUpdate: the new list of all peers. Result: the log index of the transition.

    While another change is under way it is tried again, or, without ``wait``, fails with ClusterBusyError.
    """

    __slots__ = ("_frames", "_wait", "has_new_id", "request_id")

    changes = True

    def __init__(
        self,
        ident: bytes,
        peers: Iterable[object],
        request_id: bytes,
        *,
        has_new_id: bool = False,
        wait: bool = True,
    ) -> None:
        """``request_id`` and ``has_new_id`` are as for :class:`Append`."""
        self._frames = ConfigUpdate(ident, _peers(peers)).to_frames()
        self._wait = wait
        self.request_id: bytes | None = request_id
        self.has_new_id: bool = has_new_id

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
                return Retry(BUSY_PAUSE_S, _busy()) if self._wait else Failed(_busy())
        return Failed(_expired())


class AwaitSettled(AnsweredOnce):
    """Wait until no change of the peers is under way. Result: None.

    RequestConfig does not tell: during the transition it has the old and the new peers in one list. But a ConfigUpdate
    is answered with "busy" then, before anybody looks at it (facts §1.4); otherwise one without a list is refused.
    """

    __slots__ = ("_frames", "request_id")

    def __init__(self, ident: bytes, request_id: bytes) -> None:
        """``request_id`` has the 12 bytes of a RequestId, and is fresh."""
        self._frames = [ConfigUpdate.TYPE, ident, encode_json(None)]
        self.request_id: bytes | None = request_id

    def frames(self) -> list[bytes]:
        return self._frames

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        reply = ConfigUpdateReply.from_frames(frames)
        match reply.outcome:
            case Outcome.REFUSED:
                return Finished(None)
            case Outcome.BUSY:
                return Retry(BUSY_PAUSE_S, _busy())
            case Outcome.NOT_LEADER:
                return NotLeader(reply.leader_id)
            case Outcome.EXPIRED:
                return Failed(_expired())
        return Failed(ProtocolError("the peer accepted a change of the peers without a list"))


class Custom(AnsweredOnce):
    """ClientDispatch: a message for the cluster's own state machine. Result: the frames of its answer.

    It is sent once: whether repeating it would do harm is known to the state machine alone. With a request id of 12
    bytes it is repeated as an append is: who gives one says that the state machine carries out the same id once.
    """

    __slots__ = ("_frames", "has_new_id", "repeatable", "request_id")

    changes = True
    keeps_slot = False

    def __init__(
        self, ident: bytes, message_type: object, frames: Iterable[object], request_id: bytes | None = None
    ) -> None:
        self.request_id: bytes | None = request_id
        self.repeatable: bool = request_id is not None
        self.has_new_id: bool = request_id is None
        kind = _entry_data(message_type, "the message type")
        self._frames = ClientDispatch(kind, ident, tuple(_entry_data(f, "a frame") for f in frames)).to_frames()

    def frames(self) -> list[bytes]:
        return self._frames

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        return Finished(list(frames))


def _busy() -> RaftError:
    return ClusterBusyError("another change of the peers is under way")


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
            raise InvalidDataError(f"{name} is not valid text: {error}") from None
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


# -- calls after a hello -----------------------------------------------------------------------------------------------
# They keep logs short, begin leases and move the leadership. Which peer is asked, and how often, is not decided here.


#: At most, of the replies to Trim, TakeSnapshot and AskLeases, after the request id; that to a hello has more.
_REPLY_FRAMES: Final = 4


class _GreetedCall(AnsweredOnce, ABC):
    """A hello, and the request under the same request id, if the peer says that it knows it. It may be repeated."""

    __slots__ = ("_frames", "_of_leader", "_request", "request_id")

    changes = True
    _capability: ClassVar[Capability]

    def __init__(self, ident: bytes, request: list[bytes], number: int, *, of_leader: bool) -> None:
        self._frames = RequestLogInfo(ident).to_frames()
        self._request, self._of_leader = request, of_leader
        self.request_id: bytes | None = Hello(None, number).to_request_id()

    def frames(self) -> list[bytes]:
        return self._frames

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        """The answer to the hello has more frames than that to the request, and may come twice."""
        return self._greeted(frames) if len(frames) > _REPLY_FRAMES else self._done(frames)

    def _greeted(self, frames: Sequence[bytes]) -> Verdict:
        reply, hello = LogInfoReply.from_frames(frames), hello_in_reply(frames)
        if self._of_leader and not reply.is_leader:
            return NotLeader(reply.leader_id)
        if hello is None or not hello.knows(self._capability):
            return Failed(self._unknown(reply.leader_id))
        return FollowUps((self._request,))

    def _unknown(self, leader_id: str | None) -> RaftError:
        """Make the error for a peer that does not know the request."""
        del leader_id
        return CompactionError("the peer is a Node peer, or an old one: compact its log with its own tools")

    @abstractmethod
    def _done(self, frames: Sequence[bytes]) -> Verdict: ...


class TrimLog(_GreetedCall):
    """Trim, sent to the leader. Result: the highest index that was named so far."""

    __slots__ = ()

    _capability = Capability.TRIM

    def __init__(self, ident: bytes, index: int, number: int) -> None:
        """``number`` is another one for each call, below 2^53. Raises InvalidArgumentError."""
        super().__init__(ident, Trim(ident, sender="", index=index).to_frames(), number, of_leader=True)

    def _done(self, frames: Sequence[bytes]) -> Verdict:
        reply = TrimReply.from_frames(frames)
        if reply.outcome is Outcome.NOT_LEADER:
            return NotLeader(reply.leader_id)
        return Failed(CompactionError(reply.reason)) if reply.outcome is Outcome.REFUSED else Finished(reply.index)


class MakeSnapshot(_GreetedCall):
    """TakeSnapshot, to the leader or to the one peer that is asked. Result: :class:`TakenSnapshot`."""

    __slots__ = ()

    _capability = Capability.SNAPSHOT

    def __init__(self, ident: bytes, number: int, *, of_leader: bool) -> None:
        """``number`` is another one for each call, below 2^53."""
        super().__init__(ident, TakeSnapshot(ident).to_frames(), number, of_leader=of_leader)

    def _done(self, frames: Sequence[bytes]) -> Verdict:
        reply = TakeSnapshotReply.from_frames(frames)
        if reply.outcome is Outcome.REFUSED:
            return Failed(CompactionError(reply.reason))
        return Finished(TakenSnapshot(reply.index, reply.size))


#: A leader hears within a moment from members that run.
_UNHEARD_PAUSE_S: Final = 0.05


class MayLease(_GreetedCall):
    """AskLeases, sent to the leader. Result: None. Raises LeasesUnsupportedError."""

    __slots__ = ()

    changes = False
    _capability = Capability.LEASES

    def __init__(self, ident: bytes, number: int) -> None:
        """``number`` is another one for each call, below 2^53."""
        super().__init__(ident, AskLeases(ident).to_frames(), number, of_leader=True)

    def _unknown(self, leader_id: str | None) -> RaftError:
        return LeasesUnsupportedError(
            f"the leader {leader_id} knows no leases: it is a Node peer, of an earlier version, or has another "
            "state machine"
        )

    def _done(self, frames: Sequence[bytes]) -> Verdict:
        reply = LeasesReply.from_frames(frames)
        if reply.unaware:
            what = f"{', '.join(reply.unaware)} knows none: a Node peer, an earlier version or another state machine"
            return Failed(LeasesUnsupportedError(f"the leader grants no leases before all members know them; {what}"))
        if reply.unheard:
            what = f"{', '.join(reply.unheard)} was not reached yet"
            why = LeasesUnsupportedError(f"the leader grants no leases before all members know them; {what}")
            return Retry(_UNHEARD_PAUSE_S, why)
        return Finished(None)


# -- moving the leadership ---------------------------------------------------------------------------------------------


#: Of the reply to HandOver, after the request id.
_HAND_OVER_FRAMES: Final = 3


class TransferLeadership(AnsweredOnce):
    """A hello to the leader, and then HandOver, under the same request id. Result: the id of the leader afterwards.

    The hello says over each connection anew what the peer knows, and who leads: that is how a success is told. So an
    answer that is lost does no harm, and a repetition moves nothing twice.
    """

    __slots__ = ("_frames", "_from", "_hand_over", "_to", "request_id")

    changes = True

    def __init__(self, ident: bytes, to: str | None, number: int) -> None:
        """``number`` is another one for each call, below 2^53. Raises InvalidArgumentError."""
        self._frames = RequestLogInfo(ident).to_frames()
        self._hand_over = HandOver(ident, to).to_frames()
        self._to = to
        self._from: str | None = None
        self.request_id: bytes | None = Hello(None, number).to_request_id()

    def frames(self) -> list[bytes]:
        return self._frames

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        """The answer to the hello has more frames than that to HandOver, and may come twice."""
        if len(frames) > _HAND_OVER_FRAMES:
            return self._greeted(LogInfoReply.from_frames(frames), hello_in_reply(frames))
        reply = HandOverReply.from_frames(frames)
        match reply.outcome:
            case Outcome.NOT_LEADER:
                return NotLeader(reply.leader_id)
            case Outcome.BUSY:
                return Retry(BUSY_PAUSE_S, ClusterBusyError("the leadership is being handed over to another member"))
        return Failed(HandOverError(reply.reason))

    def _greeted(self, reply: LogInfoReply, hello: Hello | None) -> Verdict:
        leader_id = reply.leader_id
        if not reply.is_leader or leader_id is None:
            return NotLeader(leader_id)
        if leader_id == self._to or (self._to is None and self._from not in (None, leader_id)):
            return Finished(leader_id)
        self._from = leader_id
        if hello is None or not hello.knows(Capability.TRANSFER):
            return Failed(HandOverError(f"the leader {leader_id} is a Node peer, which hands nothing over; stop it"))
        return FollowUps((self._hand_over,))
