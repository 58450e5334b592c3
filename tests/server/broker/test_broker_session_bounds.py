"""Quotas of one user and of one address; what sessions, their names and QoS 2 identifiers can make the broker hold."""

from __future__ import annotations

import time

import pytest
from support.broker_driver import Client, World
from support.broker_invariants import audit

from statestore_client.mqtt.packets import (
    Connack,
    Connect,
    ConnectProperties,
    Disconnect,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
)
from statestore_client.server.broker import Admitted, Credentials
from statestore_client.server.broker.quotas import network_of

# -- connections of one user and of one address ------------------------------------------------------------------------


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
    assert audit(world.broker) == ()
    for session in world.broker.sessions():
        if (connection := world.broker.connection_of(session.client_id)) is not None:
            world.broker.connection_lost(connection, world.now)
    assert audit(world.broker) == ()
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


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_one_session_too_many_costs_no_look_at_those_of_others() -> None:
    """A user who has used his quota up may try again and again: the server does not look at thousands of sessions."""
    world = World(gatekeeper=_EverybodyIsWhoTheySay(), sessions_per_user=1000)
    for number in range(1000):
        client = Client(world)
        client.send(Connect(f"b{number}", username="bob", properties=ConnectProperties(session_expiry=100)))
        client.send(Disconnect())
    sessions, attempts = world.broker._state.sessions, 3000
    began = time.thread_time()
    found = [sessions.dispensable("ann", "sessions-per-user") for _ in range(attempts)]
    assert time.thread_time() - began < 0.1
    assert found == [None] * attempts
    first = sessions.dispensable("bob", "sessions-per-user")
    assert first is not None
    assert first.client_id == "b0"
    assert audit(world.broker) == ()


def test_unused_sessions_make_room_for_new_clients() -> None:
    """When there are too many sessions, the one without messages whose client has been away longest ends."""
    world = World(sessions=3)
    keeper = world.client("keeps a message", session_expiry=60)
    keeper.subscribe("t", qos=1)
    world.client("p").publish("t", b"x", 1)
    keeper.lose()
    for name in ("first", "second"):
        world.client(name, session_expiry=60).lose()
    assert world.broker.usage.sessions == 3
    assert world.broker.counters.evicted_sessions == 1
    assert {session.client_id for session in world.broker.sessions()} == {"keeps a message", "second", "p"}
    assert world.client("new").connack.reason_code == 0
    assert not world.client("second", clean_start=False).connack.session_present


def test_no_acknowledged_message_makes_room() -> None:
    """A session with queued messages is not ended for room, and the new client is refused."""
    world = World(sessions=2)
    clients = [world.client(name, session_expiry=60) for name in "ab"]
    for client in clients:
        client.subscribe("t", qos=1)
    clients[0].publish("t", b"x", 1)
    for client in clients:
        client.lose()
    assert world.client("new").connack.reason_code == ReasonCode.QUOTA_EXCEEDED


def _leave(world: World, *names: str) -> None:
    """Clients that want to be remembered for ever, each with a message, go away."""
    for name in names:
        client = world.client(name, session_expiry=0xFFFF_FFFF)
        assert client.connack.properties.session_expiry is None
        client.subscribe("t", qos=1)
        client.lose()
    world.client("p").publish("t", bytes(100), 1)


@pytest.mark.parametrize("limits", [{"sessions": 4}, {"held_bytes": 1700}, {"subscription_bytes": 3000}])
def test_no_session_lasts_for_ever_when_room_is_short(limits: dict[str, int]) -> None:
    """While half of any limit is used up, a session whose client has been away for a day ends, messages and all."""
    world = World(session_expiry_s=0xFFFF_FFFF, **limits)
    _leave(world, "a", "b")
    world.sleep(86_399)
    assert world.broker.usage.sessions == 3
    world.sleep(2)
    assert world.broker.usage.sessions < 3
    assert world.broker.counters.evicted_sessions >= 1
    world.sleep(10 * 86_400)
    assert world.broker.usage.sessions == 3 - world.broker.counters.evicted_sessions


def test_a_session_ends_in_time_although_others_may_stay() -> None:
    """A session ends when its expiry is over, below and above a day, although others may stay."""
    world = World()
    world.client("short", session_expiry=10).lose()
    world.client("long", session_expiry=3 * 86_400 + 10).lose()
    world.sleep(11)
    assert world.broker.usage.sessions == 1
    world.sleep(3 * 86_400 - 2)
    assert world.broker.usage.sessions == 1
    world.sleep(2)
    assert world.broker.usage.sessions == 0


def test_long_client_identifiers_take_room() -> None:
    """A long client identifier counts with its copies, and has no share in what is reserved for everybody."""
    world = World(held_bytes=1_200_000, reserved_bytes=1_200_000)
    name = "n" * 60_000
    first = world.client(name, session_expiry=60, request_response_information=1)
    held = world.broker.usage.held_bytes
    assert 8 * 60_000 <= held < 500_000
    assert world.client("x" * 65_535, request_response_information=1).connack.properties.response_information is None
    assert world.client("y" * 60_000).connack.reason_code == ReasonCode.QUOTA_EXCEEDED
    assert world.client(name, session_expiry=60, clean_start=False).connack.session_present
    assert first.is_ended
    assert world.client("z" * 1024).connack.reason_code == 0


def test_long_client_identifiers_give_their_room_back() -> None:
    """The bytes of a long client identifier are given back at the end of its session."""
    world = World()
    world.client("n" * 65_535).lose()
    assert world.broker.usage.held_bytes == 0


def _attack(world: World, user: str | None, count: int) -> list[int]:
    """So many clients of one user: what CONNACK says to each."""
    answers = []
    for number in range(count):
        client = Client(world)
        properties = ConnectProperties(session_expiry=3_600)
        client.send(Connect(f"{user} {number}", username=user, properties=properties))
        answer = client.received()[-1]
        assert isinstance(answer, Connack)
        answers.append(answer.reason_code)
    return answers


@pytest.mark.attack("MQTT", "use up the room that others need for a lock")
@pytest.mark.parametrize("user", ["greedy", None])
@pytest.mark.parametrize(
    ("limit", "refused"), [("sessions", ReasonCode.QUOTA_EXCEEDED), ("connections", ReasonCode.SERVER_BUSY)]
)
def test_one_user_does_not_take_all_sessions_and_connections(user: str | None, limit: str, refused: int) -> None:
    """Who has all that there is has nothing of the eighth beyond: others come in, with one client each."""
    world = World(gatekeeper=_EverybodyIsWhoTheySay(), **{limit: 64})
    assert _attack(world, user, 66) == [0] * 64 + [refused] * 2
    assert [code(world, name, user=name) for name in ("a", "b", "c")] == [0] * 3
    assert code(world, "a", user="a") == 0
    assert code(world, "another of a's", user="a") == refused
    assert audit(world.broker) == ()
    assert world.broker.quota_refusals == {limit: 3}


@pytest.mark.attack("MQTT", "end the sessions of others with many new ones")
def test_one_user_does_not_end_the_sessions_of_others() -> None:
    """Sessions of clients that are away make room; for a user who has many only his own, however many he asks for."""
    world = World(gatekeeper=_EverybodyIsWhoTheySay(), sessions=64, connections=10_000)
    world.client("away", session_expiry=60, username="modest").lose()
    world.client("his own", session_expiry=60, username="greedy").lose()
    _attack(world, "greedy", 70)
    names = {session.client_id for session in world.broker.sessions()}
    assert "away" in names
    assert "his own" not in names
    assert len(names) == 64


def test_sessions_of_one_user() -> None:
    """A user may have so many; the one that was away longest makes room; anonymous clients have no such quota."""
    world = World(gatekeeper=_EverybodyIsWhoTheySay(), sessions_per_user=2)
    assert _attack(world, "ann", 3) == [0, 0, ReasonCode.QUOTA_EXCEEDED]
    assert _attack(world, None, 4) == [0] * 4
    connection = world.broker.connection_of("ann 1")
    assert connection is not None
    world.broker.connection_lost(connection, world.now)
    assert code(world, "new", user="ann") == 0
    assert "ann 1" not in {session.client_id for session in world.broker.sessions()}
    assert world.broker.quota_refusals == {"sessions-per-user": 1}
    assert audit(world.broker) == ()


# -- QoS 2 ------------------------------------------------------------------------------------------------------------


def test_a_new_connection_has_its_whole_receive_maximum() -> None:
    """What an earlier connection left unreleased does not count in the new one's receive maximum (MQTT 5.0, 4.9)."""
    world = World(receive_maximum=2)
    first = world.client("c", session_expiry=60)
    first.send(*(Publish("t", b"", 2, packet_id=number) for number in (1, 2)))
    first.lose()
    second = world.client("c", session_expiry=60, clean_start=False)
    second.send(*(Publish("t", b"", 2, packet_id=number) for number in (3, 4)))
    assert [packet.packet_id for packet in second.received() if isinstance(packet, Pubrec)] == [3, 4]
    second.send(Publish("t", b"", 2, packet_id=5))
    assert second.one(Disconnect).reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_a_repetition_counts_on_the_new_connection() -> None:
    """A repetition counts in the receive maximum of the new connection, on which it was sent, until it is released."""
    world = World(receive_maximum=1)
    world.client("c", session_expiry=60).send(Publish("t", b"", 2, packet_id=1))
    client = world.client("c", session_expiry=60, clean_start=False)
    client.send(Publish("t", b"", 2, dup=True, packet_id=1), Pubrel(1), Publish("t", b"", 2, packet_id=2))
    assert not client.is_ended
    client.send(Publish("t", b"", 2, packet_id=3))
    assert client.is_ended
