"""From the body of one packet to its value, for every packet but PUBLISH (:mod:`.publish`).

``PARSERS[version][first byte]`` is the parser, or None where the type or its flags are not allowed: the table is how
the reserved flags of the fixed header are checked. A parser gets (first byte, buffer, where the body starts, where it
ends, context) and raises :class:`PacketError` with an offset into the buffer.
Source: MQTT 5.0 section 3, MQTT 3.1.1 section 3; reserved flags: section 2.1.3 (2.2.2 in 3.1.1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import properties as layouts
from statestore_client.mqtt.packets import types
from statestore_client.mqtt.packets.connect import parse_connect
from statestore_client.mqtt.packets.primitives import Reader, malformed, protocol_error
from statestore_client.mqtt.packets.publish import Context, decode_publish, decode_publish_3_1_1
from statestore_client.mqtt.packets.topics import SHARE_PREFIX, topic_filter_problem
from statestore_client.mqtt.packets.types import (
    MQTT_3_1_1,
    MQTT_5_0,
    Auth,
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)

#: Returns a :data:`Packet`, or an ``IncomingMessage`` where the context wants one.
Parser: TypeAlias = Callable[[int, bytes, int, int, Context], Any]

_ReasonPacket: TypeAlias = Puback | Pubrec | Pubrel | Pubcomp


def _reason_code(reader: Reader, allowed: frozenset[int]) -> int:
    start = reader.pos
    code = reader.byte()
    if code not in allowed:
        raise protocol_error(f"reason code {code:#04x} does not belong here", start)
    return code


# -- CONNACK, AUTH, DISCONNECT ----------------------------------------------------------------------------------------


def _connack(_first: int, data: bytes, pos: int, end: int, context: Context) -> Connack:
    reader = Reader(data, pos, end)
    session_present = _session_present(reader)
    code = _reason_code(reader, types.CONNACK_CODES)
    if session_present and code:
        raise protocol_error("session present with a refusal", pos)  # [MQTT-3.2.2-6]
    properties = layouts.CONNACK.decode(reader, max_repeats=context.max_user_properties)
    reader.finish()
    return Connack(session_present, code, properties)


def _connack_3_1_1(_first: int, data: bytes, pos: int, end: int, _context: Context) -> Connack:
    reader = Reader(data, pos, end)
    session_present = _session_present(reader)
    code = reader.byte()
    if code >= len(types.CONNACK_FROM_3_1_1):
        raise protocol_error(f"return code {code}", pos + 1)
    if session_present and code:
        raise protocol_error("session present with a refusal", pos)  # [MQTT-3.2.2-4] of 3.1.1
    reader.finish()
    return Connack(session_present, types.CONNACK_FROM_3_1_1[code])


def _session_present(reader: Reader) -> bool:
    flags = reader.byte()
    if flags > 1:
        raise malformed("reserved flags of CONNACK", reader.pos - 1)
    return flags == 1


def _disconnect(_first: int, data: bytes, pos: int, end: int, context: Context) -> Disconnect:
    if pos == end:
        return Disconnect()
    reader = Reader(data, pos, end)
    code = _reason_code(reader, types.DISCONNECT_CODES)
    if end - pos == 1:
        return Disconnect(code)
    properties = layouts.DISCONNECT.decode(reader, max_repeats=context.max_user_properties)
    reader.finish()
    return Disconnect(code, properties)


def _auth(_first: int, data: bytes, pos: int, end: int, context: Context) -> Auth:
    if pos == end:
        return Auth()
    reader = Reader(data, pos, end)
    code = _reason_code(reader, types.AUTH_CODES)
    properties = layouts.AUTH.decode(reader, max_repeats=context.max_user_properties)
    reader.finish()
    if properties.authentication_method is None:
        raise protocol_error("AUTH without its authentication method", pos)  # MQTT 5.0, 3.15.2.2.2
    return Auth(code, properties)


def _disconnect_3_1_1(_first: int, _data: bytes, pos: int, end: int, _context: Context) -> Disconnect:
    _empty(pos, end)
    return Disconnect()


# -- acknowledgements of PUBLISH --------------------------------------------------------------------------------------


def _acknowledgement(cls: type[_ReasonPacket], codes: frozenset[int]) -> Parser:
    """A parser for PUBACK and its like. (MQTT 5.0, 3.4 to 3.7)"""

    def parse(_first: int, data: bytes, pos: int, end: int, context: Context) -> Packet:
        if end - pos == 2:
            packet_id = data[pos] << 8 | data[pos + 1]
            if packet_id:
                return cls(packet_id)
        reader = Reader(data, pos, end)
        packet_id = reader.packet_id()
        code = _reason_code(reader, codes)
        if end - pos == 3:
            return cls(packet_id, code)
        properties = layouts.REASON.decode(reader, max_repeats=context.max_user_properties)
        reader.finish()
        return cls(packet_id, code, properties)

    return parse


def _acknowledgement_3_1_1(cls: type[_ReasonPacket | Unsuback]) -> Parser:
    def parse(_first: int, data: bytes, pos: int, end: int, _context: Context) -> Packet:
        if end - pos == 2:
            packet_id = data[pos] << 8 | data[pos + 1]
            if packet_id:
                return cls(packet_id)
        reader = Reader(data, pos, end)
        packet_id = reader.packet_id()
        reader.finish()
        return cls(packet_id)

    return parse


# -- subscribing ------------------------------------------------------------------------------------------------------
#
# The standard calls some mistakes in SUBSCRIBE and UNSUBSCRIBE malformed and some protocol errors. Brokers in use call
# all but those of shares malformed, and so do we: the connection is closed in any case.


def _subscribe(_first: int, data: bytes, pos: int, end: int, context: Context) -> Subscribe:
    reader = Reader(data, pos, end)
    packet_id = _subscription_packet_id(reader)
    properties = layouts.SUBSCRIBE.decode(reader, max_repeats=context.max_user_properties)
    subscriptions: list[Subscription] = []
    while reader.pos < end:
        topic_filter = _filter(reader, context, len(subscriptions))
        subscriptions.append(_with_options(topic_filter, reader))
    _has_filters(subscriptions, reader)
    return Subscribe(packet_id, tuple(subscriptions), properties)


def _with_options(topic_filter: str, reader: Reader) -> Subscription:
    start = reader.pos
    options = reader.byte()
    if options & 0xC0:
        raise malformed("reserved subscription options", start)  # [MQTT-3.8.3-5]
    qos, no_local, retain_handling = options & 3, bool(options & 4), options >> 4
    if qos == 3 or retain_handling == 3:
        raise malformed("QoS 3 or retain handling 3", start)
    if no_local and topic_filter.startswith(SHARE_PREFIX):
        raise protocol_error("no local on a shared subscription", start)  # [MQTT-3.8.3-4]
    return Subscription(topic_filter, qos, no_local, bool(options & 8), retain_handling)


def _subscribe_3_1_1(_first: int, data: bytes, pos: int, end: int, context: Context) -> Subscribe:
    reader = Reader(data, pos, end)
    packet_id = _subscription_packet_id(reader)
    subscriptions: list[Subscription] = []
    while reader.pos < end:
        topic_filter = _filter(reader, context, len(subscriptions))
        qos = reader.byte()
        if qos > 2:
            raise malformed(f"requested QoS {qos}", reader.pos - 1)  # [MQTT-3-8.3-4] of 3.1.1
        subscriptions.append(Subscription(topic_filter, qos))
    _has_filters(subscriptions, reader)
    return Subscribe(packet_id, tuple(subscriptions))


def _unsubscribe(_first: int, data: bytes, pos: int, end: int, context: Context) -> Unsubscribe:
    reader = Reader(data, pos, end)
    packet_id = _subscription_packet_id(reader)
    properties = layouts.UNSUBSCRIBE.empty
    if context.version == MQTT_5_0:
        properties = layouts.UNSUBSCRIBE.decode(reader, max_repeats=context.max_user_properties)
    filters: list[str] = []
    while reader.pos < end:
        filters.append(_filter(reader, context, len(filters)))
    _has_filters(filters, reader)
    return Unsubscribe(packet_id, tuple(filters), properties)


def _filter(reader: Reader, context: Context, count: int) -> str:
    """The next topic filter; ``count`` were read before it."""
    start = reader.pos
    if count >= context.max_filters:
        raise PacketError("too many topic filters", reason_code=ReasonCode.QUOTA_EXCEEDED, offset=start)
    topic_filter = reader.name() if context.is_from_client else reader.text()
    problem = topic_filter_problem(topic_filter, shared=context.version == MQTT_5_0)
    if problem is not None and topic_filter.startswith(SHARE_PREFIX):
        raise protocol_error(problem, start)  # [MQTT-4.8.2-1], [MQTT-4.8.2-2]
    if problem is not None:
        raise malformed(problem, start)  # 0x8F is for filters that are correctly formed, and not accepted
    return topic_filter


def _subscription_packet_id(reader: Reader) -> int:
    packet_id = reader.two_bytes()
    if packet_id == 0:
        raise malformed("packet identifier 0", reader.pos - 2)  # [MQTT-2.2.1-3]
    return packet_id


def _has_filters(items: object, reader: Reader) -> None:
    if not items:
        raise malformed("not one topic filter", reader.pos)  # [MQTT-3.8.3-2], [MQTT-3.10.3-2]


def _not_empty(codes: object, reader: Reader) -> None:
    if not codes:
        raise protocol_error("not one reason code", reader.pos)


def _reason_list(cls: type[Suback | Unsuback], codes: frozenset[int]) -> Parser:
    """A parser for SUBACK and UNSUBACK of MQTT 5.0. (3.9, 3.11)"""

    def parse(_first: int, data: bytes, pos: int, end: int, context: Context) -> Packet:
        reader = Reader(data, pos, end)
        packet_id = reader.packet_id()
        properties = layouts.REASON.decode(reader, max_repeats=context.max_user_properties)
        return cls(packet_id, _reason_codes(reader, codes), properties)

    return parse


def _suback_3_1_1(_first: int, data: bytes, pos: int, end: int, _context: Context) -> Suback:
    reader = Reader(data, pos, end)
    return Suback(reader.packet_id(), _reason_codes(reader, types.SUBACK_CODES_3_1_1))


def _reason_codes(reader: Reader, allowed: frozenset[int]) -> tuple[int, ...]:
    start = reader.pos
    codes = reader.rest()
    _not_empty(codes, reader)
    for offset, code in enumerate(codes):
        if code not in allowed:
            raise protocol_error(f"reason code {code:#04x} does not belong here", start + offset)
    return tuple(codes)


# -- PINGREQ and PINGRESP ---------------------------------------------------------------------------------------------

_PINGREQ: Final = Pingreq()
_PINGRESP: Final = Pingresp()


def _pingreq(_first: int, _data: bytes, pos: int, end: int, _context: Context) -> Pingreq:
    _empty(pos, end)
    return _PINGREQ


def _pingresp(_first: int, _data: bytes, pos: int, end: int, _context: Context) -> Pingresp:
    _empty(pos, end)
    return _PINGRESP


def _empty(pos: int, end: int) -> None:
    if pos != end:
        raise malformed("this packet has no body", pos)


# -- the tables -------------------------------------------------------------------------------------------------------

#: QoS 3 does not exist, and a QoS 0 message is no duplicate. [MQTT-3.3.1-4], [MQTT-3.3.1-2]
_PUBLISH_FIRST_BYTES: Final = (*range(0x30, 0x36), *range(0x3A, 0x3E))


def _table(parsers: dict[int, Parser], publish: Parser) -> tuple[Parser | None, ...]:
    every = parsers | dict.fromkeys(_PUBLISH_FIRST_BYTES, publish)
    return tuple(every.get(first) for first in range(256))


PARSERS: Final = {
    MQTT_5_0: _table(
        {
            0x10: parse_connect,
            0x20: _connack,
            0x40: _acknowledgement(Puback, types.PUBACK_CODES),
            0x50: _acknowledgement(Pubrec, types.PUBACK_CODES),
            0x62: _acknowledgement(Pubrel, types.PUBREL_CODES),
            0x70: _acknowledgement(Pubcomp, types.PUBREL_CODES),
            0x82: _subscribe,
            0x90: _reason_list(Suback, types.SUBACK_CODES),
            0xA2: _unsubscribe,
            0xB0: _reason_list(Unsuback, types.UNSUBACK_CODES),
            0xC0: _pingreq,
            0xD0: _pingresp,
            0xE0: _disconnect,
            0xF0: _auth,
        },
        decode_publish,
    ),
    MQTT_3_1_1: _table(
        {
            0x10: parse_connect,
            0x20: _connack_3_1_1,
            0x40: _acknowledgement_3_1_1(Puback),
            0x50: _acknowledgement_3_1_1(Pubrec),
            0x62: _acknowledgement_3_1_1(Pubrel),
            0x70: _acknowledgement_3_1_1(Pubcomp),
            0x82: _subscribe_3_1_1,
            0x90: _suback_3_1_1,
            0xA2: _unsubscribe,
            0xB0: _acknowledgement_3_1_1(Unsuback),
            0xC0: _pingreq,
            0xD0: _pingresp,
            0xE0: _disconnect_3_1_1,
        },
        decode_publish_3_1_1,
    ),
}


def _from_clients(version: int, *, auth: bool) -> tuple[Parser | None, ...]:
    only_servers = (0x2, 0x9, 0xB, 0xD) if auth else (0x2, 0x9, 0xB, 0xD, 0xF)
    return tuple(None if first >> 4 in only_servers else parser for first, parser in enumerate(PARSERS[version]))


#: What a server reads, by version and whether CONNECT named a method of authentication: without one there is no AUTH
#: (MQTT-4.12.0-6). Packets that only servers send are not looked into.
CLIENT_PARSERS: Final = {
    (version, auth): _from_clients(version, auth=auth) for version in PARSERS for auth in (False, True)
}

_OF_3_1_1: Final = CLIENT_PARSERS[MQTT_3_1_1, False]

#: MQTT 3.1 sends PUBREL, SUBSCRIBE and UNSUBSCRIBE again with DUP set (its section 2.1); the later versions forbid it.
CLIENT_PARSERS_3_1: Final = tuple(
    _OF_3_1_1[first & ~0x08] if first in (0x6A, 0x8A, 0xAA) else parser for first, parser in enumerate(_OF_3_1_1)
)
