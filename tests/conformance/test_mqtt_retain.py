"""Retained messages (3.3.1.3, 3.8.3.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from handmade import ack, publish, subscribe
from handmade_peer import join
from normative import BOTH, normative
from support.broker_driver import World
from support.durable_broker import DurableWorld, MemoryStorage

from statestore_client.server.journal import Stream, Subject

NO_LOCAL, AS_PUBLISHED = 0x04, 0x08


@normative(v5="3.3.1-5", v3="3.1.2-7 3.3.1-5 3.3.1-6 3.3.1-8", more="R3")
@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message(version: int, qos: int) -> None:
    """A later subscriber gets the retained message with RETAIN 1, at the lower of both QoS, also after its publisher
    has gone with its session."""
    world = World()
    writer = join(world, "p", version)
    writer.publish("t", b"x", qos, retain=True)
    writer.lose()
    assert world.broker.usage.sessions == 0
    for granted in (0, 1, 2):
        (message,) = join(world, f"r{granted}", version).subscribe(("t", granted))
        assert (message.payload, message.retain, message.qos) == (b"x", 1, min(qos, granted))


@normative(v5="3.3.1-5", v3="3.3.1-5 3.3.1-7", more="R1 K6")
@BOTH
def test_the_last_one_counts(version: int) -> None:
    """A topic has one retained message, and each one replaces the one before, whatever its QoS."""
    world = World()
    writer = join(world, "p", version)
    for payload, qos in ((b"1", 2), (b"2", 0), (b"3", 1), (b"4", 0)):
        writer.publish("t", payload, qos, retain=True)
    (message,) = join(world, "r", version).subscribe(("t", 2))
    assert (message.payload, message.qos) == (b"4", 0)


@normative(v5="3.3.1-6 3.3.1-7", v3="3.3.1-10 3.3.1-11", more="R2")
@BOTH
def test_an_empty_one_deletes(version: int) -> None:
    """An empty retained message is delivered to subscribers and deletes the retained message."""
    world = World()
    reader, writer = join(world, "r", version), join(world, "p", version)
    writer.publish("t", b"x", retain=True)
    reader.subscribe("t")
    writer.publish("t", b"", 1, retain=True)
    message = reader.one("PUBLISH")
    assert (message.payload, message.retain) == (b"", 0)
    assert not join(world, "late", version).subscribe("t")


@normative(v5="3.3.1-8", v3="3.3.1-12")
@BOTH
@pytest.mark.parametrize("payload", [b"new", b""])
def test_messages_without_retain(version: int, payload: bytes) -> None:
    """A message without RETAIN is not kept, and leaves the retained message alone."""
    world = World()
    writer = join(world, "p", version)
    writer.publish("t", b"old", retain=True)
    writer.publish("t", payload)
    writer.publish("other", b"x")
    messages = join(world, "r", version).subscribe("#")
    assert [message.payload for message in messages] == [b"old"]


@normative(v5="3.3.1-12 3.3.1-13", v3="3.3.1-9")
@BOTH
@pytest.mark.parametrize("retain", [False, True])
def test_retain_towards_established_subscriptions(version: int, retain: bool) -> None:
    """An established subscription gets RETAIN 0, or as published if it asks for that, also through a queue."""
    world = World()
    plain, writer = join(world, "r", version, expiry=60), join(world, "p", version)
    plain.subscribe(("t", 1))
    writer.publish("t", b"x", 1, retain=retain)
    assert plain.one("PUBLISH").retain == 0
    if version == 5:
        wants, away = join(world, "w"), join(world, "a", expiry=60)
        wants.subscribe(("t", AS_PUBLISHED | 0x20))
        away.subscribe(("t", AS_PUBLISHED | 0x21))
        away.lose()
        writer.publish("t", b"x", 1, retain=retain)
        assert wants.one("PUBLISH").retain == retain
        assert join(world, "a", clean=False, expiry=60).after[0].retain == retain


@normative(v5="3.3.1-12 3.3.1-13")
def test_overlapping_subscriptions_that_differ_in_it() -> None:
    """Of overlapping subscriptions one copy is sent, with RETAIN if one of them wants it as published."""
    reader = join(World())
    reader.subscribe(("t", 0), ("#", AS_PUBLISHED))
    reader.publish("t", b"x", retain=True)
    assert reader.one("PUBLISH").retain == 1


@normative(v5="3.3.1-9 3.3.1-10 3.3.1-11 3.8.4-4")
@pytest.mark.parametrize(("handling", "first", "second"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
def test_retain_handling(handling: int, first: int, second: int) -> None:
    """Retain handling sends retained messages always, to new subscriptions only, or never."""
    world = World()
    join(world, "p").publish("a/t", b"x", retain=True)
    reader = join(world, "r", expiry=60)
    for name in ("a/t", "a/+", "#"):
        options = handling << 4
        assert len(reader.subscribe((name, options))) == first
        assert len(reader.subscribe((name, options | 1))) == second
        assert reader.granted == (1,)
        reader.unsubscribe(name)
        assert len(reader.subscribe((name, options))) == first
        reader.unsubscribe(name)


@normative(v5="3.3.1-10")
def test_a_restored_subscription_is_not_new() -> None:
    """With retain handling 1 a session that goes on gets no retained messages for a subscription that it has."""
    world = World()
    join(world, "p").publish("t", b"x", retain=True)
    reader = join(world, "r", expiry=60)
    assert len(reader.subscribe(("t", 0x10))) == 1
    reader.lose()
    reader = join(world, "r", expiry=60, clean=False)
    assert not reader.after
    assert not reader.subscribe(("t", 0x10))


@normative(v3="3.3.1-6 3.8.4-3")
def test_a_repeated_subscription_in_3_1_1() -> None:
    """A repeated subscription in 3.1.1 gets the retained messages again."""
    world = World()
    reader = join(world, "r", 4)
    reader.publish("t", b"x", retain=True)
    assert len(reader.subscribe("t")) == 1
    assert len(reader.subscribe(("t", 2))) == 1


@normative(v5="3.3.1-9", v3="3.3.1-6")
@BOTH
def test_retained_messages_of_wildcards(version: int) -> None:
    """A wildcard subscription gets each match once, the parent of # included; $ topics do not match a leading
    wildcard."""
    world = World()
    writer = join(world, "p", version)
    for topic in ("a", "a/b", "a/b/c", "ab", "b/b", "$x/b", "/b", "a/"):
        writer.publish(topic, topic.encode(), retain=True)
    expected = {
        "a": {"a"},
        "a/#": {"a", "a/b", "a/b/c", "a/"},
        "+/b": {"a/b", "b/b", "/b"},
        "#": {"a", "a/b", "a/b/c", "ab", "b/b", "/b", "a/"},
        "+": {"a", "ab"},
        "+/+/#": {"a/b", "a/b/c", "b/b", "/b", "a/"},
        "$x/+": {"$x/b"},
        "a/+": {"a/b", "a/"},
        "/+": {"/b"},
        "none/#": set(),
    }
    for number, (name, topics) in enumerate(expected.items()):
        found = [message.topic for message in join(world, f"r{number}", version).subscribe(name)]
        assert sorted(found) == sorted(topics), name


@normative(more="F11 R5")
@BOTH
def test_suback_comes_first_and_new_messages_last(version: int) -> None:
    """SUBACK comes first, then the retained messages, then what was published behind the subscription in the same
    chunk."""
    world = World()
    peer = join(world, "r", version)
    for name in "abc":
        peer.publish(f"t/{name}", b"old", retain=True)
    peer.send(subscribe(1, "t/#", version=version), publish("t/a", b"new", version=version))
    seen = peer.seen()
    assert seen[0].kind == "SUBACK"
    assert [packet.payload for packet in seen[1:]] == [b"old", b"old", b"old", b"new"]


@normative(more="R5")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_new_messages_wait_behind_many_retained_ones(qos: int) -> None:
    """Thousands of retained messages are sent in slices, and what is published meanwhile comes after them."""
    world = World(usual_receive_maximum=1000)
    writer, reader = join(world, "w"), join(world, "r")
    for number in range(500):
        writer.publish(f"t/{number:03}", b"old", qos, retain=True)
    writer.raw()
    reader.send(subscribe(1, ("t/#", 2)))
    writer.publish("t/499", b"new", qos)
    suback, *messages = reader.seen()
    assert suback.kind == "SUBACK"
    assert [message.payload for message in messages] == [b"old"] * 500 + [b"new"]
    writer.publish("t/0", b"newer", qos)
    assert reader.payloads() == [b"newer"]


@normative(more="R5")
@pytest.mark.parametrize("qos", [1, 2])
def test_new_messages_wait_behind_a_closed_window(qos: int) -> None:
    """With a receive maximum of 1 retained messages come one by one and then the new ones; QoS 0 does not wait."""
    world = World()
    writer, reader = join(world, "w"), join(world, "r", props=[(0x21, 1)], expiry=60)
    for name in "abc":
        writer.publish(name, b"old", qos, retain=True)
    reader.send(subscribe(1, ("#", 1)))
    writer.publish("c", b"new", qos)
    writer.publish("c", b"zero")
    _, *messages = reader.seen()
    found = [(message.topic, message.payload) for message in messages]
    while pending := [message for message in messages if message.qos]:
        reader.send(ack(0x40, pending[0].packet_id))
        messages = reader.messages()
        found += [(message.topic, message.payload) for message in messages]
    assert found == [("a", b"old"), ("c", b"zero"), ("b", b"old"), ("c", b"old"), ("c", b"new")]


def test_shared_subscriptions_get_no_retained_messages() -> None:
    """A shared subscription gets no retained messages when it is made (4.8.2)."""
    world = World()
    peer = join(world, "c")
    peer.publish("t", b"x", retain=True)
    assert not peer.subscribe("$share/g/t")


@normative(more="R4")
@pytest.mark.parametrize("name", ["1234", "12/34", "x/+", "12/+/none", "zz/#"])
def test_looking_up_is_quick(name: str) -> None:
    """A few matches among thousands of retained topics are found in one slice of work, here of 64 looks."""
    world = World()
    writer = join(world, "w")
    for number in range(3000):
        writer.publish(f"{number:04}", b"x", retain=True)
    for number in (12, 34):
        writer.publish(f"{number}/34", b"x", retain=True)
    reader = join(world, "r")
    reader.send(subscribe(1, name))
    assert not world.broker.has_work
    assert len(reader.messages()) == {"1234": 1, "12/34": 1}.get(name, 0)


class CountingStorage(MemoryStorage):
    """Counts the records that are read from each stream."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Counter[Stream] = Counter()

    def load(self, stream: Stream) -> Iterator[tuple[Subject, bytes]]:
        for record in super().load(stream):
            self.read[stream] += 1
            yield record


@normative(more="K9")
@pytest.mark.parametrize("count", [10, 1000])
def test_a_start_reads_every_retained_message_once(count: int) -> None:
    """A start reads each retained message once, without reading any session, and none is read again afterwards."""
    world = DurableWorld()
    world.storage = CountingStorage()
    writer = join(world, "w")
    for number in range(count):
        writer.publish(f"t/{number:04}", b"x", retain=True)
    world.work()
    world.crash()
    assert (world.storage.read[Stream.RETAINED], world.storage.read[Stream.SESSIONS]) == (count, 0)
    reader = join(world, "r")
    assert len(reader.subscribe("t/#")) == count
    assert world.storage.read[Stream.RETAINED] == count
