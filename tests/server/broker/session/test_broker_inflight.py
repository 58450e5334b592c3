"""Subscribers that are slow: what is in flight, and what waits behind it."""

from __future__ import annotations

from support.broker_driver import Client, World

from statestore_client.mqtt.packets import (
    MQTT_3_1_1,
    Connect,
    ConnectProperties,
    Disconnect,
    Puback,
    ReasonCode,
)


def test_a_full_queue_refuses_the_publisher() -> None:
    """With the strict choice a full queue refuses the publisher with PUBACK 0x97, and nobody gets the message."""
    world = World(queued_messages=2, when_full="refuse")
    slow, quick = world.client("s", receive_maximum=1), world.client("q")
    for client in (slow, quick):
        client.subscribe("t", qos=1)
    sender = world.client("p")
    codes = []
    for i in range(5):
        sender.publish("t", str(i).encode(), 1)
        codes.append(sender.one(Puback).reason_code)
    assert codes == [0, 0, 0, ReasonCode.QUOTA_EXCEEDED, ReasonCode.QUOTA_EXCEEDED]
    assert [m.payload for m in quick.messages()] == [b"0", b"1", b"2"]
    (first,) = slow.messages()
    slow.send(Puback(first.packet_id))
    sender.publish("t", b"5", 1)
    assert sender.one(Puback).reason_code == 0


def test_a_full_queue_ends_a_3_1_1_publisher() -> None:
    """With the strict choice a full queue closes a 3.1.1 publisher without PUBACK, and nobody gets the message."""
    world = World(queued_messages=1, when_full="refuse")
    away = world.client("a", session_expiry=99)
    away.subscribe("t", qos=1)
    away.lose()
    sender = world.client("p", version=MQTT_3_1_1)
    sender.publish("t", b"1", 1)
    sender.publish("t", b"2", 1)
    assert sender.received() == [Puback(1)]
    assert sender.is_ended


def test_expired_messages_make_room_in_a_full_queue() -> None:
    """Expired messages in a full queue make room."""
    world = World(queued_messages=1)
    away = world.client("a", session_expiry=99)
    away.subscribe("t", qos=1)
    away.lose()
    sender = world.client("p")
    sender.publish("t", b"1", 1, message_expiry=5)
    world.sleep(6)
    sender.publish("t", b"2", 1)
    assert [packet.reason_code for packet in sender.received() if isinstance(packet, Puback)] == [0, 0]


def test_the_queue_is_bounded_in_bytes() -> None:
    """A queue has a limit of bytes, and one message of any size is always accepted."""
    world = World(queued_bytes=10_000, when_full="refuse")
    away = world.client("a", session_expiry=99)
    away.subscribe("t", qos=1)
    away.lose()
    sender = world.client("p")
    for payload in (b"x" * 20_000, b"x"):
        sender.publish("t", payload, 1)
    assert [packet.reason_code for packet in sender.received() if isinstance(packet, Puback)] == [0, 0x97]


def test_qos_0_for_a_client_that_is_away_is_gone() -> None:
    """A QoS 0 message for a client that is away is not kept."""
    world = World()
    client = world.client("c", session_expiry=99)
    client.subscribe("t", qos=1)
    client.lose()
    world.client("p").publish("t", b"x", 0)
    assert world.client("c", clean_start=False).received() == []


def test_a_congested_socket_gets_nothing_until_it_drains() -> None:
    """While a socket is congested messages of every QoS wait in order, and QoS 0 beyond the limit is dropped and
    counted."""
    world = World(queued_messages=3)
    client, sender = world.client("c"), world.client("p")
    client.subscribe("t", qos=1)
    world.broker.congested(client.connection)
    for i in range(5):
        sender.publish("t", str(i).encode(), 0)
    for i in range(2):
        sender.publish("t", str(i).encode(), 1)
    assert client.received() == []
    world.broker.drained(client.connection, world.now)
    assert [(m.qos, m.payload) for m in client.messages()] == [(0, b"0"), (0, b"1"), (0, b"2"), (1, b"0"), (1, b"1")]
    assert world.broker.counters.dropped_qos0 == 2


def test_the_outbox_is_bounded() -> None:
    """A burst is encoded only as far as the outbox has room, and the rest follows."""
    world = World(outbox_bytes=1000)
    client, sender = world.client("c"), world.client("p")
    client.subscribe("t", qos=1)
    for i in range(50):
        sender.publish("t", b"x" * 100, i % 2)
    assert client.connection.outbox_bytes < 1200
    assert len(client.messages()) == 50


def test_a_closing_connection_keeps_its_messages_in_the_session() -> None:
    """What is published after DISCONNECT waits for the next connection."""
    world = World()
    client = world.client("c", session_expiry=99)
    client.subscribe("t", qos=1)
    client.send(Disconnect())
    world.client("p").publish("t", b"x", 1)
    again = Client(world)
    again.send(Connect("c", clean_start=False, properties=ConnectProperties()))
    assert [m.payload for m in again.messages()] == [b"x"]


def test_what_expired_uses_up_its_packet_identifier() -> None:
    """Packet identifiers are given in the order of the queue, also to a message that expired there."""
    world = World()
    receiver = world.client("r", session_expiry=60)
    receiver.subscribe("t", qos=1)
    receiver.lose()
    sender = world.client("s")
    sender.publish("t", b"1", 1, message_expiry=1)
    sender.publish("t", b"2", 1, message_expiry=10)
    world.sleep(2)
    receiver = Client(world)
    receiver.send(Connect("r", clean_start=False))
    (message,) = receiver.messages()
    assert (message.payload, message.packet_id, message.properties.message_expiry) == (b"2", 2, 8)
