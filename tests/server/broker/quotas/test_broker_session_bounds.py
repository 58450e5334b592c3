"""What sessions, their names and their QoS 2 identifiers can make the broker hold."""

from __future__ import annotations

import pytest
from support.broker_driver import Client, World

from statestore_client.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
)

# -- sessions ---------------------------------------------------------------------------------------------------------


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


def test_sessions_last_as_long_as_there_is_room() -> None:
    """A session with a long expiry lasts for years on a server that allows it and has room."""
    world = World(session_expiry_s=0xFFFF_FFFF)
    _leave(world, "c")
    world.sleep(1000 * 86_400)
    client = Client(world)
    client.send(Connect("c", clean_start=False))
    connack, message = client.received()
    assert isinstance(connack, Connack)
    assert connack.session_present
    assert isinstance(message, Publish)


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
