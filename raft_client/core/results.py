"""What the calls of both clients return."""

from __future__ import annotations

import attrs

from raft_client.wire.client_requests import LogInfoReply as LogInfo
from raft_client.wire.configuration import Peers

__all__ = ["ClusterConfig", "LogInfo", "TakenSnapshot"]


@attrs.frozen
class ClusterConfig:
    """The leader of the cluster, and its peers. During a change of the peers it lists the old and the new ones."""

    leader_id: str
    peers: Peers

    @property
    def leader_url(self) -> str | None:
        """The URL of the leader's ROUTER as its peers see it; None when it is not among the peers."""
        return next((peer.url for peer in self.peers if peer.id == self.leader_id), None)


@attrs.frozen
class TakenSnapshot:
    """A snapshot that a peer made of its state machine: ``size`` bytes, of the entries up to ``index``.

    It takes their place when no request id in them can be repeated any more, 8 hours later as a rule.
    """

    index: int
    size: int
