"""UNSUBSCRIBE and UNSUBACK (3.10, 3.11): what ends, and what was begun before it."""

from __future__ import annotations

import pytest
from handmade import Seen, ack, unsubscribe
from handmade_peer import join
from normative import BOTH, normative
from scenes import refused
from support.broker_driver import World
from support.durable_broker import DurableWorld, messages_in, texts_in

from statestore_client.mqtt.packets import Puback, Pubcomp, Pubrec, Pubrel, Unsubscribe


@normative(v5="3.10.4-4 3.10.4-5 3.10.4-6 3.11.3-1 3.11.3-2", v3="3.10.4-4 3.10.4-5 3.10.4-6")
def test_the_bytes_of_unsuback() -> None:
    """UNSUBACK has a code for each filter, 0x00 or 0x11, and none in 3.1.1."""
    peer = join(World())
    peer.subscribe("a", "c")
    peer.send(unsubscribe(0x0A0B, "a", "b", "c", "a"))
    assert peer.raw() == bytes.fromhex("B0 07 0A 0B 00 00 11 00 11")
    old = join(World(), version=4)
    old.send(unsubscribe(0x0A0B, "a", "b", version=4))
    assert old.raw() == bytes.fromhex("B0 02 0A 0B")


@normative(v5="3.10.3-2", v3="3.10.3-2 4.8.0-1")
@BOTH
def test_unsubscribe_without_a_filter(version: int) -> None:
    """UNSUBSCRIBE without a filter is refused as SUBSCRIBE is."""
    refused(unsubscribe(1, version=version), 0x81, version)


@normative(v5="3.10.4-1 3.10.4-2 3.10.4-6", v3="3.10.4-1 3.10.4-2 3.10.4-6")
@BOTH
def test_only_equal_filters_are_deleted(version: int) -> None:
    """UNSUBSCRIBE deletes only an equal filter, and not one that matches."""
    peer = join(World(), version=version)
    peer.subscribe(("a/+", 0), ("a/#", 1), ("A/b", 0))
    peer.unsubscribe("a/b", "#", "+/+", "a/#", "A/B")
    peer.publish("a/b")
    peer.publish("a/b/c")
    assert [message.topic for message in peer.messages()] == ["a/b"]
    peer.unsubscribe("a/+")
    peer.publish("a/b")
    assert not peer.seen()


@normative(more="U6")
@BOTH
def test_unsubscribed_filters_are_gone_from_the_stored_session(version: int) -> None:
    """Filters that were unsubscribed, several at once, are gone from the stored session when another server takes
    over."""
    world = DurableWorld()
    peer = join(world, "c", version, expiry=1000)
    peer.subscribe(("a/#", 1), ("b", 1), ("+/c", 1), ("d", 1))
    assert world.storage.count()["subscriptions"] == 4
    unsuback = peer.unsubscribe("a/#", "b", "+/c")
    assert list(unsuback.codes) == ([0, 0, 0] if version == 5 else [])
    assert world.storage.count()["subscriptions"] == 1
    world.crash()
    peer = join(world, "c", version, expiry=1000, clean=False)
    assert peer.connack.flags == 1
    for topic in ("a", "a/b", "a/c", "b", "x/c", "d"):
        peer.publish(topic)
    assert [message.topic for message in peer.messages()] == ["d"]


def in_flight(peer_messages: list[Seen]) -> list[tuple[bytes, int]]:
    return [(message.payload, message.qos) for message in peer_messages]


@normative(v5="3.10.4-2 3.10.4-3", v3="3.10.4-2 3.10.4-3", more="K3")
@BOTH
def test_what_was_begun_is_finished(version: int) -> None:
    """QoS 1 and 2 messages in flight are finished after UNSUBSCRIBE, on this connection and on the next one."""
    world = World()
    peer = join(world, "c", version, expiry=60)
    peer.subscribe(("t", 2))
    peer.publish("t", b"1", 1)
    peer.publish("t", b"2", 2)
    peer.publish("t", b"3", 2)
    _, one, _, two, _, three = peer.seen()
    peer.unsubscribe("t")
    peer.publish("t", b"4", 1)
    assert not peer.messages()
    peer.send(ack(0x50, two.packet_id))
    assert peer.one("PUBREL").packet_id == two.packet_id
    peer.lose()
    again = join(world, "c", version, expiry=60, clean=False)
    seen = [(packet.kind, packet.packet_id) for packet in again.after]
    assert sorted(seen) == sorted([("PUBREL", two.packet_id), ("PUBLISH", one.packet_id), ("PUBLISH", three.packet_id)])
    again.send(ack(0x70, two.packet_id), ack(0x40, one.packet_id), ack(0x50, three.packet_id))
    assert again.one("PUBREL").packet_id == three.packet_id


@normative(more="K3")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_begun_is_finished_after_a_crash(qos: int) -> None:
    """Messages in flight, received but not completed, or queued at UNSUBSCRIBE are finished after a crash."""
    world = DurableWorld(in_flight=2)
    client = world.client("c", session_expiry=60)
    client.subscribe("t", qos=qos)
    sender = world.client("s")
    for payload in (b"1", b"2", b"3"):
        sender.publish("t", payload, qos)
    first, _second = client.messages()
    if qos == 2:
        client.send(Pubrec(first.packet_id))
    client.send(Unsubscribe(9, ("t",)))
    world.commit()
    world.crash()
    client, packets = world.back("c", session_expiry=60)
    # On a new connection a PUBREL takes no place of the window (4.9), so the last one is sent beside it.
    expected = [(b"1", True), (b"2", True)] if qos == 1 else [(b"2", True), (b"3", False)]
    assert [(message.payload, message.dup) for message in messages_in(packets)] == expected
    assert [packet.packet_id for packet in packets if isinstance(packet, Pubrel)] == [first.packet_id] * (qos == 2)
    sender = world.client("s")
    sender.publish("t", b"4", qos)
    client.send(Puback(first.packet_id) if qos == 1 else Pubcomp(first.packet_id))
    assert texts_in(client.messages()) == [b"3"] * (qos == 1)  # and nothing more: the subscription is over
    world.crash()
    client, packets = world.back("c", session_expiry=60)
    assert texts_in(packets) == [b"2", b"3"]


@normative(more="K3")
@BOTH
def test_what_was_queued_is_delivered_after_unsubscribe(version: int) -> None:
    """A message that waits behind the window at UNSUBSCRIBE is still delivered."""
    peer = join(World(in_flight=1), version=version)
    peer.subscribe(("t", 1))
    for payload in (b"1", b"2"):
        peer.publish("t", payload, 1)
    (first,) = peer.messages()
    peer.unsubscribe("t")
    peer.send(ack(0x40, first.packet_id))
    assert peer.payloads() == [b"2"]
