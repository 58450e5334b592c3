"""Quotas of one user and of one address."""

from __future__ import annotations

from support.broker_driver import Client, World

from statestore_client.mqtt.packets import Connack, Connect, ReasonCode
from statestore_client.server.broker import Admitted, Credentials
from statestore_client.server.broker.quotas.connection_quotas import network_of


class _EverybodyIsWhoTheySay:
    """A gatekeeper that asks for no password."""

    def authenticate(self, credentials: Credentials) -> Admitted:
        return Admitted(credentials.username)

    def permissions(self, user: str | None, client_id: str) -> None:
        return None


def code(world: World, client_id: str, *, user: str | None = None, peer: str = "10.0.0.1:1") -> int:
    """Connect; the reason code of CONNACK."""
    client = Client(world)
    client.connection.peer = peer
    client.send(Connect(client_id, username=user))
    answer = client.received()[-1]
    assert isinstance(answer, Connack)
    return answer.reason_code


def test_connections_of_one_user() -> None:
    """A user may have as many connections as the quota; a takeover replaces one; anonymous clients have no quota."""
    world = World(gatekeeper=_EverybodyIsWhoTheySay(), connections_per_user=2)
    assert [code(world, f"a{i}", user="ann") for i in range(3)] == [0, 0, ReasonCode.QUOTA_EXCEEDED]
    assert [code(world, f"b{i}", user="bob") for i in range(3)] == [0, 0, ReasonCode.QUOTA_EXCEEDED]
    assert code(world, "a1", user="ann") == 0
    assert code(world, "a2", user="ann") == ReasonCode.QUOTA_EXCEEDED
    assert [code(world, f"c{i}") for i in range(4)] == [0] * 4
    assert world.broker.audit() == ()
    for session in world.broker.sessions():
        if (connection := world.broker.connection_of(session.client_id)) is not None:
            world.broker.connection_lost(connection, world.now)
    assert world.broker.audit() == ()
    assert [code(world, f"d{i}", user="ann") for i in range(3)] == [0, 0, ReasonCode.QUOTA_EXCEEDED]


def test_connections_from_one_address() -> None:
    """Connections from one address count together whatever their port, and Unix sockets have no address."""
    world = World(connections_per_address=2)
    codes = [code(world, f"a{i}", peer=f"10.0.0.1:{5000 + i}") for i in range(3)]
    assert codes == [0, 0, ReasonCode.QUOTA_EXCEEDED]
    assert code(world, "b", peer="10.0.0.2:5000") == 0
    assert [code(world, f"u{i}", peer="") for i in range(4)] == [0] * 4
    assert code(world, "a1", peer="10.0.0.1:6000") == 0
    codes = [code(world, f"v{i}", peer=f"2001:db8::{i}:5000") for i in range(1, 4)]
    assert codes == [0, 0, ReasonCode.QUOTA_EXCEEDED]


def test_a_take_over_by_another_address_moves_the_place() -> None:
    """A takeover from another address moves the count to it."""
    world = World(connections_per_address=1)
    assert code(world, "roaming", peer="10.0.0.1:1") == 0
    assert code(world, "roaming", peer="10.0.0.2:1") == 0
    assert code(world, "first", peer="10.0.0.1:2") == 0
    assert code(world, "second", peer="10.0.0.2:2") == ReasonCode.QUOTA_EXCEEDED


def test_what_counts_as_one_address() -> None:
    """An IPv6 network of 64 bits counts as one address, because a customer usually has all of it."""
    assert network_of("192.0.2.7:1883") == "192.0.2.7"
    assert network_of("2001:db8:1:2:3:4:5:6:1883") == network_of("2001:db8:1:2::1:1883") == "2001:db8:1:2::/64"
    assert network_of("fe80::1%eth0:1883") == "fe80::/64"
    assert network_of("") is None
