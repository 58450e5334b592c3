"""One application message inside the broker, shared by everybody it goes to, and its encoded form.

A fan-out encodes once: the subscribers of one message differ in the packet identifier only, most of the time, and that
is patched into the bytes of the first one.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from statestore_client.mqtt.packets import MQTT_5_0, Publish, PublishProperties, encode_message
from statestore_client.mqtt.packets.primitives import encode_variable

if TYPE_CHECKING:
    from statestore_client.mqtt.packets import Will
    from statestore_client.wire.instant import Instant

#: A payload from this size on is kept once, and written as it lies; smaller ones are copied into each frame.
LARGE_BYTES: Final = 16 * 1024

#: Version, QoS, RETAIN, subscription identifiers and expiry, and the bytes for them.
_Encoded: TypeAlias = tuple[tuple[int, int, bool, tuple[int, ...], int | None], bytes]
_NO_PROPERTIES: Final = Publish("").properties  # what the decoder gives

#: Message expiry is a number of four bytes; the clock's rounding must not push it beyond.
_LONGEST_EXPIRY_S: Final = 0xFFFF_FFFF

#: Held beside topic and payload: the objects themselves. Keeps a queue of empty messages bounded as well.
OVERHEAD_BYTES: Final = 512

#: The objects of one user property.
_PAIR_BYTES: Final = 160


def held_bytes(message: Message | Publish) -> int:
    """What a message holds, roughly; its properties twice, as read and as they came."""
    size = len(message.payload) + len(message.topic) + OVERHEAD_BYTES
    properties = message.properties
    if properties is _NO_PROPERTIES:
        return size
    if message.block is not None:
        size += len(message.block)
    if properties.correlation_data is not None:
        size += len(properties.correlation_data)
    if properties.response_topic is not None:
        size += len(properties.response_topic)
    if properties.content_type is not None:
        size += len(properties.content_type)
    for name, text in properties.user_properties:
        size += len(name) + len(text) + _PAIR_BYTES
    return size


@attrs.define(eq=False)
class Message:
    """Immutable by convention; ``frame`` remembers the last encoding.

    ``publisher`` is the client identifier it came from, empty for the server's own messages. ``expires_at`` is
    monotonic seconds, None for never. ``block`` are the properties as the publisher wrote them: they are forwarded so,
    in their order, to subscribers for whom nothing in them changes. A message from the disk has none.
    """

    topic: str
    payload: bytes = attrs.field(repr=False)
    qos: int
    retain: bool
    properties: PublishProperties
    publisher: str
    expires_at: float | None
    block: bytes | None = attrs.field(default=None, repr=False)
    #: Whether it may be lost with the server, and is not written down.
    is_fleeting: bool = False
    _encoded: _Encoded | None = attrs.field(default=None, repr=False)
    #: How many queues and windows it is in; the budget keeps count.
    holders: int = attrs.field(default=0, repr=False)
    #: Bytes that it holds, roughly.
    size: int = attrs.field(init=False, default=attrs.Factory(held_bytes, takes_self=True))

    @property
    def is_large(self) -> bool:
        """Whether the payload is written behind :meth:`frame`, as it lies, instead of being copied into it."""
        return len(self.payload) >= LARGE_BYTES

    def is_expired(self, now: Instant) -> bool:
        return self.expires_at is not None and self.expires_at <= now.monotonic

    def frame(self, version: int, qos: int, retain: bool, ids: tuple[int, ...], packet_id: int, now: Instant) -> bytes:
        """The PUBLISH for one subscriber; ``ids`` are its subscription identifiers. Without the payload if it
        :attr:`is_large`.
        """
        expires_at = self.expires_at
        expiry = None
        if expires_at is not None:
            expiry = ceil(expires_at - now.monotonic)
            if not 0 <= expiry <= _LONGEST_EXPIRY_S:
                expiry = remaining_s(expires_at, now)
        key = (version, qos, retain, ids, expiry)
        encoded = self._encoded
        if encoded is not None and encoded[0] == key:
            return _patched(encoded[1], packet_id) if qos else encoded[1]
        given, block = self.properties, self.block
        if ids or expiry != given.message_expiry:
            given, block = forwarded_properties(given, ids, expiry), None
        flags = qos << 1 | retain
        if len(self.payload) < LARGE_BYTES:
            frame = encode_message(self.topic, self.payload, given, version, flags, packet_id, block)
        else:
            frame = self._frame(given, version, flags, packet_id, self.topic, block)
        self._encoded = (key, frame)
        return frame

    def duplicate(
        self, version: int, qos: int, retain: bool, ids: tuple[int, ...], packet_id: int, now: Instant
    ) -> bytes:
        """The same PUBLISH with DUP set, for a client that may have seen it before (MQTT 5.0, 3.3.1.1)."""
        expiry = None if self.expires_at is None else remaining_s(self.expires_at, now)
        properties = forwarded_properties(self.properties, ids, expiry)
        return self._frame(properties, version, 8 | qos << 1 | retain, packet_id)

    def aliased(
        self, flags: int, ids: tuple[int, ...], packet_id: int, now: Instant, *, alias: int, topic: str
    ) -> bytes:
        """The PUBLISH for a connection that takes topic aliases (MQTT 5.0, 3.3.2.3.4); ``flags`` are those of its first
        byte, ``topic`` is empty once the peer knows the alias. It is that connection's alone: nothing is remembered.
        """
        expiry = None if self.expires_at is None else remaining_s(self.expires_at, now)
        properties = forwarded_properties(self.properties, ids, expiry, alias)
        return self._frame(properties, MQTT_5_0, flags, packet_id, topic)

    def _frame(
        self,
        properties: PublishProperties,
        version: int,
        flags: int,
        packet_id: int,
        topic: str | None = None,
        block: bytes | None = None,
    ) -> bytes:
        topic = self.topic if topic is None else topic
        if len(self.payload) < LARGE_BYTES:
            return encode_message(topic, self.payload, properties, version, flags, packet_id, block)
        return _lengthened(encode_message(topic, b"", properties, version, flags, packet_id, block), len(self.payload))


def _lengthened(frame: bytes, more: int) -> bytes:
    """An encoded packet that ``more`` bytes are to follow."""
    at = 2
    while frame[at - 1] & 0x80:
        at += 1
    return b"".join((frame[:1], encode_variable(len(frame) - at + more), frame[at:]))


def forwarded_properties(
    given: PublishProperties, ids: tuple[int, ...], expiry: int | None, alias: int | None = None
) -> PublishProperties:
    """The properties with the time that is left and the receiver's identifiers and alias; all others unchanged.

    attrs.evolve() takes six times as long. (docs/decisions/speed-of-the-server.md)
    """
    return PublishProperties(
        given.payload_format,
        expiry,
        given.content_type,
        given.response_topic,
        given.correlation_data,
        given.user_properties,
        ids,
        alias,
    )


def message_of(packet: Publish, publisher: str, now: Instant, *, is_fleeting: bool = False) -> Message:
    """The message in a PUBLISH whose topic is in full. Its expiry starts to run (MQTT 5.0, 3.3.2.3.3)."""
    properties = packet.properties
    expiry = properties.message_expiry
    expires_at = None if expiry is None else now.monotonic + expiry
    return Message(
        packet.topic,
        packet.payload,
        packet.qos,
        packet.retain,
        properties,
        publisher,
        expires_at,
        packet.block,
        is_fleeting,
    )


def remaining_s(expires_at: float, now: Instant) -> int:
    """Whole seconds left: what came in minus the whole seconds spent here (MQTT-3.3.2-6).

    0 for a message that is sent again after its time ran out in flight: its delivery had started, so it has to end.
    """
    left_s = ceil(expires_at - now.monotonic)
    return left_s if 0 <= left_s <= _LONGEST_EXPIRY_S else 0 if left_s < 0 else _LONGEST_EXPIRY_S


def _patched(frame: bytes, packet_id: int) -> bytes:
    """An encoded QoS 1 or 2 PUBLISH with another packet identifier: it stands after the topic."""
    at = 1
    while frame[at] & 0x80:
        at += 1
    at += 3 + int.from_bytes(frame[at + 1 : at + 3], "big")
    return b"".join((frame[:at], packet_id.to_bytes(2, "big"), frame[at + 2 :]))


@attrs.define(eq=False)
class Delivery:
    """One message on its way to one client.

    The fields that are not given are :class:`.Outbound`'s. ``packet_id`` is 0 until the delivery starts.
    """

    message: Message
    qos: int
    retain: bool
    subscription_ids: tuple[int, ...]
    packet_id: int = attrs.field(default=0, init=False)
    is_released: bool = attrs.field(default=False, init=False)  # PUBREC came, PUBREL was sent
    is_counted: bool = attrs.field(default=False, init=False)  # takes a place of this connection's receive maximum


def will_packet(will: Will) -> Publish:
    """The PUBLISH that a will stands for (MQTT 5.0, 3.1.3.2)."""
    given = will.properties
    properties = PublishProperties(
        payload_format=given.payload_format,
        message_expiry=given.message_expiry,
        content_type=given.content_type,
        response_topic=given.response_topic,
        correlation_data=given.correlation_data,
        user_properties=given.user_properties,
    )
    return Publish(will.topic, will.payload, will.qos, will.retain, properties=properties, block=will.block)


def will_bytes(will: Will | None) -> int:
    """What a will holds, roughly."""
    return 0 if will is None else held_bytes(will_packet(will))
