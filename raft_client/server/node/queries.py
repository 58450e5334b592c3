"""What every peer answers, whatever its role: RequestConfig and RequestLogInfo.

Source: ØMQ Raft protocol, the sections of both RPCs; facts §1.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft_client.server.node.quorum import member_peers
from raft_client.wire.client_requests import ConfigReply, LogInfoReply

if TYPE_CHECKING:
    from raft_client.server.node.state import NodeState


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
