"""The calls that a peer is asked only if it says in its answer to a hello that it knows them.

They keep logs short and move the leadership. Which peer is asked, and how often, is not decided here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final

from raft_client.core.calls import (
    BUSY_PAUSE_S,
    AnsweredOnce,
    Failed,
    Finished,
    FollowUps,
    NotLeader,
    Retry,
    TakenSnapshot,
    Verdict,
)
from raft_client.errors import ClusterBusyError, CompactionError, HandOverError
from raft_client.wire.client_requests import (
    HandOver,
    HandOverReply,
    LogInfoReply,
    Outcome,
    RequestLogInfo,
    TakeSnapshot,
    TakeSnapshotReply,
    Trim,
    TrimReply,
)
from raft_client.wire.hello import Capability, Hello, hello_in_reply

#: Of the replies to Trim and TakeSnapshot, after the request id; that to a hello has more.
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
            return Failed(CompactionError("the peer is a Node peer, or an old one: compact its log with its own tools"))
        return FollowUps((self._request,))

    @abstractmethod
    def _done(self, frames: Sequence[bytes]) -> Verdict: ...


class TrimLog(_GreetedCall):
    """Trim, to the leader. Result: the highest index that was told so far."""

    __slots__ = ()

    _capability = Capability.TRIM

    def __init__(self, ident: bytes, index: int, number: int) -> None:
        """``number`` is another one for each call, below 2^53. Raises InvalidArgumentError."""
        super().__init__(ident, Trim(ident, index).to_frames(), number, of_leader=True)

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
