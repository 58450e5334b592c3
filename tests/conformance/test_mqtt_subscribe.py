"""SUBSCRIBE and SUBACK (3.8, 3.9), subscription identifiers (3.3.4), topic filters (4.7)."""

from __future__ import annotations

import pytest
from handmade import ack, frame, publish, subscribe, text
from handmade_peer import join
from normative import BOTH, normative
from scenes import OneTopic, refused
from support.broker_driver import World

IDENTIFIER = 0x0B
NO_LOCAL = 0x04


# -- SUBSCRIBE ---------------------------------------------------------------------------------------------------------


@normative(v5="3.8.4-1 3.8.4-6 3.8.4-7 3.9.3-1 3.9.3-2", v3="3.8.4-1 3.8.4-5 3.9.3-1 3.9.3-2", more="U1")
def test_the_bytes_of_suback() -> None:
    """SUBACK has one code for each filter, in order."""
    peer = join(World())
    peer.send(subscribe(0x0A0B, ("a", 2), ("b", 0), ("c", 1)))
    assert peer.raw() == bytes.fromhex("90 06 0A 0B 00 02 00 01")
    old = join(World(), version=4)
    old.send(subscribe(0x0A0B, ("a", 2), ("b", 0), ("c", 1), version=4))
    assert old.raw() == bytes.fromhex("90 05 0A 0B 02 00 01")


@normative(v5="3.8.4-6 3.8.4-7 3.9.3-1 3.9.3-2", v3="3.8.4-5 3.9.3-1 3.9.3-2", more="F7 I3 U1")
@BOTH
def test_refused_filters(version: int) -> None:
    """A refused filter gets 0x87 in 5.0 and 0x80 in 3.1.1 in its place, and the others are granted."""
    world = World(gatekeeper=OneTopic())
    peer = join(world, version=version)
    peer.subscribe(("other", 1), ("mine", 2), ("another", 0))
    refused = 0x87 if version == 5 else 0x80
    assert peer.granted == (refused, 2, refused)


@normative(v5="3.8.4-6 3.9.3-2", v3="3.9.3-2")
@BOTH
def test_too_many_subscriptions(version: int) -> None:
    """A subscription beyond the limit gets 0x97 in 5.0 and 0x80 in 3.1.1; replacing one is always possible."""
    peer = join(World(subscriptions_per_session=2), version=version)
    peer.subscribe("a", "b", "c")
    assert peer.granted == (0, 0, 0x97 if version == 5 else 0x80)
    peer.subscribe(("a", 1))
    assert peer.granted == (1,)


@normative(v5="3.8.3-2", v3="3.8.3-3 4.8.0-1")
@BOTH
def test_subscribe_without_a_filter(version: int) -> None:
    """SUBSCRIBE without a filter is refused with 0x81, as mosquitto has it, where the standard says protocol error."""
    refused(subscribe(1, version=version), 0x81, version)


@normative(v5="3.8.3-5")
@pytest.mark.parametrize("options", [0x40, 0x80, 0xC0, 0x41, 0x03, 0x30])
def test_reserved_subscription_options(options: int) -> None:
    """Reserved subscription options, QoS 3 and retain handling 3 are malformed."""
    refused(subscribe(1, ("t", options)), 0x81)


@normative(v3="3-8.3-4")
@pytest.mark.parametrize("options", [0x03, 0x04, 0x08, 0x10, 0x40, 0x80, 0xFF])
def test_reserved_bits_of_the_requested_qos(options: int) -> None:
    """Reserved bits of the requested QoS in 3.1.1 are answered with a close."""
    refused(subscribe(1, ("t", options), version=4), None, 4)


@normative(v3="3.8.3-2")
def test_a_server_without_wildcards() -> None:
    """A server without wildcards refuses filters that have some, with 0x80 in 3.1.1 and 0xA2 in 5.0 (CONNACK tells it
    before)."""
    world = World(wildcards_available=False)
    old = join(world, "o", 4)
    old.subscribe("a/b", "a/+", "#")
    assert old.granted == (0, 0x80, 0x80)
    new = join(world, "n")
    assert new.connack.prop(0x28) == 0
    new.send(subscribe(1, "a/+"))
    new.ended(0xA2)


@normative(v5="3.8.4-8 3.8.4-7", v3="3.8.4-6 3.8.4-5", more="Q5 Q0")
@BOTH
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_lower_qos_counts(version: int, granted: int, qos: int) -> None:
    """A message is delivered at the lower QoS of publication and subscription."""
    peer = join(World(), version=version)
    peer.subscribe(("t", granted))
    assert peer.granted == (granted,)
    peer.publish("t", b"x", qos)
    (message,) = peer.messages()
    assert message.qos == min(granted, qos)
    assert (message.packet_id == 0) == (message.qos == 0)


@normative(v5="3.8.4-3 3.8.4-4", v3="3.8.4-3", more="U2")
@BOTH
def test_replacing_a_subscription(version: int) -> None:
    """A repeated SUBSCRIBE replaces QoS and identifier, if only by none, and what was queued before is delivered."""
    peer = join(World(), version=version)
    first, second = ([(IDENTIFIER, 1)], [(IDENTIFIER, 2)]) if version == 5 else ([], [])
    peer.send(
        subscribe(1, ("t", 2), version=version, props=first),
        publish("t", b"before", 2, 1, version),
        subscribe(2, ("t", 0), version=version, props=second),
        publish("t", b"after", 2, 2, version),
    )
    messages = peer.messages()
    assert [(message.payload, message.qos) for message in messages] == [(b"before", 2), (b"after", 0)]
    if version == 5:
        assert [message.all(IDENTIFIER) for message in messages] == [[1], [2]]
        peer.subscribe("t")
        peer.publish("t")
        assert peer.one("PUBLISH").all(IDENTIFIER) == []


@normative(v5="3.8.4-5", v3="3.8.4-4")
@BOTH
def test_the_same_filter_twice_in_one_packet(version: int) -> None:
    """The second of two equal filters in one packet replaces the first, and there is one SUBACK."""
    peer = join(World(), version=version)
    peer.subscribe(("t", 2), ("t", 1))
    assert peer.granted == (2, 1)
    peer.publish("t", b"x", 2)
    (message,) = peer.messages()
    assert message.qos == 1


@normative(v5="3.8.3-3")
def test_no_local() -> None:
    """No Local drops messages of the own client identifier on any connection; another overlapping subscription still
    counts."""
    world = World()
    peer = join(world, "c", expiry=60)
    peer.subscribe(("t/+", NO_LOCAL | 1))
    other = join(world, "d")
    peer.publish("t/1", b"own", 1)
    other.publish("t/1", b"other", 1)
    (message,) = peer.messages()
    assert message.payload == b"other"
    peer.send(ack(0x40, message.packet_id))
    peer.subscribe(("t/2", 0))
    peer.publish("t/2", b"both")
    assert peer.payloads() == [b"both"]
    peer.lose()
    other.publish("t/1", b"meanwhile", 1)
    again = join(world, "c", expiry=60, clean=False)
    again.publish("t/1", b"own again", 1)
    assert [message.payload for message in again.after] == [b"meanwhile"]
    assert again.payloads() == []


# -- subscription identifiers and overlapping filters ------------------------------------------------------------------


@normative(v5="3.3.4-2 3.3.4-3 3.3.4-4", v3="3.3.5-1", more="F3")
@BOTH
def test_overlapping_subscriptions(version: int) -> None:
    """Of overlapping subscriptions one copy is sent, at the highest QoS, with the identifiers of those that have
    one."""
    peer = join(World(), version=version)
    for wish, number in ((("a/b", 0), 1), (("a/+", 2), 268_435_455), (("a/#", 1), 0), (("c/#", 2), 3)):
        peer.subscribe(wish, props=[(IDENTIFIER, number)] * (number > 0))
    peer.publish("a/b", b"x", 2)
    (message,) = peer.messages()
    assert message.qos == 2
    assert sorted(message.all(IDENTIFIER)) == ([1, 268_435_455] if version == 5 else [])


@normative(v5="3.3.4-3 3.3.4-4")
def test_the_same_identifier_twice() -> None:
    """A message that matches two filters of one SUBSCRIBE carries their identifier twice, which the standard allows."""
    peer = join(World())
    peer.subscribe("a/b", "a/#", props=[(IDENTIFIER, 5)])
    peer.publish("a/b")
    assert set(peer.one("PUBLISH").all(IDENTIFIER)) == {5}


# -- filters -----------------------------------------------------------------------------------------------------------


@normative(v5="4.7.1-1 4.7.1-2 4.7.3-1", v3="4.7.1-2 4.7.1-3 4.7.3-1")
@BOTH
@pytest.mark.parametrize("name", ["", "a#", "#/a", "a/#/b", "##", "a/##", "+a", "a+", "a/+b", "a/b+/c", "++", "a/++"])
@pytest.mark.parametrize("packet", [0x82, 0xA2])
def test_filters_that_are_none(version: int, name: str, packet: int) -> None:
    """An invalid filter is malformed in SUBSCRIBE and UNSUBSCRIBE."""
    peer = join(World(), version=version)
    props = b"\0" if version == 5 else b""
    peer.send(frame(packet, b"\0\1", props, text(name), b"\0" if packet == 0x82 else b""))
    peer.ended(0x81)


MATCHES = [
    (
        "sport/tennis/player1/#",
        ["sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/x/y"],
    ),
    ("sport/#", ["sport", "sport/", "sport/tennis", "sport/tennis/player1"]),
    ("#", ["sport", "sport/tennis", "/finance", "/", "a//b"]),
    ("sport/tennis/+", ["sport/tennis/player1", "sport/tennis/"]),
    ("sport/+", ["sport/", "sport/x"]),
    ("+", ["sport", "finance"]),
    ("+/+", ["/finance", "a/b", "/"]),
    ("/+", ["/finance", "/"]),
    ("+/tennis/#", ["sport/tennis", "sport/tennis/x", "/tennis"]),
    ("$x/#", ["$x", "$x/x", "$x/x/y"]),
    ("$x/monitor/+", ["$x/monitor/Clients"]),
    ("a/+/+/b", ["a///b", "a/x/y/b"]),
]
NO_MATCHES = [
    ("sport/tennis/+", ["sport/tennis", "sport/tennis/player1/ranking", "Sport/tennis/x"]),
    ("sport/+", ["sport", "sport/a/b"]),
    ("+", ["/finance", "a/b", "$x"]),
    ("#", ["$x", "$x/x", "$"]),
    ("+/monitor/Clients", ["$x/monitor/Clients"]),
    ("+/#", ["$x/x", "$x"]),
    ("sport/#", ["sports", "/sport", "sport2/x"]),
    ("a/b", ["a", "a/b/", "/a/b", "a/b/c", "A/B"]),
]


@normative(v5="4.7.1-1 4.7.1-2 4.7.2-1 3.3.2-3", v3="4.7.1-2 4.7.1-3 4.7.2-1 3.3.2-3", more="U4 U5")
@BOTH
def test_what_filters_match(version: int) -> None:
    """Filters match what the examples of chapter 4.7 say, and their neighbours."""
    for number, (name, topics) in enumerate(MATCHES + NO_MATCHES):
        peer = join(World(), version=version)
        peer.subscribe(name)
        for topic in topics:
            peer.publish(topic)
        found = [message.topic for message in peer.messages()]
        assert found == (topics if number < len(MATCHES) else []), name
