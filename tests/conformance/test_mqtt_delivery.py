"""QoS 1 and 2 both ways, order, redelivery, flow control (4.3 to 4.6, 4.9)."""

from __future__ import annotations

import pytest
from handmade import ack, frame, publish
from handmade_peer import join
from normative import BOTH, normative
from scenes import PUBACK, PUBCOMP, PUBREC, PUBREL, back, finish, kinds, reader_of, refused
from support.broker_driver import World

# -- messages from clients ---------------------------------------------------------------------------------------------


@normative(v5="4.3.2-5", v3="4.3.2-2")
@BOTH
@pytest.mark.parametrize("dup", [False, True])
def test_the_same_identifier_after_puback(version: int, dup: bool) -> None:
    """A PUBLISH with the identifier of an acknowledged one is a new message, with or without DUP."""
    world = World()
    reader, writer = reader_of(world, version), join(world, "w", version)
    writer.publish("t", b"1", 1, packet_id=7)
    writer.publish("t", b"2", 1, packet_id=7, dup=dup)
    assert kinds(writer.seen()) == [("PUBACK", 7), ("PUBACK", 7)]
    assert reader.payloads() == [b"1", b"2"]


@normative(v5="4.3.3-10 4.3.3-11 4.3.3-12 3.7.2-1", v3="4.3.3-2", more="Q2a")
@BOTH
@pytest.mark.parametrize("dup", [False, True])
def test_qos_2_from_a_client(version: int, dup: bool) -> None:
    """Until PUBREL a repeated QoS 2 PUBLISH gets a PUBREC and is not delivered again; after PUBCOMP the identifier is
    free."""
    world = World()
    reader, writer = reader_of(world, version), join(world, "w", version)
    for _ in range(3):
        writer.publish("t", b"1", 2, packet_id=7, dup=dup)
        assert kinds(writer.seen()) == [("PUBREC", 7)]
    writer.send(ack(PUBREL, 7))
    assert writer.raw() == bytes.fromhex("70 02 00 07")
    writer.publish("t", b"2", 2, packet_id=7, dup=dup)
    assert kinds(writer.seen()) == [("PUBREC", 7)]
    assert reader.payloads() == [b"1", b"2"]


@normative(v5="4.3.3-10 4.4.0-1", v3="4.3.3-2 3.1.2-4", more="Q2b")
@BOTH
def test_qos_2_over_a_lost_connection(version: int) -> None:
    """A QoS 2 message that was received before a reconnect gets its PUBREC when sent again, and is delivered once."""
    world = World()
    reader = reader_of(world, version)
    writer = join(world, "w", version, expiry=100)
    writer.publish("t", b"1", 2, packet_id=7)
    writer.lose()
    writer = join(world, "w", version, expiry=100, clean=False)
    writer.publish("t", b"1", 2, packet_id=7, dup=True)
    writer.send(ack(PUBREL, 7))
    assert kinds(writer.seen()) == [("PUBREC", 7), ("PUBCOMP", 7)]
    assert reader.payloads() == [b"1"]


@normative(more="Q2c")
def test_qos_2_delivered_with_all_it_has() -> None:
    """A QoS 2 message whose PUBREL comes on the next connection is delivered with its QoS and retain flag."""
    world = World()
    reader = reader_of(world)
    writer = join(world, "w", expiry=100)
    writer.publish("t", b"1", 2, packet_id=7, retain=True)
    writer.lose()
    writer = join(world, "w", expiry=100, clean=False)
    writer.send(ack(PUBREL, 7))
    assert kinds(writer.seen()) == [("PUBCOMP", 7)]
    assert [message.qos for message in reader.messages()] == [2]
    (retained,) = join(world, "late").subscribe(("t", 2))
    assert (retained.qos, retained.retain) == (2, 1)


@normative(v5="3.1.2-4", v3="3.1.2-6")
@BOTH
def test_a_clean_start_forgets_what_was_received(version: int) -> None:
    """A clean start frees the identifier of a QoS 2 message, and PUBREL for it finds nothing."""
    world = World()
    reader = reader_of(world, version)
    join(world, "w", version, expiry=100).publish("t", b"1", 2, packet_id=7)
    writer = join(world, "w", version, expiry=100, clean=True)
    writer.send(ack(PUBREL, 7))
    assert writer.one("PUBCOMP").code == (0x92 if version == 5 else 0)
    writer.publish("t", b"2", 2, packet_id=7)
    assert reader.payloads() == [b"1", b"2"]


@normative(v5="3.7.2-1 4.3.3-11")
def test_pubrel_for_nothing() -> None:
    """PUBREL for an unknown identifier gets PUBCOMP 0x92, and the connection goes on."""
    peer = join(World())
    peer.send(ack(PUBREL, 99), ack(PUBREL, 99, 0x92))
    assert peer.raw() == bytes.fromhex("70 03 00 63 92") * 2
    assert not peer.is_closed


@normative(v5="4.3.3-9")
def test_a_refused_qos_2_message() -> None:
    """After PUBREC with 0x80 or more the identifier is free for a new message."""
    world = World()
    reader, writer = reader_of(world), join(world, "w")
    writer.publish("t", b"\xff", 2, packet_id=7, props=[(0x01, 1)])
    assert writer.one("PUBREC").code == 0x99
    writer.publish("t", b"x", 2, packet_id=7, props=[(0x01, 1)], dup=True)
    assert writer.one("PUBREC").code == 0
    assert reader.payloads() == [b"x"]


@normative(v5="4.6.0-2 4.6.0-3 4.6.0-4", v3="4.6.0-2 4.6.0-3 4.6.0-4")
@BOTH
def test_acknowledgements_come_in_order(version: int) -> None:
    """PUBACK and PUBREC come in the order of the PUBLISHes, PUBREL in that of the PUBRECs."""
    world = World()
    peer = reader_of(world, version)
    ids = [5, 3, 9, 1, 65535]
    peer.send(*(publish("t", b"", 1 + number % 2, packet_id, version) for number, packet_id in enumerate(ids)))
    answers = [(k, i) for k, i in kinds(peer.seen()) if k != "PUBLISH"]
    assert answers == [("PUBREC" if n % 2 else "PUBACK", packet_id) for n, packet_id in enumerate(ids)]
    other = join(world, "w", version)
    peer = reader_of(world, version)
    for _ in range(3):
        other.publish("t", b"", 2)
    one, two, three = [message.packet_id for message in peer.messages()[-3:]]
    peer.send(ack(PUBREC, two), ack(PUBREC, three), ack(PUBREC, one))
    assert kinds(peer.seen()) == [("PUBREL", two), ("PUBREL", three), ("PUBREL", one)]


# -- messages to clients -----------------------------------------------------------------------------------------------


@normative(v5="4.3.3-4 4.3.3-6 3.6.2-1 4.3.2-3", v3="4.3.3-1 4.3.2-1", more="Q2d")
@BOTH
def test_qos_2_to_a_client(version: int) -> None:
    """QoS 2 to a client is PUBLISH, PUBREC, PUBREL, PUBCOMP; a repeated PUBREC gets PUBREL again; then the identifier
    is free."""
    peer = reader_of(World(), version)
    peer.publish("t", b"x", 2)
    message = peer.messages()[0]
    assert (message.qos, message.dup) == (2, 0)
    for _ in range(2):
        peer.send(ack(PUBREC, message.packet_id))
        assert peer.raw() == b"\x62\x02" + message.packet_id.to_bytes(2, "big")
    peer.send(ack(PUBCOMP, message.packet_id))
    assert peer.raw() == b""
    peer.send(ack(PUBREC, message.packet_id))
    assert peer.one("PUBREL").code == (0x92 if version == 5 else 0)


@normative(v5="4.4.0-2", more="I1")
@pytest.mark.parametrize("code", [0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99])
@pytest.mark.parametrize(("qos", "first"), [(1, PUBACK), (2, PUBREC)])
def test_a_client_that_refuses(qos: int, first: int, code: int) -> None:
    """A message that the client refuses gets no PUBREL and is not sent again."""
    world = World()
    peer = reader_of(world)
    join(world, "w").publish("t", b"x", qos)
    (message,) = peer.messages()
    peer.send(ack(first, message.packet_id, code))
    assert not peer.seen()
    peer.lose()
    assert not back(world).after


@BOTH
def test_acknowledgements_of_nothing(version: int) -> None:
    """PUBACK and PUBCOMP for unknown identifiers are ignored; PUBREC gets PUBREL, with 0x92 in 5.0."""
    peer = join(World(), version=version)
    peer.send(ack(PUBACK, 5), ack(PUBCOMP, 6), ack(PUBREC, 7))
    assert peer.one("PUBREL").code == (0x92 if version == 5 else 0)
    assert not peer.is_closed


@BOTH
@pytest.mark.parametrize(("qos", "first"), [(2, PUBACK), (1, PUBREC), (1, PUBCOMP), (2, PUBCOMP)])
def test_the_wrong_acknowledgement(version: int, qos: int, first: int) -> None:
    """PUBACK for QoS 2, PUBREC for QoS 1, and PUBCOMP before PUBREL are protocol errors, and acknowledge nothing."""
    world = World()
    peer = reader_of(world, version)
    join(world, "w", version).publish("t", b"x", qos)
    (message,) = peer.messages()
    peer.send(ack(first, message.packet_id))
    peer.ended(0x82)
    peer.lose()
    assert [again.payload for again in back(world, version).after] == [b"x"]


@normative(v5="3.4.2-1 3.5.2-1 3.6.2-1 3.7.2-1 3.14.2-1 3.15.2-1")
@pytest.mark.parametrize(
    ("first", "right"),
    [
        (PUBACK, {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}),
        (PUBREC, {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}),
        (PUBREL, {0x00, 0x92}),
        (PUBCOMP, {0x00, 0x92}),
    ],
)
def test_reason_codes_that_do_not_belong(first: int, right: set[int]) -> None:
    """A reason code that does not belong to the acknowledgement is refused with 0x82."""
    for code in range(256):
        peer = join(World())
        peer.send(ack(first, 1, code))
        if code in right:
            assert not peer.is_closed
        else:
            peer.ended(0x82)


@BOTH
@pytest.mark.parametrize("first", [PUBACK, PUBREC, PUBREL, PUBCOMP])
def test_identifier_0_in_an_acknowledgement(version: int, first: int) -> None:
    """An acknowledgement with identifier 0 is a protocol error."""
    refused(ack(first, 0), 0x82, version)


@pytest.mark.parametrize("first", [PUBACK, PUBREC, PUBREL, PUBCOMP])
def test_the_three_forms_of_an_acknowledgement(first: int) -> None:
    """An acknowledgement is read as identifier alone, with a code, and with properties; 3.1.1 has the first form
    only."""
    forms = [b"", b"\0", b"\0\0", b"\0\6\x1f\0\3why", b"\0\7\x26\0\1a\0\1b"]
    for form in forms:
        peer = join(World())
        peer.send(frame(first, b"\0\1", form))
        assert not peer.is_closed, form
    for form in forms[1:]:
        refused(frame(first, b"\0\1", form), None, 4)


# -- redelivery --------------------------------------------------------------------------------------------------------


@normative(
    v5="4.4.0-1 4.6.0-1 3.3.1-1 4.3.2-3 4.3.3-3 3.1.2-5",
    v3="4.4.0-1 4.6.0-1 3.3.1-1 3.1.2-4 4.3.2-1 4.3.3-1",
    more="F8 Q1 Q4 K2 K4",
)
@BOTH
def test_redelivery(version: int) -> None:
    """After a reconnect, unacknowledged messages come again in order with identifier and DUP, then the waiting ones
    without DUP."""
    world = World()
    reader = reader_of(world, version)
    writer = join(world, "w", version)
    for number in range(6):
        writer.publish("t", b"%d" % number, 1 + number % 2)
    first = reader.messages()
    reader.send(ack(PUBACK, first[2].packet_id))
    reader.lose()
    writer.publish("t", b"new", 1)
    writer.publish("t", b"not kept")
    for _ in range(2):
        reader = back(world, version)
        again = reader.after
        expected = [message for message in first if message is not first[2]]
        assert [(m.packet_id, m.payload, m.qos, m.dup) for m in again[:5]] == [
            (m.packet_id, m.payload, m.qos, 1) for m in expected
        ]
        assert [m.payload for m in again[5:]] == [b"new"]
        reader.lose()


@normative(v5="4.4.0-1", more="K1")
@BOTH
def test_nothing_is_sent_again_while_connected(version: int) -> None:
    """Nothing is sent again on a connection, however long an acknowledgement takes."""
    world = World()
    reader = reader_of(world, version)
    join(world, "w", version).publish("t", b"x", 1)
    assert len(reader.messages()) == 1
    world.sleep(100_000)
    reader.send(bytes.fromhex("C0 00"))
    assert [packet.kind for packet in reader.seen()] == ["PINGRESP"]


@normative(v5="4.3.3-5 4.3.3-6 4.4.0-1 4.6.0-4", v3="4.3.3-1 4.4.0-1 4.6.0-4", more="F8 Q2d K4")
@BOTH
def test_pubrel_is_sent_again(version: int) -> None:
    """After a reconnect PUBREL, not PUBLISH, is sent again until PUBCOMP, in the order of the PUBRECs."""
    world = World()
    reader = reader_of(world, version)
    writer = join(world, "w", version)
    for number in range(3):
        writer.publish("t", b"%d" % number, 2)
    one, two, three = [message.packet_id for message in reader.messages()]
    reader.send(ack(PUBREC, three), ack(PUBREC, one))
    reader.lose()
    for _ in range(2):
        reader = back(world, version)
        assert kinds(reader.after) == [("PUBREL", three), ("PUBREL", one), ("PUBLISH", two)]
        reader.lose()
    reader = back(world, version)
    reader.send(ack(PUBCOMP, three), ack(PUBREC, two))
    assert kinds(reader.seen()) == [("PUBREL", two)]
    reader.lose()
    assert kinds(back(world, version).after) == [("PUBREL", one), ("PUBREL", two)]


@normative(v5="3.3.1-1 4.3.2-2 4.3.3-2", v3="3.3.1-1")
@BOTH
def test_what_was_never_sent_has_no_dup(version: int) -> None:
    """A message that was never sent has no DUP after a reconnect."""
    world = World(in_flight=1)
    reader = reader_of(world, version)
    writer = join(world, "w", version)
    for number in range(3):
        writer.publish("t", b"%d" % number, 1)
    assert len(reader.messages()) == 1
    reader.lose()
    reader = back(world, version)
    dups = []
    messages = reader.after
    while messages:
        (message,) = messages
        dups.append((message.payload, message.dup))
        reader.send(ack(PUBACK, message.packet_id))
        messages = reader.messages()
    assert dups == [(b"0", 1), (b"1", 0), (b"2", 0)]


@normative(v5="4.5.0-1 3.1.2-23 4.1.0-1", v3="4.5.0-1 3.1.2-5 3.1.2-4 4.1.0-1", more="Q0 Q1")
@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_for_a_client_that_is_away(version: int, qos: int) -> None:
    """QoS 1 and 2 messages wait for a client that is away, at the lower QoS, and QoS 0 messages do not."""
    world = World()
    reader = join(world, "r", version, expiry=100)
    reader.subscribe(("one", 1), ("two", 2), ("zero", 0))
    reader.lose()
    writer = join(world, "w", version)
    for topic in ("one", "two", "zero"):
        writer.publish(topic, b"x", qos)
    after = [(message.topic, message.qos) for message in join(world, "r", version, expiry=100, clean=False).after]
    assert after == [(topic, min(qos, granted)) for topic, granted in (("one", 1), ("two", 2)) if qos]


@normative(v5="3.1.2-5 3.1.2-6 3.1.2-4", v3="3.1.2-4 3.1.2-6", more="S1 S3 S10 F8")
@BOTH
def test_what_a_session_remembers(version: int) -> None:
    """A session keeps its subscriptions without a new SUBSCRIBE; a clean start has none, and may end with its
    connection."""
    world = World()
    reader_of(world, version).lose()
    reader = back(world, version)
    writer = join(world, "w", version)
    writer.publish("t", b"1")
    assert reader.payloads() == [b"1"]
    reader.lose()
    reader = join(world, "r", version, clean=True)
    writer.publish("t", b"2")
    assert not reader.seen()
    reader.subscribe(("#", 1))
    reader.lose()
    writer.publish("t", b"3", 1)
    reader = join(world, "r", version, clean=False)
    assert (reader.connack.flags, reader.after) == (0, [])


# -- order -------------------------------------------------------------------------------------------------------------


@normative(v5="4.6.0-5 4.6.0-6 4.6.0-1", v3="4.6.0-5 4.6.0-6 4.6.0-1", more="K5")
@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_keep_their_order(version: int, qos: int) -> None:
    """Thousands of messages to several subscribers keep their order through a small window, a queue and reconnects."""
    world = World(in_flight=7, usual_receive_maximum=1000)
    readers = [join(world, f"r{number}", version, expiry=100) for number in range(3)]
    for reader in readers:
        reader.subscribe(("t", 2))
    writer = join(world, "w", version)
    expected = [b"%d" % number for number in range(300)]
    found: list[list[bytes]] = [[] for _ in readers]
    for number, payload in enumerate(expected):
        writer.publish("t", payload, qos)
        if number % 10 == 0:
            for place, reader in enumerate(readers):
                finish(reader, found[place])
    for place, reader in enumerate(readers):
        finish(reader, found[place])
    assert found == [expected] * 3
