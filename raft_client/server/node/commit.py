"""When entries are committed.

A leader commits what a majority holds on its disks, and only through an entry of its own term: an older one may be
replaced even if a majority has it (Raft, §3.6.2 and Figure 3.7). So a new leader that has older entries which it does
not know to be committed appends a CHECKPOINT (facts §3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft_client.wire.log_entry import CHECKPOINT_DATA, EntryKind, LogEntry

if TYPE_CHECKING:
    from raft_client.server.node.replication import Replication
    from raft_client.server.node.state import NodeState


class Commit:
    """The commit index of a leader."""

    def __init__(self, state: NodeState, replication: Replication) -> None:
        self._state, self._replication = state, replication

    def begin(self) -> None:
        """This peer has just been elected."""
        log = self._state.log
        if log.last_term != self._state.term and self._state.commit_index < log.last_index:
            checkpoint = LogEntry.of(
                CHECKPOINT_DATA, term=self._state.term, kind=EntryKind.CHECKPOINT, index=log.last_index + 1
            )
            log.append([checkpoint])

    def settle(self) -> None:
        """Commit what a majority has."""
        state = self._state
        if not state.is_leader or state.commit_index == state.log.last_index:
            return
        index = self._replication.committed_index
        if index > state.commit_index and state.log.term_at(index) == state.term:
            state.commit_index = index

    @property
    def is_current(self) -> bool:
        """Whether the commit index of this leader is at least that of all leaders before it (Raft, §6.4, step 1)."""
        state = self._state
        return state.commit_index == state.log.last_index or state.log.term_at(state.commit_index) == state.term
