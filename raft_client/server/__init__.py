"""ØMQ Raft peers: ``from raft_client.server import EmbeddedCluster`` is all that tests need.

The rooms below it: ``node`` is the algorithm and ``machines`` are state machines, both pure; ``runtime`` runs them on
sockets and a disk.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raft_client.server.embedded_cluster import AsyncEmbeddedCluster, EmbeddedCluster
    from raft_client.server.machines.broadcast import BroadcastStateMachine
    from raft_client.server.machines.key_value import KeyValueStateMachine
    from raft_client.server.machines.state_machine import StateMachine

__all__ = [
    "AsyncEmbeddedCluster",
    "BroadcastStateMachine",
    "EmbeddedCluster",
    "KeyValueStateMachine",
    "StateMachine",
]

#: Where each name is. They load when they are used: the pure rooms, which are below this one, need no sockets.
_PLACES = {
    "AsyncEmbeddedCluster": "embedded_cluster",
    "BroadcastStateMachine": "machines.broadcast",
    "EmbeddedCluster": "embedded_cluster",
    "KeyValueStateMachine": "machines.key_value",
    "StateMachine": "machines.state_machine",
}


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{place}"), name)
