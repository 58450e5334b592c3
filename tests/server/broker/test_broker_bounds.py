"""What one client can make the broker hold, and how much of its work is done at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.broker_driver import Client, Desk, World

from statestore_client.mqtt.packets import (
    Connect,
    ConnectProperties,
    Disconnect,
    PacketDecoder,
    Puback,
    Publish,
    PublishProperties,
    ReasonCode,
    Subscription,
    Will,
)
from statestore_client.server.broker import Deliver, InOrder
from statestore_client.server.broker.limits import BrokerLimits
from statestore_client.server.broker.message import Message
from statestore_client.server.broker.retained import Retained, RetainedCursor
from statestore_client.wire.instant import Instant

NOW = Instant(1.0, 1)
MEGABYTE = bytes(1_000_000)


def held(world: World) -> int:
    return world.broker.usage.held_bytes


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_nothing_is_held_when_everybody_is_gone() -> None:
    """Queues, windows, wills, aliases and unreleased identifiers are given back with their sessions."""
    world = World()
    slow = world.client("slow", session_expiry=60, receive_maximum=2, will=Will("w", b"x" * 100))
    slow.subscribe("t", qos=2)
    sender = world.client("sender")
    for _ in range(5):
        sender.publish("t", b"x" * 50_000, 2)
    sender.publish("long/topic", b"", topic_alias=1)
    assert held(world) > 250_000
    slow.lose()
    sender.lose()
    world.sleep(61)
    assert (held(world), world.broker.usage.sessions) == (0, 0)


def test_a_message_to_many_is_held_once() -> None:
    """A megabyte that waits for ten clients is held once."""
    world = World()
    for number in range(10):
        world.client(f"c{number}", session_expiry=60).subscribe("t", qos=1)
    world.client("p").publish("t", MEGABYTE, 1)
    assert 1_000_000 < held(world) < 1_010_000


def test_a_payload_in_many_messages_is_held_once() -> None:
    """The value in notifications to several observers, each with its own topic, is held once, outboxes included."""
    series = InOrder("key", (Deliver(f"c{n}", Publish(f"for/c{n}", MEGABYTE, 1)) for n in range(10)))
    world = World(application=Desk(series))
    clients = [world.client(f"c{number}") for number in range(10)]
    world.client("p").publish("desk", b"", 1)
    assert 1_000_000 < held(world) < 1_020_000
    shared = {id(piece.obj) for c in clients for piece in c.connection.outbox if isinstance(piece, memoryview)}
    assert len(shared) == 1
    assert {client.messages()[0].payload for client in clients} == {MEGABYTE}


def test_bytes_in_flight_have_a_limit() -> None:
    """A client that never acknowledges gets a limited number of bytes; the rest waits, and then is refused."""
    world = World(in_flight_bytes=250_000, queued_bytes=300_000, when_full="refuse")
    client, sender = world.client("c"), world.client("p")
    client.subscribe("t", qos=1)
    messages = []
    for _ in range(8):
        sender.publish("t", b"x" * 100_000, 1)
        messages += client.messages()
    codes = [packet.reason_code for packet in sender.received() if isinstance(packet, Puback)]
    assert codes == [0] * 5 + [ReasonCode.QUOTA_EXCEEDED] * 3  # three in flight, two wait
    assert len(messages) == 3
    client.send(Puback(messages[0].packet_id))
    assert len(client.messages()) == 1


def test_who_holds_little_is_served_when_others_hold_much() -> None:
    """Small messages to a client that acknowledges pass when the limit of all sessions is reached."""
    world = World(held_bytes=100_000, reserved_bytes=2_000)
    world.client("hog", session_expiry=60).subscribe("hog", qos=1)
    modest, sender = world.client("modest"), world.client("p")
    modest.subscribe("modest", qos=1)
    sender.publish("hog", b"x" * 98_500, 1)
    for _ in range(10):
        sender.publish("modest", b"x", 1)
        (message,) = modest.messages()
        modest.send(Puback(message.packet_id))
    assert {packet.reason_code for packet in sender.received() if isinstance(packet, Puback)} == {0}


def test_user_properties_count() -> None:
    """A message of no payload and a thousand small properties counts as large."""
    message = Message("t", b"", 1, False, PublishProperties(user_properties=(("k", "v"),) * 1000), "c", None)
    assert message.size > 150_000


def test_wills_have_a_limit() -> None:
    """Wills fill the common limit, and one beyond it is refused in CONNACK."""
    world = World(held_bytes=100_000, reserved_bytes=2_000)
    codes = [world.client(f"c{n}", will=Will("w", b"x" * 30_000)).connack.reason_code for n in range(4)]
    assert codes == [0, 0, 0, ReasonCode.QUOTA_EXCEEDED]


def test_topic_aliases_have_a_limit() -> None:
    """The topics of aliases count as long as the connection."""
    world = World(held_bytes=10_000, reserved_bytes=5_000)
    client = world.client("c")
    for number in range(1, 4):
        client.publish("t" * 4_000, b"", topic_alias=number)
    (last,) = [packet for packet in client.received() if isinstance(packet, Disconnect)]
    assert last.reason_code == ReasonCode.QUOTA_EXCEEDED
    assert held(world) == 0


@pytest.mark.parametrize(
    ("topic_filter", "fit"),
    [("{}" + "x" * 60_000, 8), ("{}/+" + "/b" * 120, 19), ("$share/{}/t", 310)],
)
def test_subscriptions_cost_what_they_hold(topic_filter: str, fit: int) -> None:
    """A session has a limit of bytes for its subscriptions, for long and deep filters and shares, whatever their
    number."""
    client = World(subscription_bytes_per_session=1_000_000).client("c")
    client.subscribe(*(topic_filter.format(number) for number in range(1000)))
    granted = client.granted.count(0)
    assert fit <= granted <= fit * 1.2
    assert set(client.granted[granted:]) == {ReasonCode.QUOTA_EXCEEDED}


def test_subscriptions_of_all_sessions_have_a_limit() -> None:
    """When the subscriptions of all sessions reach their limit, every session may still have a few."""
    world = World(subscription_bytes=200_000, reserved_bytes=2_500)
    granted = []
    for number in range(4):
        client = world.client(f"c{number}")
        client.subscribe(*(f"{number}/{i}" for i in range(150)))
        granted.append(client.granted.count(0))
    assert granted[0] == 150
    assert granted[1:] == [granted[1], 2, 2]


# -- slices -----------------------------------------------------------------------------------------------------------


def test_copies_for_many_are_made_in_slices() -> None:
    """Copies for many go out in slices with work(); meanwhile the publisher is held, and order within the topic
    stays."""
    world = World()
    clients = [world.client(f"c{number}") for number in range(200)]
    for client in clients:
        client.subscribe("t", qos=1)
    sender = world.client("p")
    sender.publish("t", b"1", 1)
    sender.publish("t", b"2", 1)
    assert sender.connection.pending == 2
    assert sum(bool(client.connection.outbox) for client in clients) == 0
    world.broker.work(world.now)
    assert sum(bool(client.connection.outbox) for client in clients) == 64
    world.work()
    assert sender.connection.pending == 0
    for client in clients:
        assert [message.payload for message in client.messages()] == [b"1", b"2"]


def test_who_leaves_meanwhile_gets_nothing() -> None:
    """A session that ends between two slices gets nothing, and nothing of it is kept."""
    world = World()
    clients = [world.client(f"c{number}") for number in range(200)]
    for client in clients:
        client.subscribe("t", qos=1)
    world.client("p").publish("t", b"1", 1)
    for client in clients:
        client.lose()
    world.work()
    assert held(world) == 0


def test_a_series_that_fails_is_a_fault_of_the_application() -> None:
    """An application whose series of effects fails is reported, and stops nobody."""

    def failing() -> Iterator[Deliver]:
        yield Deliver("c", Publish("for/c", b"1", 1))
        raise RuntimeError("in the middle")

    world = World(application=Desk(InOrder("key", failing())))
    client = world.client("c")
    client.publish("desk", b"", 1)
    world.work()
    assert [str(fault) for fault in world.broker.reports.take_faults()] == ["in the middle"]
    assert not client.connection.is_held


def test_retained_messages_come_as_the_client_takes_them() -> None:
    """Retained messages are sent as the client reads, each once; a repeated filter and a client that reads nothing cost
    nothing."""
    world = World(outbox_bytes=2_000)
    sender = world.client("p")
    for number in range(500):
        sender.publish(f"r/{number:03}", b"x", retain=True)
    client = world.client("c")
    world.broker.congested(client.connection)
    client.subscribe(*[Subscription("r/#", 0)] * 500)
    assert len(client.connection.outbox) == 0
    world.broker.drained(client.connection, world.now)
    topics = [message.topic for message in client.messages()]
    assert topics == [f"r/{number:03}" for number in range(500)]


@pytest.mark.parametrize(("qos", "expected"), [(0, 0), (1, 10)])
def test_retained_messages_that_a_client_did_not_get_follow_it(qos: int, expected: int) -> None:
    """A session that is resumed gets the retained messages that were not sent yet, but those with QoS 0."""
    world = World()
    sender = world.client("p")
    for number in range(10):
        sender.publish(f"r/{number}", b"x", 1, retain=True)
    client = world.client("c", session_expiry=60)
    world.broker.congested(client.connection)
    client.subscribe("r/#", qos=qos)
    client.lose()
    again = Client(world)
    again.send(Connect("c", clean_start=False, properties=ConnectProperties(receive_maximum=4)))
    count = 0
    while messages := again.messages():
        count += len(messages)
        again.send(*(Puback(message.packet_id) for message in messages))
    assert count == expected


def test_a_walk_jumps_over_what_cannot_match() -> None:
    """A filter with few branches looks at few of ten thousand topics."""
    retained = Retained(BrokerLimits())
    for a in range(100):
        for b in range(100):
            retained.put(Message(f"{a}/{b}", b"x", 0, True, PublishProperties(), "", None))
    for topic_filter, most in (("7/+", 102), ("+/7", 302), ("7/#", 102), ("7/7", 1), ("x/+", 2)):
        cursor, looks = RetainedCursor(topic_filter, 0, no_local=False, ids=()), 0
        while cursor.at is not None:
            retained.advance(cursor, NOW)
            looks += 1
        assert looks <= most, topic_filter


def test_many_appointments_are_kept_some_at_a_time() -> None:
    """A thousand connections lost at once are handled in several ticks."""
    world = World(connect_timeout_s=5)
    connections = [world.broker.connection_opened(world.now) for _ in range(1000)]
    world.monotonic += 6
    world.broker.tick(world.now)
    ended = sum(connection.ending is not None for connection in connections)
    assert 0 < ended < 1000
    world.sleep(1)
    assert all(connection.ending is not None for connection in connections)


def test_the_pieces_of_an_outbox_make_the_packets() -> None:
    """The pieces of an outbox are at most as large as asked, and make the packets, a large one included."""
    for size in (1, 7, 100, 70_000):
        world = World()
        client = world.client("c")
        client.subscribe("t")
        sender = world.client("p")
        lengths = [3, 20_000, 0, 16_384, 5, 150_000]
        for length in lengths:
            sender.publish("t", b"x" * length)
        decoder = PacketDecoder(version=5, max_packet_size=400_000)
        packets = []
        while client.connection.outbox:
            piece = client.connection.take_some(size)
            assert len(piece) <= size
            packets += decoder.feed(piece)
        assert [len(packet.payload) for packet in packets if isinstance(packet, Publish)] == lengths
        assert (client.connection.outbox_bytes, held(world)) == (0, 0)
