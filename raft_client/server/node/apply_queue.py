"""What the state machine is given: committed, and durable here; one batch at a time.

Invariant: applied <= min(commit, what is durable); a snapshot is restored when it is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from raft_client.server.node.ready import SnapshotMeta
    from raft_client.server.node.state import NodeState
    from raft_client.wire.log_entry import LogEntry

#: Of entries that are handed out and not yet applied: some milliseconds of work, and one message to subscribers.
_BATCH_BYTES: Final = 256 * 1024


class ApplyQueue:
    """Hands out what is to be applied, in order, once."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._handed_out_to = state.applied_index

    def take(self) -> tuple[SnapshotMeta | None, tuple[LogEntry, ...]]:
        """The snapshot to restore, and the entries to apply after it. Nothing while the last ones are applied."""
        state, log = self._state, self._state.log
        if self._handed_out_to != state.applied_index or log.is_installing:
            return None, ()
        restore, snapshot = None, log.stored.snapshot
        if snapshot is not None and self._handed_out_to < snapshot.index:
            restore, self._handed_out_to = snapshot, snapshot.index
        last = min(state.commit_index, log.durable_index)
        if last > self._handed_out_to:
            last = min(last, log.last_at_hand(self._handed_out_to, _BATCH_BYTES))
        entries = log.entries(self._handed_out_to, last, _BATCH_BYTES) if last > self._handed_out_to else []
        if entries:
            self._handed_out_to = entries[-1].index
        return restore, tuple(entries)

    def applied(self, index: int) -> None:
        """The state machine has applied everything up to ``index``."""
        self._state.applied_index = max(self._state.applied_index, index)
        self._handed_out_to = max(self._handed_out_to, index)
