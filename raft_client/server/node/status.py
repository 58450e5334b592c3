"""What a node tells of itself: for metrics and people, never for decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from raft_client.server.node.quorum import member_peers
from raft_client.wire.client_requests import ConfigReply, LogInfoReply

if TYPE_CHECKING:
    from raft_client.server.node.ready import Role
    from raft_client.server.node.replication import Replication
    from raft_client.server.node.state import NodeState
    from raft_client.server.node.updates import Updates


@attrs.frozen
class FollowerStatus:
    """One follower, as its leader sees it. ``lag`` is in entries."""

    peer_id: str
    match_index: int
    next_index: int
    lag: int


@attrs.frozen
class NodeStatus:
    """``elections`` are those in which the peer stood, ``suspicions`` the times that it asked whether others would vote
    for it; ``followers`` is empty unless it leads. ``sync_s`` and ``lag_s`` are the recent peaks, in seconds, of jobs
    of the disk and of timers that came late.

    ``snapshot_index`` and ``snapshot_bytes`` are 0 when there is no snapshot.
    """

    peer_id: str
    role: Role
    term: int
    leader_id: str | None
    commit_index: int
    applied_index: int
    first_index: int
    last_index: int
    durable_index: int
    uncommitted_bytes: int
    snapshot_index: int
    snapshot_bytes: int
    elections: int
    suspicions: int
    sync_s: float
    lag_s: float
    followers: tuple[FollowerStatus, ...]


def node_status(state: NodeState, replication: Replication, updates: Updates) -> NodeStatus:
    """Of this moment."""
    log = state.log
    return NodeStatus(
        peer_id=state.id,
        role=state.role,
        term=state.term,
        leader_id=state.known_leader_id,
        commit_index=state.commit_index,
        applied_index=state.applied_index,
        first_index=log.first_index,
        last_index=log.last_index,
        durable_index=log.durable_index,
        uncommitted_bytes=updates.uncommitted_bytes,
        snapshot_index=0 if log.snapshot is None else log.snapshot.index,
        snapshot_bytes=0 if log.snapshot is None else log.snapshot.size,
        elections=state.elections,
        suspicions=state.suspicions,
        sync_s=state.timing.syncs.at(state.now),
        lag_s=state.timing.lags.at(state.now),
        followers=tuple(
            FollowerStatus(peer_id, each.match_index, each.next_index, log.last_index - each.match_index)
            for peer_id, each in replication.followers.items()
        ),
    )


# -- questions about it ------------------------------------------------------------------------------------------------
# Source: ØMQ Raft protocol, the sections of both RPCs; facts §1.4.


def config_reply(state: NodeState) -> ConfigReply:
    """While the cluster changes, the peers of both lists."""
    return ConfigReply(state.is_leader, state.known_leader_id, member_peers(state.configuration))


def log_info_reply(state: NodeState) -> LogInfoReply:
    """The seven numbers."""
    log = state.log
    return LogInfoReply(
        is_leader=state.is_leader,
        leader_id=state.known_leader_id,
        current_term=state.term,
        first_index=log.first_index,
        last_applied=state.applied_index,
        commit_index=state.commit_index,
        last_index=log.last_index,
        snapshot_bytes=log.snapshot.size if log.snapshot else 0,
        prune_index=log.stored.prune_index,
    )
