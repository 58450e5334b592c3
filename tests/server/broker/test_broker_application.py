"""The application inside the broker: order, effects, faults."""

from __future__ import annotations

from random import Random

import pytest
from support.broker_driver import Client, Desk, World
from support.broker_invariants import audit

from statestore_client.mqtt.packets import (
    Disconnect,
    Puback,
    Publish,
    Pubrec,
    ReasonCode,
    Subscription,
    Unsubscribe,
    Will,
)
from statestore_client.server.broker import Deliver, DisconnectClient, Effect, Route
from statestore_client.server.broker.router import Router


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def world(desk: Desk) -> World:
    return World(application=desk)


def test_the_acknowledgement_comes_before_the_reply(world: World, desk: Desk) -> None:
    """PUBACK comes before what the application sends."""
    client = world.client("c")
    client.subscribe("reply", qos=1)
    desk.effects = [Route(Publish("reply", b"yes", 1))]
    packet_id = client.publish("desk", b"please", 1)
    puback, reply = client.received()
    assert puback == Puback(packet_id)
    assert isinstance(reply, Publish)
    assert reply.payload == b"yes"
    assert desk.requests[0][0] == "c"


def test_requests_are_not_routed_and_not_retained(world: World) -> None:
    """Requests are neither routed to subscribers nor retained."""
    spy = world.client("spy")
    spy.subscribe("#")
    world.client("c").publish("desk", b"secret", 1, retain=True)
    assert spy.messages() == []
    assert spy.subscribe("desk") == []


def test_a_qos_2_request_is_handled_once(world: World, desk: Desk) -> None:
    """A repeated QoS 2 request gets PUBREC and is handled once."""
    client = world.client("c")
    message = Publish("desk", b"x", 2, packet_id=4)
    client.send(message, message)
    assert client.received() == [Pubrec(4), Pubrec(4)]
    assert len(desk.requests) == 1


def test_deliver_reaches_the_owner_without_a_subscription_and_once_with_one(world: World, desk: Desk) -> None:
    """A delivery reaches its owner once, with the identifiers of matching subscriptions or without any, and nobody
    else."""
    plain, subscribed, spy = world.client("plain"), world.client("sub"), world.client("spy")
    subscribed.subscribe("note/#", qos=1, identifier=4)
    subscribed.subscribe("note/+", qos=1)
    spy.subscribe("note/#", qos=1)
    desk.effects = [Deliver(name, Publish("note/1", b"x", 1)) for name in ("plain", "sub", "nobody")]
    world.client("c").publish("desk", b"", 1)
    assert [m.properties.subscription_ids for m in plain.messages()] == [()]
    assert [m.properties.subscription_ids for m in subscribed.messages()] == [(4,)]
    assert spy.messages() == []


def test_answers_go_to_who_is_subscribed_now(world: World, desk: Desk) -> None:
    """An answer goes where a message of its topic would go, however subscriptions change between two answers."""
    random, clients = Random(4), [world.client(f"c{number}", session_expiry=60) for number in range(4)]
    filters = ("r/1", "r/+", "r/#", "+/1", "#", "$share/g/r/1", "other")
    desk.effects = [Route(Publish("r/1", b"answer", 1))]
    lasting, asks = world.client("lasting"), world.client("asks")
    lasting.subscribe("r/1", qos=1)
    for step in range(300):
        number = random.randrange(4)
        client, topic_filter = clients[number], random.choice(filters)
        match random.randrange(5):
            case 0 if topic_filter.startswith("$"):
                client.subscribe(topic_filter, qos=1)
            case 0:
                asked = Subscription(topic_filter, random.randrange(3), no_local=step % 2 == 0)
                client.subscribe(asked, identifier=step + 1)
            case 1:
                client.send(Unsubscribe(client.next_id(), (topic_filter,)))
                client.received()
            case 2:
                client.lose()
                clients[number] = world.client(f"c{number}", clean_start=step % 3 == 0, session_expiry=60)
                clients[number].received()
            case _:
                pass
        asks.publish("desk", b"", 1)
        got = [_copies(each) for each in clients]
        asks.publish("r/1", b"answer", 1)  # which is routed without a plan that is remembered
        expected = [_copies(each) for each in clients]
        is_shared = any("$share/g/r/1" in view.subscriptions for view in world.broker.sessions())
        assert is_shared or got == expected
        assert len(lasting.messages()) == 2
        assert audit(world.broker) == ()


def _copies(client: Client) -> list[tuple[int, bool, tuple[int, ...]]]:
    """What came, acknowledged."""
    came = client.messages()
    client.send(*(Puback(each.packet_id) for each in came if each.qos == 1))
    return [(each.qos, each.retain, each.properties.subscription_ids) for each in came]


def test_answers_take_turns_in_a_share(world: World, desk: Desk) -> None:
    """Members of a share get every second answer each, also when there are other subscribers of the topic."""
    members = [world.client(f"m{number}") for number in range(2)]
    desk.effects = [Route(Publish("r", b"answer", 1))]
    asks = world.client("asks")
    asks.subscribe("r", qos=1)
    asks.publish("desk", b"", 1)
    for member in members:
        member.subscribe("$share/g/r", qos=1)
    for _ in range(10):
        asks.publish("desk", b"", 1)
    assert [len(each.messages()) for each in (*members, asks)] == [5, 5, 11]


def test_a_delivery_takes_no_turn_of_a_share(world: World, desk: Desk) -> None:
    """Members of a share still get the same number of messages if deliveries come between them."""
    owner, members = world.client("owner"), [world.client(f"m{number}") for number in range(2)]
    for member in members:
        member.subscribe("$share/g/#", qos=1)
    desk.effects = [Deliver("owner", Publish("note", b"x", 1))]
    for _ in range(20):
        owner.publish("t", b"x")
        owner.publish("desk", b"", 1)
    assert [len(member.messages()) for member in members] == [10, 10]
    assert len(owner.messages()) == 20


def test_a_delivery_looks_at_no_other_subscriber(world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery to one connection looks at no other subscriber."""
    owner, plain = world.client("owner"), world.client("plain")
    owner.subscribe("note/+", qos=1, identifier=7)
    for number in range(100):
        world.client(f"c{number}").subscribe("#", qos=1)
    planned: list[str] = []
    plan = Router.plan
    monkeypatch.setattr(
        Router, "plan", lambda self, message, matches: planned.append(message.topic) or plan(self, message, matches)
    )
    desk.effects = [Deliver("owner", Publish("note/1", b"x", 1)), Deliver("plain", Publish("note/1", b"x", 1))]
    world.client("p").publish("desk", b"", 1)
    assert (len(owner.messages()), len(plain.messages()), planned) == (1, 1, [])


def test_deliver_to_a_client_that_is_away_is_dropped(world: World, desk: Desk) -> None:
    """A delivery to a client that is away is dropped, because it belongs to the connection."""
    client = world.client("c", session_expiry=99)
    client.lose()
    desk.effects = [Deliver("c", Publish("note", b"x", 1))]
    world.client("d").publish("desk", b"", 1)
    assert world.client("c", clean_start=False).received() == []


def test_kick(world: World, desk: Desk) -> None:
    """A kicked client gets its acknowledgement, then DISCONNECT with code and reason, and its will is sent."""
    watcher = world.client("w")
    watcher.subscribe("will")
    client = world.client("c", will=Will("will"), request_problem_information=1)
    desk.effects = [
        DisconnectClient("c", ReasonCode.TOPIC_NAME_INVALID, "no such desk"),
        DisconnectClient("nobody", 0x80, ""),
    ]
    packet_id = client.publish("desk", b"", 1)
    puback, disconnect = client.received()
    assert puback == Puback(packet_id)
    assert isinstance(disconnect, Disconnect)
    assert disconnect.reason_code == ReasonCode.TOPIC_NAME_INVALID
    assert disconnect.properties.reason_string == "no such desk"
    assert len(watcher.messages()) == 1
    assert desk.gone == ["c"]


def test_the_application_hears_of_every_lost_connection(world: World, desk: Desk) -> None:
    """The application is told once of each connection that is lost, left or taken over, also if the session lives
    on."""
    world.client("lost", session_expiry=9).lose()
    leaving = world.client("left")
    leaving.send(Disconnect())
    leaving.lose()
    old = world.client("twice")
    world.client("twice")
    old.lose()
    assert desk.gone == ["lost", "left", "twice"]


def test_a_fault_refuses_the_request_only(world: World, desk: Desk) -> None:
    """A fault of the application refuses its request (PUBACK 0x83); connection and broker go on, and the runtime logs
    it."""
    client = world.client("c")
    desk.error = ValueError("bug")
    packet_id = client.publish("desk", b"", 1)
    assert client.one(Puback) == Puback(packet_id, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
    desk.deadline = world.monotonic
    world.broker.tick(world.now)
    world.client("gone").lose()
    assert world.broker.reports.take_faults() == [desk.error] * 3
    desk.error = None
    client.publish("desk", b"", 1)
    assert client.one(Puback).reason_code == 0


@pytest.mark.parametrize(
    "broken",
    [
        Route(Publish("reply/#", b"", 1)),
        Route(Publish("", b"", 1)),
        Deliver("c", Publish("", b"", 1)),
        DisconnectClient("c", 0x01, "no reason code of DISCONNECT"),
    ],
)
def test_an_effect_that_mqtt_has_no_form_for_is_a_fault(world: World, desk: Desk, broken: Effect) -> None:
    """An effect that MQTT cannot express is reported and skipped, and the effects after it are carried out."""
    client = world.client("c", receive_maximum=1)
    client.subscribe("reply/+", "#", qos=1)
    desk.effects = [broken, Route(Publish("reply/1", b"good", 1))]
    client.publish("desk", b"", 1)
    assert [m.payload for m in client.messages()] == [b"good"]
    assert not client.is_ended


def test_a_tick_carries_out_effects(world: World, desk: Desk) -> None:
    """A tick carries out effects only when the application has said that it is due."""
    client = world.client("c")
    client.subscribe("news")
    desk.effects = [Route(Publish("news", b"x"))]
    desk.deadline = world.monotonic + 5
    world.sleep(4.9)
    assert client.messages() == []
    world.sleep(0.2)
    assert len(client.messages()) == 1


def test_notifications_of_a_client_that_does_not_acknowledge(desk: Desk) -> None:
    """A client that others' requests cause messages for, and that acknowledges none, is disconnected with 0x97; the
    drop is counted."""
    world = World(application=desk, queued_messages=1)
    client = world.client("c", receive_maximum=1)
    client.subscribe("notes", qos=1)
    desk.effects = [Route(Publish("notes", b"x", 1))]
    other = world.client("other")
    for _ in range(3):
        other.publish("desk", b"", 1)
    *_, last = client.received()
    assert isinstance(last, Disconnect)
    assert last.reason_code == ReasonCode.QUOTA_EXCEEDED
    assert world.broker.counters.dropped_unowned == 1
    assert not other.is_ended


def test_a_will_can_be_a_request(world: World, desk: Desk) -> None:
    """A will may be a request, handled like a message of its client."""
    world.client("c", will=Will("desk", b"bye", 1)).lose()
    assert [(name, message.payload) for name, message in desk.requests] == [("c", b"bye")]
