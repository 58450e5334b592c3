"""ØMQ Raft peers: ``from raft_client.server import EmbeddedCluster`` is all that tests need.

The rooms below it: ``node`` is the algorithm and ``machines`` are state machines, both pure; ``runtime`` runs them on
sockets and a disk.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raft_client.server.embedded_cluster import AsyncEmbeddedCluster, EmbeddedCluster
    from raft_client.server.embedded_peer import EmbeddedPeer
    from raft_client.server.machines.broadcast import BroadcastStateMachine
    from raft_client.server.machines.key_value import KeyValueStateMachine
    from raft_client.server.machines.state_machine import Applied, StateMachine, WatchableStateMachine
    from raft_client.server.node.settings import NodeSettings
    from raft_client.server.runtime.storage.disk_log import Fsync, StorageLimits
    from raft_client.wire.client_requests import ClientDispatch

__all__ = [
    "Applied",
    "AsyncEmbeddedCluster",
    "BroadcastStateMachine",
    "ClientDispatch",
    "EmbeddedCluster",
    "EmbeddedPeer",
    "Fsync",
    "KeyValueStateMachine",
    "NodeSettings",
    "StateMachine",
    "StorageLimits",
    "WatchableStateMachine",
]

#: Where each name is. They load when they are used: the pure rooms, which are below this one, need no sockets.
_PLACES = {
    "Applied": "server.machines.state_machine",
    "AsyncEmbeddedCluster": "server.embedded_cluster",
    "BroadcastStateMachine": "server.machines.broadcast",
    "ClientDispatch": "wire.client_requests",
    "EmbeddedCluster": "server.embedded_cluster",
    "EmbeddedPeer": "server.embedded_peer",
    "Fsync": "server.runtime.storage.disk_log",
    "KeyValueStateMachine": "server.machines.key_value",
    "NodeSettings": "server.node.settings",
    "StateMachine": "server.machines.state_machine",
    "StorageLimits": "server.runtime.storage.disk_log",
    "WatchableStateMachine": "server.machines.state_machine",
}


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"raft_client.{place}"), name)
