"""Elections: time-outs, pre-votes, votes.

A member that hears no leader first asks whether others would vote for it (pre-vote, Raft §9.6), and raises its term
only when a majority would. So a peer that was cut off does not depose a leader that works when it comes back. Pre-votes
are asked of peers that know them; a Node peer that is connected counts as willing, one that says nothing does not.

A voter that hears a leader gives its vote to nobody else (Raft, §4.2.3), unless that leader asked for the election. It
says nothing then, rather than no: a Node candidate that a majority answers raises its term again and again.

A candidate is patient: it stays in its term and repeats its question until a majority has answered it, or it hears of a
higher term. Its own vote and those of others wait for their disks; another term would only throw away what is on its
way, and be one more that nobody hears of. In an election no other one is begun: a peer whose vote is on its way to the
disk asks for none and grants no pre-vote, nor does a candidate in the first time-out since it could ask. After that it
does: voters that it cannot reach may be needed by another candidate, and it by that one.

A peer that was given a snapshot, and no CONFIG entry after it, does not know who votes. It votes for others, but does
not stand: the members that it remembers may have been replaced, and elect it beside the present ones.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from raft_client.server.node.quorum import has_majority
from raft_client.server.node.ready import Answer, Role
from raft_client.wire.hello import Capability
from raft_client.wire.peer_messages import PreVote, PreVoteReply, RequestVote, VoteReply

if TYPE_CHECKING:
    from raft_client.server.node.peer_requests import PeerLink, PeerRequests, Question
    from raft_client.server.node.ready import Request
    from raft_client.server.node.state import NodeState


class Election:
    """The votes of one peer, given and taken."""

    def __init__(self, state: NodeState, peers: PeerRequests) -> None:
        self._state, self._peers = state, peers
        self._pre_vote_runs = False  # a pre-vote is under way
        self._pre_vote_term = 0  # the term in which it began
        self._votes: dict[str, bool] = {}
        self._ask_again_at: dict[str, float] = {}  # voters that refused a pre-vote
        self._own_vote_job = 0
        self._is_patient = False  # a candidate in its first time-out since it could ask

    # -- standing for election -----------------------------------------------------------------------------------------

    @property
    def next_deadline(self) -> float:
        """When the election time-out is over, or a pre-vote is to be asked for again."""
        if self._state.role not in (Role.FOLLOWER, Role.CANDIDATE):
            return math.inf
        return min(self._state.timing.election_at, min(self._ask_again_at.values(), default=math.inf))

    def tick(self) -> None:
        """The election time-out may be over."""
        state = self._state
        if state.now < self.next_deadline:
            return
        if state.now < state.timing.election_at:
            self._ask_again()
        elif not self._may_stand or self._waits_for_votes or not state.is_vote_durable:
            state.timing.restart(state.now)
            self._is_patient = False
        elif state.is_sole_voter:
            self.campaign()
        else:
            self._start_pre_vote()

    @property
    def _may_stand(self) -> bool:
        return self._state.log.knows_configuration and not self._state.disk_stalled

    @property
    def _waits_for_votes(self) -> bool:
        """Whether the election is under way. The own vote counts once it is on the disk, and others are asked then."""
        state = self._state
        return state.role is Role.CANDIDATE and not has_majority(state.configuration, self._votes.__contains__)

    def _start_pre_vote(self) -> None:
        """Pre-vote. Term and vote stay as they are."""
        state = self._state
        state.become_follower(state.term)
        state.timing.restart(state.now)
        state.suspicions += 1
        state.epoch += 1
        self._peers.settle_questions()
        self._pre_vote_runs, self._pre_vote_term = True, state.term
        self._ask_again_at.clear()
        self._votes = {state.id: True}
        for link in self._peers:
            self._ask_pre_vote(link)

    def _ask_pre_vote(self, link: PeerLink) -> None:
        if self._peers.knows(link.peer.id, Capability.PRE_VOTE):
            self._peers.ask(link, PreVote(*self._candidacy(self._state.term + 1)), self._state.settings.rpc_timeout_s)
        elif link.capabilities is not None:
            self._votes[link.peer.id] = True  # a Node peer, connected

    def _ask_again(self) -> None:
        now = self._state.now
        for peer_id in [each for each, at in self._ask_again_at.items() if at <= now]:
            del self._ask_again_at[peer_id]
            link = self._peers.get(peer_id)
            if link is not None:
                self._ask_pre_vote(link)

    def take_over(self) -> bool:
        """The leader asks for an election at once. Whether this peer stands for it."""
        if self._may_stand:
            self.campaign(leader_agrees=True)
        return self._may_stand

    def campaign(self, *, leader_agrees: bool = False) -> None:
        """Raise the term, vote for oneself, ask all others: all of it once it is on the disk."""
        state = self._state
        self._end_pre_vote()
        state.epoch += 1
        self._peers.settle_questions()
        state.role = Role.CANDIDATE
        state.elections += 1
        state.leader_id = None
        state.set_term(state.term + 1, voted_for=state.id)
        state.timing.restart(state.now)
        self._votes = {}
        self._own_vote_job = state.outbox.gathering
        for link in self._peers:
            agrees = leader_agrees and self._peers.knows(link.peer.id, Capability.TRANSFER)
            message = RequestVote(*self._candidacy(state.term), leader_agrees=agrees)
            self._peers.ask(link, message, state.settings.rpc_timeout_s, durable=True)

    def _candidacy(self, term: int) -> tuple[bytes, str, int, int, int]:
        state = self._state
        return state.settings.ident, state.id, term, state.log.last_index, state.log.last_term

    def _end_pre_vote(self) -> None:
        if self._pre_vote_runs:
            self._state.epoch += 1
        self._pre_vote_runs = False
        self._ask_again_at.clear()

    def settle(self) -> bool:
        """Whether this peer has just been elected: it is for the caller to make it the leader."""
        state = self._state
        if self._pre_vote_runs:
            if state.role is not Role.FOLLOWER or state.leader_id is not None or state.term != self._pre_vote_term:
                self._end_pre_vote()  # somebody leads, or may soon
            elif has_majority(state.configuration, self._says_yes):
                self.campaign()
        if state.role is not Role.CANDIDATE:
            return False
        if state.id not in self._votes and state.outbox.is_durable(self._own_vote_job):
            self._votes[state.id], self._is_patient = True, True
            state.timing.restart(state.now)  # others are asked now, and the own disk has said how slow it is
        return has_majority(state.configuration, self._says_yes)

    def _says_yes(self, peer_id: str) -> bool:
        return self._votes.get(peer_id, False)

    def on_capabilities(self, link: PeerLink) -> None:
        """A peer has said what it knows: in time for the pre-vote under way."""
        if self._pre_vote_runs and link.question is None:
            self._ask_pre_vote(link)

    # -- replies -------------------------------------------------------------------------------------------------------

    def on_vote_reply(self, link: PeerLink, question: Question, reply: VoteReply) -> None:
        """The answer to RequestVote."""
        state, asked = self._state, question.message
        if not isinstance(asked, RequestVote) or state.role is not Role.CANDIDATE or asked.term != state.term:
            return
        self._votes[link.peer.id] = reply.granted and reply.term == state.term
        if reply.term > state.term:
            state.become_follower(reply.term)

    def on_pre_vote_reply(self, link: PeerLink, question: Question, reply: PreVoteReply) -> None:
        """The answer to PreVote. A no may be a yes a moment later, when the voter stops hearing its leader too."""
        state, asked = self._state, question.message
        if not self._pre_vote_runs or not isinstance(asked, PreVote) or asked.term != state.term + 1:
            return
        if reply.granted:
            self._votes[link.peer.id] = True
        elif reply.term > state.term:
            state.become_follower(reply.term)  # this peer was away; it learns the term, or could never win
            self._end_pre_vote()
        else:
            self._ask_again_at[link.peer.id] = state.now + state.settings.rpc_timeout_s

    # -- voting --------------------------------------------------------------------------------------------------------

    def on_request_vote(self, request: Request, message: RequestVote) -> None:
        """Vote, or refuse (Raft, §3.4 and §3.6.1)."""
        state = self._state
        if message.term < state.term:
            self._vote(request, VoteReply(state.term, granted=False))
        elif not message.leader_agrees and (state.hears_leader or self._is_stranger(message.candidate_id)):
            return
        else:
            free = message.term > state.term or state.voted_for in ("", message.candidate_id)
            granted = free and self._is_up_to_date(message)
            if message.term > state.term:
                state.become_follower(message.term)
            if granted:
                if state.voted_for != message.candidate_id:  # a candidate that hears no answer repeats itself for ever
                    state.timing.restart(state.now)
                state.set_term(message.term, message.candidate_id)
                state.become_follower(message.term)
            self._vote(request, VoteReply(state.term, granted=granted))

    def _is_stranger(self, candidate_id: str) -> bool:
        """Whether it is no member, and there is a leader: it may have been removed, and not know it.

        Without a leader it is heard: it may be a new member, and this peer be the one that does not know it.
        """
        state = self._state
        return not state.is_member(candidate_id) and state.known_leader_id is not None

    def on_pre_vote(self, request: Request, message: PreVote) -> None:
        """Would this peer vote? Nothing changes here, so nothing waits; and a peer that was away learns the term."""
        state = self._state
        is_in_election = not state.is_vote_durable or (self._is_patient and self._waits_for_votes)
        granted = message.term > state.term and not state.hears_leader and self._is_up_to_date(message)
        granted = granted and not is_in_election
        state.answer(request, PreVoteReply(state.term, granted=granted))

    def _is_up_to_date(self, message: RequestVote | PreVote) -> bool:
        log = self._state.log
        return (message.last_term, message.last_index) >= (log.last_term, log.last_index)

    def _vote(self, request: Request, reply: VoteReply) -> None:
        self._state.send_durable(Answer(request.route, request.request_id, reply), up_to=0)

    def on_lost(self, peer_id: str) -> None:
        """The connection to a peer is gone: to the leader, it may be that its process is."""
        state = self._state
        if state.role is Role.FOLLOWER and peer_id == state.leader_id:
            state.timing.lose_leader(state.now)
