"""The calls that keep logs short. Which peer is asked, and how often, is not decided here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final

from raft_client.core.calls import AnsweredOnce
from raft_client.core.results import TakenSnapshot
from raft_client.core.verdicts import Failed, Finished, FollowUps, NotLeader, Verdict
from raft_client.errors import CompactionError
from raft_client.wire.client_requests import (
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


class _Upkeep(AnsweredOnce, ABC):
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


class TrimLog(_Upkeep):
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


class MakeSnapshot(_Upkeep):
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
