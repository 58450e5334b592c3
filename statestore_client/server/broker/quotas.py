"""Limit how many connections a user and an address have, and how often a client identifier is taken over."""

from __future__ import annotations

from collections import Counter, OrderedDict
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.server.shares import Shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from statestore_client.server.broker.limits import BrokerLimits
    from statestore_client.server.broker.session import Connection, PendingAuth

#: The name of the quota of all of them.
CONNECTIONS: Final = "connections"
#: What the name of the quota of one address ends with.
PER_ADDRESS: Final = "-per-address"

#: A peer with one IPv6 address usually has all of its network.
_IPV6_PREFIX: Final = 64


@attrs.define(eq=False)
class ConnectionQuotas:
    """Counts connections with a session. Invariant: a counter of zero is not there."""

    _limits: BrokerLimits
    shares: Shares = attrs.field(init=False)
    _of_network: Counter[str] = attrs.Factory(Counter)

    def __attrs_post_init__(self) -> None:
        self.shares = Shares(CONNECTIONS, self._limits.connections, self._limits.connections_per_user)

    def lacking(self, connection: Connection, user: str | None, replaced: Connection | None) -> str | None:
        """The name of the quota that does not allow this connection, None if all do. ``replaced`` is the one whose
        session it takes; that is of the same user.
        """
        limit = self._limits.connections_per_address
        if limit and (network := network_of(connection.peer)) is not None:
            others = self._of_network[network] - (replaced is not None and replaced.counted_for[1] == network)
            if others >= limit:
                return CONNECTIONS + PER_ADDRESS
        return None if replaced is not None else self.shares.lacking(user, 1, 1)

    def take(self, connection: Connection, user: str | None) -> None:
        """The connection has a session now."""
        network = network_of(connection.peer) if self._limits.connections_per_address else None
        connection.counted_for = (user, network)
        self.shares.add(user, 1)
        _add(self._of_network, network, 1)

    def give_back(self, connection: Connection) -> None:
        """It has none any more."""
        user, network = connection.counted_for
        connection.counted_for = (None, None)
        self.shares.add(user, -1)
        _add(self._of_network, network, -1)

    def violations(self, connected: Iterable[Connection]) -> Iterator[str]:
        """The counts that are not those of these connections. For tests."""
        counted = [connection.counted_for for connection in connected]
        users = Counter(user for user, _ in counted)
        networks = Counter(network for _, network in counted if network is not None)
        is_right = all(self.shares.of(user) == count for user, count in users.items())
        if self._of_network != networks or not is_right:
            yield f"connections of users and addresses: {self} noted, {users} and {networks} counted"
        yield from self.shares.violations()


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


# -- take-overs --------------------------------------------------------------------------------------------------------
#
# Client identifiers that keep stealing their session from each other.
#
# Two programs with the same client identifier end each other's connection (MQTT-3.1.4-3), connect again at once, and so
# on, as fast as they can. The model (NATS, "MQTT implementation overview", "Find and disconnect previous
# session/client") holds the newcomer for a second. Here a few take-overs are free: they are what a restart or a change
# of networks needs.


#: Take-overs in a row before the first wait.
_FREE: Final = 5

#: A pause of so many holds ends the row.
_PAUSES: Final = 5


@attrs.define(eq=False)
class TakeoverThrottle:
    """Counts take-overs of each client identifier, and knows whose CONNECT is held.

    Invariant: of each identifier at most one CONNECT is held, the latest; so many at the same moment leave one.
    """

    hold_s: float
    held: dict[str, PendingAuth] = attrs.Factory(dict)
    _rows: OrderedDict[str, tuple[int, float]] = attrs.Factory(OrderedDict)  # length, latest; oldest first

    def took_over(self, client_id: str, now: float) -> None:
        """A session was taken over."""
        self._forget(now)
        length, _ = self._rows.pop(client_id, (0, now))
        self._rows[client_id] = (length + 1, now)

    def has_to_wait(self, client_id: str, now: float) -> bool:
        """Whether the next take-over is one too many."""
        self._forget(now)
        if not self.hold_s:
            return False
        return client_id in self.held or self._rows.get(client_id, (0, now))[0] >= _FREE

    def _forget(self, now: float) -> None:
        """Rows that have ended; so there are never more than take-overs in a few seconds."""
        rows = self._rows
        while rows:
            client_id, (_, latest) = next(iter(rows.items()))
            if latest + self.hold_s * _PAUSES > now:
                return
            del rows[client_id]
