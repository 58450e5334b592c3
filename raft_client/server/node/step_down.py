"""When a leader must not lead any more, whatever its log says.

* *Check-quorum* (Raft, §6.2): a leader that has had no sign of life of a majority for an election time-out steps down,
  so that its clients look elsewhere, and those who still hear it may elect another one. A sign of life needs no disk:
  see :meth:`.replication.Replication.is_alive`.
* *Disk*: a leader whose disk does not answer can commit nothing, and its heartbeats keep others from trying.

Other bounds stand where they hold: bytes that are not committed in :mod:`.updates`, one message under way to each
follower in :mod:`.peer_requests`, streams in :mod:`.entries_streams`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raft_client.server.node.replication import Replication
    from raft_client.server.node.state import NodeState


class StepDownRules:
    """Says when a leader must give up: without a majority, or with a disk that stands still."""

    def __init__(self, state: NodeState, replication: Replication) -> None:
        self._state, self._replication = state, replication
        self._quorum_at = -math.inf  # when to look again: each reply puts off the loss, and would cost a computation

    def tick(self) -> None:
        """Time has passed."""
        state = self._state
        if not state.is_leader:
            self._quorum_at = -math.inf
            return
        if state.now >= self._quorum_at:
            self._quorum_at = self._quorum_lost_at
        if state.now >= self._quorum_at or state.disk_stalled:
            state.become_follower(state.term)

    @property
    def _quorum_lost_at(self) -> float:
        state = self._state
        if state.is_sole_voter:
            return math.inf
        heard_at = self._replication.quorum_heard_at
        return state.timing.put_off(heard_at + state.timing.give_up_s(state.now), heard_at)

    @property
    def next_deadline(self) -> float:
        """When one of the two may be true; an election time-out later at most when members were removed."""
        if not self._state.is_leader:
            return math.inf
        return min(self._quorum_at, self._state.disk_stalls_at)
