"""What a broker with a journal is after a crash: what it acknowledged is there, in order, and nothing else."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.broker_driver import Client
from support.broker_invariants import audit
from support.durable_broker import (
    DAY,
    NAMES,
    STEPS,
    TOPICS,
    UNEVEN_S,
    DurableWorld,
    Program,
    broker_state,
    is_calm,
    messages_in,
    texts_in,
)

from statestore_client.mqtt.packets import (
    Connect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscription,
    Unsubscribe,
    Will,
)
from statestore_client.server.broker.lifecycle import GRACE_S
from statestore_client.server.broker.message import Message
from statestore_client.server.broker.records import MessageRecord
from statestore_client.server.journal import Changes, DamagedRecordError, Stream, WriteBatch, seal


@pytest.fixture
def world() -> DurableWorld:
    return DurableWorld()


# -- clients that the server has let go --------------------------------------------------------------------------------


@pytest.mark.parametrize("expiry", [0, DAY])
@pytest.mark.parametrize("fate", ["back", "back later", "away", "away over a restart"])
def test_clients_that_were_let_go_are_expected_back(world: DurableWorld, expiry: int, fate: str) -> None:
    """Who is back in time leaves no will, whether its session outlives its connections or not; who is not leaves it
    once, also if the server is lost meanwhile. Grace begins anew when clients are let go again.
    """
    watcher = world.client("watcher")
    watcher.subscribe("will")
    client = world.client("c", will=Will("will", b"gone"), session_expiry=expiry)
    other = world.client("other", session_expiry=DAY)
    world.work()
    world.broker.let_go([client.connection], world.now)
    client.lose()
    world.work()
    assert audit(world.broker) == ()
    world.sleep(GRACE_S - 1.0)
    if fate == "back later":
        world.broker.let_go([other.connection], world.now)
        other.lose()
        world.sleep(GRACE_S - 1.0)
    if fate == "away over a restart":
        world.work()
        world.crash()
        watcher = world.client("watcher")
        watcher.subscribe("will")
    if fate.startswith("back"):
        world.client("c", will=Will("will", b"gone"), session_expiry=expiry)
    world.sleep(2 * GRACE_S)
    wills = [packet for packet in watcher.received() if isinstance(packet, Publish)]
    assert [will.payload for will in wills] == ([] if fate.startswith("back") else [b"gone"])
    assert audit(world.broker) == ()


# -- output commit -----------------------------------------------------------------------------------------------------


def test_nothing_goes_out_before_it_is_written(world: DurableWorld) -> None:
    """PUBACK and the delivery wait in the connection until their batch is committed."""
    receiver = world.client("r", session_expiry=DAY)
    receiver.subscribe("t", qos=1)
    sender = world.client("s")
    sender.publish("t", b"1", 1)
    assert not sender.connection.outbox
    assert not receiver.connection.outbox
    world.commit()
    assert sender.connection.outbox
    assert receiver.connection.outbox
    assert world.storage.count()["deliveries"] == 1


def test_what_is_sealed_is_released_alone(world: DurableWorld) -> None:
    """A commit releases what was staged before its cut, and later bytes wait for the next one."""
    client = world.client("c")
    client.publish("t", b"", 1)
    connection = client.connection
    connection.seal()
    client.publish("t", b"", 1)
    connection.release()
    assert connection.take() == bytes.fromhex("40020001") or len(connection.outbox) == 0
    assert connection.outbox_bytes > 0


def test_nobody_waits_for_a_removal(world: DurableWorld) -> None:
    """A subscriber's PUBACK is written some time later; PUBLISH, SUBSCRIBE and UNSUBSCRIBE are written at once."""
    receiver = world.client("r", session_expiry=DAY)
    receiver.subscribe("t", qos=1)
    world.client("s").publish("t", b"", 1)
    assert world.journal.is_urgent
    (message,) = receiver.messages()
    receiver.send(Puback(message.packet_id))
    assert world.journal
    assert not world.journal.is_urgent
    receiver.send(Unsubscribe(2, ("t",)))
    assert world.journal.is_urgent


def test_a_full_journal_holds_the_clients(world: DurableWorld) -> None:
    """While the disk is far behind no client is read, and after the cut all are."""
    world.client("r", session_expiry=DAY).subscribe("t", qos=1)
    sender = world.client("s")
    for _ in range(40):
        sender.publish("t", bytes(1_000_000), 1)
    assert sender.connection.is_held
    world.commit()
    assert not sender.connection.is_held


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_what_was_in_flight_comes_first_and_again(world: DurableWorld) -> None:
    """What was in flight comes before what waited, with its packet identifier and DUP, and identifiers go on after
    it."""
    receiver = world.client("r", session_expiry=DAY, receive_maximum=2)
    receiver.subscribe("t", qos=1)
    sender = world.client("s")
    for number in range(4):
        sender.publish("t", b"%d" % number, 1)
    assert [m.packet_id for m in receiver.messages()] == [1, 2]
    world.crash()
    _, packets = world.back("r")
    found = [(m.packet_id, m.payload, m.dup) for m in messages_in(packets)]
    assert found == [(1, b"0", True), (2, b"1", True), (3, b"2", False), (4, b"3", False)]


def test_a_message_is_inside_of_its_only_delivery(world: DurableWorld) -> None:
    """A message with one receiver is stored inside its delivery, one with more in a record of its own, and all get it
    again."""
    world.client("r0", session_expiry=DAY).subscribe("one", qos=1)
    for number in range(3):
        world.client(f"m{number}", session_expiry=DAY).subscribe("many", qos=1)
    sender = world.client("s")
    sender.publish("one", b"1", 1)
    world.commit()
    counts = world.storage.count()
    assert (counts["deliveries"], counts.get("messages", 0)) == (1, 0)
    sender.publish("many", b"2", 1)
    world.commit()
    counts = world.storage.count()
    assert (counts["deliveries"], counts["messages"]) == (4, 1)
    world.crash()
    found = {name: world.back(name) for name in ("r0", "m0", "m1", "m2")}
    assert {name: texts_in(packets) for name, (_, packets) in found.items()} == {
        "r0": [b"1"],
        "m0": [b"2"],
        "m1": [b"2"],
        "m2": [b"2"],
    }
    for receiver, packets in found.values():
        receiver.send(*[Puback(message.packet_id) for message in messages_in(packets)])
    world.commit()
    assert world.storage.count() == {"sessions": 4, "subscriptions": 4}


def test_a_clean_start_leaves_nothing(world: DurableWorld) -> None:
    """A clean start removes all of the old session, and a session that ends with its connection is never written."""
    receiver = world.client("r", session_expiry=DAY, receive_maximum=1)
    receiver.subscribe("t", qos=2)
    sender = world.client("s", session_expiry=DAY)
    for _ in range(3):
        sender.publish("t", b"", 2)
    receiver.send(Pubrec(receiver.messages()[0].packet_id))
    world.commit()
    assert set(world.storage.count()) == {
        "sessions", "subscriptions", "messages", "deliveries", "releases", "inbound",
    }  # fmt: skip
    world.client("r", clean_start=True)
    world.client("s", clean_start=True)
    world.commit()
    assert world.storage.count() == {}


def test_a_session_that_is_to_end_with_its_connection_now(world: DurableWorld) -> None:
    """A session that is resumed with expiry 0 is not kept, because a crash ends its connection."""
    client = world.client("c", session_expiry=DAY)
    client.subscribe("t", qos=1)
    client.lose()
    client = world.client("c", clean_start=False)
    assert client.connack.session_present
    world.client("s").publish("t", b"1", 1)
    assert texts_in(client.messages()) == [b"1"]
    assert world.storage.count() == {}
    world.crash()
    assert not world.client("c", clean_start=False).connack.session_present


# -- QoS 2 -------------------------------------------------------------------------------------------------------------


def test_qos_2_is_taken_over_once(world: DurableWorld) -> None:
    """A QoS 2 message that is sent again after the crash gets its PUBREC and is not delivered again."""
    receiver = world.client("r", session_expiry=DAY)
    receiver.subscribe("t", qos=2)
    receiver.lose()
    sender = world.client("s", session_expiry=DAY)
    sender.send(Publish("t", b"1", 2, packet_id=5))
    assert sender.one(Pubrec).packet_id == 5
    world.crash()
    sender = world.client("s", clean_start=False, session_expiry=DAY)
    sender.send(Publish("t", b"1", 2, dup=True, packet_id=5))
    assert sender.one(Pubrec).reason_code == 0
    sender.send(Pubrel(5))
    assert sender.one(Pubcomp).reason_code == 0
    assert texts_in(world.back("r")[1]) == [b"1"]
    world.crash()
    sender = world.client("s", clean_start=False, session_expiry=DAY)
    sender.send(Publish("t", b"2", 2, packet_id=5))
    assert sender.one(Pubrec).packet_id == 5


# -- the journal -------------------------------------------------------------------------------------------------------


def test_what_comes_and_goes_between_two_cuts_leaves_no_trace(world: DurableWorld) -> None:
    """A message that is queued and dropped between two cuts never reaches the disk."""
    receiver = world.client("r", session_expiry=DAY)
    receiver.subscribe("t", qos=1)
    receiver.lose()
    world.commit()
    before = len(world.storage.batches)
    sender = world.client("s")
    sender.received()
    sender.publish("t", bytes(1000), 1)
    world.client("r", clean_start=True)
    world.commit()
    (batch,) = world.storage.batches[before:]
    assert {changes.stream for changes in batch.changes} == {Stream.SESSIONS, Stream.SUBSCRIPTIONS, Stream.CLOCK}


def test_a_number_that_is_used_again_is_removed_from_the_disk(world: DurableWorld) -> None:
    """A packet identifier that is released, taken and released between cuts does not bring its first message back."""
    sender = world.client("s", session_expiry=DAY)
    sender.send(Publish("t", b"", 2, packet_id=1))
    world.commit()
    sender.send(Pubrel(1), Publish("t", b"", 2, packet_id=1), Pubrel(1))
    world.commit()
    assert world.storage.count() == {"sessions": 1}


def test_the_record_of_a_message_has_no_user() -> None:
    """A retained message and its record hold the client identifier of the publisher and no user."""
    names = {field.name for field in attrs.fields(Message)} | {field.name for field in attrs.fields(MessageRecord)}
    assert "publisher" in names
    assert not any("user" in name for name in names)


@pytest.mark.parametrize(
    ("stream", "subject", "data"),
    [
        (Stream.RETAINED, "t", b""),
        (Stream.RETAINED, "t", seal(Stream.RETAINED, "t", ("t", b"", 1))[:-1]),
        (Stream.RETAINED, "t", seal(Stream.RETAINED, "t", ("t", b"", 1))),
        (Stream.SESSIONS, "c", b"\0\0\0\0\x90"),
        (Stream.SUBSCRIPTIONS, "3 t", seal(Stream.SUBSCRIPTIONS, "3 t", (1, False, False, ()))),
        (Stream.SUBSCRIPTIONS, "x", seal(Stream.SUBSCRIPTIONS, "x", (1, False, False, ()))),
        (Stream.DELIVERIES, 1, seal(Stream.DELIVERIES, 1, (1, 1, 1, False, (), 0))),
        (Stream.RELEASES, 1, seal(Stream.RELEASES, 1, 7)),
        (Stream.INBOUND, 1, seal(Stream.INBOUND, 1, ())),
    ],
)
def test_damaged_records_are_refused(stream: Stream, subject: str | int, data: bytes) -> None:
    """Records with a wrong checksum, missing fields or references to nothing raise one kind of error."""
    world = DurableWorld()
    world.storage.append(WriteBatch((Changes(stream, ((subject, data),), ()),)), print)
    with pytest.raises(DamagedRecordError):
        world.crash()


# -- retained messages -------------------------------------------------------------------------------------------------


def test_retained_messages_survive_with_their_remaining_time(world: DurableWorld) -> None:
    """Replaced, deleted and expired retained messages are gone, and expiry goes on while the server is away."""
    sender = world.client("s")
    sender.publish("a", b"old", 1, retain=True)
    sender.publish("a", b"new", 1, retain=True, content_type="text/plain", user_properties=(("k", "v"),))
    sender.publish("b", b"b", 1, retain=True)
    sender.publish("b", b"", 1, retain=True)
    sender.publish("c", b"c", 1, retain=True, message_expiry=100)
    sender.publish("d", b"d", 1, retain=True, message_expiry=10)
    sender.publish("e", b"e", 0, retain=True)
    world.commit()
    world.crash(away_s=40)
    messages = world.client("r").subscribe("#", qos=1)
    assert [(m.topic, m.payload, m.properties.message_expiry) for m in messages if isinstance(m, Publish)] == [
        ("a", b"new", None), ("c", b"c", 60), ("e", b"e", None),
    ]  # fmt: skip
    assert isinstance(messages[0], Publish)
    assert messages[0].properties.user_properties == (("k", "v"),)
    assert messages[0].properties.content_type == "text/plain"
    world.commit()
    assert world.storage.count() == {"retained": 3}


def test_retained_messages_that_were_still_to_be_sent(world: DurableWorld) -> None:
    """An acknowledged subscription gets the retained messages that it did not get before the crash."""
    sender = world.client("s")
    for number in range(200):
        sender.publish(f"t/{number:03}", b"%d" % number, 1, retain=True)
    receiver = world.client("r", session_expiry=DAY, receive_maximum=5)
    first = [m.topic for m in receiver.subscribe("t/#", qos=1) if isinstance(m, Publish)]
    assert len(first) == 5
    world.crash()
    receiver, packets = world.back("r")
    found = messages_in(packets)
    assert [m.topic for m in found] == [f"t/{number:03}" for number in range(200)]
    assert [m.dup for m in found] == [True] * 5 + [False] * 195
    receiver.send(*[Puback(m.packet_id) for m in found])
    world.commit()
    assert world.storage.count() == {"sessions": 1, "subscriptions": 1, "retained": 200}


def test_a_subscription_that_was_replaced_by_one_of_qos_0(world: DurableWorld) -> None:
    """Retained messages still owed to a subscription that one of QoS 0 replaced are not sent after the restart."""
    reader = world.client("r", session_expiry=DAY)
    reader.subscribe(Subscription("t", 1), Subscription("t", 0))
    world.client("w").publish("t", b"x", 1, retain=True)
    world.work()
    world.crash()
    assert world.back("r")[1] == []
    assert Stream.CURSORS.value not in world.storage.count()


def test_what_overtook_in_the_queue_stays_ahead(world: DurableWorld) -> None:
    """Retained messages stay ahead of new ones in the queue, and in flight they come again in that order."""
    sender = world.client("s")
    for number in range(3):
        sender.publish(f"t/{number}", b"retained", 1, retain=True)
    receiver = world.client("r", session_expiry=DAY, receive_maximum=2)
    first, second = messages_in(receiver.subscribe("t/#", qos=1))
    sender.publish("t/new", b"new", 1)
    receiver.send(Puback(first.packet_id), Puback(second.packet_id))
    assert texts_in(receiver.messages()) == [b"retained", b"new"]
    world.crash()
    assert texts_in(world.back("r")[1]) == [b"retained", b"new"]


# -- random programs ---------------------------------------------------------------------------------------------------


class _CrashProgram(Program):
    """A random program against a broker with a journal. The oracle is the same broker, whose clients all lose their
    connection when those of the other one are no longer awaited: what is restored from the committed batches must be in
    the same state. Or all clients come back, and no will goes out.

    All that a client ever received was committed before, so this says that what was acknowledged is there, in order,
    that QoS 2 identifiers and PUBRELs are, and that nothing is there that is over.
    """

    def _crash(self, away_s: float) -> None:
        """Compare the restored broker with the one whose clients are all gone now."""
        world = self.world
        world.sleep(UNEVEN_S)
        world.work()
        written = world.storage.copy()
        crashed_at = world.monotonic
        is_exact = not away_s and is_calm(world.broker, world.now)
        world.sleep(away_s + GRACE_S)
        self.all_leave()
        expected = broker_state(world.broker, world.now, is_exact=is_exact)
        world.storage, world.monotonic = written, crashed_at
        world.crash(away_s)
        assert audit(world.broker) == ()
        world.sleep(GRACE_S)
        assert broker_state(world.broker, world.now, is_exact=is_exact) == expected
        assert audit(world.broker) == ()
        world.work()

    def _crash_and_return(self, away_s: float) -> None:
        world = self.world
        world.work()
        before = world.broker
        world.crash(away_s)
        self.all_return(before)
        assert audit(world.broker) == ()

    def end(self) -> None:
        """When all sessions and retained messages are gone, nothing is left on the disk."""
        self._crash(0.0)
        world = self.world
        for name in NAMES:
            client = Client(world)
            client.send(Connect(name, clean_start=True))
            client.received()
        for topic in TOPICS:
            client.publish(topic, b"", 1, retain=True)
        client.received()
        assert world.storage.count() == {}


#: Crashes while all clients stay away, and crashes after which all are back.
_crashes = st.tuples(st.sampled_from(("crash", "crash_and_return")), st.sampled_from((0.0, 25.0)))


@given(st.lists(st.one_of(*STEPS, _crashes), max_size=60))
@settings(max_examples=100, deadline=None)
def test_a_restored_broker_is_one_whose_clients_all_left(steps: list[tuple[Any, ...]]) -> None:
    """At any crash sessions, queues, QoS 2 state, wills and retained messages equal those of a broker whose clients all
    left."""
    program = _CrashProgram(DurableWorld())
    program.begin()
    for step in steps:
        program.run(step)
    program.end()
