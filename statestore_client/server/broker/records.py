"""What the broker writes down, as values, and back. The fields on disk are those of the classes, in their order.

Deadlines are monotonic seconds here and log time on disk (:class:`~statestore_client.server.journal.Timeline`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from statestore_client.mqtt.packets import Publish, PublishProperties, Will, WillProperties
from statestore_client.server.broker.message import Message
from statestore_client.server.broker.topic_tree import GrantedSubscription
from statestore_client.server.journal import PlainRecord
from statestore_client.wire.hot_value import hot_value

if TYPE_CHECKING:
    from statestore_client.server.journal import Timeline

#: The one that the decoder gives: comparing identities is quicker than comparing fields.
NO_PROPERTIES: Final = Publish("").properties


@attrs.frozen
class SessionRecord:
    """A session that outlives its connections, under its client identifier.

    ``left_at``: when its client left, from when on its expiry runs out; None: its client is here. Its will goes out at
    ``will_at``.
    """

    number: int
    expiry_s: int
    user: str | None
    left_at: float | None
    will: Will | None
    will_at: float | None

    def fields(self, timeline: Timeline) -> tuple[object, ...]:
        will = None if self.will is None else _will_fields(self.will)
        left_ms, will_ms = timeline.log_ms(self.left_at), timeline.log_ms(self.will_at)
        return (self.number, self.expiry_s, self.user, left_ms, will, will_ms)

    @classmethod
    def read(cls, fields: Any, timeline: Timeline) -> Self:
        number, expiry_s, user, left_ms, will, will_ms = fields
        return cls(
            number,
            expiry_s,
            user,
            timeline.monotonic(left_ms),
            None if will is None else _will(will),
            timeline.monotonic(will_ms),
        )


def _will_fields(will: Will) -> tuple[object, ...]:
    return (will.topic, will.payload, will.qos, will.retain, attrs.astuple(will.properties, recurse=False))


def _will(fields: Any) -> Will:
    topic, payload, qos, retain, properties = fields
    return Will(topic, payload, qos, retain, WillProperties(*properties))


@attrs.frozen
class WillRecord:
    """All that survives of a session that ends with its connection: a crash of the server is the end of both."""

    user: str | None
    will: Will

    def fields(self, timeline: Timeline) -> tuple[object, ...]:
        del timeline
        return (self.user, _will_fields(self.will))

    @classmethod
    def read(cls, fields: Any) -> Self:
        user, will = fields
        return cls(user, _will(will))


@hot_value
class DroppedMessagesRecord(PlainRecord):
    """What a client lost and was not told of, under its identifier; ``since_ms`` is the wall clock at the first."""

    user: str | None
    count: int
    since_ms: int


@attrs.frozen
class GrantRecord:
    """One subscription of one session."""

    grant: GrantedSubscription

    def fields(self, timeline: Timeline) -> tuple[object, ...]:
        del timeline
        grant = self.grant
        return (grant.qos, grant.no_local, grant.retain_as_published, grant.ids)

    @classmethod
    def read(cls, fields: Any) -> Self:
        return cls(GrantedSubscription(*fields))


@hot_value
class MessageRecord:
    """A message, whoever gets it; also a retained one. Messages do not change, so this one is as good as a copy."""

    message: Message

    def fields(self, timeline: Timeline) -> tuple[object, ...]:
        return _message_fields(self.message, timeline)

    @classmethod
    def read(cls, fields: Any, timeline: Timeline) -> Self:
        return cls(_message(fields, timeline))


def _message_fields(message: Message, timeline: Timeline) -> tuple[object, ...]:
    given = message.properties
    properties = None
    if given is not NO_PROPERTIES and given != NO_PROPERTIES:
        properties = (
            given.payload_format,
            given.message_expiry,
            given.content_type,
            given.response_topic,
            given.correlation_data,
            given.user_properties,
        )
    return (
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.publisher,
        timeline.log_ms(message.expires_at),
        properties,
    )


def _message(fields: Any, timeline: Timeline) -> Message:
    topic, payload, qos, retain, publisher, expires_ms, properties = fields
    given = NO_PROPERTIES if properties is None else PublishProperties(*properties)
    return Message(topic, payload, qos, retain, given, publisher, timeline.monotonic(expires_ms))


@hot_value
class DeliveryRecord:
    """A message that one session is to get. ``packet_id`` and ``order`` are 0 until it was sent for the first time;
    what is in flight was sent in the order of ``order``.

    ``message`` is the number of its record, or the message itself, which then has none.
    """

    session: int
    message: int | Message
    qos: int
    retain: bool
    ids: tuple[int, ...]
    packet_id: int
    order: int

    def fields(self, timeline: Timeline) -> tuple[object, ...]:
        message = self.message
        inside = message if isinstance(message, int) else _message_fields(message, timeline)
        return (self.session, inside, self.qos, self.retain, self.ids, self.packet_id, self.order)

    @classmethod
    def read(cls, fields: Any, timeline: Timeline) -> Self:
        session, inside, *rest = fields
        return cls(session, inside if isinstance(inside, int) else _message(inside, timeline), *rest)


@hot_value
class CopiesRecord(PlainRecord):
    """A message that was accepted and is still to be copied to some sessions. ``message`` is the number of its record,
    ``groups`` are QoS, RETAIN, subscription identifiers, and the numbers of the sessions.
    """

    message: int
    groups: tuple[tuple[int, bool, tuple[int, ...], tuple[int, ...]], ...]


@hot_value
class ReleaseRecord(PlainRecord):
    """PUBREC came; PUBREL is to be sent until PUBCOMP comes. The message itself is no longer needed."""

    session: int
    packet_id: int


@attrs.frozen
class InboundRecord(PlainRecord):
    """A QoS 2 message was taken over and its identifier not released. All that there is to know is in the subject."""
