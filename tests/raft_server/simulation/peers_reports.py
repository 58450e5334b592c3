"""What the audit is told about one peer: what its node believes at every step, and what each reply promises."""

from __future__ import annotations

from collections.abc import Callable

from peers_audit import Audit, TermAt
from peers_world import World
from support.raft_disks import SimulatedLog

from raft_client.server.node.ready import Answer, Request, Role
from raft_client.server.node.state import NodeState
from raft_client.wire.configuration import ConfigChange
from raft_client.wire.peer_messages import AppendEntries, AppendReply, RequestVote, SnapshotReply, VoteReply

__all__ = ["PeerReports"]

_MAX_REMEMBERED = 64


class PeerReports:
    """``believes`` after each step of the node, ``asked`` for each request that comes in, ``leaves`` for each reply."""

    #: Set by the cluster, which knows all disks.
    on_commit: Callable[[str, int, int, TermAt, ConfigChange], None]

    def __init__(self, world: World, audit: Audit, name: str, log: SimulatedLog) -> None:
        self._world = world
        self._audit = audit
        self._name = name
        self._log = log
        self._asked: dict[tuple[bytes, bytes], AppendEntries | RequestVote] = {}
        self._led_in: int | None = None
        self._role_seen: Role | None = None
        self._commit_seen = 0

    def forget(self) -> None:
        """The peer ended: its next life begins without what it believed and was asked."""
        self._led_in, self._commit_seen = None, 0
        self._asked.clear()

    def believes(self, state: NodeState) -> None:
        """What changed in the node's state since the last time."""
        if state.role is not self._role_seen:
            self._role_seen = state.role
            self._world.note(self._name, "is", state.role.value, "in term", state.term)
        if state.role is Role.LEADER and state.term != self._led_in:
            self._led_in = state.term
            log = state.log
            self._audit.elected(
                self._name,
                state.term,
                log.configurations[-1],
                lambda index, term: index + 1 < log.first_index or log.term_at(index) == term,
            )
        if state.commit_index == self._commit_seen:
            return
        self._commit_seen = state.commit_index
        if self._led_in == state.term:  # also if it stepped down at once, because this removed it
            self.on_commit(self._name, state.term, state.commit_index, state.log.term_at, state.configuration)
        else:
            self._audit.follows(self._name, state.commit_index)

    def asked(self, request: Request) -> None:
        """Remembers what the reply to a request will promise."""
        if isinstance(request.message, AppendEntries | RequestVote):
            if len(self._asked) > _MAX_REMEMBERED:
                self._asked.clear()
            self._asked[request.route, request.request_id] = request.message

    def leaves(self, answer: Answer) -> None:
        """A reply leaves: its promise must be on the disk."""
        reply, disk = answer.message, self._log.durable
        if not isinstance(reply, AppendReply | VoteReply | SnapshotReply):
            return
        self._audit.tells_term(self._name, reply.term, disk.hard_state)
        asked = self._asked.get((answer.route, answer.request_id))
        if isinstance(reply, VoteReply) and reply.granted and isinstance(asked, RequestVote):
            self._audit.promises_vote(self._name, asked.candidate_id, asked.term, disk.hard_state)
        if isinstance(reply, AppendReply) and reply.success and isinstance(asked, AppendEntries):
            last = asked.prev_index + len(asked.entries)
            term = asked.entries[-1].term if asked.entries else asked.prev_term
            if last >= disk.before and disk.hard_state.term == asked.term:
                self._audit.promises_entries(self._name, last, term, disk.term_at(last))
