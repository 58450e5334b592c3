"""CONNECT and CONNACK (3.1, 3.2): who may come in, and what is said to the others."""

from __future__ import annotations

import pytest
from handmade import Will, ack, connect, frame, publish, subscribe, text
from handmade_peer import Peer, join
from normative import BOTH, normative
from scenes import Doorman, said
from support.broker_driver import World

LEGAL = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


# -- the first packet --------------------------------------------------------------------------------------------------


@normative(v5="3.1.0-1 3.2.0-1 3.14.0-1", v3="3.1.0-1 3.2.0-1", more="F10")
@pytest.mark.parametrize(
    "packet",
    [
        bytes.fromhex("C0 00"),
        bytes.fromhex("E0 00"),
        publish("t", b"x"),
        subscribe(1, "t"),
        bytes.fromhex("F0 00"),
        bytes.fromhex("20 02 00 00"),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_the_first_packet_is_connect(packet: bytes) -> None:
    """A connection whose first packet is not CONNECT is closed without an answer, and nothing of the packet is done."""
    world = World()
    reader = join(world, "r")
    reader.subscribe("#")
    peer = Peer(world)
    peer.send(packet)
    assert peer.is_closed
    assert peer.raw() == b""
    assert not reader.seen()


@normative(v5="3.1.0-2 4.13.2-1 3.2.0-2", v3="3.1.0-2 4.8.0-1")
@BOTH
def test_a_second_connect(version: int) -> None:
    """A second CONNECT of any version, whatever is in it, is a protocol error and gets no CONNACK."""
    bad_name = connect("\x01", 5)
    for packet in (connect("c", version), connect("other", 4), connect("other", 5), connect("c", 3), bad_name):
        peer = join(World(), version=version)
        peer.send(packet)
        assert peer.is_closed
        seen = peer.seen()
        assert [packet.kind for packet in seen] == (["DISCONNECT"] if version == 5 else [])
        if version == 5:
            assert seen[0].code == 0x82


@normative(v5="3.1.2-1", v3="3.1.2-1")
@pytest.mark.parametrize("name", ["mqtt", "MQTT ", "MQT", "MQIsdp", "XXXX", "", "MQTTMQTT"])
@BOTH
def test_another_protocol_name(version: int, name: str) -> None:
    """Another protocol name is answered with return code 1 and a close, and begins no session."""
    world = World()
    peer, _ = said(world, connect("c", version, name=name), 4)
    assert peer.is_closed
    assert world.broker.usage.sessions == 0


@normative(v5="3.1.2-2 3.2.2-7 3.2.2-8", v3="3.1.2-2 3.2.2-5")
@pytest.mark.parametrize("level", [0, 1, 2, 3, 6, 7, 127, 128, 255])
def test_another_protocol_level(level: int) -> None:
    """Another protocol level is answered with a CONNACK of 3.1.1 with return code 1, and a close."""
    peer = Peer(World(), 4)
    peer.send(connect("c", level))
    assert peer.raw() == bytes.fromhex("20 02 00 01")
    assert peer.is_closed


@normative(v5="3.1.2-3 3.1.4-1", v3="3.1.2-3 3.1.4-1")
@BOTH
def test_the_reserved_connect_flag(version: int) -> None:
    """A reserved CONNECT flag is refused with 0x81 in 5.0, and with a close without CONNACK in 3.1.1."""
    peer, seen = said(World(), connect("c", version, flags=3), version)
    assert peer.is_closed
    assert [packet.code for packet in seen] == ([0x81] if version == 5 else [])


@normative(
    v5="3.1.2-11 3.1.2-12 3.1.2-13 3.1.4-1",
    v3="3.1.2-11 3.1.2-13 3.1.2-14 3.1.2-15 3.1.4-1",
)
@BOTH
@pytest.mark.parametrize("flags", [0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x3A])
def test_will_flags_without_a_will(version: int, flags: int) -> None:
    """Will QoS or will retain without the will flag is malformed."""
    peer, seen = said(World(), connect("c", version, flags=flags), version)
    assert peer.is_closed
    assert [packet.code for packet in seen] == ([0x81] if version == 5 else [])


@normative(v5="3.1.2-12", v3="3.1.2-14")
@BOTH
def test_the_will_qos(version: int) -> None:
    """A will may have QoS 0, 1 or 2, and QoS 3 is malformed."""
    world = World()
    for qos in (0, 1, 2):
        join(world, f"c{qos}", version, will=Will(qos=qos))
    peer, seen = said(world, connect("c", version, will=Will(), flags=0x1E), version)
    assert peer.is_closed
    assert [packet.code for packet in seen] == ([0x81] if version == 5 else [])


@normative(
    v5="3.1.2-9 3.1.2-16 3.1.2-17 3.1.2-18 3.1.2-19 3.1.3-1 3.1.3-3",
    v3="3.1.2-9 3.1.2-11 3.1.2-18 3.1.2-19 3.1.2-20 3.1.2-21 3.1.3-1 3.1.3-3",
)
@BOTH
@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        (0x02, ["c", "u"]),  # a user name without its flag
        (0x82, ["c"]),  # the flag without a user name
        (0xC2, ["c", "u"]),  # the flags without a password
        (0x82, ["c", "u", "p"]),  # a password without its flag
        (0x06, ["c", "w"]),  # the will flag without a message
        (0x06, ["c"]),
        (0x02, ["c", "w", "m"]),  # a will without its flag
        (0x02, []),  # no client identifier
    ],
)
def test_fields_and_flags_disagree(version: int, flags: int, fields: list[str]) -> None:
    """Flags that contradict the fields are refused with 0x81 in 5.0, and with a close without CONNACK in 3.1.1."""
    will = b"\0" if version == 5 and flags & 4 else b""
    props = b"\0" if version == 5 else b""
    payload = b"".join((will if place == 1 else b"") + text(field) for place, field in enumerate(fields))
    packet = frame(0x10, text("MQTT"), bytes([version, flags, 0, 0]), props, payload)
    peer, seen = said(World(), packet, version)
    assert peer.is_closed
    assert [packet.code for packet in seen] == ([0x81] if version == 5 else [])


@normative(v5="3.1.2-17 3.1.2-19 3.1.3-1", v3="3.1.2-19 3.1.2-21 3.1.3-1")
@BOTH
def test_the_fields_of_connect(version: int) -> None:
    """Client identifier, will, user name and password are read from their places."""
    doorman = Doorman()
    world = World(gatekeeper=doorman)
    reader = join(world, "r", version)
    reader.subscribe(("#", 2))
    peer = join(world, "me", version, will=Will("w", b"m", 1), username="u", password=b"word")
    (_, shown) = doorman.shown
    assert (shown.client_id, shown.username, shown.password) == ("me", "u", b"word")
    peer.lose()
    will = reader.one("PUBLISH")
    assert (will.topic, will.payload, will.qos) == ("w", b"m", 1)


@normative(v3="3.1.2-22")
def test_a_password_without_a_user_name() -> None:
    """A password without a user name is malformed in 3.1.1 and allowed in 5.0."""
    world = World(gatekeeper=Doorman())
    peer, seen = said(world, connect("c", 4, password=b"word"), 4)
    assert peer.is_closed
    assert not seen
    join(world, "c", 5, password=b"word")


# -- client identifiers ------------------------------------------------------------------------------------------------


@normative(v5="3.1.3-5 3.1.3-2", v3="3.1.3-5 3.1.3-2")
@BOTH
def test_client_identifiers(version: int) -> None:
    """A client identifier of 1 to 23 letters and digits, or a longer one with other characters, names a session of its
    own."""
    world = World()
    names = [*LEGAL, LEGAL[:23], LEGAL[-23:], LEGAL, "a/b", "ä ö", "$x", "#"]
    for name in names:
        join(world, name, version, expiry=60)
    assert world.broker.usage.sessions == len(names)
    assert join(world, "a", version, expiry=60, clean=False).connack.flags == 1


@normative(v5="3.1.3-6 3.1.3-7 3.2.2-16", v3="3.1.3-6")
@BOTH
def test_an_empty_client_identifier(version: int) -> None:
    """An empty client identifier gets a unique one, which 5.0 tells in CONNACK and which works like one that was
    given."""
    world = World()
    first, second = join(world, "", version), join(world, "", version)
    assert world.broker.usage.sessions == 2
    assert not first.is_closed
    if version == 5:
        name, other = first.connack.prop(0x12), second.connack.prop(0x12)
        assert name
        assert name != other
        first.lose()
        again = join(world, "", 5, expiry=60)
        again.subscribe(("t", 1))
        again.lose()
        assert join(world, again.connack.prop(0x12), clean=False, expiry=60).connack.flags == 1
        assert join(world, "mine").connack.prop(0x12) is None


@normative(v3="3.1.3-8 3.1.3-9 3.2.2-4 3.2.2-5")
def test_an_empty_client_identifier_without_clean_session() -> None:
    """An empty client identifier without clean session is refused with return code 2 in 3.1.1, and allowed in 5.0."""
    peer = Peer(World(), 4)
    peer.send(connect("", 4, clean=False))
    assert peer.raw() == bytes.fromhex("20 02 00 02")
    assert peer.is_closed
    assert join(World(), "", 5, clean=False).connack.prop(0x12)


@normative(v5="3.1.3-8 3.2.2-6 3.2.2-7", v3="3.1.3-9 3.2.2-4 3.2.2-5")
@BOTH
def test_a_refused_client_identifier(version: int) -> None:
    """A refused client identifier gets 0x85 in 5.0 and 2 in 3.1.1, session present 0, and a close."""
    peer, (connack,) = said(World(client_id_bytes=30), connect("x" * 31, version), version)
    assert (connack.flags, connack.code) == (0, 0x85 if version == 5 else 2)
    assert peer.is_closed


# -- what follows ------------------------------------------------------------------------------------------------------


@normative(v5="3.1.4-2 3.2.2-6 3.2.2-7 3.2.2-8 4.13.2-1", v3="3.2.2-4 3.2.2-5", more="S1")
@BOTH
def test_a_client_that_may_not_come_in(version: int) -> None:
    """An unauthorized client gets 0x86 in 5.0 and 4 in 3.1.1, session present 0 although it has one, and a close."""
    world = World(gatekeeper=Doorman())
    join(world, "c", version, expiry=60, username="u", password=b"word").lose()
    packet = connect("c", version, clean=False, username="u", password=b"guess")
    peer, (connack,) = said(world, packet, version)
    assert (connack.flags, connack.code) == (0, 0x86 if version == 5 else 4)
    assert peer.is_closed


@normative(v3="3.2.2-6")
def test_a_refusal_that_3_1_1_has_no_code_for() -> None:
    """A refusal without a code in 3.1.1, as for a bad will topic, is a close without CONNACK."""
    peer, seen = said(World(), connect("c", 4, will=Will("a/#")), 4)
    assert peer.is_closed
    assert not seen


@normative(v5="3.1.4-6", v3="3.1.4-5")
@BOTH
def test_nothing_is_processed_after_a_refusal(version: int) -> None:
    """A PUBLISH behind a refused CONNECT reaches nobody."""
    world = World(gatekeeper=Doorman())
    reader = join(world, "r", version)
    reader.subscribe("#")
    peer = Peer(world, version)
    peer.send(connect("c", version, username="u", password=b"guess"), publish("t", b"x", version=version))
    peer.one("CONNACK")
    assert not reader.seen()


@normative(v5="3.1.4-5 3.2.0-1 3.2.2-1", v3="3.1.4-4 3.2.0-1")
@BOTH
def test_an_accepted_connect(version: int) -> None:
    """CONNACK with code 0 and reserved bits 0 comes before the answers to what followed CONNECT."""
    peer = Peer(World(), version)
    peer.send(connect("c", version), bytes.fromhex("C0 00"), publish("t", b"", 1, 9, version))
    connack, pong, puback = peer.seen()
    assert (connack.kind, connack.flags, connack.code) == ("CONNACK", 0, 0)
    assert (pong.kind, puback.kind) == ("PINGRESP", "PUBACK")


@normative(v5="3.1.4-3 3.1.3-2", v3="3.1.4-2 3.1.3-2", more="S6")
@BOTH
@pytest.mark.parametrize("clean", [True, False])
def test_take_over(version: int, clean: bool) -> None:
    """A second connection of a client takes over, and the old one is closed, in 5.0 with 0x8E, and changes nothing."""
    world = World()
    old = join(world, "c", version, expiry=60)
    new = join(world, "c", version, expiry=60, clean=clean)
    old.ended(0x8E)
    old.lose()
    assert new.connack.flags == (not clean)
    assert not new.is_closed
    new.send(bytes.fromhex("C0 00"))
    new.one("PINGRESP")
    assert (world.broker.usage.sessions, world.broker.counters.takeovers) == (1, 1)
    assert world.broker.connection_of("c") is new.connection


@normative(v5="3.2.2-1 3.2.2-2 3.2.2-3 3.1.4-4", v3="3.2.2-1 3.2.2-2 3.2.2-3 3.1.4-3", more="F8 S1 S3")
@BOTH
def test_session_present(version: int) -> None:
    """Session present says whether a session goes on."""
    world = World()
    assert join(world, "c", version, clean=False, expiry=60).connack.flags == 0
    assert join(world, "c", version, clean=False, expiry=60).connack.flags == 1
    assert join(world, "c", version, clean=True).connack.flags == 0
    assert join(world, "c", version, clean=True).connack.flags == 0


def test_sessions_go_from_version_to_version() -> None:
    """A client that returns with another protocol version finds its session."""
    world = World()
    old = join(world, "c", 4, clean=False)
    old.subscribe(("t", 1))
    old.lose()
    for version, props in ((5, ((0x26, ("k", "v")),)), (4, ())):
        join(world, "p").publish("t", b"x", 1, props=[(0x26, ("k", "v"))])
        new = join(world, "c", version, clean=False, expiry=60)
        assert new.connack.flags == 1
        assert [message.props for message in new.after] == [props]
        new.send(ack(0x40, new.after[0].packet_id))
        new.lose()
