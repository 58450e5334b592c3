"""MQTT 5.0 properties: one table, and what each packet makes of it.

The rows stand in the order of their identifiers, which is also the order in which we write them (CONNACK aside).
Here alone is decided what is malformed and why, and how a property is written. For PUBLISH, what came of that is
remembered in :mod:`.publish`.
Source: MQTT 5.0 section 2.2.2.2 and the property sections of each packet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import partial
from operator import not_
from typing import Any, Final, Generic, TypeAlias, TypeVar

import attrs

from statestore_client.errors import InvalidArgumentError, PacketError
from statestore_client.mqtt.packets.forgiven import Forgiven
from statestore_client.mqtt.packets.primitives import (
    BoundedCache,
    Reader,
    encode_binary,
    encode_text,
    encode_unsigned,
    encode_variable,
    malformed,
    plain_text,
    protocol_error,
    read_binary,
    read_byte,
    read_four_bytes,
    read_pair,
    read_text,
    read_two_bytes,
    read_variable,
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

P = TypeVar("P", bound=attrs.AttrsInstance)
Names: TypeAlias = tuple[str, ...]
_Read: TypeAlias = Callable[[bytes, int, int], tuple[Any, int]]

# Identifiers of the properties that other modules write or look for.
CORRELATION_DATA: Final = 0x09
WILL_DELAY: Final = 0x18
USER_PROPERTY: Final = 0x26


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

    @property
    def forbids(self) -> Callable[[Any], object] | None:
        """Tells whether a value that can be read is not allowed; None where all are."""
        if self.kind is _Kind.FLAG:
            return _is_no_flag
        if self.kind is _Kind.TOPIC:
            return topic_name_problem
        return not_ if self.zero is not None else None


def _is_no_flag(value: int) -> bool:
    return value not in (0, 1)


_PROTOCOL_ERROR: Final = ReasonCode.PROTOCOL_ERROR

_TABLE: Final = (
    _Property(0x01, "payload_format", _Kind.FLAG),
    _Property(0x02, "message_expiry", _Kind.FOUR_BYTES),
    _Property(0x03, "content_type", _Kind.TEXT),
    _Property(0x08, "response_topic", _Kind.TOPIC),
    _Property(CORRELATION_DATA, "correlation_data", _Kind.BINARY),
    # As everything that is wrong with SUBSCRIBE (see parsers.py): the standard has 0x82.
    _Property(0x0B, "subscription_id", _Kind.VARIABLE, zero=ReasonCode.MALFORMED_PACKET),
    _Property(0x0B, "subscription_ids", _Kind.VARIABLE, zero=_PROTOCOL_ERROR, repeats=True),
    _Property(0x11, "session_expiry", _Kind.FOUR_BYTES),
    _Property(0x12, "assigned_client_id", _Kind.TEXT),
    _Property(0x13, "server_keep_alive", _Kind.TWO_BYTES),
    _Property(0x15, "authentication_method", _Kind.TEXT),
    _Property(0x16, "authentication_data", _Kind.BINARY),
    _Property(0x17, "request_problem_information", _Kind.FLAG),
    _Property(WILL_DELAY, "will_delay", _Kind.FOUR_BYTES),
    _Property(0x19, "request_response_information", _Kind.FLAG),
    _Property(0x1A, "response_information", _Kind.TEXT),
    _Property(0x1C, "server_reference", _Kind.TEXT),
    _Property(0x1F, "reason_string", _Kind.TEXT),
    _Property(0x21, "receive_maximum", _Kind.TWO_BYTES, zero=_PROTOCOL_ERROR),
    _Property(0x22, "topic_alias_maximum", _Kind.TWO_BYTES),
    _Property(0x23, "topic_alias", _Kind.TWO_BYTES, zero=ReasonCode.TOPIC_ALIAS_INVALID),
    _Property(0x24, "maximum_qos", _Kind.FLAG),
    _Property(0x25, "retain_available", _Kind.FLAG),
    _Property(USER_PROPERTY, "user_properties", _Kind.PAIR, repeats=True),
    _Property(0x27, "maximum_packet_size", _Kind.FOUR_BYTES, zero=_PROTOCOL_ERROR),
    _Property(0x28, "wildcard_subscription_available", _Kind.FLAG),
    _Property(0x29, "subscription_ids_available", _Kind.FLAG),
    _Property(0x2A, "shared_subscription_available", _Kind.FLAG),
)


def _encode_pair(pair: tuple[str, str]) -> bytes:
    return encode_text(pair[0]) + encode_text(pair[1])


def _split_pair(data: bytes) -> tuple[str, str]:
    """A pair from its whole wire form, whose lengths are known to be consistent."""
    middle = 2 + (data[0] << 8 | data[1])
    return plain_text(data[2:middle]), plain_text(data[middle + 2 :])


#: User properties repeat from message to message. What is known gives the very same strings: they are held once.
_PAIRS: Final = BoundedCache(_split_pair)


#: Bytes of the kinds that always have as many.
_SIZES: Final = {_Kind.FLAG: 1, _Kind.TWO_BYTES: 2, _Kind.FOUR_BYTES: 4}

_READERS: Final[dict[_Kind, _Read]] = {
    _Kind.FLAG: read_byte,
    _Kind.TWO_BYTES: read_two_bytes,
    _Kind.FOUR_BYTES: read_four_bytes,
    _Kind.VARIABLE: read_variable,
    _Kind.TEXT: read_text,
    _Kind.TOPIC: read_text,
    _Kind.BINARY: read_binary,
    _Kind.PAIR: read_pair,
}

_WRITERS: Final[dict[_Kind, Callable[[Any], bytes]]] = {
    _Kind.FLAG: partial(encode_unsigned, size=1),
    _Kind.TWO_BYTES: partial(encode_unsigned, size=2),
    _Kind.FOUR_BYTES: partial(encode_unsigned, size=4),
    _Kind.VARIABLE: encode_variable,
    _Kind.TEXT: encode_text,
    _Kind.TOPIC: encode_text,
    _Kind.BINARY: encode_binary,
    _Kind.PAIR: _encode_pair,
}

#: Larger blocks are not kept.
_LATEST_BYTES: Final = 512

_KINDS: Final = {row.identifier: row.kind for row in _TABLE}


class Layout(Generic[P]):
    """The properties that one packet may carry, and the class that holds them."""

    __slots__ = ("_cls", "_defaults", "_latest", "_readers", "_rows", "_users", "empty")

    def __init__(
        self, cls: type[P], *, without: frozenset[str] = frozenset(), first: Names = (), last: Names = ()
    ) -> None:
        """``first`` and ``last`` are written before and after all others."""
        names = [field.name for field in attrs.fields(cls)]
        rows = [row for row in _TABLE if row.name in names and row.name not in without]
        places = {name: number - len(first) for number, name in enumerate(first)}
        places |= {name: number + 1 for number, name in enumerate(last)}
        self._cls = cls
        self._rows = tuple(sorted(rows, key=lambda row: places.get(row.name, 0)))
        # Reading goes by positions: that of the attribute, then how to read the value, and whether one that can be read
        # may still be forbidden.
        self._readers = {row.identifier: (names.index(row.name), _READERS[row.kind], row.forbids, row) for row in rows}
        self._users = names.index("user_properties")
        self._defaults = [field.default for field in attrs.fields(cls)]
        self.empty: P = cls()
        # A server says the same to most of its clients. One tuple, replaced whole: no thread sees half of it.
        self._latest: tuple[P, bytes] = (self.empty, b"\0")

    def decode(self, reader: Reader, *, max_repeats: int, forgiven: Forgiven | None = None) -> P:
        """The property length and the properties after it. ``forgiven`` notes what is let pass, if anything is.

        :raises PacketError: 0x81 for bytes that are not a property of this packet, 0x82 for a repeated property or a
            value that is not allowed, 0x94 for topic alias 0, 0x97 for more than ``max_repeats`` of one kind.
        """
        size = reader.variable()
        start, stop = reader.pos, reader.pos + size
        if stop > reader.end:
            raise malformed("the properties are longer than their packet", start)
        reader.pos = stop
        return self.decode_block(reader.data, start, stop, max_repeats, forgiven) if size else self.empty

    def decode_block(self, data: bytes, pos: int, end: int, max_repeats: int, forgiven: Forgiven | None = None) -> P:
        """The same without the property length: the properties from ``pos`` to ``end``."""
        readers, values = self._readers, self._defaults.copy()
        users: list[tuple[str, str]] = []
        while pos < end:
            start = pos
            if data[pos] == USER_PROPERTY:
                try:
                    middle = pos + 3 + (data[pos + 1] << 8 | data[pos + 2])
                    pos = middle + 2 + (data[middle] << 8 | data[middle + 1])
                    users.append(_PAIRS[data[start + 1 : pos]])
                except (IndexError, ValueError):
                    pos = end + 1
                if pos > end:
                    read_pair(data, start + 1, end)  # raises, and says where
                if len(users) > max_repeats:
                    raise _too_many("user_properties", start)
                continue
            found = readers.get(data[pos])
            if found is None:
                if forgiven is None:
                    raise self._misplaced(data, start, end)
                pos = self._skip(data, start, end, forgiven)
                continue
            index, read, forbids, row = found
            known = values[index]
            if known is not None and not row.repeats:
                raise protocol_error(f"{row.name} twice", start)
            value, pos = read(data, pos + 1, end)
            if forbids is not None and forbids(value):
                problem, code = _problem(row, value)
                if forgiven is None:
                    raise PacketError(problem, reason_code=code, offset=start)
                forgiven.note(problem)
                if row.zero is not None:
                    continue
            values[index] = value if known is None else (*known, value)
            if known is not None and len(known) >= max_repeats:
                raise _too_many(row.name, start)
        values[self._users] = tuple(users)
        return self._cls(*values)

    def _skip(self, data: bytes, start: int, end: int, forgiven: Forgiven) -> int:
        """The position behind a property of other packets, which is well-formed."""
        row = next((row for row in _TABLE if row.identifier == data[start]), None)
        if row is None:
            raise self._misplaced(data, start, end)
        _, pos = _READERS[row.kind](data, start + 1, end)
        forgiven.note(f"{row.name}: a property of other packets")
        return pos

    def _misplaced(self, data: bytes, start: int, end: int) -> PacketError:
        """Malformed (MQTT 5.0, 2.2.2.2). But a well-formed property of other packets is called a protocol error by
        brokers in use, except in the packets about subscriptions, and clients' tests look for that.
        """
        read_variable(data, start, end)
        if self._cls is SubscribeProperties:
            return malformed("not a property of this packet", start)
        pos = start
        while pos < end:
            identifier, pos = read_variable(data, pos, end)
            kind = _KINDS.get(identifier)
            if kind is None:
                return malformed("no property", start)
            _, pos = _READERS[kind](data, pos, end)
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
        fields = self.encode_fields(properties)
        block = encode_variable(len(fields)) + fields
        if len(block) <= _LATEST_BYTES:
            self._latest = (properties, block)
        return block

    def encode_fields(self, properties: P) -> bytes:
        """The same without the property length.

        :raises InvalidArgumentError: a value that MQTT does not allow.
        """
        out = bytearray()
        for row in self._rows:
            value = getattr(properties, row.name)
            if value is None:
                continue
            for item in value if row.repeats else (value,):
                out += _encode_one(row, item)
        return bytes(out)


def spans(data: bytes, pos: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Identifier, start and end of each of the well-formed properties from ``pos`` to ``end``."""
    while pos < end:
        start, kind = pos, _KINDS[data[pos]]
        if kind in _SIZES:
            pos += 1 + _SIZES[kind]
        elif kind is _Kind.VARIABLE:
            _, pos = read_variable(data, pos + 1, end)
        else:
            pos += 3 + (data[pos + 1] << 8 | data[pos + 2])
            if kind is _Kind.PAIR:
                pos += 2 + (data[pos] << 8 | data[pos + 1])
        yield data[start], start, pos


def without(block: bytes, identifier: int) -> bytes:
    """Well-formed properties, their length included, but for one of them."""
    _, start = read_variable(block, 0, len(block))
    kept = b"".join([block[at:stop] for found, at, stop in spans(block, start, len(block)) if found != identifier])
    return encode_variable(len(kept)) + kept


def _too_many(name: str, offset: int) -> PacketError:
    return PacketError(f"too many {name}", reason_code=ReasonCode.QUOTA_EXCEEDED, offset=offset)


def _encode_one(row: _Property, value: Any) -> bytes:
    if row.forbids is not None and row.forbids(value):
        raise InvalidArgumentError(_problem(row, value)[0])
    try:
        return bytes((row.identifier,)) + _WRITERS[row.kind](value)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{row.name}: {error}") from None


def _problem(row: _Property, value: Any) -> tuple[str, ReasonCode]:
    """Why a value is forbidden, and the reason code that says so."""
    if row.zero is not None:
        return f"{row.name} 0", row.zero
    if row.kind is _Kind.FLAG:
        return f"{row.name} is 0 or 1, not {value}", _PROTOCOL_ERROR
    return f"{row.name}: {topic_name_problem(value)}", _PROTOCOL_ERROR  # [MQTT-3.3.2-14]


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
