"""Topic aliases (3.3.2.3.4), from clients and to clients."""

from __future__ import annotations

from typing import Any

import pytest
from handmade import publish
from handmade_peer import Peer, join
from normative import normative
from support.broker_driver import World

ALIAS, ALIAS_MAXIMUM, MAXIMUM_SIZE = 0x23, 0x22, 0x27


# -- from clients ------------------------------------------------------------------------------------------------------


@normative(v5="3.3.2-12")
@pytest.mark.parametrize("alias", [1, 2, 10])
def test_an_alias_stands_for_its_topic(alias: int) -> None:
    """A topic alias is set by a message with a topic and used by one without, at every QoS; subscribers see the topic
    alone."""
    peer = join(World(topic_alias_maximum=10))
    assert peer.connack.prop(ALIAS_MAXIMUM) == 10
    peer.subscribe(("#", 2))
    use = [(ALIAS, alias)]
    peer.publish("one", b"", props=use)
    for qos in (0, 1, 2):
        peer.publish("", b"", qos, props=use)
    peer.publish("two", b"", props=use)
    peer.publish("", b"", props=use)
    messages = peer.messages()
    assert [message.topic for message in messages] == ["one"] * 4 + ["two"] * 2
    assert not any(message.props for message in messages)


def test_both_directions_and_all_clients_have_their_own() -> None:
    """Each direction of each connection has aliases of its own."""
    world = World()
    one, two = join(world, "1"), join(world, "2")
    reader = join(world, "r", props=[(ALIAS_MAXIMUM, 5)])
    reader.subscribe("#")
    one.publish("t/one", props=[(ALIAS, 1)])
    two.publish("t/two", props=[(ALIAS, 1)])
    one.publish("", props=[(ALIAS, 1)])
    reader.publish("t/three", props=[(ALIAS, 1)])
    assert [(message.topic, message.prop(ALIAS)) for message in reader.messages()] == [
        ("t/one", 1),
        ("t/two", 2),
        ("", 1),
        ("t/three", 3),
    ]


@normative(v5="3.2.2-17 3.2.2-18 3.3.2-8 3.3.2-9")
@pytest.mark.parametrize(
    ("maximum", "topic", "alias", "code"),
    [(3, "t", 0, 0x94), (3, "t", 4, 0x94), (0, "t", 1, 0x94), (3, "", 0, 0x94), (3, "", 4, 0x94), (3, "", 3, 0x82)],
)
def test_aliases_that_are_not_allowed(maximum: int, topic: str, alias: int, code: int) -> None:
    """Alias 0 and one above the maximum are refused with 0x94, and one without a topic yet with 0x82."""
    peer = join(World(topic_alias_maximum=maximum))
    peer.publish(topic, props=[(ALIAS, alias)])
    peer.ended(code)


@normative(v5="3.3.2-7")
def test_aliases_end_with_their_connection() -> None:
    """A topic alias ends with its connection, even when the session goes on."""
    world = World()
    peer = join(world, "c", expiry=60)
    peer.publish("t", props=[(ALIAS, 1)])
    peer.lose()
    peer = join(world, "c", expiry=60, clean=False)
    peer.publish("", props=[(ALIAS, 1)])
    peer.ended(0x82)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_message_defines_its_alias_nevertheless(qos: int) -> None:
    """A refused message sets its alias all the same."""
    peer = join(World())
    peer.subscribe("#")
    peer.publish("t", b"\xff", qos, props=[(0x01, 1), (ALIAS, 1)])
    assert [packet.code for packet in peer.seen()] == [0x99]
    peer.publish("", b"x", props=[(ALIAS, 1)])
    assert peer.one("PUBLISH").topic == "t"


# -- to clients --------------------------------------------------------------------------------------------------------


def heard(peer: Peer) -> list[tuple[str, Any]]:
    return [(message.topic, message.prop(ALIAS)) for message in peer.messages()]


@normative(v5="3.1.2-27 3.3.2-11")
@pytest.mark.parametrize("props", [(), ((ALIAS_MAXIMUM, 0),)])
def test_no_aliases_for_those_who_want_none(props: Any) -> None:
    """A client whose alias maximum is absent or 0 gets every message with its topic and no alias."""
    peer = join(World(), props=props)
    peer.subscribe(("#", 1))
    for _ in range(3):
        peer.publish("a/topic")
    assert heard(peer) == [("a/topic", None)] * 3


@normative(v5="3.1.2-26 3.3.2-11", more="F6")
def test_aliases_for_those_who_want_some() -> None:
    """The server sends topic and alias first and the alias alone afterwards; when all are taken, it sends topics."""
    peer = join(World(), props=[(ALIAS_MAXIMUM, 2)])
    peer.subscribe(("#", 2))
    for topic in ("t/1", "t/2", "t/3", "t/1", "t/3", "t/2"):
        peer.publish(topic)
    assert heard(peer) == [("t/1", 1), ("t/2", 2), ("t/3", None), ("", 1), ("t/3", None), ("", 2)]


@normative(more="F6")
def test_aliases_at_every_qos() -> None:
    """Messages of QoS 0, 1 and 2 share aliases, and leave in the order in which the aliases were set."""
    peer = join(World(), props=[(ALIAS_MAXIMUM, 1)])
    peer.subscribe(("#", 2))
    for qos in (2, 1, 0):
        peer.publish("a/topic", b"x", qos)
    messages = peer.messages()
    assert [(message.topic, message.qos, message.prop(ALIAS)) for message in messages] == [
        ("a/topic", 2, 1),
        ("", 1, 1),
        ("", 0, 1),
    ]


@normative(v5="3.3.2-7 4.4.0-1")
def test_the_servers_aliases_end_with_the_connection() -> None:
    """On a new connection a message that is sent again has its topic, and no alias if the client allows none."""
    world = World()
    peer = join(world, "c", expiry=60, props=[(ALIAS_MAXIMUM, 9)])
    peer.subscribe(("#", 2))
    peer.publish("a/topic", b"1", 1)
    peer.publish("a/topic", b"2", 2)
    assert heard(peer) == [("a/topic", 1), ("", 1)]
    peer.lose()
    again = join(world, "c", expiry=60, clean=False, props=[(ALIAS_MAXIMUM, 9)])
    assert [(message.topic, message.prop(ALIAS), message.dup) for message in again.after] == [
        ("a/topic", 1, 1),
        ("", 1, 1),
    ]
    again.lose()
    none = join(world, "c", expiry=60, clean=False)
    assert [(message.topic, message.prop(ALIAS)) for message in none.after] == [("a/topic", None)] * 2


def test_an_alias_is_not_made_by_a_message_that_was_not_sent() -> None:
    """A message that is too large for the client sets no alias, and the next one has the topic."""
    peer = join(World(), props=[(ALIAS_MAXIMUM, 1), (MAXIMUM_SIZE, 40)])
    peer.subscribe("#")
    peer.publish("a/topic", bytes(60))
    peer.publish("a/topic", b"x")
    assert heard(peer) == [("a/topic", 1)]


def test_an_alias_that_makes_the_packet_too_large() -> None:
    """If the three bytes of an alias would make a packet too large, it is sent without an alias."""
    peer = join(World(), props=[(ALIAS_MAXIMUM, 1), (MAXIMUM_SIZE, 40)])
    peer.subscribe("#")
    peer.publish("a", bytes(34))
    assert [(message.prop(ALIAS), message.size) for message in peer.messages()] == [(None, 40)]


def test_large_payloads_with_aliases() -> None:
    """Large payloads, which are not copied into their packets, have aliases as well."""
    peer = join(World(), props=[(ALIAS_MAXIMUM, 1)])
    peer.subscribe("#")
    payload = bytes(range(256)) * 300
    peer.send(publish("a/topic", payload), publish("a/topic", payload))
    assert [(m.topic, m.prop(ALIAS), m.payload == payload) for m in peer.messages()] == [
        ("a/topic", 1, True),
        ("", 1, True),
    ]


def test_the_memory_of_aliases_is_given_back() -> None:
    """The broker counts the memory of a connection's aliases, and gives it back when the connection ends."""
    world = World()
    peer = join(world, props=[(ALIAS_MAXIMUM, 9)])
    peer.subscribe("#")
    before = world.broker.usage.held_bytes
    peer.publish("a/topic" * 10)
    peer.seen()
    assert world.broker.usage.held_bytes == before + 70
    peer.lose()
    assert world.broker.usage.held_bytes == 0
