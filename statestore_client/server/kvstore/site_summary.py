"""How a site is, in numbers: what its areas hold, who follows them, and what has happened since its start.

Source: facts §6.1, §6.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from statestore_client.server.kvstore.peer_states import PeerState
from statestore_client.wire.kvstore.client_messages import Summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore_client.server.kvstore.replica import Replica
    from statestore_client.server.kvstore.site import SiteSettings

__all__ = ["figures_of", "summary_of"]


def summary_of(request_id: int, settings: SiteSettings, replicas: Mapping[str, Replica], now: float) -> Summary:
    """The reply to a request for it."""
    areas = {area: figures_of(replica, now) for area, replica in replicas.items()}
    return Summary(request_id, settings.name, settings.incarnation, areas)


def figures_of(replica: Replica, now: float) -> dict[str, int]:
    """Of one area."""
    contents = replica.contents
    held = contents.store.summary()
    states = [peer.status.state for peer in replica.peers.values()]
    return {
        "keys": held.keys,
        "expiring_keys": held.expiring_keys,
        "bytes": held.bytes,
        "full": int(replica.is_full(now)),
        "own_keys": len(contents.own),
        "contested_keys": contents.own.contested,
        "publications": contents.subscribers.number,
        "peers": len(states),
        **{f"peers_{state.name.lower()}": states.count(state) for state in PeerState},
        **{f"entries_{name}": count for name, count in attrs.asdict(contents.store.counters).items()},
        **attrs.asdict(replica.counters),
    }
