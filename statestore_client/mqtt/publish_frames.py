"""From a request to the bytes of its PUBLISH, on one connection (MQTT 5.0, 3.3).

All that the requests of an envelope share is encoded when the first of them passes, and again when the expiry changes.
Its topic goes out in full once, together with an alias where the broker takes one, and as the alias from then on: that
saves the broker, too, the reading of the topic.
"""

from __future__ import annotations

from typing import Final

from statestore_client.mqtt.packets import validate_topic_name
from statestore_client.mqtt.packets.primitives import encode_text, encode_variable
from statestore_client.mqtt.packets.publish_properties import delivery_properties, leading_properties, property_block
from statestore_client.mqtt.packets.user_properties import encode_user_properties
from statestore_client.wire.messages import ANY_BYTES, CONTENT_TYPE, Envelope, OutgoingMessage

__all__ = ["QOS_1", "QOS_1_AGAIN", "PublishFrames"]

#: Larger payloads go out as pieces of their own: joining them to their header would be one more copy.
_APART: Final = 8192
#: An alias costs three bytes in each message.
_SHORT_TOPIC: Final = 5
#: Stands where an alias says the topic.
_NO_TOPIC: Final = encode_text("")

#: The first byte of a PUBLISH.
QOS_1: Final = b"\x32"
#: With DUP: the broker may have seen it.
QOS_1_AGAIN: Final = b"\x3a"


class PublishFrames:
    """The encoder of one connection. ``maximum_size`` is the broker's Maximum Packet Size, in bytes."""

    __slots__ = (
        "_alias",
        "_alias_maximum",
        "_aliases",
        "_envelope",
        "_expiry_s",
        "_leading",
        "_maximum_size",
        "_topic",
        "_trailing",
    )

    def __init__(self, *, alias_maximum: int, maximum_size: int) -> None:
        self._alias_maximum = alias_maximum
        self._maximum_size = maximum_size
        self._aliases: dict[str, int] = {}
        self._expiry_s = 0
        self._envelope: Envelope | None = None  # the last one; what follows belongs to it
        self._alias = 0
        self._topic = b""
        self._leading = b""
        self._trailing = b""

    def put(self, message: OutgoingMessage, outbox: list[bytes], packet_id: int, *, first: bytes = QOS_1) -> bool:
        """Append the PUBLISH to the outbox; ``first`` is its first byte.

        False: it is larger than the broker accepts, and was not appended.
        """
        envelope, payload, correlation = message.envelope, message.payload, message.correlation_data
        topic = self._topic if envelope is self._envelope else self._turn_to(envelope)
        if message.message_expiry_s != self._expiry_s:
            self._expire_in(message.message_expiry_s, envelope)
        users = encode_user_properties(message.user_properties)
        properties = property_block(self._leading, correlation, users + self._trailing)
        payload_size = len(payload) if isinstance(payload, bytes) else sum(map(len, payload))
        size = len(topic) + 2 + len(properties) + payload_size
        if size + 5 > self._maximum_size and size + 1 + len(encode_variable(size)) > self._maximum_size:
            self._forget_topic(topic, envelope)
            return False
        frame = (first, encode_variable(size), topic, packet_id.to_bytes(2, "big"), properties)
        if not isinstance(payload, bytes):
            outbox += (b"".join((*frame, payload[0])), *payload[1:])
        elif payload_size < _APART:
            outbox.append(b"".join((*frame, payload)))
        else:
            outbox += (b"".join(frame), payload)
        return True

    def _turn_to(self, envelope: Envelope) -> bytes:
        """Make ``envelope`` the present one. Returns the topic for this message; for later ones its alias may do."""
        name = envelope.topic
        validate_topic_name(name)
        topic = self._topic = encode_text(name)
        self._alias = self._aliases.get(name, 0)
        if self._alias:
            topic = self._topic = _NO_TOPIC
        elif len(topic) > _SHORT_TOPIC and len(self._aliases) < self._alias_maximum:
            self._alias = self._aliases[name] = len(self._aliases) + 1
            self._topic = _NO_TOPIC
        self._trailing = encode_user_properties(envelope.user_properties)
        self._expire_in(self._expiry_s, envelope)
        self._envelope = envelope
        return topic

    def _expire_in(self, expiry_s: int, envelope: Envelope) -> None:
        """Encode what stands before the correlation data; the topic alias, too, does not change within an envelope."""
        leading = leading_properties(ANY_BYTES, expiry_s, CONTENT_TYPE, envelope.response_topic)
        self._leading = leading + delivery_properties((), self._alias or None)
        self._expiry_s = expiry_s

    def _forget_topic(self, topic: bytes, envelope: Envelope) -> None:
        """A message that was not sent did not tell the broker its alias either."""
        if topic is not _NO_TOPIC:
            self._aliases.pop(envelope.topic, None)
        self._envelope = None
