"""Log peers that die one after the other."""

from __future__ import annotations

from raft_client.server import EmbeddedCluster

__all__ = ["next_leader"]


def next_leader(cluster: EmbeddedCluster) -> None:
    """Kill the leader, and before that start the one that was killed before, so that a majority is left."""
    for peer in {peer.id for peer in cluster.peers} - set(cluster.running):
        cluster.restart(peer)
    cluster.kill(cluster.leader())
