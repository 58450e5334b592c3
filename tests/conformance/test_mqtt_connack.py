"""What CONNACK tells (3.2), keep-alive, packet sizes, and how long sessions last."""

from __future__ import annotations

import pytest
from handmade import Will, connect, disconnect, publish, subscribe
from handmade_peer import Peer, join
from normative import BOTH, normative
from scenes import Doorman, said
from support.broker_driver import World

from statestore_client.server.broker import BrokerLimits


@normative(v5="3.2.2-22", more="F9")
@pytest.mark.parametrize(
    ("limit", "wish", "told", "silence_s"),
    [(0, 10, None, 15), (0, 0, None, None), (20, 0, 20, 30), (20, 20, None, 30), (20, 60, 20, 30)],
)
def test_the_keep_alive(limit: int, wish: int, told: int | None, silence_s: int | None) -> None:
    """The client's own keep-alive counts, unless the server names another one, as to those who ask for more or none."""
    world = World(keep_alive_s=limit)
    peer = join(world, keep_alive=wish)
    assert peer.connack.prop(0x13) == told
    world.sleep((silence_s or 100_000) - 0.1)
    assert not peer.is_closed
    world.sleep(0.2)
    assert peer.is_closed == (silence_s is not None)


@normative(v5="3.1.2-22 4.13.2-1", v3="3.1.2-24", more="W2")
@BOTH
def test_silence(version: int) -> None:
    """After one and a half keep-alives without any packet the connection ends (DISCONNECT 0x8D in 5.0), and the will is
    sent."""
    world = World()
    reader = join(world, "r", version)
    reader.subscribe("will")
    peer = join(world, "c", version, keep_alive=10, will=Will())
    for packet in ("C0 00", "30 04 00 01 74 00"):
        world.sleep(14)
        peer.send(bytes.fromhex(packet))
    peer.one("PINGRESP")
    world.sleep(14.9)
    assert not peer.is_closed
    world.sleep(0.2)
    peer.ended(0x8D)
    assert reader.one("PUBLISH").payload == b"gone"


@normative(more="F9")
def test_keep_alive_0_of_a_3_1_1_client() -> None:
    """A 3.1.1 client may have keep-alive 0, because 3.1.1 has no way to name another one."""
    world = World(keep_alive_s=20)
    peer = join(world, version=4)
    world.sleep(100_000)
    assert not peer.is_closed


def test_limits_are_announced() -> None:
    """CONNACK tells receive maximum, packet size, alias maximum, and a session expiry that was shortened."""
    world = World(receive_maximum=7, packet_bytes=1000, topic_alias_maximum=3, session_expiry_s=100)
    connack = join(world, expiry=1000).connack
    assert [connack.prop(identifier) for identifier in (0x21, 0x27, 0x22, 0x11)] == [7, 1000, 3, 100]
    assert join(world, expiry=10).connack.prop(0x11) is None


@normative(v5="3.2.2-9 3.2.2-10 3.2.2-12")
@pytest.mark.parametrize("maximum", [0, 1])
def test_a_server_without_every_qos(maximum: int) -> None:
    """A server with a maximum QoS announces it, grants every subscription, and refuses wills above it with 0x9B."""
    world = World(maximum_qos=maximum)
    peer = join(world)
    assert peer.connack.prop(0x24) == maximum
    peer.subscribe(("t", 0), ("u", 1), ("v", 2))
    assert peer.granted == (0, min(1, maximum), maximum)
    for qos in range(3):
        other, (connack,) = said(world, connect("w", will=Will(qos=qos)))
        assert (connack.code, other.is_closed) == ((0, False) if qos <= maximum else (0x9B, True))


@normative(v5="3.2.2-13")
def test_a_server_without_retained_messages() -> None:
    """A server without retained messages announces that, and refuses retained wills with 0x9A."""
    world = World(retain_available=False)
    assert join(world).connack.prop(0x25) == 0
    peer, (connack,) = said(world, connect("w", will=Will(retain=True)))
    assert connack.code == 0x9A
    assert peer.is_closed


@normative(v5="3.1.2-28")
def test_response_information() -> None:
    """A client that asks, and no other, is told where its response topics may begin, unless its identifier cannot be in
    a topic."""
    for wish in ((), ((0x19, 0),)):
        assert join(World(), props=wish).connack.prop(0x1A) is None
    asks = [(0x19, 1)]
    assert join(World(), "me", props=asks).connack.prop(0x1A) == "clients/me"
    assert join(World(), "a+b", props=asks).connack.prop(0x1A) is None
    assert join(World(response_information=""), "me", props=asks).connack.prop(0x1A) is None
    connack = join(World(), "", props=asks).connack
    assert connack.prop(0x1A) == f"clients/{connack.prop(0x12)}"


@normative(v5="3.1.2-24 3.2.2-19")
def test_a_reason_string_that_does_not_fit() -> None:
    """CONNACK and DISCONNECT are sent without a reason string that does not fit."""
    small = [(0x27, 20)]
    world = World(gatekeeper=Doorman())
    packet = connect("c", username="u" * 20, password=b"guess", props=small)
    peer, (connack,) = said(world, packet)
    assert connack.code == 0x86
    assert connack.size <= 20
    assert connack.prop(0x1F) is None
    peer = join(World(), props=small)
    peer.send(connect())
    goodbye = peer.one("DISCONNECT")
    assert (goodbye.code, goodbye.prop(0x1F)) == (0x82, None)


@normative(v5="3.1.2-24")
def test_a_connack_that_does_not_fit() -> None:
    """If CONNACK is larger than the client accepts, it is not sent, and the connection is closed."""
    peer, seen = said(World(), connect("c", props=[(0x27, 4)]))
    assert not seen
    assert peer.is_closed


@normative(v5="3.1.2-24")
def test_a_suback_that_does_not_fit() -> None:
    """If SUBACK is larger than the client accepts, the connection ends with DISCONNECT 0x95."""
    peer = join(World(), props=[(0x27, 20)])
    peer.send(subscribe(1, *(f"t{number}" for number in range(15))))
    assert peer.one("SUBACK").size == 20
    peer.send(subscribe(2, *(f"t{number}" for number in range(16))))
    peer.ended(0x95)


@normative(v5="3.2.2-15")
@BOTH
def test_packets_larger_than_the_server_takes(version: int) -> None:
    """A packet larger than the server takes is refused with 0x95 as soon as its length is known, CONNECT included."""
    peer = join(World(packet_bytes=100), version=version)
    peer.send(publish("t", bytes(92 if version == 5 else 93), version=version))
    assert not peer.is_closed
    peer.send(publish("t", bytes(150), version=version)[:4])
    peer.ended(0x95)
    peer = Peer(World(packet_bytes=100), version)
    peer.send(connect("c" * 100, version))
    assert peer.is_closed


@normative(v5="4.1.0-1 4.1.0-2 3.1.2-23", v3="4.1.0-1 4.1.0-2")
def test_sessions_last_as_long_as_their_connection_and_expiry() -> None:
    """A session lasts as long as its connection, whatever the expiry, and after that as long as the expiry."""
    world = World()
    peer = join(world, "c", expiry=10, keep_alive=0)
    world.sleep(1000)
    assert world.broker.usage.sessions == 1
    peer.lose()
    world.sleep(9.9)
    assert world.broker.usage.sessions == 1
    world.sleep(0.2)
    assert world.broker.usage.sessions == 0
    peer = join(world, "c", 5)
    assert world.broker.usage.sessions == 1
    peer.lose()
    assert world.broker.usage.sessions == 0


def test_the_session_expiry_of_disconnect() -> None:
    """The session expiry of DISCONNECT replaces that of CONNECT, but 0 cannot be changed (0x82)."""
    world = World()
    peer = join(world, "c", expiry=10)
    peer.send(disconnect(0, (0x11, 100)))
    world.sleep(50)
    assert world.broker.usage.sessions == 1
    world.sleep(51)
    assert world.broker.usage.sessions == 0
    peer = join(world, "c", expiry=10)
    peer.send(disconnect(0, (0x11, 0)))
    assert world.broker.usage.sessions == 0
    peer = join(world, "c")
    peer.send(disconnect(0, (0x11, 1)))
    peer.ended(0x82)


def test_sessions_that_never_expire() -> None:
    """A session with expiry 0xFFFFFFFF, or clean session 0 of 3.1.1, lasts as long as the server's limit allows."""
    world = World(session_expiry_s=0xFFFF_FFFF)
    join(world, "a", expiry=0xFFFF_FFFF).lose()
    join(world, "b", 4, clean=False).lose()
    world.sleep(10**9)
    assert world.broker.usage.sessions == 2
    assert BrokerLimits().session_expiry_s == 7 * 86_400  # unless somebody says so
