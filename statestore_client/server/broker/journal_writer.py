"""What of one session is written down: itself, its subscriptions, and its deliveries in both directions.

Only sessions that outlive their connections have a :class:`SessionPersister`; the others, and all sessions of a broker
without a journal, have none and pay nothing. The parts of a session that change say here what has changed, after they
have changed it.

Hazard: a part that is changed by another way than its methods is lost in a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.server.broker.records import (
    DeliveryRecord,
    GrantRecord,
    InboundRecord,
    MessageRecord,
    ReleaseRecord,
    SessionRecord,
    WillRecord,
)
from statestore_client.server.broker.retained import CursorRecord
from statestore_client.server.journal import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore_client.server.broker.message import Delivery, Message
    from statestore_client.server.broker.retained import RetainedCursor
    from statestore_client.server.broker.topic_tree import GrantedSubscription
    from statestore_client.server.journal import Journal

_INBOUND: Final = InboundRecord()


class SessionPersister:
    """Writes down one session, until :meth:`end`."""

    __slots__ = ("_cursors", "_deliveries", "_numbers", "_persistence", "_releases", "_whole", "number")

    def __init__(self, persistence: BrokerPersistence, number: int) -> None:
        self.number: int = number
        self._persistence = persistence
        self._deliveries = persistence.journal[Stream.DELIVERIES]
        self._numbers: dict[Delivery, int] = {}
        self._whole: dict[Delivery, int] = {}  # those with the message inside
        self._releases: dict[int, int] = {}  # by packet identifier
        self._cursors: set[str] = set()  # filters

    # -- the session itself -------------------------------------------------------------------------------------------

    def save(self, client_id: str, record: SessionRecord) -> None:
        """Write down the session itself."""
        self._persistence.journal[Stream.SESSIONS].put(client_id, record)

    def end(self, client_id: str, topic_filters: Iterable[str], unreleased: Iterable[int]) -> None:
        """Remove all that is written of a session with these subscriptions, which has taken over QoS 2 messages with
        these packet identifiers. Nothing else may be called then.
        """
        journal = self._persistence.journal
        for topic_filter in topic_filters:
            self.unsubscribed(topic_filter)
        for packet_id in unreleased:
            journal[Stream.INBOUND].remove(self._inbound(packet_id))
        for number in self._releases.values():
            journal[Stream.RELEASES].remove(number)
        for delivery, number in self._numbers.items():
            self._deliveries.remove(number)
            self._persistence.release(delivery.message)
        for number in self._whole.values():
            self._deliveries.remove(number)
        journal[Stream.SESSIONS].remove(client_id)

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def subscribed(self, topic_filter: str, grant: GrantedSubscription) -> None:
        self._persistence.journal[Stream.SUBSCRIPTIONS].put(f"{self.number} {topic_filter}", GrantRecord(grant))

    def unsubscribed(self, topic_filter: str) -> None:
        self.cursor_done(topic_filter)
        self._persistence.journal[Stream.SUBSCRIPTIONS].remove(f"{self.number} {topic_filter}")

    def cursor_moved(self, cursor: RetainedCursor) -> None:
        """A subscription came along in the retained messages that it is to get; perhaps to their end."""
        if cursor.at is None or not cursor.qos:  # which may have taken the place of one that is kept
            self.cursor_done(cursor.topic_filter)
        else:
            self._cursors.add(cursor.topic_filter)
            self._persistence.journal[Stream.CURSORS].put(
                f"{self.number} {cursor.topic_filter}", CursorRecord.of(cursor)
            )

    def cursor_done(self, topic_filter: str) -> None:
        """The subscription gets no more retained messages."""
        if topic_filter in self._cursors:
            self._cursors.discard(topic_filter)
            self._persistence.journal[Stream.CURSORS].remove(f"{self.number} {topic_filter}")

    # -- out ----------------------------------------------------------------------------------------------------------

    def queued(self, delivery: Delivery) -> None:
        """A delivery is queued."""
        if delivery.message.is_fleeting:
            return
        message = self._persistence.hold(delivery.message)
        record = DeliveryRecord(self.number, message, delivery.qos, delivery.retain, delivery.subscription_ids, 0, 0)
        self._numbers[delivery] = self._deliveries.add(record)

    def started(self, delivery: Delivery) -> None:
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

    def _started_whole(self, delivery: Delivery, order: int) -> None:
        """This is the only delivery so far, so that the message needs no record of its own."""
        self._whole[delivery] = order
        message, ids = delivery.message, delivery.subscription_ids
        record = DeliveryRecord(self.number, message, delivery.qos, delivery.retain, ids, delivery.packet_id, order)
        self._deliveries.create(order, record, message.size)

    def released(self, delivery: Delivery) -> None:
        """PUBREC came: the message is at the other end, PUBREL is on its way. Safe to call twice."""
        if delivery.packet_id in self._releases:
            return
        self._message_done(delivery)
        stream = self._persistence.journal[Stream.RELEASES]
        self._releases[delivery.packet_id] = stream.add(ReleaseRecord(self.number, delivery.packet_id))

    def done(self, delivery: Delivery) -> None:
        """A delivery is over. Safe to call twice. Nothing waits until that is written: without it, a message or PUBREL
        that was acknowledged is sent again after a crash, with DUP set.
        """
        if not delivery.is_released:
            self._message_done(delivery)
            return
        number = self._releases.pop(delivery.packet_id, None)
        if number is not None:
            self._persistence.journal[Stream.RELEASES].remove_lazily(number)

    def _message_done(self, delivery: Delivery) -> None:
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

    def loaded(self, delivery: Delivery, number: int, message_number: int | None) -> None:
        """This delivery is in the journal already; None: with its message inside."""
        if message_number is None:
            self._whole[delivery] = number
        else:
            self._numbers[delivery] = number
            self._persistence.hold_loaded(delivery.message, message_number)

    def cursor_loaded(self, topic_filter: str) -> None:
        """This place in the retained messages is in the journal already."""
        self._cursors.add(topic_filter)

    def release_loaded(self, packet_id: int, number: int) -> None:
        """This PUBREL is in the journal already."""
        self._releases[packet_id] = number


# -- what persisters share ---------------------------------------------------------------------------------------------
#
# What the sessions that are written down share: their numbers, the wills of all others, and the messages, for as long
# as one of these sessions is to get them.


@attrs.define(eq=False)
class _PersistedMessage:
    """A message in the journal, and how many deliveries of it there are."""

    number: int
    deliveries: int


@attrs.define(eq=False)
class BrokerPersistence:
    """What all persisters share.

    Invariant: a message has a record as long as it has a delivery without the message inside.
    """

    journal: Journal
    _messages: dict[Message, _PersistedMessage] = attrs.Factory(dict)
    _wills: set[str] = attrs.Factory(set)
    _last_session: int = 0

    def persister(self) -> SessionPersister:
        """For a new session."""
        self._last_session += 1
        return SessionPersister(self, self._last_session)

    def known_persister(self, number: int) -> SessionPersister:
        """For a session that was loaded."""
        self._last_session = max(self._last_session, number)
        return SessionPersister(self, number)

    def await_will(self, client_id: str, record: WillRecord) -> None:
        """It goes out if the server is lost, or its client does not come back."""
        self._wills.add(client_id)
        self.journal[Stream.WILLS].put(client_id, record, len(record.will.payload))

    def wills_loaded(self, client_ids: Iterable[str]) -> None:
        """They are in the journal already."""
        self._wills.update(client_ids)

    def forget_will(self, client_id: str) -> None:
        """It went out, or was discarded."""
        if client_id in self._wills:
            self._wills.discard(client_id)
            self.journal[Stream.WILLS].remove(client_id)

    def hold(self, message: Message) -> int:
        """One more delivery without the message inside; the number of the message."""
        kept = self._messages.get(message)
        if kept is None:
            number = self.journal[Stream.MESSAGES].add(MessageRecord(message), message.size)
            kept = self._messages[message] = _PersistedMessage(number, 0)
        kept.deliveries += 1
        return kept.number

    def hold_loaded(self, message: Message, number: int) -> None:
        """One more delivery, of a message that is in the journal under this number."""
        self._messages.setdefault(message, _PersistedMessage(number, 0)).deliveries += 1

    def release(self, message: Message) -> None:
        """One delivery less."""
        kept = self._messages[message]
        kept.deliveries -= 1
        if not kept.deliveries:
            del self._messages[message]
            self.journal[Stream.MESSAGES].remove_lazily(kept.number)

    def number_of(self, message: Message) -> int:
        return self._messages[message].number
