"""Wills (3.1.2.5, 3.1.3.2, 3.14.4): when they go out, and when not."""

from __future__ import annotations

from typing import Any

import pytest
from handmade import Will, disconnect
from handmade_peer import Peer, join
from normative import BOTH, normative
from support.broker_driver import World

DELAY, EXPIRY = 0x18, 0x11


def scene(version: int = 5, **options: Any) -> tuple[World, Peer, Peer]:
    """A world, somebody who reads wills, and a client that has one."""
    world = World()
    reader = join(world, "reader", version)
    reader.subscribe(("will", 2))
    return world, reader, join(world, "c", version, **{"will": Will(), **options})


@normative(v5="3.1.2-7 3.1.2-8 3.1.2-9", v3="3.1.2-8 3.1.2-9", more="W1 W4")
@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_lost_connection(version: int, qos: int) -> None:
    """A lost connection sends the will at its QoS."""
    _, reader, peer = scene(version, will=Will(qos=qos))
    assert not reader.seen()
    peer.lose()
    will = reader.one("PUBLISH")
    assert (will.topic, will.payload, will.qos) == ("will", b"gone", qos)


@normative(v5="3.1.2-8 3.1.2-10 3.14.4-3", v3="3.1.2-10 3.14.4-3", more="W3")
@BOTH
@pytest.mark.parametrize("expiry", [None, 60])
def test_a_normal_disconnect(version: int, expiry: int | None) -> None:
    """A normal DISCONNECT discards the will for good."""
    world, reader, peer = scene(version, expiry=expiry)
    peer.send(disconnect())
    peer.lose()
    world.sleep(1000)
    join(world, "c", version).lose()
    assert not reader.seen()


@normative(v5="3.1.2-8 3.14.2-1")
@pytest.mark.parametrize("code", [0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99])
def test_a_disconnect_with_another_reason(code: int) -> None:
    """DISCONNECT with 0x04, or with an error code, sends the will."""
    _, reader, peer = scene()
    peer.send(disconnect(code))
    assert reader.one("PUBLISH").payload == b"gone"


@normative(v5="3.1.2-10", v3="3.1.2-10")
@BOTH
def test_a_will_goes_out_once(version: int) -> None:
    """A will is sent once, and the next connection of the session has its own or none."""
    world, reader, peer = scene(version, expiry=60)
    peer.lose()
    reader.one("PUBLISH")
    join(world, "c", version, clean=False, expiry=60).lose()
    world.sleep(100)
    assert not reader.seen()


@normative(v3="3.1.2-12")
@BOTH
def test_no_will(version: int) -> None:
    """The connection of a client without a will ends without a message."""
    world = World()
    reader = join(world, "reader", version)
    reader.subscribe("#")
    join(world, "c", version).lose()
    assert not reader.seen()


@normative(v5="3.1.2-14 3.1.2-15", v3="3.1.2-16 3.1.2-17", more="W4")
@BOTH
@pytest.mark.parametrize("retain", [False, True])
def test_will_retain(version: int, retain: bool) -> None:
    """A will with retain is what later subscribers get, and one without is not kept."""
    world, reader, peer = scene(version, will=Will(retain=retain))
    peer.lose()
    assert reader.one("PUBLISH").retain == 0
    late = join(world, "late", version)
    late.subscribe("will")
    later = join(world, "later", version).subscribe("will")
    assert [(message.payload, message.retain) for message in later] == ([(b"gone", 1)] if retain else [])


def test_a_retained_will_without_payload_deletes() -> None:
    """A retained will without a payload deletes the retained message."""
    world, _, peer = scene(will=Will(payload=b"", retain=True))
    join(world, "p").publish("will", b"old", retain=True)
    peer.lose()
    assert not join(world, "late").subscribe("will")


@normative(more="W3")
@BOTH
def test_take_over_sends_the_will(version: int) -> None:
    """A takeover sends the first connection's will if that has no delay."""
    world, reader, _ = scene(version)
    join(world, "c", version)
    assert reader.one("PUBLISH").payload == b"gone"


@BOTH
def test_a_protocol_error_sends_the_will(version: int) -> None:
    """A protocol error sends the will, because the client sent no DISCONNECT."""
    _, reader, peer = scene(version)
    peer.send(bytes.fromhex("D0 00"))
    assert peer.is_closed
    assert reader.one("PUBLISH").payload == b"gone"


# -- delay -------------------------------------------------------------------------------------------------------------


@normative(v5="3.1.2-8")
def test_a_delayed_will() -> None:
    """A will with a delay is sent after it, once."""
    world, reader, peer = scene(will=Will(props=((DELAY, 10),)), expiry=100)
    peer.lose()
    world.sleep(9.9)
    assert not reader.seen()
    world.sleep(0.2)
    assert reader.one("PUBLISH").payload == b"gone"
    world.sleep(1000)
    assert not reader.seen()


@normative(v5="3.1.2-8", more="F5")
@pytest.mark.parametrize(("expiry", "waits_s"), [(0, 0), (5, 5)])
def test_the_delay_ends_with_the_session(expiry: int, waits_s: int) -> None:
    """A session that ends before the will's delay sends the will at its end, and one without expiry at once."""
    world, reader, peer = scene(will=Will(props=((DELAY, 10),)), expiry=expiry)
    peer.lose()
    world.sleep(max(0, waits_s - 0.1))
    assert len(reader.seen()) == (waits_s == 0)
    world.sleep(0.2)
    assert len(reader.seen()) == (waits_s > 0)


@normative(v5="3.1.3-9 3.1.2-8")
def test_a_client_that_is_back_before_the_delay() -> None:
    """The will of a client that is back before the delay is not sent."""
    world, reader, peer = scene(will=Will(props=((DELAY, 10),)), expiry=100)
    peer.lose()
    world.sleep(9)
    join(world, "c", clean=False, expiry=100)
    world.sleep(1000)
    assert not reader.seen()


@normative(v5="3.1.3-9")
def test_take_over_of_a_delayed_will() -> None:
    """Resuming the session cancels a delayed will, and a clean start by takeover ends the session and sends it."""
    world, reader, _ = scene(will=Will(props=((DELAY, 10),)), expiry=100)
    join(world, "c", clean=False, expiry=100, will=Will(props=((DELAY, 10),)))
    world.sleep(20)
    assert not reader.seen()
    join(world, "c", clean=True)
    assert reader.one("PUBLISH").payload == b"gone"


@normative(v5="3.1.2-8")
def test_a_delayed_will_and_a_clean_start() -> None:
    """The delayed will of a client that is back in time with a clean start is not sent."""
    world, reader, peer = scene(will=Will(props=((DELAY, 10),)), expiry=100)
    peer.lose()
    world.sleep(1)
    join(world, "c", clean=True)
    world.sleep(1000)
    assert not reader.seen()


def test_disconnect_0x04_obeys_the_delay() -> None:
    """The will that DISCONNECT 0x04 asks for waits for its delay."""
    world, reader, peer = scene(will=Will(props=((DELAY, 10),)), expiry=100)
    peer.send(disconnect(0x04))
    world.sleep(9)
    assert not reader.seen()
    world.sleep(2)
    reader.one("PUBLISH")


def test_a_disconnect_that_ends_the_session() -> None:
    """DISCONNECT 0x04 with expiry 0 ends the session, and sends the delayed will at once."""
    _, reader, peer = scene(will=Will(props=((DELAY, 10),)), expiry=100)
    peer.send(disconnect(0x04, (EXPIRY, 0)))
    reader.one("PUBLISH")


# -- properties --------------------------------------------------------------------------------------------------------


@normative(v5="3.1.3-10 3.1.3-1 3.3.2-18")
def test_the_properties_of_a_will() -> None:
    """A will is sent with its properties in the order in which they came, without the delay."""
    users = tuple((0x26, (name, value)) for name, value in [("b", "1"), ("a", "2"), ("b", "3"), ("b", "1")])
    first, last = (users[0], (0x08, "answer"), (0x09, b"\0\xff")), ((0x01, 1), (0x03, "text"), (0x02, 60), *users[1:])
    _, reader, peer = scene(will=Will(props=(*first, (DELAY, 0), *last)))
    peer.lose()
    assert reader.one("PUBLISH").props == (*first, *last)


def test_the_expiry_of_a_will_runs_from_its_publication() -> None:
    """The expiry of a will runs from its publication, not from CONNECT or during the delay."""
    world, reader, peer = scene(will=Will(props=((DELAY, 50), (0x02, 60))), expiry=100)
    world.sleep(1000)
    peer.lose()
    world.sleep(51)
    assert reader.one("PUBLISH").prop(0x02) == 60
