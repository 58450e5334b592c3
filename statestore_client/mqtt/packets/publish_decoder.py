"""From bytes to a PUBLISH, the packet that everything else exists for.

Most of what is read was read before: topics are remembered by everybody, and the properties of a peer's messages by its
connection (:mod:`.publish_template`). What is new goes the strict way: by :class:`Reader` and by the table in
:mod:`.properties`, which are the only judges of what is malformed. Invariant: what is remembered gives what the strict
way gave (tests compare them). Source: MQTT 5.0 section 3.3, MQTT 3.1.1 section 3.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statestore_client.mqtt.packets import properties as layouts
from statestore_client.mqtt.packets.bounded_cache import BoundedCache
from statestore_client.mqtt.packets.primitives import (
    Reader,
    has_control,
    malformed,
    plain_text,
    protocol_error,
    read_text,
    read_variable,
)
from statestore_client.mqtt.packets.topics import topic_name_problem
from statestore_client.mqtt.packets.types import Publish, PublishProperties
from statestore_client.wire.messages import IncomingMessage

if TYPE_CHECKING:
    from statestore_client.errors import PacketError
    from statestore_client.mqtt.packets.context import Context

__all__ = ["decode_publish", "decode_publish_3_1_1"]

_NO_PROPERTIES: Final = Publish("").properties

#: QoS, RETAIN and DUP by the first byte of the packet. (MQTT 5.0, 3.3.1)
_FLAGS: Final = tuple((first >> 1 & 3, first & 1 == 1, first & 8 == 8) for first in range(256))

#: Bytes of the properties of a :class:`Publish` that keeps them as they came. Longer ones would be held twice.
_LONGEST_BLOCK: Final = 4096


def _read_topic(data: bytes) -> str:
    topic = plain_text(data)
    if has_control(topic) or topic_name_problem(topic):
        raise ValueError  # perhaps: the strict way knows
    return topic


# A hit saves the validation, and gives the very same str object, whose hash is ready for the lookups that follow in a
# broker.
_TOPICS: Final = BoundedCache(_read_topic)


def decode_publish(first: int, data: bytes, pos: int, end: int, context: Context) -> Publish | IncomingMessage:
    """The PUBLISH whose variable header starts at ``pos``; ``first`` is its first byte, with allowed flags.

    An :class:`IncomingMessage` if the context wants those; a QoS 2 message and one with a topic alias stay a
    :class:`Publish`.
    """
    topic, packet_id, start = _header(first, data, pos, end, context)
    size, stop = read_variable(data, start, end)
    body = stop + size
    if body > end:
        raise malformed("the properties are longer than their packet", stop)
    given, correlation, users = _NO_PROPERTIES, None, _NO_PROPERTIES.user_properties
    template = context.templates.get(size) if size else None
    # In line: as a method of the template it takes a tenth of the time of a PUBLISH.
    if (
        template is not None
        and data.startswith(template.before, stop)
        and data.startswith(template.between, stop + template.between_at)
        and data.startswith(template.after, stop + template.after_at)
    ):
        given, users = template.given, template.users_before
        if template.has_correlation:
            correlation = data[stop + template.correlation_at : stop + template.between_at]
        if template.name is not None:
            try:
                value = plain_text(data[stop + template.value_at : stop + template.after_at])
            except ValueError:
                read_text(data, stop + template.value_at - 2, body)  # raises, and says where
                raise
            users = (*users, (template.name, value), *template.users_after)
    elif size:
        given = layouts.PUBLISH.decode_block(data, stop, body, context.max_user_properties)
        correlation, users = given.correlation_data, given.user_properties
        context.templates.learn(data, stop, body, given)
    alias = given.topic_alias
    if alias is not None and context.aliases is not None:
        topic, alias = context.aliases.resolve(alias, topic, pos), None
    if not topic and alias is None:
        raise _no_topic(pos)
    if context.wants_messages and not first & 4 and alias is None:
        return IncomingMessage(topic, data[body:end], correlation, users, packet_id)
    block = None
    if size:
        if size < _LONGEST_BLOCK and given.topic_alias is None and not given.subscription_ids:
            block = data[start:body]  # an alias is this connection's alone
        given = PublishProperties(
            given.payload_format,
            given.message_expiry,
            given.content_type,
            given.response_topic,
            correlation,
            users,
            given.subscription_ids,
            alias,
        )
    qos, retain, dup = _FLAGS[first]
    return Publish(topic, data[body:end], qos, retain, dup, packet_id, given, block)


def decode_publish_3_1_1(first: int, data: bytes, pos: int, end: int, context: Context) -> Publish:
    """The same for MQTT 3.1.1, where nothing stands between packet identifier and payload."""
    topic, packet_id, body = _header(first, data, pos, end, context)
    if not topic:
        raise _no_topic(pos)
    qos, retain, dup = _FLAGS[first]
    return Publish(topic, data[body:end], qos, retain, dup, packet_id)


def _header(first: int, data: bytes, pos: int, end: int, context: Context) -> tuple[str, int, int]:
    """Topic, which may be empty, packet identifier, 0 for QoS 0, and the position after them."""
    # Reads may run over ``end`` into the next packet. Positions only grow, so the comparison with ``end`` further down
    # finds out before anything is returned.
    try:
        stop = pos + 2 + (data[pos] << 8 | data[pos + 1])
        topic = _TOPICS[data[pos + 2 : stop]] if stop > pos + 2 else ""
        if not first & 6:
            if stop <= end:
                return topic, 0, stop
        else:
            packet_id = data[stop] << 8 | data[stop + 1]
            if packet_id and stop + 2 <= end:
                return topic, packet_id, stop + 2
    except (IndexError, ValueError):
        pass
    reader = Reader(data, pos, end)
    topic = reader.name() if context.is_from_client else reader.text()
    problem = topic_name_problem(topic) if topic else None
    if problem is not None:
        raise malformed(problem, pos)  # 0x90 is for names that are correctly formed, and not accepted
    return topic, reader.packet_id() if first & 6 else 0, reader.pos


def _no_topic(offset: int) -> PacketError:
    return protocol_error("neither a topic nor a topic alias", offset)  # MQTT 5.0, 3.3.2.1
