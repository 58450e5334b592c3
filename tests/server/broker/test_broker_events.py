"""What a program hears that asked to be told of clients: all that was accepted and done, in order, and nothing else."""

from __future__ import annotations

from typing import Any

import attrs
from support.broker_driver import Allowed, Client, Desk, World
from support.broker_invariants import audit

from statestore_client.mqtt.packets import (
    Disconnect,
    Publish,
    PublishProperties,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
    WillProperties,
)
from statestore_client.server.broker import Admitted, Connection


@attrs.define(eq=False)
class Notes:
    """One line for each event."""

    lines: list[str] = attrs.Factory(list)

    def connected(self, connection: Connection, client_id: str) -> None:
        assert connection.session is not None
        self.lines.append(f"+{client_id}")

    def disconnected(self, connection: Connection, client_id: str) -> None:
        assert connection.ending is not None
        self.lines.append(f"-{client_id}")

    def subscribed(self, client_id: str, topic_filter: str, qos: int | None) -> None:
        self.lines.append(f"{client_id} {topic_filter} {qos}")

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        self.lines.append(f"{client_id} no {topic_filter}")

    def published(self, client_id: str, packet: Publish) -> None:
        self.lines.append(f"{client_id} {packet.topic}={packet.payload.decode()}")

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


class Rules:
    """A gatekeeper with the same list of topics for everybody."""

    def __init__(self, *topics: str) -> None:
        self.topics = frozenset(topics)

    def authenticate(self, credentials: Any) -> Admitted:
        return Admitted()

    def permissions(self, user: str | None, client_id: str) -> Allowed:
        return Allowed(self.topics)


def test_all_that_clients_do_is_told_in_order() -> None:
    """Events are told in order: a client that is taken over goes before its successor comes, and its will follows."""
    notes = Notes()
    world = World(events=notes)
    client = world.client("c", will=Will("w", b"gone"))
    client.subscribe("a/+", qos=1)
    client.send(Unsubscribe(9, ("a/+",)), Publish("t", b"1", 2, packet_id=1), Publish("t", b"1", 2, packet_id=1))
    world.client("c").send(Disconnect())
    assert notes.take() == ["+c", "c a/+ 1", "c no a/+", "c t=1", "-c", "c w=gone", "+c", "-c"]
    assert not audit(world.broker)


def test_a_message_is_told_with_its_topic_and_without_its_alias() -> None:
    """A message is told with its topic, and without its alias, which belongs to the connection."""
    notes = Notes()
    client = World(events=notes).client()
    alias = PublishProperties(topic_alias=1)
    client.send(Publish("t", b"1", properties=alias), Publish("", b"2", properties=alias))
    assert notes.take() == ["+c", "c t=1", "c t=2"]


def test_a_filter_that_is_refused_is_told_so_although_it_was_granted_before() -> None:
    """A refused filter is told as refused, although an earlier SUBSCRIBE was granted."""
    notes, rules = Notes(), Rules("a")
    world = World(events=notes, gatekeeper=rules)
    client = world.client()
    client.subscribe("a")
    session = client.connection.session
    assert session is not None
    session.permissions = Allowed(frozenset())
    client.subscribe("a")
    assert client.granted == (0x87,)
    assert notes.take() == ["+c", "c a 0", "c a None"]


def test_a_subscribe_that_ends_its_connection_is_told_as_refused() -> None:
    """All filters of a SUBSCRIBE that ends its connection are told as refused."""
    notes = Notes()
    world = World(events=notes, topic_levels=2)
    client = world.client()
    client.subscribe("a")
    client.send(Subscribe(2, (Subscription("a"), Subscription("b/c/d"))))
    assert notes.take() == ["+c", "c a 0", "c a None", "c b/c/d None", "-c"]


def test_a_message_for_many_is_told_when_it_is_accepted() -> None:
    """A message for many is told when its copies are planned, and not if a subscriber without room refuses it."""
    notes = Notes()
    world = World(events=notes, when_full="refuse", queued_messages=1, in_flight=1)
    members = [world.client(f"m{number}", session_expiry=60) for number in range(300)]
    for member in members:
        member.subscribe("t", qos=1)
    publisher = world.client("p")
    notes.take()
    told: list[list[str]] = []
    for payload in (b"1", b"2", b"3"):
        publisher.publish("t", payload, qos=1)
        assert notes.take() == []
        publisher.received()
        told.append(notes.take())
    assert told == [["p t=1"], ["p t=2"], []]


def test_what_goes_nowhere_is_not_told() -> None:
    """A will on a topic of servers does not go out and is not told, and nothing that the application fails over is."""
    notes = Notes()
    world = World(events=notes, application=Desk(error=RuntimeError("a defect")))
    for topic in ("fine", "$SYS/counterfeit", "desk"):
        world.client("c", will=Will(topic, b"w")).lose()
    world.client("p").publish("desk", b"1", qos=1)
    assert notes.take() == ["+c", "-c", "c fine=w", "+c", "-c", "+c", "-c", "+p"]


def test_a_will_that_is_no_longer_permitted_is_not_told() -> None:
    """A will that rules have forbidden since CONNECT is not told."""
    notes, rules = Notes(), Rules("w")
    world = World(events=notes, gatekeeper=rules)
    later = Will("w", b"gone", properties=WillProperties(will_delay=5))
    client = world.client("c", will=later, session_expiry=60)
    client.lose()
    rules.topics = frozenset()
    world.broker.review(world.now)
    world.sleep(10)
    assert notes.take() == ["+c", "-c"]


def test_who_is_told_changes_nothing() -> None:
    """The same packets go out with and without a receiver of events."""
    answers = []
    for events in (None, Notes()):
        world = World(events=events)
        client: Client = world.client("c", will=Will("w"))
        client.subscribe("#", qos=2)
        client.publish("t", b"1", qos=2)
        answers.append(client.received())
    assert answers[0] == answers[1]
