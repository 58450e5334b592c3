"""PINGREQ, DISCONNECT, AUTH, and packets that a client must not send (3.12 to 3.15, 4.12, 4.13)."""

from __future__ import annotations

from typing import Any

import pytest
from handmade import Seen, Will, auth, connect, disconnect, frame, publish, subscribe
from handmade_peer import Peer, join
from normative import BOTH, normative
from scenes import refused
from support.broker_driver import Allowed, World

from statestore_client.server.broker import Admitted, Credentials, Refusal, Verdict

METHOD, DATA, EXPIRY = 0x15, 0x16, 0x11


class Tokens:
    """Takes method M with the data ``good``; ``late`` is told later."""

    def authenticate(self, credentials: Credentials) -> Verdict | None:
        if credentials.method is None:
            return Admitted()
        if credentials.method != "M":
            return Refusal(0x8C, "unknown method")
        if credentials.data == b"late":
            return None
        return Admitted() if credentials.data == b"good" else Refusal(0x87, "this token is not good")

    def permissions(self, user: str | None, client_id: str) -> Allowed | None:
        return None


def first_answer(world: World, *packets: bytes) -> tuple[Peer, list[Seen]]:
    peer = Peer(world)
    peer.send(*packets)
    return peer, peer.seen()


# -- PINGREQ -----------------------------------------------------------------------------------------------------------


@normative(v5="3.12.4-1", v3="3.12.4-1")
@BOTH
def test_pingreq(version: int) -> None:
    """PINGREQ is answered with PINGRESP."""
    peer = join(World(), version=version)
    peer.send(bytes.fromhex("C0 00 C0 00"))
    assert peer.raw() == bytes.fromhex("D0 00 D0 00")


# -- DISCONNECT --------------------------------------------------------------------------------------------------------


@normative(v5="3.14.4-1 3.14.4-2", v3="3.14.4-3")
@BOTH
def test_nothing_follows_disconnect(version: int) -> None:
    """After DISCONNECT the server closes, answers nothing, and reads nothing more."""
    world = World()
    reader = join(world, "r", version)
    reader.subscribe("#")
    peer = join(world, "c", version)
    peer.subscribe("#")
    peer.send(disconnect(), publish("t", b"x", version=version), bytes.fromhex("C0 00"))
    assert peer.is_closed
    assert peer.raw() == b""
    reader.publish("t", b"y")
    assert reader.payloads() == [b"y"]
    assert peer.raw() == b""


@normative(v5="3.14.2-1")
def test_the_reason_codes_of_disconnect() -> None:
    """DISCONNECT with a code of the standard ends the connection quietly, and another code is a protocol error."""
    right = {0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, 0x8B, 0x8C, *range(0x8D, 0x91), *range(0x93, 0xA3)}
    for code in range(256):
        peer = join(World())
        peer.send(disconnect(code))
        if code in right:
            assert peer.is_closed
            assert peer.raw() == b""
        else:
            peer.ended(0x82)


def test_the_forms_of_disconnect() -> None:
    """DISCONNECT is read without anything, with a code, with a property length, and with properties."""
    forms = ["E0 00", "E0 01 00", "E0 02 00 00", "E0 07 00 05 11 00 00 00 00", "E0 08 00 06 1F 00 03 77 68 79"]
    for form in forms:
        peer = join(World(), expiry=10)
        peer.send(bytes.fromhex(form))
        assert peer.is_closed
        assert peer.raw() == b"", form


def test_disconnect_has_no_body_in_3_1_1() -> None:
    """A DISCONNECT with a reason code is malformed in 3.1.1, so that the will is sent."""
    world = World()
    reader = join(world, "r", 4)
    reader.subscribe("will")
    join(world, "c", 4, will=Will()).send(bytes.fromhex("E0 01 00"))
    assert reader.payloads() == [b"gone"]


@normative(v5="3.14.2-2 3.14.4-1 3.14.4-2 4.13.1-1 4.13.2-1 3.14.2-1", v3="4.8.0-1")
@BOTH
def test_the_servers_disconnect(version: int) -> None:
    """The server's DISCONNECT is its last packet, has a valid code and no session expiry, and is followed by a
    close."""
    world = World()
    peer = join(world, "c", version, expiry=60)
    peer.subscribe("#")
    peer.send(bytes.fromhex("C0 01 00"), bytes.fromhex("C0 00"))
    join(world, "w", version).publish("t", b"x")
    seen = peer.seen()
    assert peer.is_closed
    assert [packet.kind for packet in seen] == (["DISCONNECT"] if version == 5 else [])
    if version == 5:
        assert (seen[0].code, seen[0].prop(EXPIRY)) == (0x81, None)


@normative(v5="3.14.2-3 3.1.2-24")
@pytest.mark.parametrize(("maximum", "is_told"), [(1000, True), (25, False)])
def test_the_reason_string_of_disconnect(maximum: int, is_told: bool) -> None:
    """DISCONNECT has a reason string if the client asked for it and it fits."""
    peer = join(World(), props=[(0x27, maximum)])
    peer.send(publish(""))
    goodbye = peer.one("DISCONNECT")
    assert (goodbye.code, goodbye.prop(0x1F) is not None) == (0x82, is_told)
    peer = join(World(), props=[(0x27, maximum), (0x17, 0)])
    peer.send(publish(""))
    assert peer.raw() == bytes.fromhex("E0 01 82")


@normative(more="F10")
@BOTH
@pytest.mark.parametrize("kind", [0x20, 0x90, 0xB0, 0xD0])
def test_packets_that_only_servers_send(version: int, kind: int) -> None:
    """CONNACK, SUBACK, UNSUBACK and PINGRESP from a client are protocol errors."""
    bodies = {0x20: b"\0\0", 0x90: b"\0\1\0", 0xB0: b"\0\1", 0xD0: b""}
    newer = {0x20: b"\0\0\0", 0x90: b"\0\1\0\0", 0xB0: b"\0\1\0\0", 0xD0: b""}
    refused(frame(kind, (newer if version == 5 else bodies)[kind]), 0x82, version)


def test_errors_of_one_do_not_touch_others() -> None:
    """The error of one connection ends no other, and its session stays."""
    world = World()
    good = join(world, "g")
    good.subscribe("#")
    bad = join(world, "b", expiry=60)
    bad.subscribe(("#", 1))
    bad.send(b"\x00\x00")
    bad.ended(0x82)
    good.publish("t", b"x", 1)
    assert [packet.kind for packet in good.seen()] == ["PUBACK", "PUBLISH"]
    assert [message.payload for message in join(world, "b", expiry=60, clean=False).after] == [b"x"]


# -- AUTH --------------------------------------------------------------------------------------------------------------


@normative(v5="4.12.0-5 3.15.2-1")
def test_a_method_and_its_data() -> None:
    """CONNACK repeats the authentication method."""
    world = World(gatekeeper=Tokens())
    peer, (connack,) = first_answer(world, connect(props=[(METHOD, "M"), (DATA, b"good")]))
    assert (connack.code, connack.prop(METHOD)) == (0, "M")
    assert not peer.is_closed


@normative(v5="4.12.0-1 4.12.0-4 3.1.4-2")
@pytest.mark.parametrize(
    ("gatekeeper", "method", "code"), [(Tokens(), "other", 0x8C), (None, "M", 0x8C), (Tokens(), "M", 0x87)]
)
def test_authentication_that_fails(gatekeeper: Any, method: str, code: int) -> None:
    """An unknown method, a server without any, and bad data are refused with CONNACK and a close."""
    peer, (connack,) = first_answer(World(gatekeeper=gatekeeper), connect(props=[(METHOD, method), (DATA, b"bad")]))
    assert connack.code == code
    assert peer.is_closed


@normative(v5="4.12.0-6")
def test_no_method_no_auth() -> None:
    """To a client without a method the server sends neither a method nor AUTH."""
    world = World(gatekeeper=Tokens())
    assert join(world).connack.prop(METHOD) is None


@normative(v5="4.12.0-7")
@pytest.mark.parametrize("code", [0x18, 0x19])
@pytest.mark.parametrize("gatekeeper", [None, Tokens()])
def test_auth_of_a_client_without_a_method(gatekeeper: Any, code: int) -> None:
    """AUTH from a client without a method is a protocol error."""
    refused(auth(code, (METHOD, "M"), (DATA, b"good")), 0x82, gatekeeper=gatekeeper)


@normative(v5="3.1.2-30")
def test_packets_before_connack_of_a_client_with_a_method() -> None:
    """Before CONNACK a client with a method may send AUTH and DISCONNECT only."""
    late = connect(props=[(METHOD, "M"), (DATA, b"late")])
    peer, (connack,) = first_answer(World(gatekeeper=Tokens()), late, subscribe(1, "t"))
    assert connack.code == 0x82
    assert peer.is_closed
    peer, seen = first_answer(World(gatekeeper=Tokens()), late, disconnect())
    assert not seen


@normative(v5="4.12.1-1 4.12.0-5 3.15.2-1")
def test_re_authentication() -> None:
    """AUTH 0x19 with the same method is answered with AUTH 0x00, and the connection goes on meanwhile and after."""
    world = World(gatekeeper=Tokens())
    peer = join(world, props=[(METHOD, "M"), (DATA, b"good")])
    peer.subscribe("#")
    peer.send(auth(0x19, (METHOD, "M"), (DATA, b"good")), publish("t", b"x"))
    answer, message = peer.seen()
    assert (answer.kind, answer.code, answer.prop(METHOD)) == ("AUTH", 0, "M")
    assert message.payload == b"x"


@normative(v5="4.12.1-1 4.12.1-2")
@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (auth(0x19, (METHOD, "M"), (DATA, b"bad")), 0x87),
        (auth(0x19, (METHOD, "other"), (DATA, b"good")), 0x8C),
        (auth(0x18, (METHOD, "M"), (DATA, b"good")), 0x82),  # nobody asked
        (auth(0x00, (METHOD, "M"), (DATA, b"good")), 0x82),
        (auth(0x19), 0x82),  # no method at all
        (bytes.fromhex("F0 00"), 0x82),
    ],
)
def test_re_authentication_that_fails(packet: bytes, code: int) -> None:
    """A failed re-authentication is answered with DISCONNECT, the reason, and a close."""
    peer = join(World(gatekeeper=Tokens()), props=[(METHOD, "M"), (DATA, b"good")])
    peer.send(packet)
    peer.ended(code)


@normative(v5="3.15.2-1")
def test_the_reason_codes_of_auth() -> None:
    """AUTH has code 0x00, 0x18 or 0x19, and any other is a protocol error."""
    for code in set(range(256)) - {0x00, 0x18, 0x19}:
        peer = join(World(gatekeeper=Tokens()), props=[(METHOD, "M"), (DATA, b"good")])
        peer.send(auth(code, (METHOD, "M")))
        peer.ended(0x82)


# -- problem information -----------------------------------------------------------------------------------------------


@normative(v5="3.1.2-29")
def test_no_problem_information() -> None:
    """Without problem information, refusals have no reason strings or user properties, and PUBLISH keeps its own."""
    peer = join(World(subscriptions_per_session=1), props=[(0x17, 0)])
    peer.subscribe("t", "u")
    assert peer.granted == (0, 0x97)
    peer.publish("t", b"\xff", 1, props=[(0x01, 1)])
    peer.publish("t", b"\xff", 2, props=[(0x01, 1)])
    peer.publish("t", b"x", props=[(0x26, ("k", "v"))])
    peer.send(bytes.fromhex("62 02 00 63  50 02 00 63"))
    refusals = peer.seen()
    assert [packet.kind for packet in refusals] == ["PUBACK", "PUBREC", "PUBLISH", "PUBCOMP", "PUBREL"]
    assert [packet.kind for packet in refusals if packet.props] == ["PUBLISH"]
