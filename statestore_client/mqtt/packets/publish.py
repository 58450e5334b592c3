"""PUBLISH, the packet that everything else exists for: both directions, made short for the usual case.

Reading has two ways. The quick one handles what well-behaved peers send and gives up at the first oddity, without
saying why. The general one then reads the packet again by the table in :mod:`.properties` and is the only judge of what
is malformed. Invariant: where the quick way answers, the general way gives an equal answer (tests compare them).
Source: MQTT 5.0 section 3.3, MQTT 3.1.1 section 3.3.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import properties as layouts
from statestore_client.mqtt.packets.memo import Memo
from statestore_client.mqtt.packets.pairs import encode_pairs
from statestore_client.mqtt.packets.primitives import (
    Reader,
    encode_binary,
    encode_text,
    encode_variable,
    has_control,
    malformed,
    protocol_error,
)
from statestore_client.mqtt.packets.topics import topic_name_problem
from statestore_client.mqtt.packets.types import MQTT_5_0, Publish, PublishProperties
from statestore_client.wire.messages import IncomingMessage

if TYPE_CHECKING:
    from statestore_client.mqtt.packets.context import Context

__all__ = ["decode_publish", "decode_publish_3_1_1", "encode_head", "encode_message", "encode_publish"]

_USER: Final = 0x26
_CORRELATION: Final = 0x09
_RESPONSE: Final = 0x08
_CONTENT: Final = 0x03
_EXPIRY: Final = 0x02
_FORMAT: Final = 0x01
_ALIAS: Final = 0x23

#: Longer property blocks go the general way, which counts while it reads.
_QUICK_BLOCK: Final = 4096

_NO_PROPERTIES: Final = Publish("").properties


# -- reading ----------------------------------------------------------------------------------------------------------


def _read_topic(data: bytes) -> str:
    topic = data.decode()
    if has_control(topic) or topic_name_problem(topic):
        raise ValueError
    return topic


def _read_pair(data: bytes) -> tuple[str, str]:
    """A user property from its whole wire form, whose lengths are known to be consistent."""
    middle = 3 + (data[1] << 8 | data[2])
    name, value = data[3:middle].decode(), data[middle + 2 :].decode()
    if "\0" in name or "\0" in value:
        raise ValueError
    return name, value


# Topics and user properties repeat from message to message. A hit saves the validation, and gives the very same str
# object, whose hash is ready for the lookups that follow in a broker.
_TOPICS_READ: Final = Memo(_read_topic)
_PAIRS_READ: Final = Memo(_read_pair)


def decode_publish(first: int, data: bytes, pos: int, end: int, context: Context) -> Publish | IncomingMessage:
    """The PUBLISH whose variable header starts at ``pos``; ``first`` is its first byte, with allowed flags.

    An :class:`IncomingMessage` if the context wants those; a QoS 2 message and one with a topic alias stay a
    :class:`Publish`.
    """
    try:
        packet = _quick(first, data, pos, end, context)
    except (IndexError, ValueError):
        packet = None
    if packet is None:
        packet = _general(first, Reader(data, pos, end), context)
        if context.wants_messages and packet.qos < 2 and packet.properties.topic_alias is None:
            return _message(packet)
    return packet


def _message(packet: Publish) -> IncomingMessage:
    given = packet.properties
    return IncomingMessage(
        packet.topic, packet.payload, given.correlation_data, given.user_properties, packet.packet_id
    )


def _quick(first: int, data: bytes, pos: int, end: int, context: Context) -> Publish | IncomingMessage | None:
    # Reads may run over ``end`` into the next packet. Positions only grow, so the comparison with ``end`` further down
    # finds out before anything is returned.
    stop = pos + 2 + (data[pos] << 8 | data[pos + 1])
    topic = _TOPICS_READ[data[pos + 2 : stop]] if stop > pos + 2 else ""
    packet_id = 0
    if first & 6:
        packet_id = data[stop] << 8 | data[stop + 1]
        if not packet_id:
            return None
        stop += 2
    start = stop
    size = data[stop]
    stop += 1
    if size > 127:
        high = data[stop]
        if not 0 < high < _QUICK_BLOCK >> 7:
            return None
        size += (high - 1) << 7
        stop += 1
    body = stop + size
    if body > end:
        return None
    template = context.templates.get(size)
    if (
        template is not None
        and data.startswith(template.before, stop)
        and data.startswith(template.between, stop + template.between_at)
        and data.startswith(template.after, stop + template.after_at)
    ):
        given = template.given
        correlation = None
        if template.has_correlation:
            correlation = data[stop + template.correlation_at : stop + template.between_at]
        users = template.users_before
        if template.name is not None:
            value = data[stop + template.value_at : stop + template.after_at].decode()
            if "\0" in value:
                return None
            users = (*users, (template.name, value), *template.users_after)
    elif size:
        found = _quick_properties(data, stop, body, context.max_user_properties)
        if found is None:
            return None
        given, correlation, users = found, found.correlation_data, found.user_properties
        context.templates.learn(data[stop:body], found)
    else:
        given, correlation, users = _NO_PROPERTIES, None, ()
    alias = given.topic_alias
    if alias is not None and context.aliases is not None:
        topic = context.aliases.resolve(alias, topic, pos)
        alias = None
    if not topic and alias is None:
        return None
    if context.wants_messages and not first & 4 and alias is None:
        return IncomingMessage(topic, data[body:end], correlation, users, packet_id)
    if size:
        block = None if given.topic_alias is not None else data[start:body]  # an alias is this connection's alone
        given = PublishProperties(
            given.payload_format,
            given.message_expiry,
            given.content_type,
            given.response_topic,
            correlation,
            users,
            (),
            alias,
        )
        return Publish(topic, data[body:end], first >> 1 & 3, first & 1 == 1, first & 8 == 8, packet_id, given, block)
    return Publish(topic, data[body:end], first >> 1 & 3, first & 1 == 1, first & 8 == 8, packet_id, given)


def _quick_properties(data: bytes, pos: int, end: int, max_user_properties: int) -> PublishProperties | None:
    """One loop, no object per property; None for anything unusual: the general way then finds out what."""
    payload_format: int | None = None
    expiry: int | None = None
    alias: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation: bytes | None = None
    users: list[tuple[str, str]] = []
    while pos < end:
        identifier = data[pos]
        if identifier == _USER:
            stop = pos + 3 + (data[pos + 1] << 8 | data[pos + 2])
            stop += 2 + (data[stop] << 8 | data[stop + 1])
            if stop > end:
                return None
            users.append(_PAIRS_READ[data[pos:stop]])
        elif identifier == _CORRELATION and correlation is None:
            stop = pos + 3 + (data[pos + 1] << 8 | data[pos + 2])
            correlation = data[pos + 3 : stop]
        elif identifier == _RESPONSE and response_topic is None:
            stop = pos + 3 + (data[pos + 1] << 8 | data[pos + 2])
            response_topic = _TOPICS_READ[data[pos + 3 : stop]]
        elif identifier == _CONTENT and content_type is None:
            stop = pos + 3 + (data[pos + 1] << 8 | data[pos + 2])
            content_type = data[pos + 3 : stop].decode()
            if "\0" in content_type:
                return None
        elif identifier == _EXPIRY and expiry is None:
            stop = pos + 5
            expiry = int.from_bytes(data[pos + 1 : stop], "big")
        elif identifier == _FORMAT and payload_format is None:
            stop = pos + 2
            payload_format = data[pos + 1]
            if payload_format > 1:
                return None
        elif identifier == _ALIAS and alias is None:
            stop = pos + 3
            alias = data[pos + 1] << 8 | data[pos + 2]
            if not alias:
                return None
        else:
            return None
        pos = stop
    if pos != end or len(users) > max_user_properties:
        return None
    return PublishProperties(payload_format, expiry, content_type, response_topic, correlation, tuple(users), (), alias)


def _general(first: int, reader: Reader, context: Context) -> Publish:
    start = reader.pos
    topic = reader.name() if context.is_from_client else reader.text()
    packet_id = reader.packet_id() if first & 6 else 0
    properties = layouts.PUBLISH.decode(reader, max_repeats=context.max_user_properties)
    alias = properties.topic_alias
    if topic or alias is None:
        _check_topic(topic, start)
    if alias is not None and context.aliases is not None:
        topic = context.aliases.resolve(alias, topic, start)
        properties = attrs.evolve(properties, topic_alias=None)
    return Publish(topic, reader.rest(), first >> 1 & 3, first & 1 == 1, first & 8 == 8, packet_id, properties)


def decode_publish_3_1_1(first: int, data: bytes, pos: int, end: int, context: Context) -> Publish:
    """The same for MQTT 3.1.1, where nothing stands between packet identifier and payload."""
    try:
        packet = _quick_3_1_1(first, data, pos, end)
    except (IndexError, ValueError):
        packet = None
    if packet is None:
        return _general_3_1_1(first, Reader(data, pos, end), context)
    return packet


def _quick_3_1_1(first: int, data: bytes, pos: int, end: int) -> Publish | None:
    body = pos + 2 + (data[pos] << 8 | data[pos + 1])
    topic = _TOPICS_READ[data[pos + 2 : body]]
    qos = first >> 1 & 3
    packet_id = 0
    if qos:
        packet_id = data[body] << 8 | data[body + 1]
        if not packet_id:
            return None
        body += 2
    if body > end:
        return None
    return Publish(topic, data[body:end], qos, first & 1 == 1, first & 8 == 8, packet_id)


def _general_3_1_1(first: int, reader: Reader, context: Context) -> Publish:
    start = reader.pos
    topic = reader.name() if context.is_from_client else reader.text()
    _check_topic(topic, start)
    packet_id = reader.packet_id() if first & 6 else 0
    return Publish(topic, reader.rest(), first >> 1 & 3, first & 1 == 1, first & 8 == 8, packet_id)


def _check_topic(topic: str, offset: int) -> None:
    if not topic:
        raise protocol_error("neither a topic nor a topic alias", offset)  # MQTT 5.0, 3.3.2.1
    problem = topic_name_problem(topic)
    if problem is not None:
        raise malformed(problem, offset)  # 0x90 is for names that are correctly formed, and not accepted


# -- writing ----------------------------------------------------------------------------------------------------------


def _write_topic(topic: str) -> bytes:
    problem = topic_name_problem(topic)
    if problem is not None:
        raise InvalidArgumentError(f"topic name {topic!r}: {problem}")
    return encode_text(topic)


_TOPICS_WRITTEN: Final = Memo(_write_topic)

_FORMATS: Final = {None: b"", 0: b"\x01\x00", 1: b"\x01\x01"}
_EXPIRY_FORM: Final = Struct(">BI")
_ALIAS_FORM: Final = Struct(">BH")

# A message goes to many subscribers with one and the same properties object, one encode() after the other. Values are
# frozen, so the bytes of the latest object can be used again. One tuple, replaced whole: no thread sees half of it.
_latest: tuple[PublishProperties, bytes] = (_NO_PROPERTIES, b"\0")


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
            properties = _encode_properties(given)
            _latest = (given, properties)
    if topic:
        name = _TOPICS_WRITTEN[topic]
    elif given.topic_alias is not None and version == MQTT_5_0:
        name = b"\0\0"
    else:
        raise InvalidArgumentError("a message needs a topic or a topic alias")
    remaining = encode_variable(len(name) + len(number) + len(properties) + len(payload))
    return b"".join((_FIRST_BYTES[flags], remaining, name, number, properties, payload))


_FIRST_BYTES: Final = tuple(bytes((0x30 | flags,)) for flags in range(16))


def _encode_properties(properties: PublishProperties) -> bytes:
    """The property length and the properties, in the order of their identifiers."""
    block = encode_head(
        properties.payload_format, properties.message_expiry, properties.content_type, properties.response_topic
    )
    if properties.correlation_data is not None:
        block += b"\x09" + encode_binary(properties.correlation_data)
    if properties.subscription_ids or properties.topic_alias is not None:
        block += _encode_delivery(properties)
    if properties.user_properties:
        block += encode_pairs(properties.user_properties)
    return encode_variable(len(block)) + block


@lru_cache(maxsize=64)  # of at most 128 KiB each
def encode_head(
    payload_format: int | None, expiry: int | None, content_type: str | None, response_topic: str | None
) -> bytes:
    """What stands before the correlation data; mostly the same from message to message."""
    try:
        block = _FORMATS[payload_format]
        if expiry is not None:
            block += _EXPIRY_FORM.pack(_EXPIRY, expiry)
    except (KeyError, StructError) as error:
        raise InvalidArgumentError(f"a property out of its range: {error}") from None
    if content_type is not None:
        block += b"\x03" + encode_text(content_type)
    if response_topic is not None:
        block += b"\x08" + _TOPICS_WRITTEN[response_topic]
    return block


def _encode_delivery(properties: PublishProperties) -> bytes:
    """What a server adds for one receiver."""
    block = b""
    for number in properties.subscription_ids:
        if not number:
            raise InvalidArgumentError("subscription identifier 0")
        block += b"\x0b" + encode_variable(number)
    if properties.topic_alias is not None:
        if not properties.topic_alias:
            raise InvalidArgumentError("topic alias 0")
        block += _encode_alias(properties.topic_alias)
    return block


def _encode_alias(alias: int) -> bytes:
    try:
        return _ALIAS_FORM.pack(_ALIAS, alias)
    except StructError as error:
        raise InvalidArgumentError(f"topic alias {alias}: {error}") from None
