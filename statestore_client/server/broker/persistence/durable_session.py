"""What of one session is written down: itself, its subscriptions, and its deliveries in both directions.

Only sessions that outlive their connections have a :class:`SessionPersister`; the others, and all sessions of a broker
without a journal, have none and pay nothing. The parts of a session that change say here what has changed, after they
have changed it.

Hazard: a part that is changed by another way than its methods is lost in a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statestore_client.server.broker.persistence.records import (
    DeliveryRecord,
    GrantRecord,
    InboundRecord,
    ReleaseRecord,
    SessionRecord,
    WalkRecord,
)
from statestore_client.server.journal import Stream

if TYPE_CHECKING:
    from statestore_client.server.broker.persistence.persister import BrokerPersistence
    from statestore_client.server.broker.routing.retained import Walk
    from statestore_client.server.broker.routing.subscriptions import GrantedSubscription
    from statestore_client.server.broker.session.inflight import MessageDelivery
    from statestore_client.server.broker.session.session import Session

__all__ = ["SessionPersister"]

_INBOUND: Final = InboundRecord()


class SessionPersister:
    """Writes down one session, until :meth:`end`."""

    __slots__ = ("_deliveries", "_numbers", "_persistence", "_releases", "_walks", "_whole", "number")

    def __init__(self, persistence: BrokerPersistence, number: int) -> None:
        self.number: int = number
        self._persistence = persistence
        self._deliveries = persistence.journal[Stream.DELIVERIES]
        self._numbers: dict[MessageDelivery, int] = {}
        self._whole: dict[MessageDelivery, int] = {}  # those with the message inside
        self._releases: dict[int, int] = {}  # by packet identifier
        self._walks: set[str] = set()  # filters

    # -- the session itself -------------------------------------------------------------------------------------------

    def save(self, session: Session) -> None:
        """Expiry, user, will, or whether its client is here has changed."""
        will = session.will_timer
        record = SessionRecord(
            self.number,
            session.expiry_s,
            session.user,
            session.left_at,
            session.will,
            None if will is None else will.when,
        )
        self._persistence.journal[Stream.SESSIONS].put(session.client_id, record)

    def end(self, session: Session) -> None:
        """The session is over, or is to end with its connection from now on. Nothing else may be called then."""
        journal = self._persistence.journal
        for topic_filter in session.subscriptions:
            self.unsubscribed(topic_filter)
        for packet_id in session.inbound.unreleased:
            journal[Stream.INBOUND].remove(self._inbound(packet_id))
        for number in self._releases.values():
            journal[Stream.RELEASES].remove(number)
        for delivery, number in self._numbers.items():
            self._deliveries.remove(number)
            self._persistence.release(delivery.message)
        for number in self._whole.values():
            self._deliveries.remove(number)
        journal[Stream.SESSIONS].remove(session.client_id)

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def subscribed(self, topic_filter: str, grant: GrantedSubscription) -> None:
        self._persistence.journal[Stream.SUBSCRIPTIONS].put(f"{self.number} {topic_filter}", GrantRecord(grant))

    def unsubscribed(self, topic_filter: str) -> None:
        self.walk_done(topic_filter)
        self._persistence.journal[Stream.SUBSCRIPTIONS].remove(f"{self.number} {topic_filter}")

    def walked(self, walk: Walk) -> None:
        """A subscription came along in the retained messages that it is to get; perhaps to their end."""
        if walk.at is None or not walk.qos:  # which may have taken the place of one that is kept
            self.walk_done(walk.topic_filter)
        else:
            self._walks.add(walk.topic_filter)
            self._persistence.journal[Stream.WALKS].put(f"{self.number} {walk.topic_filter}", WalkRecord.of(walk))

    def walk_done(self, topic_filter: str) -> None:
        """The subscription gets no more retained messages."""
        if topic_filter in self._walks:
            self._walks.discard(topic_filter)
            self._persistence.journal[Stream.WALKS].remove(f"{self.number} {topic_filter}")

    # -- out ----------------------------------------------------------------------------------------------------------

    def queued(self, delivery: MessageDelivery) -> None:
        """A delivery is queued."""
        if delivery.message.is_fleeting:
            return
        message = self._persistence.hold(delivery.message)
        record = DeliveryRecord(self.number, message, delivery.qos, delivery.retain, delivery.subscription_ids, 0, 0)
        self._numbers[delivery] = self._deliveries.add(record)

    def started(self, delivery: MessageDelivery) -> None:
        """A delivery is in flight, at once or after it waited."""
        if delivery.message.is_fleeting:
            return
        number, message = self._numbers.get(delivery), delivery.message
        order = self._deliveries.take_number()
        if number is None and message.holders == 1:
            self._started_whole(delivery, order)
            return
        if number is None:
            number = self._numbers[delivery] = order
            write, kept = self._deliveries.create, self._persistence.hold(message)
        else:
            write, kept = self._deliveries.put, self._persistence.number_of(message)
        ids, packet_id = delivery.subscription_ids, delivery.packet_id
        write(number, DeliveryRecord(self.number, kept, delivery.qos, delivery.retain, ids, packet_id, order))

    def _started_whole(self, delivery: MessageDelivery, order: int) -> None:
        """This is the only delivery so far, so that the message needs no record of its own."""
        self._whole[delivery] = order
        message, ids = delivery.message, delivery.subscription_ids
        record = DeliveryRecord(self.number, message, delivery.qos, delivery.retain, ids, delivery.packet_id, order)
        self._deliveries.create(order, record, message.size)

    def released(self, delivery: MessageDelivery) -> None:
        """PUBREC came: the message is at the other end, PUBREL is on its way. Safe to call twice."""
        if delivery.packet_id in self._releases:
            return
        self._message_done(delivery)
        stream = self._persistence.journal[Stream.RELEASES]
        self._releases[delivery.packet_id] = stream.add(ReleaseRecord(self.number, delivery.packet_id))

    def done(self, delivery: MessageDelivery) -> None:
        """A delivery is over. Safe to call twice. Nothing waits until that is written: without it, a message or PUBREL
        that was acknowledged is sent again after a crash, with DUP set.
        """
        if not delivery.is_released:
            self._message_done(delivery)
            return
        number = self._releases.pop(delivery.packet_id, None)
        if number is not None:
            self._persistence.journal[Stream.RELEASES].remove_lazily(number)

    def _message_done(self, delivery: MessageDelivery) -> None:
        number = self._whole.pop(delivery, None)
        if number is not None:
            self._deliveries.remove_lazily(number)
            return
        number = self._numbers.pop(delivery, None)
        if number is not None:
            self._deliveries.remove_lazily(number)
            self._persistence.release(delivery.message)

    # -- in -----------------------------------------------------------------------------------------------------------

    def inbound_received(self, packet_id: int) -> None:
        """A QoS 2 message was taken over."""
        self._persistence.journal[Stream.INBOUND].create(self._inbound(packet_id), _INBOUND)

    def inbound_released(self, packet_id: int) -> None:
        """Its packet identifier was released."""
        self._persistence.journal[Stream.INBOUND].remove(self._inbound(packet_id))

    def _inbound(self, packet_id: int) -> int:
        return self.number << 16 | packet_id

    # -- after a restart ----------------------------------------------------------------------------------------------

    def loaded(self, delivery: MessageDelivery, number: int, message_number: int | None) -> None:
        """This delivery is in the journal already; None: with its message inside."""
        if message_number is None:
            self._whole[delivery] = number
        else:
            self._numbers[delivery] = number
            self._persistence.hold_loaded(delivery.message, message_number)

    def walk_loaded(self, topic_filter: str) -> None:
        """This place in the retained messages is in the journal already."""
        self._walks.add(topic_filter)

    def release_loaded(self, packet_id: int, number: int) -> None:
        """This PUBREL is in the journal already."""
        self._releases[packet_id] = number
