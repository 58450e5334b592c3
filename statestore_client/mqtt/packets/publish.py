"""PUBLISH, the packet that everything else exists for, from bytes and to bytes.

**Reading.** Most of what is read was read before: topics are remembered for all connections, and the properties of a
peer's messages by its connection. Two messages of a peer differ in their correlation data and in the value of one user
property, a timestamp. A :class:`Template` is the bytes around those two, compared as they are, and the values that they
stand for. All lengths are among the compared bytes: where they agree, the block has the same structure, and every value
but those two is the same. What is new goes the strict way: by :class:`Reader` and by the table in :mod:`.properties`,
which alone decide what is malformed.

Invariant: what is remembered gives what the strict way gave (tests compare them).

**Writing.** How each property looks is in the table of :mod:`.properties`. Here they are put together from three parts,
of which one changes with each message: what stands before the correlation data, the correlation data, and what comes
after it. The first is mostly the same from message to message, and what a server adds for a receiver is always the same
for that receiver; both are remembered. So are user properties, whose names repeat, and the values of most names, too.
A timestamp is new in every message: remembering it costs more than encoding it and drives out what is worth
remembering, so the values of a name are remembered while they are few.

Source: MQTT 5.0 section 3.3, MQTT 3.1.1 section 3.3.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import attrs

from statestore_client.errors import InvalidArgumentError, PacketError
from statestore_client.mqtt.packets import properties as layouts
from statestore_client.mqtt.packets.forgiven import Forgiven
from statestore_client.mqtt.packets.primitives import (
    BoundedCache,
    Reader,
    encode_binary,
    encode_text,
    encode_variable,
    has_control,
    malformed,
    plain_text,
    protocol_error,
    read_text,
    read_variable,
)
from statestore_client.mqtt.packets.properties import CORRELATION_DATA, USER_PROPERTY, spans
from statestore_client.mqtt.packets.topics import topic_name_problem
from statestore_client.mqtt.packets.types import MQTT_5_0, Publish, PublishProperties, ReasonCode, UserProperties
from statestore_client.wire.messages import IncomingMessage

#: A connection remembers a few kilobytes at most, whatever its peer sends.
_LONGEST_TEMPLATE: Final = 512
_ENTRIES: Final = 8

#: Making a template takes longer than reading a block. A peer whose messages always differ in other places must not
#: have one made for each of them: after this many, only each 16th is made.
_EAGER: Final = 16
_PAUSE: Final = 16


@attrs.define(eq=False)
class Template:
    """``before`` the correlation data, ``between`` it and the value that changes, ``after`` that value.

    The numbers are offsets into the block. Without correlation data, or without such a value, the range is empty.
    """

    block: bytes  # the message that it was made from
    given: PublishProperties
    before: bytes
    correlation_at: int
    between: bytes
    between_at: int
    after: bytes
    value_at: int
    after_at: int
    has_correlation: bool
    users_before: UserProperties
    name: str | None  # of the user property that changes
    users_after: UserProperties


class Templates(dict[int, Template]):
    """The templates of one connection, by the size of the block: replies and notifications take turns."""

    __slots__ = ("_misses",)

    def __init__(self) -> None:
        super().__init__()
        self._misses = 0

    def learn(self, data: bytes, start: int, end: int, given: PublishProperties) -> None:
        """Expect more like the properties there, which no template fitted and which were found to mean ``given``."""
        self._misses += 1
        if end - start > _LONGEST_TEMPLATE or (self._misses > _EAGER and self._misses % _PAUSE):
            return
        block = data[start:end]
        known = self.get(len(block))
        if len(self) >= _ENTRIES and known is None:
            self.clear()
        self[len(block)] = _template(block, given, None if known is None else known.block)


def _template(block: bytes, given: PublishProperties, other: bytes | None) -> Template:
    """``other``: an earlier block of the same size. The first user property that differs will differ again."""
    correlation = (0, 0)
    users: list[tuple[int, int, int]] = []  # start, value and end of each
    for identifier, start, stop in spans(block, 0, len(block)):
        if identifier == CORRELATION_DATA:
            correlation = (start + 3, stop)
        elif identifier == USER_PROPERTY:
            users.append((start, start + 5 + (block[start + 1] << 8 | block[start + 2]), stop))
    changing = len(users)
    value = (len(block), len(block))
    for index, (start, middle, stop) in enumerate(users):
        if other is not None and block[start:stop] != other[start:stop] and correlation[1] <= start:
            changing, value = index, (middle, stop)
            break
    known = given.user_properties
    return Template(
        block=block,
        given=given,
        before=block[: correlation[0]],
        correlation_at=correlation[0],
        between=block[correlation[1] : value[0]],
        between_at=correlation[1],
        after=block[value[1] :],
        value_at=value[0],
        after_at=value[1],
        has_correlation=given.correlation_data is not None,
        users_before=known[:changing],
        name=known[changing][0] if changing < len(known) else None,
        users_after=known[changing + 1 :],
    )


@attrs.define(eq=False)
class TopicAliases:
    """What the peer's topic aliases stand for (MQTT 5.0, 3.3.2.3.4). Invariant: at most ``maximum`` topics are kept."""

    maximum: int
    _topics: dict[int, str] = attrs.field(factory=dict, init=False)

    def resolve(self, alias: int, topic: str, offset: int) -> str:
        """The topic of a message with this alias. ``topic`` is what it says itself, "" for nothing."""
        if alias > self.maximum:
            raise _invalid(f"topic alias {alias}, and {self.maximum} is the maximum", offset)
        if topic:
            self._topics[alias] = topic
            return topic
        known = self._topics.get(alias)
        if known is None:
            raise _invalid(f"topic alias {alias} has no topic yet", offset)
        return known


def _invalid(text: str, offset: int) -> PacketError:
    return PacketError(text, reason_code=ReasonCode.TOPIC_ALIAS_INVALID, offset=offset)


@attrs.define(eq=False)
class Context:
    """What the parser of one packet has to know about its connection.

    ``version`` is None until a CONNECT has said which one it is.
    """

    version: int | None
    max_user_properties: int
    max_filters: int
    is_from_client: bool = False  # a server reads; it refuses names that a client may see all the same
    wants_messages: bool = False  # IncomingMessage instead of Publish, where that is enough
    aliases: TopicAliases | None = None  # None leaves them in the packets
    forgiven: Forgiven | None = None  # None forgives nothing
    templates: Templates = attrs.Factory(Templates)  # of the PUBLISHes before

    def forgives(self, what: str) -> bool:
        """Whether a mistake that harms nobody is let pass; then it is noted."""
        if self.forgiven is None:
            return False
        self.forgiven.note(what)
        return True


#: A name with more values than this is taken for one whose values do not repeat.
_VALUES: Final = 16
_LONGEST_VALUE: Final = 192


class _Name(dict[str, bytes]):
    """The user properties with this name that were written, by value. Invariant: at most ``_VALUES`` short ones."""

    __slots__ = ("_start",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self._start = bytes((USER_PROPERTY,)) + encode_text(name)

    def write(self, value: str) -> bytes:
        if value.isascii() and len(value) <= _LONGEST_VALUE and "\0" not in value:  # :func:`encode_text`, in line
            data = self._start + len(value).to_bytes(2, "big") + value.encode()
        else:
            data = self._start + encode_text(value)
        if len(self) < _VALUES and len(value) <= _LONGEST_VALUE:
            self[value] = data
        return data


class _Names(BoundedCache[str, _Name]):
    ENTRIES = 256


_NAMES: Final = _Names(_Name)

# All user properties but the last one of the latest message, and their bytes: one sender's messages often differ in
# the last one only. One tuple, replaced whole: no thread sees half of it.
_latest_users: tuple[UserProperties, bytes] = ((), b"")


def encode_user_properties(properties: UserProperties) -> bytes:
    """The user properties in their order, each with its identifier.

    :raises InvalidArgumentError: a text that MQTT does not allow.
    """
    global _latest_users
    if not properties:
        return b""
    name, value = properties[-1]
    known = _NAMES[name]
    last = known.get(value) or known.write(value)
    if len(properties) == 1:
        return last
    others = properties[:-1]
    before, block = _latest_users
    if before != others:
        block = b"".join([_NAMES[name].get(value) or _NAMES[name].write(value) for name, value in others])
        _latest_users = (others, block)
    return block + last


_CORRELATION_DATA: Final = bytes((layouts.CORRELATION_DATA,))


def encode_properties(given: PublishProperties) -> bytes:
    """The property length and the properties, in the order of their identifiers.

    :raises InvalidArgumentError: a value that MQTT does not allow. So do the others.
    """
    leading = leading_properties(given.payload_format, given.message_expiry, given.content_type, given.response_topic)
    trailing = encode_user_properties(given.user_properties)
    if given.subscription_ids or given.topic_alias is not None:
        trailing = delivery_properties(given.subscription_ids, given.topic_alias) + trailing
    return property_block(leading, given.correlation_data, trailing)


def property_block(leading: bytes, correlation_data: bytes | None, trailing: bytes) -> bytes:
    """The property length and the properties; ``leading`` and ``trailing`` are encoded already."""
    if correlation_data is None:
        return b"".join((encode_variable(len(leading) + len(trailing)), leading, trailing))
    correlation = encode_binary(correlation_data)
    size = len(leading) + 1 + len(correlation) + len(trailing)
    return b"".join((encode_variable(size), leading, _CORRELATION_DATA, correlation, trailing))


@lru_cache(maxsize=64)  # of at most 128 KiB each
def leading_properties(
    payload_format: int | None, expiry: int | None, content_type: str | None, response_topic: str | None
) -> bytes:
    """What stands before the correlation data; ``expiry`` in seconds."""
    return layouts.PUBLISH.encode_fields(PublishProperties(payload_format, expiry, content_type, response_topic))


def delivery_properties(subscription_ids: tuple[int, ...], topic_alias: int | None) -> bytes:
    """What a server adds for one receiver; of these, a client has the topic alias only."""
    ids = b"".join([_subscription_id(number) for number in subscription_ids])
    return ids if topic_alias is None else ids + _topic_alias(topic_alias)


@lru_cache(maxsize=1024)  # one by one: there may be thousands of them in a message
def _subscription_id(number: int) -> bytes:
    return layouts.PUBLISH.encode_fields(PublishProperties(subscription_ids=(number,)))


@lru_cache(maxsize=1024)
def _topic_alias(number: int) -> bytes:
    return layouts.PUBLISH.encode_fields(PublishProperties(topic_alias=number))


_NO_TEXT: Final = encode_text("")

#: Lengths of correlation data and of the value in an answer that are written without a call each.
_SHORT: Final = 64
_SHORT_LENGTHS: Final = tuple(length.to_bytes(2, "big") for length in range(_SHORT + 1))
_SHORT_CORRELATION_DATA: Final = tuple(_CORRELATION_DATA + length for length in _SHORT_LENGTHS)


class AnswerTemplate:
    """The properties of answers, written but for the correlation data and the value of the last user property.

    The sender's counterpart of :class:`Template`: an answer says the same as the one before it, to another request and
    with another timestamp. It has message expiry in seconds, content type, correlation data, ``users``, and a user
    property called ``name``.
    """

    __slots__ = ("_content_type", "_expiry", "_leading", "_name", "_trailing", "_users")

    def __init__(self, expiry: int | None, content_type: str | None, users: UserProperties, name: str) -> None:
        """:raises InvalidArgumentError: a value that MQTT does not allow."""
        self._expiry = expiry
        self._content_type = content_type
        self._users = users
        self._name = name
        self._leading = leading_properties(None, expiry, content_type, None)
        self._trailing = encode_user_properties((*users, (name, ""))).removesuffix(_NO_TEXT)

    def fill(self, correlation_data: bytes, value: str) -> tuple[PublishProperties, bytes]:
        """The properties, and the bytes of them: what :attr:`Publish.block` is for.

        :raises InvalidArgumentError: a value that MQTT does not allow.
        """
        users = (*self._users, (self._name, value))
        properties = PublishProperties(None, self._expiry, self._content_type, None, correlation_data, users)
        if len(correlation_data) <= _SHORT and len(value) <= _SHORT and value.isascii() and value.isprintable():
            # As below, where nothing has to be looked for that MQTT does not allow.
            leading, trailing, text = self._leading, self._trailing, value.encode()
            size = len(leading) + len(correlation_data) + len(trailing) + len(text) + 5
            return properties, b"".join(
                (
                    encode_variable(size),
                    leading,
                    _SHORT_CORRELATION_DATA[len(correlation_data)],
                    correlation_data,
                    trailing,
                    _SHORT_LENGTHS[len(text)],
                    text,
                )
            )
        return properties, property_block(self._leading, correlation_data, self._trailing + encode_text(value))


def _write_topic(topic: str) -> bytes:
    problem = topic_name_problem(topic)
    if problem is not None:
        raise InvalidArgumentError(f"topic name {topic!r}: {problem}")
    return encode_text(topic)


_TOPIC_BYTES: Final = BoundedCache(_write_topic)

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
        name = _TOPIC_BYTES[topic]
    elif given.topic_alias is not None and version == MQTT_5_0:
        name = b"\0\0"
    else:
        raise InvalidArgumentError("a message needs a topic or a topic alias")
    remaining = encode_variable(len(name) + len(number) + len(properties) + len(payload))
    return b"".join((_FIRST_BYTES[flags], remaining, name, number, properties, payload))


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
    if start < end and data[start] < 128:  # :func:`read_variable`, in line for one byte and for two
        size, stop = data[start], start + 1
    elif start + 1 < end and 0 < data[start + 1] < 128:
        size, stop = data[start] + ((data[start + 1] - 1) << 7), start + 2
    else:
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
                value = data[stop + template.value_at : stop + template.after_at].decode()
                if "\0" in value:
                    raise ValueError
            except ValueError:
                read_text(data, stop + template.value_at - 2, body)  # raises, and says where
                raise
            users = (*users, (template.name, value), *template.users_after)
    elif size:
        forgiven = context.forgiven
        before = 0 if forgiven is None else forgiven.count
        given = layouts.PUBLISH.decode_block(data, stop, body, context.max_user_properties, forgiven)
        correlation, users = given.correlation_data, given.user_properties
        if forgiven is None or forgiven.count == before:  # the next mistake is to be counted as well
            context.templates.learn(data, stop, body, given)
    alias = given.topic_alias
    if alias is not None and context.aliases is not None:
        topic, alias = context.aliases.resolve(alias, topic, pos), None
    elif alias is not None and topic and context.forgives("a topic alias, although none was allowed"):
        alias = None
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
