"""What a broker with a journal is after a crash: what it acknowledged is there, in order, and nothing else."""

from __future__ import annotations

import pytest
from support.durable_broker import DAY, DurableWorld, MemoryStorage, messages_in, texts_in

from statestore_client.mqtt.packets import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscription,
    Unsubscribe,
)
from statestore_client.server.journal import Changes, DamagedRecordError, Journal, Stream, WriteBatch, seal


@pytest.fixture
def world() -> DurableWorld:
    return DurableWorld()


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
    world.client(
        "r",
        session_expiry=DAY,
    ).subscribe("t", qos=1)
    sender = world.client("s")
    for _ in range(40):
        sender.publish("t", bytes(1_000_000), 1)
    assert sender.connection.is_held
    world.commit()
    assert not sender.connection.is_held


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_messages_for_an_absent_client_survive_in_order(world: DurableWorld) -> None:
    """Subscription and queue survive in the order of publishing, with the subscription's identifier."""
    receiver = world.client("r", session_expiry=DAY)
    receiver.subscribe("t/#", qos=1, identifier=7)
    receiver.lose()
    sender = world.client("s")
    for number in range(300):
        sender.publish(f"t/{number % 3}", b"%d" % number, 1)
        sender.received()
    world.crash()
    receiver, packets = world.back("r")
    messages = messages_in(packets)
    assert texts_in(messages) == [b"%d" % number for number in range(300)]
    assert not any(message.dup for message in messages)
    assert {message.properties.subscription_ids for message in messages} == {(7,)}
    world.client("s2").publish("t/9", b"new", 1)
    assert texts_in(receiver.messages()) == [b"new"]


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


def test_what_was_acknowledged_does_not_come_again(world: DurableWorld) -> None:
    """After PUBACK nothing of a message is left in memory or on disk."""
    receiver = world.client("r", session_expiry=DAY)
    receiver.subscribe("t", qos=1)
    world.client("s").publish("t", b"", 1)
    receiver.send(*[Puback(message.packet_id) for message in receiver.messages()])
    world.commit()
    assert world.storage.count() == {"sessions": 1, "subscriptions": 1}
    world.crash()
    assert world.back("r")[1] == []


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


def test_unsubscribed_filters_stay_away(world: DurableWorld) -> None:
    """UNSUBSCRIBE and changed options survive."""
    client = world.client("c", session_expiry=DAY)
    client.subscribe(Subscription("a", 1), Subscription("b", 1), Subscription("c", 2))
    client.subscribe(Subscription("c", 1, no_local=True))
    client.send(Unsubscribe(9, ("b",)))
    client.received()
    world.crash()
    client = world.client("c", clean_start=False, session_expiry=DAY)
    sender = world.client("s")
    for topic in "abc":
        sender.publish(topic, topic.encode(), 2)
        client.publish(topic, b"own", 1)
    found = [(m.topic, m.payload, m.qos) for m in client.messages()]
    assert found == [("a", b"a", 1), ("a", b"own", 1), ("c", b"c", 1)]


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


def test_pubrel_comes_again_in_order(world: DurableWorld) -> None:
    """After PUBREC only PUBREL is repeated, in the order of the PUBRECs."""
    receiver = world.client("r", session_expiry=DAY)
    receiver.subscribe("t", qos=2)
    sender = world.client("s")
    for number in range(3):
        sender.publish("t", b"%d" % number, 2)
    ids = [message.packet_id for message in receiver.messages()]
    receiver.send(Pubrec(ids[2]), Pubrec(ids[0]))
    receiver.received()
    world.crash()
    receiver, (first, second, third) = world.back("r")
    assert (first, second) == (Pubrel(ids[2]), Pubrel(ids[0]))
    assert isinstance(third, Publish)
    assert (third.packet_id, third.payload, third.dup) == (ids[1], b"1", True)
    receiver.send(Pubcomp(ids[2]), Pubcomp(ids[0]), Pubrec(ids[1]))
    assert receiver.one(Pubrel) == Pubrel(ids[1])
    receiver.send(Pubcomp(ids[1]))
    world.commit()
    assert world.storage.count() == {"sessions": 1, "subscriptions": 1}


# -- many at once ------------------------------------------------------------------------------------------------------


def test_a_message_to_many_is_written_before_it_is_acknowledged(world: DurableWorld) -> None:
    """A crash after PUBACK, and before the copies went out in slices, loses none of them."""
    names = [f"r{number:03}" for number in range(150)]
    for name in names:
        world.client(name, session_expiry=DAY).subscribe("t", qos=1)
    plain = world.client("plain")
    plain.subscribe("t", qos=1)
    sender = world.client("s")
    sender.publish("t", b"1", 1)
    sender.publish("t", b"2", 1)
    while len(sender.connection.outbox) < 2:
        world.broker.work(world.now)
        world.commit()
    assert world.broker.has_work
    world.crash()
    for name in names:
        assert texts_in(world.back(name)[1]) == [b"1", b"2"]


def test_a_message_to_many_keeps_its_place(world: DurableWorld) -> None:
    """What is published while copies go out in slices comes after them for everybody."""
    names = [f"r{number:03}" for number in range(150)]
    clients = [world.client(name, session_expiry=DAY if int(name[1:]) % 2 else 0) for name in names]
    for client in clients:
        client.subscribe("t/#", qos=1)
    sender, other = world.client("s"), world.client("o")
    sender.publish("t/1", b"1", 1)
    other.publish("t/1", b"2", 1)
    for client in clients:
        assert texts_in(client.messages()) == [b"1", b"2"]


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


def test_an_empty_journal_has_nothing_to_write() -> None:
    """An empty journal writes no batch."""
    journal = Journal()
    assert not journal
    assert MemoryStorage().count() == {}
