"""Handing the leadership over (Raft, §3.10).

The leader takes no more updates, brings the other one's log to the end of its own, and tells it to stand for election
at once (TimeoutNow). Updates that come meanwhile wait. Those who wait are told when the new leader is known; if nobody
leads after an election time-out, this leader goes on.

A client that asks for it is told when this peer leads no more, and who does; or why it still leads.

A transfer ends with the leadership that began it. Once TimeoutNow was sent, the leader has no lease in this term any
more: the other one may act on it late.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from raft_client.server.node.ready import Answer, Role
from raft_client.wire.client_requests import HandOver, HandOverReply, Outcome
from raft_client.wire.hello import Capability
from raft_client.wire.peer_messages import TimeoutNow, TimeoutNowReply

if TYPE_CHECKING:
    from raft_client.server.node.election import Election
    from raft_client.server.node.peer_requests import PeerRequests, Question
    from raft_client.server.node.reads import Reads
    from raft_client.server.node.ready import Request
    from raft_client.server.node.replication import Replication
    from raft_client.server.node.state import NodeState
    from raft_client.server.node.updates import Updates

#: Clients that wait for the end of a transfer. More are told to come back.
_MAX_ASKED: Final = 1_000


class Transfer:
    """The transfer under way, if there is one."""

    def __init__(
        self,
        state: NodeState,
        peers: PeerRequests,
        replication: Replication,
        election: Election,
        reads: Reads,
        updates: Updates,
    ) -> None:
        self._state, self._peers, self._replication = state, peers, replication
        self._election, self._reads, self._updates = election, reads, updates
        self.target: str | None = None
        self._told: Question | None = None
        self.ends_at: float = math.inf
        self._asked: dict[tuple[bytes, bytes], Request] = {}  # clients, by their route and request id
        self._tell_at = math.inf  # whoever leads then
        self._why_it_ended = ""

    def begin(self, peer_id: str) -> bool:
        """Whether it was begun: only a leader can, to another member that knows what to do."""
        state = self._state
        if not state.is_leader or self.target is not None or self._why_not(peer_id):
            return False
        self.target, self._told = peer_id, None
        self._why_it_ended = f"{peer_id} did not take over in time"
        self.ends_at = state.now + state.timing.election_s(state.now)
        self._updates.hand_over(begins=True)
        return True

    def _why_not(self, peer_id: str) -> str:
        """Why it cannot take over; empty if it can."""
        if peer_id not in self._replication.followers:
            return f"there is no other member {peer_id!r}"
        if not self._peers.knows(peer_id, Capability.TRANSFER):
            return f"{peer_id} is not connected, or is a Node peer, which cannot take over on request"
        return ""

    @property
    def next_deadline(self) -> float:
        """When :meth:`settle` has something to do."""
        return min(self.ends_at, self._tell_at)

    def settle(self) -> None:
        """Tell the other one as soon as it has the whole log, and the clients how it ended."""
        if self.target is not None:
            self._go_on()
        if self._asked and self.target is None:
            self._tell_clients()

    def _go_on(self) -> None:
        if self.target is None:
            return
        if (
            not self._state.is_leader
            or self.target not in self._replication.followers
            or self._state.now >= self.ends_at
        ):
            self._end()
        elif self._told is None:
            self._tell(self.target)

    def _tell(self, target: str) -> None:
        link = self._peers.get(target)
        follower = self._replication.followers[target]
        if link is None or follower.match_index < self._state.log.last_index:
            return
        if not self._peers.knows(target, Capability.TRANSFER):
            self._end()
        elif link.question is None:
            self._reads.lease_lost_in = self._state.term
            message = TimeoutNow(self._state.settings.ident, self._state.id, self._state.term)
            self._told = self._peers.ask(link, message, self._state.settings.rpc_timeout_s)

    def _end(self) -> None:
        # A peer that has not answered is told no more: it would depose the leader that goes on.
        link = None if self.target is None else self._peers.get(self.target)
        if link is not None and self._told is not None:
            self._peers.withdraw(link, self._told)
        self.target, self.ends_at = None, math.inf
        self._updates.hand_over(begins=False)

    def on_reply(self, reply: TimeoutNowReply) -> None:
        """The other one stands for election, or does not."""
        if reply.term > self._state.term:
            self._state.become_follower(reply.term)
        elif not reply.started and self.target is not None:
            self._end()

    # -- clients -------------------------------------------------------------------------------------------------------

    def on_client(self, request: Request, message: HandOver) -> None:
        """Somebody wants another leader."""
        state = self._state
        if not state.is_leader:
            state.answer(request, HandOverReply(Outcome.NOT_LEADER, state.leader_id))
            return
        if self.target is None:
            target = self._most_able() if message.to is None else message.to
            why_not = self._why_not(target) if target else "no other member is connected that can take over on request"
            if why_not:
                state.answer(request, HandOverReply(Outcome.REFUSED, reason=why_not))
                return
            self.begin(target)
        elif message.to not in (None, self.target) or len(self._asked) >= _MAX_ASKED:
            state.answer(request, HandOverReply(Outcome.BUSY))
            return
        self._asked[request.route, request.request_id] = request
        self._tell_at = state.now + 2 * state.timing.election_s(state.now)

    def _most_able(self) -> str:
        """The id of the follower that has most of the log; empty if none can take over."""
        followers = self._replication.followers
        able = [peer_id for peer_id in followers if not self._why_not(peer_id)]
        return max(able, key=lambda peer_id: followers[peer_id].match_index, default="")

    def _tell_clients(self) -> None:
        state = self._state
        if state.is_leader:
            reply = HandOverReply(Outcome.REFUSED, reason=self._why_it_ended)
        elif state.leader_id is not None or state.now >= self._tell_at:
            reply = HandOverReply(Outcome.NOT_LEADER, state.leader_id)
        else:
            return
        for request in self._asked.values():
            state.answer(request, reply)
        self._asked.clear()
        self._tell_at = math.inf

    def hand_off_on_removal(self) -> None:
        """This leader is no member any more: a member that has its whole log takes over, without a time-out."""
        state = self._state
        for link in self._peers:
            follower = self._replication.followers.get(link.peer.id)
            has_all = follower is not None and follower.match_index == state.log.last_index
            if has_all and link.question is None and self._peers.knows(link.peer.id, Capability.TRANSFER):
                message = TimeoutNow(state.settings.ident, state.id, state.term)
                self._peers.ask(link, message, state.settings.rpc_timeout_s)
                return

    # -- the other side ------------------------------------------------------------------------------------------------

    def on_request(self, request: Request, message: TimeoutNow) -> None:
        """The leader asks this peer to take over."""
        state = self._state
        is_due = state.role is Role.FOLLOWER and message.term == state.term and message.leader_id == state.leader_id
        is_due = is_due and self._election.take_over()
        state.send_durable(Answer(request.route, request.request_id, TimeoutNowReply(state.term, is_due)), up_to=0)
