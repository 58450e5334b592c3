"""A peer of a ØMQ Raft cluster, without sockets, disk or clock.

::

    node = RaftNode(NodeState(settings, stored, applied_index=0, rng=random.Random(), now=now, wall_s=wall_s))
    node.step(request or reply, now, wall_s)      what arrived; steps() for many
    node.tick(now, wall_s)                        when next_deadline() has come
    ready = node.ready()                          what is to be done, see raft_client.server.node.ready
    node.advance(now)                             ready.persist is on the disk
    node.applied(index, now)                      the state machine has applied ready.restore, ready.apply

``now`` is monotonic and in seconds, read *after* the message that it comes with was received: a lease that ended while
the process stood still must be over. The same calls give the same results.

Source: Ongaro, *Consensus: Bridging Theory and Practice* ("Raft"); ØMQ Raft protocol; facts §1.4 and §3.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from raft_client.server.node.apply_queue import ApplyQueue
from raft_client.server.node.commit import Commit
from raft_client.server.node.election import Election
from raft_client.server.node.entries_streams import EntriesStreams
from raft_client.server.node.follower import Follower
from raft_client.server.node.learner import Learner
from raft_client.server.node.membership import Membership
from raft_client.server.node.peer_requests import PeerRequests
from raft_client.server.node.reads import Reads
from raft_client.server.node.ready import Persist, Ready, Reply, Request, Role
from raft_client.server.node.replication import Replication
from raft_client.server.node.snapshots import SnapshotReceiver, SnapshotSender
from raft_client.server.node.status import NodeStatus, config_reply, log_info_reply, node_status
from raft_client.server.node.step_down import StepDownRules
from raft_client.server.node.timing import QUIET_S
from raft_client.server.node.transfer import Transfer
from raft_client.server.node.updates import Updates
from raft_client.wire.client_requests import (
    ConfigProposal,
    ConfigUpdate,
    HandOver,
    LogInfoReply,
    RequestConfig,
    RequestLogInfo,
    RequestUpdate,
)
from raft_client.wire.peer_messages import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    TimeoutNowReply,
    VoteReply,
)
from raft_client.wire.streams import EntriesReply, RequestEntries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raft_client.server.node.ready import Configuration, Incoming, SnapshotMeta
    from raft_client.server.node.state import NodeState
    from raft_client.wire.frames import Message
    from raft_client.wire.request_id import RequestId

#: Terms and indexes count up by one: a peer that is at the end of the numbers is broken, and must not lead others on.
_MAX_NUMBER: Final = 2**52


def _is_possible(message: Message) -> bool:
    chunk = getattr(message, "chunk", None)
    numbers = (getattr(message, "term", 0), getattr(message, "prev_index", 0), chunk.index if chunk else 0)
    return max(numbers) < _MAX_NUMBER


class RaftNode:
    """See the head of this file. Not for two threads at a time."""

    def __init__(self, state: NodeState) -> None:
        """``state`` belongs to this node from now on."""
        self._state = state
        self._peers = PeerRequests(state)
        self._snapshot_sender = SnapshotSender(state)
        self._snapshot_receiver = SnapshotReceiver(state)
        self._election = Election(state, self._peers)
        self._replication = Replication(state, self._peers, self._snapshot_sender)
        self._commit = Commit(state, self._replication)
        self._follower = Follower(state, self._snapshot_receiver)
        self._updates = Updates(state)
        self._applying = ApplyQueue(state)
        self._membership = Membership(state)
        self._streams = EntriesStreams(state, self._commit)
        self._reads = Reads(state, self._peers, self._replication, self._commit)
        self._transfer = Transfer(state, self._peers, self._replication, self._election, self._reads, self._updates)
        self._learner = Learner(state, self._peers, self._snapshot_receiver)
        self._limits = StepDownRules(state, self._replication)
        self._leads = False
        self._due = math.inf  # when this node was to be called again
        self._configuration: Configuration | None = None
        self._apply_rules()

    # -- what comes in -------------------------------------------------------------------------------------------------

    def step(self, incoming: Incoming, now: float, wall_s: float) -> None:
        """A message has arrived. What this peer does not know, or must not listen to, it ignores."""
        self.steps((incoming,), now, wall_s)

    def steps(self, messages: Iterable[Incoming], now: float, wall_s: float) -> None:
        """Many messages have arrived. What follows from them is seen to once, which is much cheaper."""
        if not self._at(now, wall_s):
            return
        for incoming in messages:
            if isinstance(incoming, Request):
                self._on_request(incoming)
            else:
                self._on_reply(incoming)
        self._apply_rules()

    def tick(self, now: float, wall_s: float) -> None:
        """Time has passed."""
        if not self._at(now, wall_s):
            return
        self._limits.tick()
        self._election.tick()
        self._streams.tick()
        self._updates.tick()
        self._apply_rules()
        self._peers.repeat()  # what is over by now is not asked again

    def next_deadline(self) -> float:
        """When :meth:`tick` has something to do; infinity if never."""
        if self._state.role is Role.STOPPED:
            return math.inf
        due = min(
            self._election.next_deadline,
            self._learner.next_deadline,
            self._limits.next_deadline,
            self._peers.next_deadline(),
            self._replication.next_deadline(),
            self._streams.next_deadline,
            self._transfer.next_deadline,
            self._updates.next_deadline,
        )
        self._due = max(due, self._state.now)
        return due

    def set_capabilities(
        self, peer_id: str, capabilities: frozenset[str], now: float, quiet_s: float = QUIET_S
    ) -> None:
        """The peer has answered a hello on its present connection; an empty set: a Node peer.

        ``quiet_s``: for how long it gives no vote away when it has heard a leader.
        """
        if self._at(now, self._state.wall_s):
            self._peers.set_capabilities(peer_id, capabilities, quiet_s)
            link = self._peers.get(peer_id)
            if link is not None:
                self._election.on_capabilities(link)
            self._apply_rules()

    def peer_lost(self, peer_id: str, now: float) -> None:
        """The connection to the peer is gone, and with it what it knows."""
        if self._at(now, self._state.wall_s):
            self._peers.lost(peer_id)
            self._election.on_lost(peer_id)
            self._apply_rules()

    def _on_request(self, request: Request) -> None:
        message = request.message
        if isinstance(message, RequestUpdate):
            self._updates.on_update(request, message)
            return
        if not _is_possible(message):
            return
        match message:
            case AppendEntries():
                self._follower.on_append(request, message)
            case RequestVote():
                self._election.on_request_vote(request, message)
            case PreVote():
                self._election.on_pre_vote(request, message)
            case InstallSnapshot():
                self._follower.on_install(request, message)
            case RequestEntries():
                self._streams.on_request(request, message)
            case RequestConfig():
                self._state.answer(request, config_reply(self._state))
            case RequestLogInfo():
                self._state.answer(request, log_info_reply(self._state))
            case ReadIndex():
                self._reads.on_request(request)
            case ConfigUpdate() | ConfigProposal():
                self._membership.on_update(request, message, is_busy=self._transfer.target is not None)
            case TimeoutNow():
                self._transfer.on_request(request, message)
            case HandOver():
                self._transfer.on_client(request, message)

    def _on_reply(self, reply: Reply) -> None:
        if isinstance(reply.message, EntriesReply):
            self._learner.on_reply(reply, reply.message)
            return
        if isinstance(reply.message, LogInfoReply):
            living = self._peers.lives(reply)
            if living is not None:
                self._replication.is_alive(living, reply.message)
            return
        answered = self._peers.answered(reply) if _is_possible(reply.message) else None
        if answered is None:
            return
        link, question = answered
        match reply.message, question.message:
            case AppendReply() as message, AppendEntries():
                self._replication.on_reply(link, question, message)
            case SnapshotReply() as message, InstallSnapshot(chunk=chunk):
                if self._snapshot_sender.took(link.peer.id, chunk, message):
                    self._replication.on_snapshot_installed(link, question, message.term, chunk.index)
                else:
                    self._replication.on_snapshot_progress(link, question, message.term)
            case VoteReply() as message, RequestVote():
                self._election.on_vote_reply(link, question, message)
            case PreVoteReply() as message, PreVote():
                self._election.on_pre_vote_reply(link, question, message)
            case TimeoutNowReply() as message, TimeoutNow():
                self._transfer.on_reply(message)
            case ReadIndexReply() as message, ReadIndex():
                self._reads.on_reply(message)

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        """What this peer is now."""
        return self._state.role

    @property
    def term(self) -> int:
        """The newest term that this peer knows."""
        return self._state.term

    @property
    def leader_id(self) -> str | None:
        """The id of the leader, as far as it is known."""
        return self._state.known_leader_id

    @property
    def unsound_appends(self) -> int:
        """How many AppendEntries were refused, because no correct leader sends them."""
        return self._follower.unsound

    @property
    def commit_index(self) -> int:
        """As far as this peer knows."""
        return self._state.commit_index

    @property
    def configuration(self) -> Configuration:
        """The newest one in the log, committed or not."""
        return self._state.log.configurations[-1]

    def term_at(self, index: int) -> int | None:
        """Of an entry in the log; None if it is not there."""
        return self._state.log.term_at(index)

    # -- what goes out -------------------------------------------------------------------------------------------------

    def ready(self) -> Ready:
        """What is to be done now. Once it is taken it is not given again."""
        state = self._state
        if state.role is Role.STOPPED:
            return Ready()
        restore, entries = self._applying.take()
        persist: Persist | None = None
        if state.dirty and state.outbox.busy_since is None:
            hard_state, chunk = state.take_hard_state(), state.chunk
            state.chunk = None
            install, truncate_after, tail = state.log.take_job(state.settings.max_job_bytes)
            persist = Persist(hard_state, chunk, install, truncate_after, tail)
            state.outbox.begin_job(state.now, is_whole=not state.log.dirty)
        return Ready(state.outbox.take(), persist, restore, entries, self._reads.take())

    def advance(self, now: float) -> None:
        """What the last ``persist`` asked for is durable."""
        if self._at(now, self._state.wall_s):
            self._state.log.job_done()
            self._state.end_job()
            self._apply_rules()

    def disk_read(self, now: float) -> None:
        """Go on with what waits for reads of the disk: they are done (see StoredLog)."""
        if self._at(now, self._state.wall_s):
            self._replication.on_disk_read()
            self._streams.on_disk_read()
            self._apply_rules()

    def applied(self, index: int, now: float) -> None:
        """The state machine has applied everything up to ``index``."""
        if self._at(now, self._state.wall_s):
            self._applying.applied(index)
            self._apply_rules()

    def fail(self, now: float) -> None:
        """The disk failed. Nothing is promised, asked or answered any more: what it holds is not known."""
        self._state.now = now
        self._state.role = Role.STOPPED
        self._state.outbox.clear()

    # -- what the application wants ------------------------------------------------------------------------------------

    def read(self, token: object, now: float) -> None:
        """A linearizable read: a later Ready says in ``reads`` when it may be served, or by whom."""
        if self._at(now, self._state.wall_s):
            self._reads.read(token)
            self._apply_rules()

    def propose(self, data: bytes, request_id: RequestId, now: float) -> None:
        """Append what the state machine's side has decided, with a new id, if this peer leads and takes entries now."""
        if self._at(now, self._state.wall_s):
            self._updates.propose(data, request_id)
            self._apply_rules()

    def transfer(self, peer_id: str, now: float) -> bool:
        """Hand the leadership over. Whether it was begun: this peer leads, and the other member knows how."""
        if not self._at(now, self._state.wall_s):
            return False
        begun = self._transfer.begin(peer_id)
        self._apply_rules()
        return begun

    def prepare_compaction(self) -> int:
        """Up to where the state machine's snapshot may replace the log now.

        Everything up to it is applied, holds no request id that is still remembered, as a peer that is given the
        snapshot would not know it, and lies before the newest CONFIG entry. A leader may append that entry again.
        """
        state = self._state
        index = min(self._membership.prepare_compaction(), state.applied_index, state.log.stored.prune_index)
        self._apply_rules()
        return index

    def compacted(self, meta: SnapshotMeta) -> None:
        """The stored log begins after this snapshot now."""
        self._state.log.compacted(meta)
        self._apply_rules()

    def admit_only(self, peer_ids: frozenset[str] | None) -> None:
        """A ConfigUpdate that adds others is refused; None: it may add anybody."""
        self._membership.admissible = peer_ids

    def status(self) -> NodeStatus:
        """For metrics."""
        return node_status(self._state, self._replication, self._updates)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _at(self, now: float, wall_s: float) -> bool:
        self._state.now, self._state.wall_s = now, wall_s
        due, self._due = self._due, math.inf
        self._state.timing.came_late(due, now)
        return self._state.role is not Role.STOPPED

    def _apply_rules(self) -> None:
        """Run every rule once, in this order; each one looks at what there is."""
        state = self._state
        if self._election.settle():  # first: what the other rules do depends on who leads
            state.become_leader()
        self._settle_role()
        self._commit.settle()
        self._membership.settle()  # after the commit: that of Cold,new appends Cnew, that of Cnew ends the change
        if self._membership.is_removed:
            self._transfer.hand_off_on_removal()
            state.become_follower(state.term)
            self._settle_role()
        self._settle_configuration()  # after what may append a configuration
        self._peers.settle_questions()
        self._transfer.settle()
        self._reads.settle()  # before replication, which it may ask for a round
        self._replication.settle()  # after what appends: it sends that
        self._learner.settle()
        self._updates.settle()
        self._streams.settle()  # last: they answer with what is committed

    def _settle_role(self) -> None:
        if self._state.is_leader is not self._leads:
            self._leads = self._state.is_leader
            if self._leads:
                self._replication.begin()
                self._commit.begin()
            else:
                self._replication.end()

    def _settle_configuration(self) -> None:
        newest = self._state.log.configurations[-1]
        if newest is not self._configuration:
            self._configuration = newest
            self._peers.settle(self._state.others)
            if self._leads:
                self._replication.settle_members()
        self._state.settle_membership()
