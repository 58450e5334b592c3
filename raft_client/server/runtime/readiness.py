"""Whether a peer that was started has caught up."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from raft_client.server.node.status import NodeStatus


class Readiness:
    """A peer is ready when it knows a leader and has applied its log.

    Of the log, what was there when it started, and what was committed when it was first asked with a leader: what comes
    later is load, and no reason to call a peer ill.
    """

    def __init__(self, status: Callable[[], NodeStatus]) -> None:
        """``status`` is that of a peer which has just been started."""
        self._status = status
        self._needed = status().last_index
        self._has_seen_leader = False

    def lack(self) -> str:
        """What the peer waits for, in a line; nothing when it is ready."""
        status = self._status()
        if status.leader_id is None:
            return "no leader is known"
        if not self._has_seen_leader:
            self._has_seen_leader = True
            self._needed = max(self._needed, status.commit_index)
        self._needed = min(self._needed, status.last_index)  # the leader may not have the end of the log
        if status.applied_index < self._needed:
            return f"applied up to {status.applied_index} of {self._needed}"
        return ""
