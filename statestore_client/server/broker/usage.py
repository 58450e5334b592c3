"""What the broker holds at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from statestore_client.server.broker.state import State

__all__ = ["BrokerUsage", "usage_of"]


@attrs.frozen
class BrokerUsage:
    """``clients`` are connected; ``losing_clients`` were not told yet how many messages they have lost. ``held_bytes``
    is what ``BrokerLimits.held_bytes`` is compared with.
    """

    sessions: int
    clients: int
    losing_clients: int
    subscriptions: int
    subscription_bytes: int
    retained_messages: int
    retained_bytes: int
    held_bytes: int


def usage_of(state: State) -> BrokerUsage:
    """As it is now."""
    return BrokerUsage(
        sessions=len(state.sessions),
        clients=state.clients,
        losing_clients=len(state.dropped_messages),
        subscriptions=state.subscriptions.count,
        subscription_bytes=state.subscriptions.bytes,
        retained_messages=len(state.retained),
        retained_bytes=state.retained.bytes,
        held_bytes=state.budget.total,
    )
