"""Slow subscribers, and wills, by rules of our own: what is in flight, what waits behind it, what goes out first."""

from __future__ import annotations

from support.broker_driver import Client, World

from statestore_client.mqtt.packets import Connect, ConnectProperties, Disconnect, Puback, Publish, Will, WillProperties

# -- queues ------------------------------------------------------------------------------------------------------------


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


# -- wills -------------------------------------------------------------------------------------------------------------


def test_how_large_a_will_may_be() -> None:
    """A will's properties count once, and the overhead of a message is a few hundred bytes."""
    world = World(will_bytes=64 * 1024)
    properties = WillProperties(correlation_data=bytes(33_000))
    assert world.client("c", will=Will("will/c", bytes(31_000), properties=properties)).connack.reason_code == 0
    too_large = Will("will/c", bytes(33_000), properties=properties)
    assert world.client("d", will=too_large).connack.reason_code == 0x97


def test_wills_that_cause_disconnects_that_cause_wills() -> None:
    """A chain of wills that disconnect slow watchers, each with a will, ends without recursion."""
    world = World(queued_messages=1, when_full="refuse")
    clients = [world.client(f"c{i}", receive_maximum=1, will=Will(f"will/{i}", b"x", qos=1)) for i in range(1500)]
    for i, client in enumerate(clients[1:]):
        client.subscribe("fill", f"will/{i}", qos=1)
    sender = world.client("p")
    for _ in range(2):
        sender.publish("fill", b"x", 1)
        world.work()
    clients[0].lose()
    world.work()
    assert all(client.is_ended for client in clients)
    assert not any(isinstance(packet, Publish) for packet in sender.received())


def test_wills_of_a_restart_go_out_in_the_order_of_arrival() -> None:
    """Wills of a restart are sent in the order in which their clients connected."""
    world = World()
    names = [f"c{number}" for number in range(40)]
    clients = [world.client(name, will=Will(f"will/{name}", b"gone"), session_expiry=60) for name in names]
    watcher = world.client("watcher", session_expiry=60)
    watcher.subscribe("will/#", qos=1)
    world.broker.disconnect_all(world.now)
    assert all(isinstance(client.one(Disconnect), Disconnect) for client in clients)
    assert [packet.topic for packet in watcher.messages()] == [f"will/{name}" for name in names]


def test_the_goodbyes_of_the_end_are_said_in_the_order_of_arrival() -> None:
    """At the end clients are disconnected in the order in which they connected, those without a session too."""
    world = World()
    connections = [world.client(f"c{number}").connection for number in range(20)]
    connections += [world.broker.connection_opened(world.now, peer="silent") for _ in range(20)]
    world.broker.take_dirty()
    world.broker.shut_down()
    assert world.broker.take_dirty() == connections
