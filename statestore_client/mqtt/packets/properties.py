"""MQTT 5.0 properties: one table, and what each packet makes of it.

The rows stand in the order of their identifiers, which is also the order in which we write them (CONNACK aside).
PUBLISH has a quicker way of its own for the usual case (:mod:`.publish`); what is malformed and why is decided here
alone.
Source: MQTT 5.0 section 2.2.2.2 and the property sections of each packet.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Final, Generic, TypeAlias, TypeVar

import attrs

from statestore_client.errors import InvalidArgumentError, PacketError
from statestore_client.mqtt.packets.primitives import (
    Reader,
    encode_binary,
    encode_text,
    encode_unsigned,
    encode_variable,
    malformed,
    protocol_error,
)
from statestore_client.mqtt.packets.topics import topic_name_problem
from statestore_client.mqtt.packets.types import (
    AuthProperties,
    ConnackProperties,
    ConnectProperties,
    DisconnectProperties,
    PublishProperties,
    ReasonCode,
    ReasonProperties,
    SubscribeProperties,
    WillProperties,
)

__all__ = [
    "AUTH",
    "CONNACK",
    "CONNECT",
    "DISCONNECT",
    "PUBLISH",
    "REASON",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "WILL",
    "Layout",
    "without",
]

P = TypeVar("P", bound=attrs.AttrsInstance)
Names: TypeAlias = tuple[str, ...]


class _Kind(Enum):
    """How a value looks on the wire, and what is forbidden although it fits."""

    FLAG = auto()  # a byte that is 0 or 1
    TWO_BYTES = auto()
    FOUR_BYTES = auto()
    VARIABLE = auto()
    TEXT = auto()
    TOPIC = auto()  # a string without wildcards
    BINARY = auto()
    PAIR = auto()


@attrs.frozen
class _Property:
    identifier: int
    name: str  # the attribute of the property classes
    kind: _Kind
    repeats: bool = False
    zero: ReasonCode | None = None  # the answer to a zero where zero is not allowed


_PROTOCOL_ERROR: Final = ReasonCode.PROTOCOL_ERROR

_TABLE: Final = (
    _Property(0x01, "payload_format", _Kind.FLAG),
    _Property(0x02, "message_expiry", _Kind.FOUR_BYTES),
    _Property(0x03, "content_type", _Kind.TEXT),
    _Property(0x08, "response_topic", _Kind.TOPIC),
    _Property(0x09, "correlation_data", _Kind.BINARY),
    # As everything that is wrong with SUBSCRIBE (see parsers.py): the standard has 0x82.
    _Property(0x0B, "subscription_id", _Kind.VARIABLE, zero=ReasonCode.MALFORMED_PACKET),
    _Property(0x0B, "subscription_ids", _Kind.VARIABLE, zero=_PROTOCOL_ERROR, repeats=True),
    _Property(0x11, "session_expiry", _Kind.FOUR_BYTES),
    _Property(0x12, "assigned_client_id", _Kind.TEXT),
    _Property(0x13, "server_keep_alive", _Kind.TWO_BYTES),
    _Property(0x15, "authentication_method", _Kind.TEXT),
    _Property(0x16, "authentication_data", _Kind.BINARY),
    _Property(0x17, "request_problem_information", _Kind.FLAG),
    _Property(0x18, "will_delay", _Kind.FOUR_BYTES),
    _Property(0x19, "request_response_information", _Kind.FLAG),
    _Property(0x1A, "response_information", _Kind.TEXT),
    _Property(0x1C, "server_reference", _Kind.TEXT),
    _Property(0x1F, "reason_string", _Kind.TEXT),
    _Property(0x21, "receive_maximum", _Kind.TWO_BYTES, zero=_PROTOCOL_ERROR),
    _Property(0x22, "topic_alias_maximum", _Kind.TWO_BYTES),
    _Property(0x23, "topic_alias", _Kind.TWO_BYTES, zero=ReasonCode.TOPIC_ALIAS_INVALID),
    _Property(0x24, "maximum_qos", _Kind.FLAG),
    _Property(0x25, "retain_available", _Kind.FLAG),
    _Property(0x26, "user_properties", _Kind.PAIR, repeats=True),
    _Property(0x27, "maximum_packet_size", _Kind.FOUR_BYTES, zero=_PROTOCOL_ERROR),
    _Property(0x28, "wildcard_subscription_available", _Kind.FLAG),
    _Property(0x29, "subscription_ids_available", _Kind.FLAG),
    _Property(0x2A, "shared_subscription_available", _Kind.FLAG),
)


#: Larger blocks are not kept.
_LATEST_BYTES: Final = 512

#: A user property, and the bytes of an empty one.
_USER: Final = 0x26
_SHORTEST_PAIR: Final = 5

_KINDS: Final = {row.identifier: row.kind for row in _TABLE}


class Layout(Generic[P]):
    """The properties that one packet may carry, and the class that holds them."""

    __slots__ = ("_by_identifier", "_cls", "_latest", "_rows", "empty")

    def __init__(
        self, cls: type[P], *, without: frozenset[str] = frozenset(), first: Names = (), last: Names = ()
    ) -> None:
        """``first`` and ``last`` are written before and after all others."""
        names = {field.name for field in attrs.fields(cls)} - without
        self._cls = cls
        rows = (row for row in _TABLE if row.name in names)
        places = {name: number - len(first) for number, name in enumerate(first)}
        places |= {name: number + 1 for number, name in enumerate(last)}
        self._rows = tuple(sorted(rows, key=lambda row: places.get(row.name, 0)))
        self._by_identifier = {row.identifier: row for row in self._rows}
        self.empty = cls()
        # A server says the same to most of its clients. One tuple, replaced whole: no thread sees half of it.
        self._latest: tuple[P, bytes] = (self.empty, b"\0")

    def decode(self, reader: Reader, *, max_repeats: int) -> P:
        """The property length and the properties after it.

        :raises PacketError: 0x81 for bytes that are not a property of this packet, 0x82 for a repeated property or a
            value that is not allowed, 0x94 for topic alias 0, 0x97 for more than ``max_repeats`` of one kind.
        """
        size = reader.variable()
        if size == 0:
            return self.empty
        if reader.pos + size > reader.end:
            raise malformed("the properties are longer than their packet", reader.pos)
        block = Reader(reader.data, reader.pos, reader.pos + size)
        reader.pos = block.end
        values: dict[str, Any] = {}
        while block.pos < block.end:
            self._decode_one(block, values, max_repeats)
            if "user_properties" in values:
                _read_pairs(block, values["user_properties"], max_repeats)
        return self._cls(**{name: tuple(value) if type(value) is list else value for name, value in values.items()})

    def _decode_one(self, block: Reader, values: dict[str, Any], max_repeats: int) -> None:
        start = block.pos
        row = self._by_identifier.get(block.variable())
        if row is None:
            raise self._misplaced(block, start)
        if not row.repeats and row.name in values:
            raise protocol_error(f"{row.name} twice", start)
        value = _decode_value(block, row.kind)
        problem = _problem(row, value)
        if problem is not None:
            raise PacketError(problem[0], reason_code=problem[1], offset=start)
        if not row.repeats:
            values[row.name] = value
            return
        found = values.setdefault(row.name, [])
        found.append(value)
        if len(found) > max_repeats:
            raise PacketError(f"too many {row.name}", reason_code=ReasonCode.QUOTA_EXCEEDED, offset=start)

    def _misplaced(self, block: Reader, start: int) -> PacketError:
        """Malformed (MQTT 5.0, 2.2.2.2). But a well-formed property of other packets is called a protocol error by
        brokers in use, except in the packets about subscriptions, and clients' tests look for that.
        """
        if self._cls is SubscribeProperties:
            return malformed("not a property of this packet", start)
        block.pos = start
        while block.pos < block.end:
            kind = _KINDS.get(block.variable())
            if kind is None:
                return malformed("no property", start)
            _decode_value(block, kind)
        return protocol_error("a property of other packets", start)

    def encode(self, properties: P) -> bytes:
        """The property length and the properties that are not None, in the order of their identifiers.

        :raises InvalidArgumentError: a value that MQTT does not allow.
        """
        known, block = self._latest
        if properties is known or properties == known:
            return block
        if properties is self.empty:
            return b"\0"
        out = bytearray()
        for row in self._rows:
            value = getattr(properties, row.name)
            if value is None:
                continue
            for item in value if row.repeats else (value,):
                out += _encode_one(row, item)
        block = encode_variable(len(out)) + out
        if len(block) <= _LATEST_BYTES:
            self._latest = (properties, block)
        return block


def without(block: bytes, identifier: int) -> bytes:
    """Well-formed properties, their length included, but for one of them."""
    reader = Reader(block, 0, len(block))
    reader.variable()
    kept = bytearray()
    while reader.pos < reader.end:
        start = reader.pos
        found = reader.variable()
        _decode_value(reader, _KINDS[found])
        if found != identifier:
            kept += block[start : reader.pos]
    return encode_variable(len(kept)) + kept


def _encode_one(row: _Property, value: Any) -> bytes:
    problem = _problem(row, value)
    if problem is not None:
        raise InvalidArgumentError(problem[0])
    try:
        return bytes((row.identifier,)) + _encode_value(row.kind, value)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{row.name}: {error}") from None


def _problem(row: _Property, value: Any) -> tuple[str, ReasonCode] | None:
    """Why a value that can be read is not allowed, and the reason code that says so."""
    if row.kind is _Kind.FLAG and value not in (0, 1):
        return f"{row.name} is 0 or 1, not {value}", _PROTOCOL_ERROR
    if row.zero is not None and value == 0:
        return f"{row.name} 0", row.zero
    if row.kind is _Kind.TOPIC:
        problem = topic_name_problem(value)
        if problem is not None:
            return f"{row.name}: {problem}", _PROTOCOL_ERROR  # [MQTT-3.3.2-14]
    return None


def _read_pairs(block: Reader, found: list[tuple[str, str]], most: int) -> None:
    """More user properties, thousands perhaps, in one loop. It stops before anything unusual."""
    data, pos, end = block.data, block.pos, block.end
    while pos + _SHORTEST_PAIR <= end and data[pos] == _USER and len(found) < most:
        middle = pos + 3 + (data[pos + 1] << 8 | data[pos + 2])
        if middle + 2 > end:
            break
        stop = middle + 2 + (data[middle] << 8 | data[middle + 1])
        if stop > end:
            break
        try:
            name, text = data[pos + 3 : middle].decode(), data[middle + 2 : stop].decode()
        except UnicodeDecodeError:
            break
        if "\0" in name or "\0" in text:
            break
        found.append((name, text))
        pos = stop
    block.pos = pos


def _decode_value(reader: Reader, kind: _Kind) -> Any:
    match kind:
        case _Kind.PAIR:
            return reader.pair()
        case _Kind.TEXT | _Kind.TOPIC:
            return reader.text()
        case _Kind.FOUR_BYTES:
            return reader.unsigned(4)
        case _Kind.TWO_BYTES:
            return reader.unsigned(2)
        case _Kind.FLAG:
            return reader.byte()
        case _Kind.VARIABLE:
            return reader.variable()
        case _Kind.BINARY:
            return reader.binary()


def _encode_value(kind: _Kind, value: Any) -> bytes:
    match kind:
        case _Kind.PAIR:
            return encode_text(value[0]) + encode_text(value[1])
        case _Kind.TEXT | _Kind.TOPIC:
            return encode_text(value)
        case _Kind.FOUR_BYTES:
            return encode_unsigned(value, 4)
        case _Kind.TWO_BYTES:
            return encode_unsigned(value, 2)
        case _Kind.FLAG:
            return encode_unsigned(value, 1)
        case _Kind.VARIABLE:
            return encode_variable(value)
        case _Kind.BINARY:
            return encode_binary(value)


CONNECT: Final = Layout(ConnectProperties)
WILL: Final = Layout(WillProperties)
# In the order in which the most frequent broker writes them: clients that compare bytes exist.
CONNACK: Final = Layout(
    ConnackProperties, first=("server_keep_alive", "topic_alias_maximum"), last=("receive_maximum", "maximum_qos")
)
PUBLISH: Final = Layout(PublishProperties)
REASON: Final = Layout(ReasonProperties)
SUBSCRIBE: Final = Layout(SubscribeProperties)
UNSUBSCRIBE: Final = Layout(SubscribeProperties, without=frozenset({"subscription_id"}))
DISCONNECT: Final = Layout(DisconnectProperties)
AUTH: Final = Layout(AuthProperties)
