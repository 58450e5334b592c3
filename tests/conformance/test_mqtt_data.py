"""Chapters 1 and 2: strings, integers, flags, packet identifiers, properties."""

from __future__ import annotations

import pytest
from handmade import Will, ack, connect, frame, properties, publish, subscribe, text, unsubscribe
from handmade_peer import Peer, join
from normative import BOTH, normative
from scenes import refused
from support.broker_driver import World

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82

#: No UTF-8: a lone continuation byte, a cut sequence, an overlong slash, surrogates, a code point beyond the last one.
ILL_FORMED = [b"\x80", b"\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf4\x90\x80\x80", b"\xff"]


def with_string(place: str, value: bytes, version: int) -> bytes:
    """A packet with a string in one of the places where strings are."""
    props = {"content type": 0x03, "response topic": 0x08, "user property": 0x26}
    match place:
        case "topic":
            return publish(value, b"", version=version)
        case "filter":
            return frame(0x82, b"\0\1", b"\0" if version == 5 else b"", text(value), b"\0")
        case "filter to end":
            return frame(0xA2, b"\0\1", b"\0" if version == 5 else b"", text(value))
        case "user property value":
            return publish("t", props=[(0x26, (b"k", value))])
        case "user property":
            return publish("t", props=[(0x26, (value, b"v"))])
        case "third user property":
            return publish("t", props=[(0x26, ("k", "v")), (0x26, ("k", "v")), (0x26, (value, b"v"))])
        case "third user property value":
            return publish("t", props=[(0x26, ("k", "v")), (0x26, ("k", "v")), (0x26, (b"k", value))])
        case "user property of a filter":
            pairs = properties((0x26, ("k", "v")), (0x26, (b"k", value)))
            return frame(0x82, b"\0\1", pairs, text("t"), b"\0")
        case _:
            return publish("t", props=[(props[place], value)])


def connect_with(place: str, value: bytes, version: int) -> bytes:
    """A CONNECT with such a string."""
    match place:
        case "client identifier":
            return connect(value, version)
        case "will topic":
            return connect("c", version, will=Will(value))
        case _:
            return connect("c", version, username=value)


IN_CONNECT = ["client identifier", "will topic", "user name"]
IN_BOTH = ["topic", "filter", "filter to end"]
IN_5 = ["content type", "response topic", "user property", "user property value"]
IN_5 += ["third user property", "third user property value", "user property of a filter"]


@normative(
    v5="1.5.4-1 1.5.4-2 3.1.3-4 3.1.3-11 3.1.3-12 3.1.4-1",
    v3="1.5.3-1 1.5.3-2 3.1.3-4 3.1.3-10 3.1.3-11 3.1.4-1",
)
@BOTH
@pytest.mark.parametrize("place", IN_CONNECT)
@pytest.mark.parametrize("value", [*ILL_FORMED, b"a\0b"])
def test_connect_with_a_bad_string(version: int, place: str, value: bytes) -> None:
    """A bad string in CONNECT is refused with CONNACK 0x81 in 5.0, and with a close without CONNACK in 3.1.1."""
    peer = Peer(World(), version)
    peer.send(connect_with(place, value, version))
    assert peer.is_closed
    if version == 5:
        assert peer.one("CONNACK").code == MALFORMED
    else:
        assert not peer.seen()


@normative(
    v5="1.5.4-1 1.5.4-2 1.5.7-1 3.3.2-1 3.3.2-13 3.3.2-19 3.8.3-1 3.10.3-1 4.7.3-2",
    v3="1.5.3-1 1.5.3-2 3.3.2-1 3.8.3-1 3.10.3-1 4.7.3-2",
)
@pytest.mark.parametrize(
    ("version", "place"), [*((v, place) for v in (4, 5) for place in IN_BOTH), *((5, place) for place in IN_5)]
)
@pytest.mark.parametrize("value", [*ILL_FORMED, b"a\0b"])
def test_a_packet_with_a_bad_string(version: int, place: str, value: bytes) -> None:
    """A bad string in another packet is a DISCONNECT 0x81 in 5.0, and a close in 3.1.1."""
    refused(with_string(place, value, version), MALFORMED, version)


@normative(v5="1.5.4-3", v3="1.5.3-3")
@BOTH
def test_the_byte_order_mark_is_a_character(version: int) -> None:
    """U+FEFF is a character: a topic with it differs from the one without it."""
    peer = join(World(), version=version)
    peer.subscribe("\ufefft")
    peer.publish(b"\xef\xbb\xbft")
    peer.publish("t")
    assert [message.topic for message in peer.messages()] == ["\ufefft"]


@BOTH
@pytest.mark.parametrize("character", ["\x01", "\x1f", "\x7f", "\x9f"])
def test_control_characters_in_names(version: int, character: str) -> None:
    """Control characters are refused, as 1.5.4 allows, in topics, filters and the names of CONNECT, but not in
    properties. A client identifier with one gets the code that there is for it."""
    for packet in (publish(character, b"x", version=version), subscribe(1, character, version=version)):
        refused(packet, MALFORMED, version)
    peer = Peer(World(), version)
    peer.send(connect("c" + character, version=version))
    assert peer.is_closed
    raw = peer.raw()
    assert (raw[0], raw[2:4]) == (0x20, b"\0\x02" if version == 4 else b"\0\x85")


def test_strings_take_every_other_character() -> None:
    """Non-characters and code points beyond U+FFFF are accepted, although a server may refuse them."""
    peer = join(World())
    peer.subscribe("#")
    for topic in ("\ufffe", "\U0010ffff", "a b", "ä/ö"):
        peer.publish(topic)
        assert peer.one("PUBLISH").topic == topic


@normative(v5="1.5.5-1")
@pytest.mark.parametrize(
    "packet",
    [
        bytes.fromhex("C0 80 00"),  # PINGREQ, remaining length 0 in two bytes
        bytes.fromhex("30 85 80 00") + b"\0\1t\0x",  # and 5 in three
        bytes.fromhex("30 85 80 80 00") + b"\0\1t\0x",
        frame(0x30, text("t"), bytes.fromhex("80 00")),  # property length
        frame(0x82, b"\0\1", bytes.fromhex("03 0B 81 00"), text("t"), b"\0"),  # subscription identifier
        frame(0x82, b"\0\1", bytes.fromhex("04 0B 81 80 00"), text("t"), b"\0"),
    ],
)
def test_integers_that_are_longer_than_necessary(packet: bytes) -> None:
    """An integer in more bytes than needed is malformed (0x81)."""
    refused(packet, MALFORMED)


@BOTH
@pytest.mark.parametrize("first", [0x10, 0x30, 0x82, 0xC0, 0xE0])
def test_a_length_of_five_bytes(version: int, first: int) -> None:
    """A length of five bytes is malformed (0x81) before the rest of the packet arrives."""
    refused(bytes([first]) + b"\xff\xff\xff\xff\x7f", MALFORMED, version)


@normative(
    v5="2.1.3-1 3.6.1-1 3.8.1-1 3.10.1-1 3.14.1-1 3.15.1-1 4.13.1-1",
    v3="2.2.2-1 2.2.2-2 3.6.1-1 3.8.1-1 3.10.1-1 3.14.1-1 4.8.0-1",
)
@BOTH
@pytest.mark.parametrize("kind", [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
def test_reserved_flags(version: int, kind: int) -> None:
    """Each packet type has one right value of its flags, and others are refused with 0x81; a packet that a client may
    not send at all gets 0x82, whatever its flags."""
    right = 2 if kind in (6, 8, 10) else 0
    for flags in set(range(16)) - {right}:
        refused(frame(kind << 4 | flags, b"\0\1\0"), PROTOCOL_ERROR if kind in (2, 13, 15) else MALFORMED, version)


@BOTH
def test_packet_type_0(version: int) -> None:
    """Packet type 0 is reserved, whatever its flags."""
    for flags in range(16):
        refused(bytes([flags, 0]), PROTOCOL_ERROR, version)


def test_there_is_no_auth_in_3_1_1() -> None:
    """Packet type 15, AUTH, is reserved in 3.1.1."""
    refused(bytes.fromhex("F0 00"), None, 4)


@normative(v5="2.2.1-2", v3="2.3.1-5")
@BOTH
def test_qos_0_has_no_packet_identifier(version: int) -> None:
    """A QoS 0 message has no packet identifier: none is read from it, and none is written."""
    peer = join(World(), version=version)
    peer.subscribe(("t", 2))
    payload = b"\0\1x"
    peer.publish("t", payload)
    expected = b"\0\1t" + (b"\0" if version == 5 else b"") + payload
    assert peer.raw() == bytes([0x30, len(expected)]) + expected


@normative(v3="2.3.1-1")
@BOTH
@pytest.mark.parametrize("kind", ["PUBLISH 1", "PUBLISH 2", "SUBSCRIBE", "UNSUBSCRIBE"])
def test_packet_identifier_0(version: int, kind: str) -> None:
    """Packet identifier 0 is a protocol error, and in SUBSCRIBE and UNSUBSCRIBE malformed, as mosquitto has it."""
    packets = {
        "PUBLISH 1": publish("t", b"", 1, 0, version),
        "PUBLISH 2": publish("t", b"", 2, 0, version),
        "SUBSCRIBE": subscribe(0, "t", version=version),
        "UNSUBSCRIBE": unsubscribe(0, "t", version=version),
    }
    refused(packets[kind], PROTOCOL_ERROR if kind.startswith("PUBLISH") else MALFORMED, version)


@normative(v5="2.2.1-4 4.3.2-1 4.3.3-1", v3="2.3.1-4 4.3.2-1 4.3.3-1", more="Q3")
@BOTH
def test_the_servers_packet_identifiers(version: int) -> None:
    """The server's packet identifiers are never 0, wrap after 65,535, and skip those in use."""
    peer = join(World(), version=version)
    peer.subscribe(("t", 2))
    peer.publish("t", b"", 1)
    peer.publish("t", b"", 2)
    _, stuck, _, stuck_too = peer.seen()
    in_use = {stuck.packet_id, stuck_too.packet_id}
    peer.connection.session.outbound._last_id = 0xFFFC  # as if it had sent so many
    used = []
    for _ in range(8):
        peer.publish("t", b"", 1)
        (last,) = peer.messages()
        used.append(last.packet_id)
        peer.send(ack(0x40, last.packet_id))
    assert in_use == {1, 2}
    assert used == [0xFFFD, 0xFFFE, 0xFFFF, 3, 4, 5, 6, 7]


@normative(v5="2.2.1-5 2.2.1-6 3.8.4-2 3.10.4-5", v3="2.3.1-6 2.3.1-7 3.8.4-2 3.10.4-4")
@BOTH
def test_acknowledgements_carry_the_identifier(version: int) -> None:
    """PUBACK, PUBREC, PUBCOMP, SUBACK, UNSUBACK and PUBREL carry the identifier of what they answer."""
    peer = join(World(), version=version)
    peer.send(subscribe(0x1234, ("t", 2), version=version))
    peer.send(publish("nobody", b"", 1, 0xFFFF, version), publish("t", b"", 2, 0x0102, version))
    suback, puback, pubrec, message = peer.seen()
    assert (suback.packet_id, puback.packet_id, pubrec.packet_id) == (0x1234, 0xFFFF, 0x0102)
    peer.send(b"\x62\x02\x01\x02", b"\x50\x02" + message.packet_id.to_bytes(2, "big"))
    pubcomp, pubrel = peer.seen()
    assert (pubcomp.kind, pubcomp.packet_id) == ("PUBCOMP", 0x0102)
    assert (pubrel.kind, pubrel.packet_id) == ("PUBREL", message.packet_id)
    peer.send(unsubscribe(0x4321, "t", version=version))
    assert peer.one("UNSUBACK").packet_id == 0x4321


@normative(v5="2.2.2-1", more="F14")
def test_no_properties_are_a_length_of_zero() -> None:
    """A packet without properties has a property length of zero, and one without that length is malformed."""
    world = World(receive_maximum=0xFFFF, usual_receive_maximum=0xFFFF, topic_alias_maximum=0)
    peer = Peer(world)
    peer.send(connect())
    connack = peer.raw()
    assert connack == bytes.fromhex("20 03 00 00 00")
    peer.send(subscribe(1, "t"), publish("t", b"x"), unsubscribe(2, "t"))
    assert peer.raw() == bytes.fromhex("90 04 00 01 00 00   30 05 00 01 74 00 78   B0 04 00 02 00 00")
    peer.send(bytes.fromhex("30 03 00 01 74"))
    peer.ended(MALFORMED)


@pytest.mark.parametrize(
    "packet",
    [
        connect()[:12] + b"\x05\x11\0\0\0\1" + connect()[13:],  # longer than the remaining length says
        frame(0x30, text("t"), b"\x05\x01\x01"),  # properties that go beyond the packet
        frame(0x30, text("t"), b"\x02\x02\0"),  # a value that goes beyond the properties
        frame(0x30, b"\0\7t"),  # a topic that goes beyond the packet
        frame(0x82, b"\0\1\0\0\1t"),  # a filter without options
        frame(0x82, b"\0"),
        frame(0x40, b"\0"),
        frame(0xC0, b"\0"),  # PINGREQ has no body
        frame(0x40, b"\0\1\0\0\0"),  # bytes behind the properties
        frame(0xE0, b"\0\0\0"),
    ],
)
def test_lengths_that_disagree(packet: bytes) -> None:
    """A length that disagrees with its packet is malformed (0x81), and nothing after the packet is read."""
    peer = join(World())
    peer.send(packet, bytes.fromhex("C0 00") * 4)
    assert peer.is_closed
    assert peer.seen()[-1].kind == "DISCONNECT"
