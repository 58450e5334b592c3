"""Linearizable reads without an entry in the log (Raft, §6.4).

A leader that has committed in its term, or knows that nothing is left to commit, notes its commit index, makes sure
that it still leads, and lets the read go on when the state machine has applied that index. It leads if

* a majority answers a question that was first sent after the read came: the answer to a repetition of an older one says
  nothing about now; or
* its *lease* runs: for the time that its voters promise to be quiet (``QUIET_S``, or what they said in their hello)
  after a question that a majority has answered was first sent, none of them votes for another one, unless this leader
  asked for it (§6.4.1). That holds only among our peers, and never after a transfer was begun in this term. A tenth is
  kept for clocks that run differently. Where heartbeats are rarer than that, there is no lease between them.

Anybody else asks the leader with ReadIndex and waits until it has applied the index that it is told.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

from raft_client.server.node.quorum import member_peers
from raft_client.server.node.ready import ReadGranted, Role
from raft_client.wire.hello import Capability
from raft_client.wire.peer_messages import ReadIndex, ReadIndexReply

if TYPE_CHECKING:
    from raft_client.server.node.commit import Commit
    from raft_client.server.node.peer_requests import PeerLink, PeerRequests, Question
    from raft_client.server.node.ready import Request
    from raft_client.server.node.replication import Replication
    from raft_client.server.node.state import NodeState

_LEASE_SHARE: Final = 0.9
#: Reads that wait; more are refused.
_MAX_READS: Final = 100_000


@attrs.define(eq=False)
class _Read:
    """A read of this process (``token``) or of another one (``request``)."""

    token: object
    request: Request | None
    number: int  # of the last question that was asked before it
    index: int | None = None  # the commit index that it may see; None as long as there is none


class Reads:
    """The reads that wait."""

    def __init__(self, state: NodeState, peers: PeerRequests, replication: Replication, commit: Commit) -> None:
        self._state, self._peers, self._replication, self._commit = state, peers, replication, commit
        self._unconfirmed: deque[_Read] = deque()  # in the order of their numbers
        self._asking: list[_Read] = []  # another peer is asked for these
        self._asked: tuple[PeerLink, Question] | None = None  # with this question
        self._next: list[_Read] = []  # and will be, for these
        self._unapplied: list[_Read] = []
        self._due_index = 0  # none of them can be granted before this is applied
        self._granted: list[ReadGranted] = []
        #: No lease in this term: a peer may have been told to stand for election.
        self.lease_lost_in = 0

    def take(self) -> tuple[ReadGranted, ...]:
        """For the next Ready."""
        granted, self._granted = tuple(self._granted), []
        return granted

    # -- asking --------------------------------------------------------------------------------------------------------

    def read(self, token: object) -> None:
        """A read of this process."""
        self._begin(_Read(token, None, self._peers.last_number))

    def on_request(self, request: Request) -> None:
        """Another process wants to read what is newest now."""
        if self._state.is_leader:
            self._begin(_Read(None, request, self._peers.last_number))
        else:
            self._state.answer(request, ReadIndexReply(self._state.leader_id))

    def _begin(self, read: _Read) -> None:
        state = self._state
        if len(self._unconfirmed) + len(self._next) + len(self._unapplied) >= _MAX_READS:
            self._refuse(read)
        elif state.is_leader:
            self._unconfirmed.append(read)
        elif state.role is not Role.STOPPED and self._leader_link is not None:
            self._next.append(read)
        else:
            self._refuse(read)

    @property
    def _leader_link(self) -> PeerLink | None:
        leader_id = self._state.leader_id
        if leader_id is None or not self._peers.knows(leader_id, Capability.READ_INDEX):
            return None
        return self._peers.get(leader_id)

    @property
    def _has_lease(self) -> bool:
        state = self._state
        if self.lease_lost_in == state.term:
            return False
        others = (peer.id for peer in member_peers(state.configuration) if peer.id != state.id)
        quiet_s = min(map(self._peers.quiet_s, others), default=math.inf)
        return state.now < self._replication.quorum_asked_at + quiet_s * _LEASE_SHARE

    # -- answers -------------------------------------------------------------------------------------------------------

    def on_reply(self, reply: ReadIndexReply) -> None:
        """The leader's answer to ReadIndex; or that of one who is not the leader."""
        asking, self._asking, self._asked = self._asking, [], None
        for read in asking:
            if reply.index is None:
                self._refuse(read, reply.leader_id)
            else:
                self._wait(read, reply.index)

    def settle(self) -> None:
        """Grant what can be granted."""
        state = self._state
        if state.is_leader:
            self._unconfirmed.extend(self._asking + self._next)  # of before it led
            self._asking, self._next, self._asked = [], [], None
            self._confirm()
        else:
            self._forward_or_refuse()
        if self._unapplied and self._due_index <= state.applied_index:
            self._grant()

    def _wait(self, read: _Read, index: int) -> None:
        """Until ``index`` is applied."""
        self._due_index = min(self._due_index, index) if self._unapplied else index
        read.index = index
        self._unapplied.append(read)

    def _grant(self) -> None:
        """What can be granted."""
        state = self._state
        unapplied, self._unapplied = self._unapplied, []
        for read in unapplied:
            if read.index is not None and read.index > state.applied_index:
                self._wait(read, read.index)
            else:
                self._granted.append(ReadGranted(read.token, read.index, state.known_leader_id))

    def _confirm(self) -> None:
        if not self._unconfirmed or not self._commit.is_current:
            return
        has_lease, answered = self._has_lease, self._replication.quorum_asked_number
        while self._unconfirmed and (has_lease or self._unconfirmed[0].number < answered):
            self._pass(self._unconfirmed.popleft())
        if self._unconfirmed:
            self._replication.probe_quorum_after(self._unconfirmed[-1].number)

    def _pass(self, read: _Read) -> None:
        index = self._state.commit_index
        if read.request is None:
            self._wait(read, index)
        else:
            self._state.answer(read.request, ReadIndexReply(self._state.id, index))

    def _forward_or_refuse(self) -> None:
        """Not the leader: forward the reads that wait to the leader, or refuse them."""
        while self._unconfirmed:
            self._refuse(self._unconfirmed.popleft())
        if self._asked is None and not self._next:
            return
        link = self._leader_link
        if self._asked is not None and (link is None or link.question is not self._asked[1]):
            self._peers.withdraw(*self._asked)  # its answer would be that of a former leader
            asking, self._asking, self._asked = self._asking, [], None
            for read in asking:
                self._refuse(read)
        if self._next and link is None:
            refused, self._next = self._next, []
            for read in refused:
                self._refuse(read)
        elif self._next and link is not None and link.question is None:
            self._asking, self._next = self._next, []
            message = ReadIndex(self._state.settings.ident)
            self._asked = link, self._peers.ask(link, message, self._state.settings.rpc_timeout_s)

    def _refuse(self, read: _Read, leader_id: str | None = None) -> None:
        leader_id = leader_id or self._state.known_leader_id
        if read.request is None:
            self._granted.append(ReadGranted(read.token, None, leader_id))
        else:
            self._state.answer(read.request, ReadIndexReply(leader_id))
