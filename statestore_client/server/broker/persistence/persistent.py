"""The parts of sessions that survive the process, and the retained messages, for a broker with a journal.

Only sessions that outlive their connections have these parts; the others, and all sessions of a broker without a
journal, have the plain parts and pay nothing. Each part does what the plain one does, and then says what has changed.

Hazard: whoever changes queues, packet identifiers or retained messages must do it by the methods of these classes; a
change by another way is lost in a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from statestore_client.mqtt import qos
from statestore_client.server.broker.persistence.records import MessageRecord
from statestore_client.server.broker.routing.retained import Retained
from statestore_client.server.broker.session.inflight import Delivery, Outbound, Waiting
from statestore_client.server.broker.sys_topics import OWN

if TYPE_CHECKING:
    from statestore_client.server.broker.message import Message
    from statestore_client.server.broker.persistence.persister import SessionPersister
    from statestore_client.server.journal import JournalStream
    from statestore_client.wire.instant import Instant

__all__ = ["PersistentInbound", "PersistentOutbound", "PersistentRetained", "PersistentWaiting"]


@attrs.define(eq=False)
class PersistentWaiting(Waiting):
    """A queue that survives. What is taken out of it either starts, which is written down, or is :meth:`dropped`."""

    persister: SessionPersister = attrs.field(kw_only=True)

    def push(self, delivery: Delivery) -> None:
        super().push(delivery)
        self.persister.waits(delivery)

    def dropped(self, delivery: Delivery) -> None:
        super().dropped(delivery)
        self.persister.done(delivery)

    def clear(self) -> None:
        for delivery in self.items:
            self.persister.done(delivery)
        super().clear()


@attrs.define(eq=False)
class PersistentOutbound(Outbound):
    """Deliveries in flight that survive, with their packet identifiers."""

    persister: SessionPersister = attrs.field(kw_only=True)

    def start(self, delivery: Delivery) -> None:
        super().start(delivery)
        self.persister.starts(delivery)

    def received(self, packet_id: int, *, refused: bool = False) -> qos.Answer:
        delivery = self.in_flight.get(packet_id)
        was_released = delivery is not None and delivery.is_released
        answer = super().received(packet_id, refused=refused)
        if delivery is not None and delivery.is_released and not was_released:
            self.persister.released(delivery)
        return answer

    def forget(self, delivery: Delivery) -> None:
        super().forget(delivery)
        self.persister.done(delivery)

    def reset(self) -> None:
        for delivery in self.in_flight.values():
            self.persister.done(delivery)
        super().reset()


@attrs.define(eq=False)
class PersistentInbound(qos.Inbound):
    """QoS 2 identifiers that survive."""

    persister: SessionPersister = attrs.field(kw_only=True)

    def publish(self, packet_id: int) -> bool:
        is_new = super().publish(packet_id)
        if is_new:
            self.persister.holds(packet_id)
        return is_new

    def release(self, packet_id: int) -> bool:
        is_known = super().release(packet_id)
        if is_known:
            self.persister.let_go(packet_id)
        return is_known


@attrs.define(eq=False)
class PersistentRetained(Retained):
    """Retained messages that survive, all but what the broker says about itself."""

    stream: JournalStream = attrs.field(kw_only=True)

    def put(self, message: Message) -> None:
        super().put(message)
        if message.payload and not message.topic.startswith(OWN):
            self.stream.put(message.topic, MessageRecord(message), message.size)

    def discard(self, topic: str) -> None:
        if topic in self._by_topic and not topic.startswith(OWN):
            self.stream.remove(topic)
        super().discard(topic)

    def sweep(self, now: Instant) -> int:
        before = tuple(self._by_topic)
        count = super().sweep(now)
        if count:
            for topic in before:
                if topic not in self._by_topic:
                    self.stream.remove(topic)
        return count
