"""The call that moves the leadership. Which peer is asked, and how often, is not decided here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from raft_client.core.calls import BUSY_PAUSE_S, AnsweredOnce
from raft_client.core.verdicts import Failed, Finished, FollowUps, NotLeader, Retry, Verdict
from raft_client.errors import ClusterBusyError, HandOverError
from raft_client.wire.client_requests import HandOver, HandOverReply, LogInfoReply, Outcome, RequestLogInfo
from raft_client.wire.hello import Capability, Hello, hello_in_reply

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
