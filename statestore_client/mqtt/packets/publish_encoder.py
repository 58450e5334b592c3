"""From a PUBLISH, or from its parts, to bytes.

Source: MQTT 5.0 section 3.3, MQTT 3.1.1 section 3.3.
"""

from __future__ import annotations

from typing import Final

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets.bounded_cache import BoundedCache
from statestore_client.mqtt.packets.primitives import encode_text, encode_variable
from statestore_client.mqtt.packets.publish_properties import encode_properties
from statestore_client.mqtt.packets.topics import topic_name_problem
from statestore_client.mqtt.packets.types import MQTT_5_0, Publish, PublishProperties

__all__ = ["encode_message", "encode_publish"]


def _write_topic(topic: str) -> bytes:
    problem = topic_name_problem(topic)
    if problem is not None:
        raise InvalidArgumentError(f"topic name {topic!r}: {problem}")
    return encode_text(topic)


_TOPICS: Final = BoundedCache(_write_topic)

_FIRST_BYTES: Final = tuple(bytes((0x30 | flags,)) for flags in range(16))

# A message goes to many subscribers with one and the same properties object, one encode() after the other. Values are
# frozen, so the bytes of the latest object can be used again. One tuple, replaced whole: no thread sees half of it.
_latest: tuple[PublishProperties, bytes] = (PublishProperties(), b"\0")


def encode_publish(packet: Publish, version: int) -> bytes:
    """The bytes of ``packet``. In 3.1.1 its properties are left out: that is what forwarding to an old client means.

    :raises InvalidArgumentError: a value that MQTT does not allow.
    """
    flags = packet.qos << 1 | (packet.retain and 1) | (packet.dup and 8)
    return encode_message(packet.topic, packet.payload, packet.properties, version, flags, packet.packet_id)


def encode_message(
    topic: str,
    payload: bytes,
    given: PublishProperties,
    version: int,
    flags: int,
    packet_id: int,
    block: bytes | None = None,
) -> bytes:
    """The same from its parts, for a broker that has no packet to forward.

    ``flags`` are those of the fixed header: 1 for RETAIN, QoS times 2, 8 for DUP. (MQTT 5.0, 3.3.1) ``block``, from
    :attr:`Publish.block`, are the properties as they are to be written.
    """
    global _latest
    if flags & 6:
        if not 0 <= flags < 16 or flags & 6 == 6 or not 0 < packet_id < 65_536:
            raise InvalidArgumentError(f"QoS {flags >> 1 & 3} with packet identifier {packet_id}")
        number = packet_id.to_bytes(2, "big")
    elif packet_id or not 0 <= flags < 2:
        raise InvalidArgumentError("a QoS 0 message has neither a packet identifier nor the DUP flag")
    else:
        number = b""
    properties = b""
    if block is not None and version == MQTT_5_0:
        properties = block
    elif version == MQTT_5_0:
        known, properties = _latest
        if known is not given:
            properties = encode_properties(given)
            _latest = (given, properties)
    if topic:
        name = _TOPICS[topic]
    elif given.topic_alias is not None and version == MQTT_5_0:
        name = b"\0\0"
    else:
        raise InvalidArgumentError("a message needs a topic or a topic alias")
    remaining = encode_variable(len(name) + len(number) + len(properties) + len(payload))
    return b"".join((_FIRST_BYTES[flags], remaining, name, number, properties, payload))
