"""PUBLISH (3.3) towards the server and on to subscribers: flags, topics, properties, limits."""

from __future__ import annotations

import pytest
from handmade import ack, frame, publish, text
from handmade_peer import join
from normative import BOTH, normative
from scenes import OneTopic, refused
from support.broker_driver import World

ALIKE = ["a/b", "/a/b", "a/b/", "a//b", "A/b", "a/B", " a/b", "a/b ", "a/\u0301", "á", "a\u0301"]


# -- flags -------------------------------------------------------------------------------------------------------------


@normative(v5="3.3.1-2", v3="3.3.1-2")
@BOTH
def test_dup_with_qos_0(version: int) -> None:
    """A QoS 0 message with DUP is refused."""
    refused(publish("t", b"x", version=version, dup=True), 0x81, version)


@normative(v5="3.3.1-4", v3="3.3.1-4 4.8.0-1")
@BOTH
@pytest.mark.parametrize("flags", [0x6, 0x7, 0xE, 0xF])
def test_qos_3(version: int, flags: int) -> None:
    """A PUBLISH with QoS 3 is malformed."""
    refused(frame(0x30 | flags, text("t"), b"\0\1", b"\0"), 0x81, version)


@normative(v5="3.3.1-3 3.3.1-2 4.3.1-1 4.3.2-2 4.3.3-2", v3="3.3.1-3 3.3.1-2 4.3.1-1 4.3.2-1 4.3.3-1")
@BOTH
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_does_not_travel(version: int, qos: int, granted: int) -> None:
    """A message that came with DUP is delivered without it."""
    peer = join(World(), version=version)
    peer.subscribe(("t", granted))
    peer.publish("t", b"x", qos, dup=True)
    _, message = peer.seen()
    assert (message.dup, message.qos) == (0, min(qos, granted))


# -- topics ------------------------------------------------------------------------------------------------------------


@normative(v5="3.3.2-2 4.7.0-1", v3="3.3.2-2 4.7.1-1")
@BOTH
@pytest.mark.parametrize("topic", ["#", "+", "a/#", "a/+/b", "a+", "#a"])
def test_wildcards_in_a_topic_name(version: int, topic: str) -> None:
    """A topic name with wildcards is malformed, while 0x90 is for names that are correctly formed."""
    refused(publish(topic, b"x", version=version), 0x81, version)


@normative(v5="4.7.3-1 3.3.2-1", v3="4.7.3-1 3.3.2-1")
@BOTH
def test_an_empty_topic_name(version: int) -> None:
    """An empty topic name without an alias is a protocol error."""
    refused(publish("", b"x", version=version), 0x82, version)


@normative(v5="3.3.2-3 4.7.3-4", v3="3.3.2-3 4.7.3-4")
@BOTH
@pytest.mark.parametrize("topic", ALIKE)
def test_topics_are_compared_as_they_are(version: int, topic: str) -> None:
    """Case, slashes, blanks and Unicode forms make different topics, and a message is delivered with the published
    one."""
    peer = join(World(), version=version)
    peer.subscribe(topic)
    for other in ALIKE:
        peer.publish(other)
    assert [message.topic for message in peer.messages()] == [topic]


@normative(more="T2")
@BOTH
def test_odd_topics(version: int) -> None:
    """Dots, stars, angle brackets and empty levels in a topic are characters like any other."""
    peer = join(World(), version=version)
    peer.subscribe("#")
    odd = ["a.b", "a b/c", "*", ">", "a/*/b", "/", "//", "a/", "$", "a/$b", "%s", "\\", "clients/x/y"]
    for topic in odd:
        peer.publish(topic)
    assert [message.topic for message in peer.messages()] == [topic for topic in odd if topic != "$"]


# -- acknowledgements --------------------------------------------------------------------------------------------------


@normative(v5="3.3.4-1 3.4.2-1 3.5.2-1 4.3.2-4 4.3.3-8", v3="3.3.4-1 4.3.2-2 4.3.3-2")
@BOTH
def test_the_answer_depends_on_the_qos(version: int) -> None:
    """QoS 0, 1 and 2 are answered with nothing, PUBACK and PUBREC, in the shortest form if somebody listens."""
    peer = join(World(), version=version)
    join(peer.world, "r").subscribe("t")
    peer.send(publish("t", b"x", 0, version=version))
    assert peer.raw() == b""
    peer.send(publish("t", b"x", 1, 10, version))
    assert peer.raw() == bytes.fromhex("40 02 00 0A")
    peer.send(publish("t", b"x", 2, 11, version))
    assert peer.raw() == bytes.fromhex("50 02 00 0B")


@normative(v5="3.4.2-1 3.5.2-1", more="F13")
def test_nobody_listens() -> None:
    """If nobody listens, PUBACK has 0x10 and PUBREC no code; 3.1.1 has no codes."""
    world = World()
    newer, older = join(world, "n"), join(world, "o", 4)
    newer.send(publish("t", b"", 1, 1), publish("t", b"", 2, 2))
    assert newer.raw() == bytes.fromhex("40 03 00 01 10   50 02 00 02")
    older.send(publish("t", b"", 1, 1, 4))
    assert older.raw() == bytes.fromhex("40 02 00 01")


@normative(more="F12")
@BOTH
def test_the_acknowledgement_comes_before_the_own_copy(version: int) -> None:
    """PUBACK or PUBREC comes before what the message caused for the same client, which clients rely on."""
    peer = join(World(), version=version)
    peer.subscribe(("t", 2))
    peer.publish("t", b"", 1)
    peer.publish("t", b"", 2)
    assert [packet.kind for packet in peer.seen()] == ["PUBACK", "PUBLISH", "PUBREC", "PUBLISH"]


@normative(v5="3.4.2-1 3.5.2-1", v3="3.3.5-2", more="I3")
@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_forbidden_topic(version: int, qos: int) -> None:
    """A forbidden topic gets 0x87 in PUBACK or PUBREC, and ends the connection with QoS 0 and in 3.1.1."""
    world = World(gatekeeper=OneTopic())
    peer = join(world, version=version)
    peer.publish("other", b"x", qos, packet_id=7)
    if version == 5 and qos:
        answer = peer.one("PUBACK" if qos == 1 else "PUBREC")
        assert (answer.packet_id, answer.code) == (7, 0x87)
        assert not peer.is_closed
    else:
        peer.ended(0x87)


# -- properties --------------------------------------------------------------------------------------------------------

USERS = [("b", "1"), ("a", "2"), ("b", "1"), ("", ""), ("ä", "\U0001f40d")]


@normative(v5="3.3.2-4 3.3.2-15 3.3.2-16 3.3.2-17 3.3.2-18 3.3.2-20")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("path", ["live", "queued", "retained", "again"])
def test_properties_are_forwarded(qos: int, path: str) -> None:
    """Properties are forwarded unchanged and in order, whichever way a message takes."""
    given = [(0x01, 1), (0x03, "c/t"), (0x08, "answer/to"), (0x09, b"\0\1\xff"), *((0x26, pair) for pair in USERS)]
    world = World()
    reader = join(world, "r", expiry=60)
    if path != "retained":
        reader.subscribe(("t", 2))
    if path == "queued":
        reader.lose()
    join(world, "p").publish("t", b"x", qos, props=given, retain=path == "retained")
    if path == "again":
        reader.lose()
    if path in ("queued", "again"):
        reader = join(world, "r", expiry=60, clean=False)
        messages = reader.after
    else:
        messages = reader.subscribe(("t", 2)) if path == "retained" else reader.seen()
    if qos == 0 and path in ("queued", "again"):
        assert not messages
        return
    (message,) = messages
    assert message.props == tuple(given)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 100_000])
def test_properties_keep_the_order_of_the_publisher(qos: int, size: int) -> None:
    """Properties keep the publisher's order, for clients that compare bytes, although it means nothing (2.2.2.2). Where
    the server has to add one, the user properties at least keep their order."""
    users = (0x26, ("b", "1")), (0x26, ("a", "2"))
    mixed = (users[0], (0x09, b"id"), (0x08, "answer"), users[1], (0x02, 60), (0x01, 1), (0x03, "c"))
    world = World()
    plain, numbered = join(world, "plain"), join(world, "numbered")
    plain.subscribe(("t", 2))
    numbered.subscribe(("t", 2), props=[(0x0B, 7)])
    join(world, "p").publish("t", b"x" * size, qos, props=mixed)
    (first,), (second,) = plain.seen(), numbered.seen()
    assert first.props == mixed
    assert set(second.props) == {*mixed, (0x0B, 7)}
    assert second.all(0x26) == [("b", "1"), ("a", "2")]
    world.sleep(3)
    late = join(world, "late")
    late.publish("t", b"y", qos, props=((0x03, "c"), (0x02, 9)))
    assert plain.seen()[-1].props == ((0x03, "c"), (0x02, 9))


def test_properties_end_at_old_clients() -> None:
    """A 3.1.1 subscriber gets the payload alone, and a 5.0 subscriber gets a 3.1.1 message without properties."""
    world = World()
    newer, older = join(world, "n"), join(world, "o", 4)
    newer.subscribe("t")
    older.subscribe("t")
    newer.publish("t", b"x", props=[(0x01, 1), (0x26, ("a", "b"))])
    older.publish("t", b"y")
    assert older.raw() == bytes.fromhex("30 04 00 01 74 78   30 04 00 01 74 79")
    assert [len(message.props) for message in newer.messages()] == [2, 0]


@normative(v5="3.3.2-14")
@pytest.mark.parametrize("topic", ["a/#", "+", ""])
def test_a_response_topic_that_is_none(topic: str) -> None:
    """A response topic that is empty or has wildcards is refused with 0x82."""
    peer = join(World())
    peer.publish("t", props=[(0x08, topic)])
    peer.ended(0x82)


@normative(v5="3.3.4-6")
def test_a_subscription_identifier_from_a_client() -> None:
    """A subscription identifier in a client's PUBLISH is refused with 0x82."""
    peer = join(World())
    peer.publish("t", props=[(0x0B, 1)])
    peer.ended(0x82)


@normative(v5="3.4.2-1 3.5.2-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_payload_format(qos: int) -> None:
    """A payload that is marked as UTF-8 and is not is refused with 0x99, in the acknowledgement or in DISCONNECT."""
    peer = join(World())
    peer.publish("t", b"\xff", props=[(0x01, 0)])
    assert not peer.is_closed
    peer.publish("t", b"\xff", qos, props=[(0x01, 1)])
    if qos:
        assert peer.one("PUBACK" if qos == 1 else "PUBREC").code == 0x99
    else:
        peer.ended(0x99)


# -- expiry ------------------------------------------------------------------------------------------------------------


@normative(v5="3.3.2-5 3.3.2-6")
@pytest.mark.parametrize(("waits_s", "left"), [(0, 10), (3, 7), (9.5, 1), (10, None), (100, None)])
def test_the_remaining_expiry(waits_s: float, left: int | None) -> None:
    """The time that a message waited is taken off its expiry, and a message with none left is dropped."""
    world = World()
    reader = join(world, "r", expiry=1000)
    reader.subscribe(("t", 1))
    reader.lose()
    join(world, "p").publish("t", b"x", 1, props=[(0x02, 10)])
    world.sleep(waits_s)
    messages = join(world, "r", expiry=1000, clean=False).after
    assert [message.prop(0x02) for message in messages] == ([] if left is None else [left])


@normative(v5="3.3.2-5 3.3.2-6")
def test_the_expiry_of_retained_messages() -> None:
    """The time that a retained message waited is taken off its expiry, and one with none left is dropped."""
    world = World()
    join(world, "p").publish("t", b"x", props=[(0x02, 10)], retain=True)
    world.sleep(4)
    (message,) = join(world, "a").subscribe("t")
    assert message.prop(0x02) == 6
    world.sleep(6)
    assert not join(world, "b").subscribe("t")


@normative(v5="3.3.2-5")
def test_a_message_behind_a_closed_window_expires() -> None:
    """A message that waits behind a closed window and expires there is not sent to the connected subscriber."""
    world = World()
    reader = join(world, "r", props=[(0x21, 1)])
    reader.subscribe(("t", 1))
    writer = join(world, "p")
    writer.publish("t", b"1", 1, props=[(0x02, 10)])
    writer.publish("t", b"2", 1, props=[(0x02, 10)])
    writer.publish("t", b"3", 1)
    (first,) = reader.messages()
    world.sleep(11)
    reader.send(ack(0x40, first.packet_id))
    assert reader.payloads() == [b"3"]


@normative(v5="4.3.3-7 4.3.3-13")
@pytest.mark.parametrize("qos", [1, 2])
def test_no_expiry_once_sent(qos: int) -> None:
    """A message in flight is sent again and acknowledged although its expiry has passed, then with nothing left."""
    world = World()
    reader = join(world, "r", expiry=1000)
    reader.subscribe(("t", 2))
    writer = join(world, "p")
    packet_id = writer.publish("t", b"x", qos, props=[(0x02, 10)])
    writer.seen()
    reader.lose()
    world.sleep(100)
    reader = join(world, "r", expiry=1000, clean=False)
    (message,) = reader.after
    assert (message.payload, message.dup, message.prop(0x02)) == (b"x", 1, 0)
    if qos == 2:
        reader.send(ack(0x50, message.packet_id))
        assert reader.one("PUBREL").code == 0
        writer.send(ack(0x62, packet_id))
        assert writer.one("PUBCOMP").code == 0


# -- sizes -------------------------------------------------------------------------------------------------------------


@normative(v5="3.1.2-24 3.1.2-25 3.3.4-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_too_large_for_the_subscriber(qos: int) -> None:
    """A message too large for a subscriber counts as delivered: the window stays open, and the publisher hears
    nothing."""
    world = World()
    reader = join(world, "r", props=[(0x27, 40), (0x21, 1)])
    reader.subscribe(("t", 2))
    writer = join(world, "p")
    for _ in range(3):
        writer.publish("t", bytes(60), qos)
    answers = {packet.code for packet in writer.seen()}
    assert answers == ({0} if qos else set())
    writer.publish("t", b"small", qos)
    assert reader.payloads() == [b"small"]
    assert world.broker.counters.dropped_too_large == 3
    limit = join(world, "exact", props=[(0x27, 40)])
    limit.subscribe("s")
    writer.publish("s", bytes(34))
    writer.publish("s", bytes(35))
    assert [message.size for message in limit.seen()] == [40]
