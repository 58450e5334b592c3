"""Requests wait while the answers to earlier ones are not taken; their client is not disconnected, and others are not
held up.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from support.broker_driver import Client, Desk, World
from support.broker_invariants import audit

from statestore_client.mqtt.packets import Connack, Connect, ConnectProperties, Disconnect, Puback, Publish
from statestore_client.server.broker import Route
from statestore_client.wire.instant import Instant

ANSWER = bytes(900)
LIMITS: dict[str, Any] = {"packet_bytes": 1000, "queued_bytes": 8000}  # two answers wait, with what the broker adds


@pytest.fixture
def desk() -> Desk:
    return Desk(Route(Publish("reply", ANSWER, 1)))


class Answering(Desk):
    """Says to each client what it said."""

    def handle(self, client_id: str, message: Publish, now: Instant) -> tuple[Route]:
        return (Route(Publish(f"reply/{client_id}", message.payload, 1)),)


def asking(world: World, name: str = "c", *, qos: int = 1, **connect: Any) -> Client:
    client = world.client(name, receive_maximum=1, **connect)
    client.subscribe("reply", qos=qos)
    return client


def take_all(client: Client) -> tuple[list[int], int]:
    """Acknowledge each message as it comes; the PUBACKs for the client's own, and the number of messages."""
    acknowledged, count = list[int](), 0
    while packets := client.received():
        for packet in packets:
            if isinstance(packet, Puback):
                acknowledged.append(packet.packet_id)
            else:
                assert isinstance(packet, Publish), packet
                count += 1
                client.send(Puback(packet.packet_id))
    return acknowledged, count


def test_requests_wait_for_the_acknowledgements_of_answers(desk: Desk) -> None:
    """Of 18 requests three are carried out; each answer that is taken lets in another, in order, and none is lost."""
    world = World(application=desk, **LIMITS)
    client = asking(world)
    ids = [client.publish("desk", b"%d" % i, 1) for i in range(18)]
    assert len(desk.requests) == 3
    assert take_all(client) == (ids, 18)
    assert [message.payload for _, message in desk.requests] == [b"%d" % i for i in range(18)]
    assert not client.is_ended
    assert world.broker.counters.received_messages == 18
    assert audit(world.broker) == ()


def test_requests_wait_in_one_batch_with_acknowledgements(desk: Desk) -> None:
    """PUBACKs behind many requests, in one piece from the socket, are carried out at once."""
    world = World(application=desk, **LIMITS)
    client = asking(world)
    client.publish("desk", b"", 1)
    (answer,) = client.messages()
    client.send(*(Publish("desk", b"", 1, packet_id=100 + i) for i in range(9)), Puback(answer.packet_id))
    assert take_all(client) == (list(range(100, 109)), 9)


def test_many_small_requests_behind_a_large_answer(desk: Desk) -> None:
    """What waited is carried out in slices once there is room, and all of it."""
    world = World(application=desk, **LIMITS)
    client = asking(world)
    for _ in range(3):
        client.publish("desk", b"", 1)
    desk.effects = []
    for _ in range(6):
        client.publish("desk", b"", 1)
    assert len(desk.requests) == 3
    first = [packet for packet in client.received() if isinstance(packet, Publish)]
    client.send(Puback(first[0].packet_id))
    assert len(desk.requests) == 9


def test_what_waits_is_carried_out_in_slices(desk: Desk) -> None:
    """Of a thousand small requests that waited, others have their turn in between."""
    desk.effects = [Route(Publish("reply", bytes(100_000), 1))]
    world = World(application=desk, packet_bytes=100_000, queued_bytes=1_000_000)
    client = asking(world)
    for _ in range(12):
        client.publish("desk", b"", 1)
    assert len(desk.requests) == 9
    desk.effects = []
    for _ in range(1000):
        client.publish("desk", b"", 1)
    (answer,) = client.messages()
    client.send(Puback(answer.packet_id))
    assert len(desk.requests) == 9 + 16
    assert world.broker.has_work
    world.work()
    assert len(desk.requests) == 1012


def test_one_that_never_acknowledges_holds_no_more_than_the_limit(desk: Desk) -> None:
    """It is disconnected (0x97) once what waits exceeds ``queued_bytes``; all of it is forgotten."""
    world = World(application=desk, **LIMITS)
    client = asking(world)
    for i in range(1000):
        client.publish("desk", b"%d" % i, 1)
        assert world.broker.usage.held_bytes < 4 * LIMITS["queued_bytes"]
        if client.is_ended:
            break
    *_, last = client.received()
    assert isinstance(last, Disconnect)
    assert last.reason_code == 0x97  # MQTT 5.0, 2.4
    client.lose()
    assert audit(world.broker) == ()
    assert 3 < i < 20


def test_others_are_served_meanwhile(desk: Desk) -> None:
    """One client's requests wait; another one is answered, and its acknowledgements are taken."""
    world = World(application=desk, **LIMITS)
    stuck = asking(world, "stuck")
    for _ in range(6):
        stuck.publish("desk", b"", 1)
    desk.effects = [Route(Publish("other", b"x", 1))]
    other = world.client("other")
    other.subscribe("other", qos=1)
    ids = [other.publish("desk", b"", 1) for _ in range(20)]
    assert take_all(other) == (ids, 20)


def test_what_is_published_behind_a_request_keeps_its_order(desk: Desk) -> None:
    """PUBACKs come in the order of the PUBLISHes (MQTT-4.6.0-2), so other messages wait behind a request."""
    world = World(application=desk, **LIMITS)
    reader = world.client("reader")
    reader.subscribe("news")
    client = asking(world)
    requests = [client.publish("desk", b"", 1) for _ in range(5)]
    news = client.publish("news", b"x", 1)
    assert reader.messages() == []
    acknowledged, count = take_all(client)
    assert (acknowledged, count) == ([*requests, news], 5)
    assert [message.payload for message in reader.messages()] == [b"x"]


def test_a_slow_reader_of_others_publishes_as_before(desk: Desk) -> None:
    """A full queue of other people's messages loses the new ones, and does not hold up what its client publishes."""
    world = World(application=desk, **LIMITS)
    client = asking(world)
    client.subscribe("news", qos=1)
    sender, reader = world.client("sender"), world.client("reader")
    reader.subscribe("out")
    for _ in range(20):
        sender.publish("news", bytes(900), 1)
    assert world.broker.counters.dropped_full == 14
    client.publish("out", b"x", 1)
    assert len(reader.messages()) == 1
    assert client.received()
    assert not client.is_ended


def test_a_request_that_waited_too_long_is_not_carried_out(desk: Desk) -> None:
    """The time of a request goes on while it waits: its sender no longer does."""
    world = World(application=desk, **LIMITS)
    client = asking(world)
    for _ in range(4):
        client.publish("desk", b"", 1, message_expiry=60)
    client.publish("desk", b"", 1, message_expiry=10)
    client.publish("desk", b"", 1)
    world.sleep(12.5)
    take_all(client)
    assert [message.properties.message_expiry for _, message in desk.requests] == [60, 60, 60, 48, 0, None]


def test_a_topic_alias_lasts_while_a_request_waits(desk: Desk) -> None:
    """Requests with a topic alias, the one that sets it too, are carried out like others."""
    world = World(application=desk, **LIMITS)
    client = asking(world)
    client.publish("desk", b"0", 1, topic_alias=1)
    for i in range(1, 9):
        topic = "desk" if i == 5 else ""
        client.publish(topic, b"%d" % i, 1, topic_alias=2 if i >= 5 else 1, message_expiry=60)
    world.sleep(2)
    assert take_all(client)[1] == 9
    assert [message.topic for _, message in desk.requests] == ["desk"] * 9


def test_answers_at_qos_0_are_not_dropped(desk: Desk) -> None:
    """Where the socket takes no more, requests wait for it."""
    world = World(application=desk, **LIMITS)
    client = asking(world, qos=0)
    world.broker.congested(client.connection)
    for _ in range(20):
        client.send(Publish("desk", b"", 1, packet_id=client.next_id()))
        if client.connection.held_bytes > 2000:
            break
    world.broker.drained(client.connection, world.now)
    assert len(client.messages()) == len(desk.requests) > 3
    assert world.broker.counters.dropped_qos0 == 0


def test_a_full_server_serves_one_answer_at_a_time(desk: Desk) -> None:
    """Where many hold much, each client has one answer under way, and none is disconnected."""
    world = World(application=desk, held_bytes=100_000, packet_bytes=10_000, reserved_bytes=0)
    others = [world.client(f"other {i}", receive_maximum=1) for i in range(9)]
    for other in others:
        other.subscribe("news", qos=1)
    sender = world.client("sender")
    for _ in range(20):
        sender.publish("news", bytes(5000), 1)
    client = world.client("c", receive_maximum=100)
    client.subscribe("reply", qos=1)
    for _ in range(20):
        client.publish("desk", b"", 1)
    assert len(desk.requests) == 1
    assert take_all(client)[1] == 20
    assert audit(world.broker) == ()


def test_a_lost_connection_takes_its_waiting_requests_with_it(desk: Desk) -> None:
    """They were not acknowledged: the client sends them again, on the next connection of its session."""
    world = World(application=desk, **LIMITS)
    client = asking(world, session_expiry=60)
    ids = [client.publish("desk", b"", 1) for _ in range(8)]
    client.lose()
    assert audit(world.broker) == ()
    again = Client(world)
    again.send(Connect("c", clean_start=False, properties=ConnectProperties(receive_maximum=1)))
    connack, answer = again.received()
    assert isinstance(connack, Connack)
    assert isinstance(answer, Publish)
    assert connack.session_present
    again.send(Puback(answer.packet_id), *(Publish("desk", b"", 1, dup=True, packet_id=i) for i in ids[3:]))
    acknowledged, count = take_all(again)
    assert (acknowledged, count) == (ids[3:], 7)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_requests_and_acknowledgements(seed: int) -> None:
    """Whatever comes first, each request that is acknowledged has one answer, and a client that takes its answers in
    the end is not disconnected."""
    random = Random(seed)
    world = World(application=Answering(), packet_bytes=1000, queued_bytes=9000, receive_maximum=100)
    clients = {}
    for name in "ab":
        clients[name] = client = world.client(name, receive_maximum=random.randint(1, 5))
        client.subscribe(f"reply/{name}", qos=random.choice((0, 1)))
    asked, acknowledged, answers = dict.fromkeys("ab", 0), dict.fromkeys("ab", 0), dict.fromkeys("ab", 0)
    unacknowledged: dict[str, list[int]] = {"a": [], "b": []}

    def take(name: str) -> None:
        for packet in clients[name].received():
            if isinstance(packet, Puback):
                acknowledged[name] += 1
            else:
                assert isinstance(packet, Publish), packet
                answers[name] += 1
                unacknowledged[name] += [packet.packet_id] * packet.qos

    for _ in range(300):
        name = random.choice("ab")
        client = clients[name]
        what = random.random()
        if what < 0.5 and client.connection.held_bytes < 6000:
            client.publish("desk", bytes(random.choice((1, 900))), 1)
            asked[name] += 1
        elif what < 0.6:
            world.broker.congested(client.connection)
        elif what < 0.7:
            world.broker.drained(client.connection, world.now)
        elif unacknowledged[name]:
            client.send(Puback(unacknowledged[name].pop(0)))
        if not client.connection.is_congested:
            take(name)
        assert audit(world.broker) == ()
    for name, client in clients.items():
        world.broker.drained(client.connection, world.now)
        take(name)
        while unacknowledged[name]:
            client.send(Puback(unacknowledged[name].pop(0)))
            take(name)
        assert acknowledged[name] == answers[name] == asked[name]
        assert not client.is_ended
