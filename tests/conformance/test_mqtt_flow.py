"""Flow control (4.9), full queues, and what the server owes after an acknowledgement."""

from __future__ import annotations

import pytest
from handmade import ack, subscribe
from handmade_peer import join
from normative import BOTH, normative
from scenes import PUBACK, PUBCOMP, PUBREC, PUBREL, RECEIVE_MAXIMUM, back, finish, kinds, reader_of
from support.broker_driver import World


@normative(v5="3.3.4-9 3.3.4-10 4.9.0-1 4.9.0-2 4.9.0-3")
@pytest.mark.parametrize("maximum", [1, 2, 5])
def test_the_receive_maximum_of_a_client(maximum: int) -> None:
    """No more QoS 1 and 2 messages than the receive maximum are unacknowledged, and QoS 0 and all other packets go
    on."""
    peer = reader_of(World(), props=[(RECEIVE_MAXIMUM, maximum)])
    for number in range(maximum + 3):
        peer.publish("t", b"%d" % number, 1 + number % 2)
    messages = peer.messages()
    assert len(messages) == maximum
    peer.publish("t", b"zero")
    peer.publish("t", b"", 1, packet_id=99)
    peer.send(bytes.fromhex("C0 00"), subscribe(77, "u"), ack(PUBREL, 99))
    assert [packet.kind for packet in peer.seen()] == ["PUBLISH", "PUBACK", "PINGRESP", "SUBACK", "PUBCOMP"]
    peer.send(ack(PUBACK, messages[0].packet_id))
    assert len(peer.messages()) == 1


@normative(v5="3.3.4-9 4.9.0-2", more="I1")
def test_what_opens_the_window_again() -> None:
    """PUBACK, PUBCOMP and a refusing PUBREC free a place in the window; other PUBRECs and PUBREL do not."""
    peer = reader_of(World(), props=[(RECEIVE_MAXIMUM, 1)])
    for _ in range(3):
        peer.publish("t", b"", 2)
    (first,) = peer.messages()
    peer.send(ack(PUBREC, first.packet_id))
    assert kinds(peer.seen()) == [("PUBREL", first.packet_id)]
    peer.send(ack(PUBCOMP, first.packet_id))
    (second,) = peer.messages()
    peer.send(ack(PUBREC, second.packet_id, 0x97))
    assert len(peer.messages()) == 1


@normative(v5="3.3.4-9 4.9.0-1")
def test_the_window_after_a_reconnect() -> None:
    """The window counts anew for each connection, messages that are sent again included."""
    world = World()
    reader = reader_of(world)
    writer = join(world, "w")
    for number in range(4):
        writer.publish("t", b"%d" % number, 1)
    assert len(reader.messages()) == 4
    reader.lose()
    reader = back(world, props=[(RECEIVE_MAXIMUM, 2)])
    assert [message.payload for message in reader.after] == [b"0", b"1"]
    reader.send(ack(PUBACK, reader.after[0].packet_id))
    (message,) = reader.messages()
    assert (message.payload, message.dup) == (b"2", 1)


@normative(v5="3.3.4-7")
@pytest.mark.parametrize("maximum", [1, 3])
def test_the_receive_maximum_of_the_server(maximum: int) -> None:
    """One QoS 2 message beyond the announced receive maximum ends the connection with 0x93 and is not delivered."""
    world = World(receive_maximum=maximum)
    reader, peer = reader_of(world), join(world, "w")
    assert peer.connack.prop(RECEIVE_MAXIMUM) == maximum
    for packet_id in range(1, maximum + 1):
        peer.publish("t", b"ok", 2, packet_id=packet_id)
    peer.publish("t", b"ok", 2, packet_id=1, dup=True)  # counts once
    for packet_id in (100, 101):
        peer.publish("t", b"ok", 1, packet_id=packet_id)  # acknowledged at once
    assert not peer.is_closed
    peer.publish("t", b"too many", 2, packet_id=50)
    peer.ended(0x93)
    assert set(reader.payloads()) == {b"ok"}


@normative(v5="3.3.4-7")
def test_pubcomp_gives_the_place_back() -> None:
    """A client whose QoS 2 messages are completed may go on for ever."""
    peer = join(World(receive_maximum=1))
    for packet_id in range(1, 20):
        peer.publish("t", b"", 2, packet_id=packet_id)
        peer.send(ack(PUBREL, packet_id))
    assert not peer.is_closed


@normative(more="F2")
def test_a_full_queue_is_its_sessions_loss() -> None:
    """A full queue loses its own session's message: others get it, its publisher hears success, CONNACK tells the
    loser."""
    world = World(in_flight=1, queued_messages=2)
    slow, other, writer = join(world, "s", expiry=100), join(world, "o"), join(world, "w")
    slow.subscribe(("t", 1))
    other.subscribe("t")
    slow.lose()
    for packet_id in range(1, 6):
        writer.publish("t", b"%d" % packet_id, 1 + packet_id % 2, packet_id=packet_id)
    assert [packet.code for packet in writer.seen()] == [0] * 5
    old = join(world, "old", 4)
    old.publish("t", b"6", 1)
    assert [packet.code for packet in old.seen()] == [0]
    assert other.payloads() == [b"%d" % number for number in range(1, 7)]
    slow = join(world, "s", expiry=100, clean=False)
    assert slow.connack.all(0x26) == [("dropped-messages", "4 since 1970-01-01T00:16:40.000Z")]
    assert [message.payload for message in slow.after] == [b"1"]


@normative(more="F2")
def test_a_full_queue_refuses_the_publisher() -> None:
    """With the strict choice a full queue refuses the publisher (0x97, or a close in 3.1.1), and nobody gets the
    message."""
    world = World(in_flight=1, queued_messages=2, when_full="refuse")
    slow = join(world, "s", expiry=100)
    slow.subscribe(("t", 1))
    other = join(world, "o")
    other.subscribe("t")
    slow.lose()
    writer = join(world, "w")
    for packet_id in (1, 2):
        writer.publish("t", b"kept", 1, packet_id=packet_id)
    writer.publish("t", b"refused", 1, packet_id=3)
    writer.publish("t", b"refused", 2, packet_id=4)
    assert [packet.code for packet in writer.seen()] == [0, 0, 0x97, 0x97]
    old = join(world, "old", 4)
    old.publish("t", b"refused", 1)
    old.ended(None)
    assert other.payloads() == [b"kept"] * 2
    slow = join(world, "s", expiry=100, clean=False)
    assert [message.payload for message in slow.after] == [b"kept"]
    slow.send(ack(PUBACK, slow.after[0].packet_id))
    assert slow.payloads() == [b"kept"]


@normative(more="F1 Q6")
@BOTH
def test_the_publisher_may_leave_after_its_last_puback(version: int) -> None:
    """A thousand acknowledged messages reach an absent subscriber although their publisher has left."""
    world = World()
    reader = reader_of(world, version)
    reader.lose()
    writer = join(world, "w", version)
    for number in range(1000):
        writer.publish("t", b"%d" % number, 1)
    assert {packet.kind for packet in writer.seen()} == {"PUBACK"}
    writer.lose()
    reader = back(world, version)
    found = [message.payload for message in reader.after]
    for message in reader.after:
        reader.send(ack(PUBACK, message.packet_id))
    finish(reader, found)
    assert found == [b"%d" % number for number in range(1000)]
