"""The question where the leader broadcasts: two RPCs on one link.

Source: ØMQ Raft protocol, "RequestConfig RPC" and "BroadcastStateUrl RPC"; facts §1.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from raft_client.core.verdicts import Finished, FollowUps, NotLeader, Retry, Verdict
from raft_client.errors import RequestTimeoutError
from raft_client.wire.client_requests import BroadcastStateUrl, BroadcastStateUrlReply, ConfigReply, RequestConfig

#: SERVER_ELECTION_GRACE_MS: by then it knows, or another peer leads.
_PAUSE_S: Final = 0.3


class FindBroadcast:
    """Where does the leader broadcast? Result: the URL of its PUB socket.

    Every peer answers BroadcastStateUrl with its own URL, but only the leader broadcasts (facts §1.4). So the peer is
    asked first whether it leads, on the same link. One that leads and broadcasts nowhere is asked again later. Peers
    whose state machine is not a BroadcastStateMachine do not answer the second question at all.
    """

    __slots__ = ("_ident", "_leads")

    request_id: bytes | None = None
    repeatable = True
    changes = False
    paused = False
    needs_slot = False  # a peer that does not broadcast may never answer
    keeps_slot = False
    has_new_id = True

    def __init__(self, ident: bytes) -> None:
        self._ident = ident
        self._leads = False

    def moved(self) -> None:
        """Each time it is sent it starts from the first question."""

    def frames(self) -> list[bytes]:
        self._leads = False
        return RequestConfig(self._ident).to_frames()

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        if self._leads:
            url = BroadcastStateUrlReply.from_frames(frames).url
            return Finished(url) if url else Retry(_PAUSE_S, RequestTimeoutError("the leader does not broadcast"))
        reply = ConfigReply.from_frames(frames)
        if not reply.is_leader:
            return NotLeader(reply.leader_id)
        self._leads = True
        return FollowUps((BroadcastStateUrl(self._ident).to_frames(),))
