"""How many connections a user and an address have, so that one of them does not take them all."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.packets import ReasonCode
from statestore_client.server.broker.admission import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from statestore_client.server.broker.connection import Connection
    from statestore_client.server.broker.limits import BrokerLimits

__all__ = ["ConnectionQuotas", "network_of"]

#: A peer with one IPv6 address usually has all of its network.
_IPV6_PREFIX: Final = 64


@attrs.define(eq=False)
class ConnectionQuotas:
    """Counts connections with a session. Invariant: a counter of zero is not there."""

    _limits: BrokerLimits
    _of_user: Counter[str] = attrs.Factory(Counter)
    _of_network: Counter[str] = attrs.Factory(Counter)

    def refusal(self, connection: Connection, user: str | None, replaced: Connection | None) -> Refusal | None:
        """Why this connection is one too many, None if it is not. ``replaced`` is the one whose session it takes."""
        limits = self._limits
        if limits.connections_per_user and user is not None:
            others = self._of_user[user] - (replaced is not None and replaced.counted_for[0] == user)
            if others >= limits.connections_per_user:
                return Refusal(ReasonCode.QUOTA_EXCEEDED, "too many connections of this user")
        if limits.connections_per_address and (network := network_of(connection.peer)) is not None:
            others = self._of_network[network] - (replaced is not None and replaced.counted_for[1] == network)
            if others >= limits.connections_per_address:
                return Refusal(ReasonCode.QUOTA_EXCEEDED, "too many connections from this address")
        return None

    def take(self, connection: Connection, user: str | None) -> None:
        """The connection has a session now."""
        limits = self._limits
        if limits.connections_per_user or limits.connections_per_address:
            network = network_of(connection.peer) if limits.connections_per_address else None
            connection.counted_for = (user, network)
            _add(self._of_user, user, 1)
            _add(self._of_network, network, 1)

    def give_back(self, connection: Connection) -> None:
        """It has none any more."""
        user, network = connection.counted_for
        connection.counted_for = (None, None)
        _add(self._of_user, user, -1)
        _add(self._of_network, network, -1)

    def violations(self, connected: Iterable[Connection]) -> Iterator[str]:
        """The counts that are not those of these connections. For tests."""
        counted = [connection.counted_for for connection in connected]
        users = Counter(user for user, _ in counted if user is not None)
        networks = Counter(network for _, network in counted if network is not None)
        if (self._of_user, self._of_network) != (users, networks):
            yield f"connections of users and addresses: {self} noted, {users} and {networks} counted"


def _add(counter: Counter[str], name: str | None, number: int) -> None:
    if name is not None:
        counter[name] += number
        if not counter[name]:
            del counter[name]


def network_of(peer: str) -> str | None:
    """What counts as one address, of ``address:port``; None for peers that have none (Unix sockets)."""
    address, _, _ = peer.rpartition(":")
    if ":" not in address:
        return address or None
    try:
        return str(ip_network(f"{address.partition('%')[0]}/{_IPV6_PREFIX}", strict=False))
    except ValueError:
        return address
