"""What a host reads of an earlier life, and in which order it ends what it has begun."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from msgpack import packb
from support.durable_store import batch_of

from statestore_client.mqtt.packets.types import Publish, PublishProperties
from statestore_client.server.host.host import Acknowledge, Host, Send
from statestore_client.server.journal import DamagedRecordError, Journal, Stream, StreamTables
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import StateStore
from statestore_client.wire.commands import Get, KeyNotify, Set
from statestore_client.wire.hlc import HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.protocol import COMMAND_TOPIC, TIMESTAMP, response_topic
from statestore_client.wire.replies import Notification, Operation, encode_notification

NOW = Instant(5.0, 1_800_000_000_000)
SET = encode_notification(Notification(Operation.SET, b"x"))
VERSION = "001800000000000:00000:StateStore"


class Life:
    """A host that has nothing yet."""

    def __init__(self) -> None:
        self.asked = 0
        self.journal = Journal(1)
        store = StateStore(clock=HybridLogicalClock("StateStore", guard=threading.Lock()), journal=self.journal)
        service = StateStoreService(store, token_key=bytes(TOKEN_KEY_BYTES), journal=self.journal)
        self.observers = store.observers
        self.host = Host(service, store.observers, client_id="the host", journal=self.journal)

    def restore(self, *batches: tuple[Stream, bytes | int, tuple[object, ...]]) -> None:
        tables = StreamTables()
        for stream, subject, fields in batches:
            tables.absorb(batch_of(stream, (subject, fields)))
        self.journal.resume(tables, NOW)
        self.host.restore(tables, NOW)

    def ask(self, client: bytes, payload: bytes, packet_id: int = 1) -> None:
        self.asked += 1
        properties = PublishProperties(
            response_topic=response_topic(client.decode()),
            correlation_data=b"%d" % self.asked,
            user_properties=((TIMESTAMP, f"{NOW.wall_ms}:{self.asked}:{client.decode()}"),),
        )
        self.host.receive(Publish(COMMAND_TOPIC, payload, 1, properties=properties, packet_id=packet_id), NOW)

    def said(self) -> list[Any]:
        """Since the last time; everything is durable."""
        self.host.seal()
        self.host.release()
        found, self.host.outbox = self.host.outbox, []
        return found


def observes(client: str, since: int = 0) -> tuple[Stream, bytes, tuple[object, ...]]:
    return Stream.OBSERVATIONS, packb((client, b"k")), (1_000, VERSION, since)


def test_who_began_to_observe_after_a_change_is_not_told_of_it() -> None:
    """The others are, in the order of the changes; numbers go on above all that were given out."""
    life = Life()
    notices = [(Stream.NOTICES, number, (b"k", SET, VERSION)) for number in (3, 4)]
    life.restore(observes("early", 1), observes("late", 9), *notices)
    assert sorted(life.observers.of(b"k")) == ["early", "late"]
    life.host.connected(NOW, session_present=True, receive_maximum=10)
    life.host.seal()
    life.host.release()
    told = [output.message.topic for output in life.host.outbox if output.message.payload == SET]
    assert len(told) == 2
    assert all(b"early".hex().upper() in topic for topic in told)
    assert life.journal[Stream.NOTICES].next_number == 9


def test_a_change_that_nobody_observes_any_more_is_not_told() -> None:
    """Its notice goes."""
    life = Life()
    life.restore((Stream.NOTICES, 3, (b"k", SET, VERSION)))
    assert not life.host.dirty
    assert life.journal[Stream.NOTICES].changes == {3: None}


def test_an_old_notification_does_not_end_a_renewed_registration() -> None:
    """Nobody subscribed to it: the observer had left, and has come back since. A later one does end it."""
    life = Life()
    life.restore(observes("a"))
    life.host.connected(NOW, session_present=True, receive_maximum=10)

    def change(value: bytes) -> int:
        """Returns the delivery of its notification."""
        life.ask(b"b", Set(b"k", value).encode())
        return next(
            each.delivery_id
            for each in life.said()
            if isinstance(each, Send) and each.message.topic.endswith("/notify/6B")
        )

    old = change(b"1")
    life.ask(b"a", KeyNotify(b"k").encode())
    life.host.published(old, 0x10, NOW)
    assert life.observers.has("a", b"k")
    life.host.published(change(b"2"), 0x10, NOW)
    assert not life.observers.has("a", b"k")
    assert life.journal[Stream.OBSERVATIONS].changes == {packb(("a", b"k")): None}


def test_a_request_is_acknowledged_once_the_broker_has_its_answer() -> None:
    """In the order of the requests, whatever order the broker takes the answers in."""
    life = Life()
    life.restore()
    life.host.connected(NOW, session_present=True, receive_maximum=10)
    life.ask(b"a", Get(b"k").encode(), packet_id=7)
    life.ask(b"b", Get(b"k").encode(), packet_id=8)
    first, second = [each for each in life.said() if "/response" in each.message.topic]
    life.host.published(second.delivery_id, 0, NOW)
    assert life.said() == []
    life.host.published(first.delivery_id, 0, NOW)
    assert life.said() == [Acknowledge(7), Acknowledge(8)]


def test_a_host_is_as_far_behind_as_its_oldest_request_is_old() -> None:
    """From its arrival until the broker has its answer."""
    life = Life()
    life.restore()
    life.host.connected(NOW, session_present=True, receive_maximum=10)
    life.ask(b"a", Get(b"k").encode())
    (response,) = [each for each in life.said() if "/response" in each.message.topic]
    assert (life.host.open_requests, life.host.lag_s(NOW.monotonic + 2)) == (1, 2.0)
    life.host.published(response.delivery_id, 0, NOW)
    assert (life.host.open_requests, life.host.lag_s(NOW.monotonic + 3)) == (0, 0.0)


@pytest.mark.parametrize(
    ("stream", "subject", "fields"),
    [
        (Stream.NOTICES, 1, (b"k", SET)),
        (Stream.NOTICES, 1, (b"k", b"no notification", VERSION)),
        (Stream.NOTICES, 1, (b"k", SET, "no version")),
        (Stream.OBSERVATIONS, b"\xc1", (1_000, VERSION, 0)),
        (Stream.OBSERVATIONS, packb(("a", b"k")), (1_000, VERSION)),
        (Stream.OBSERVATIONS, packb(("a", b"k")), (1_000, "no version", 0)),
    ],
)
def test_what_no_host_has_written_is_refused(stream: Stream, subject: bytes | int, fields: tuple[object, ...]) -> None:
    """With DamagedRecordError, and not taken for something else."""
    with pytest.raises(DamagedRecordError):
        Life().restore((stream, subject, fields))
