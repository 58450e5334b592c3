"""MQTT packets made and read by hand: a second, naive codec, so that what the broker says is not judged by its own.

Nothing here knows :mod:`statestore_client.mqtt`. The examples of the standards check it (``test_handmade.py``).
``version`` is the protocol level: 5, or 4 for MQTT 3.1.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs

__all__ = [
    "Filter",
    "Property",
    "Seen",
    "Will",
    "ack",
    "auth",
    "connect",
    "disconnect",
    "frame",
    "number",
    "properties",
    "publish",
    "read",
    "split",
    "subscribe",
    "text",
    "unsubscribe",
]

#: (identifier, value): int, str, bytes, or a pair of strings.
Property: TypeAlias = tuple[int, Any]
#: A topic filter, alone or with its options byte.
Filter: TypeAlias = str | tuple[str, int]

#: Bytes of the properties that are numbers (MQTT 5.0, table 2-4); 0x0B is a variable byte integer.
_SIZES = {0x01: 1, 0x02: 4, 0x11: 4, 0x13: 2, 0x17: 1, 0x18: 4, 0x19: 1, 0x21: 2, 0x22: 2, 0x23: 2, 0x24: 1, 0x25: 1}
_SIZES |= {0x27: 4, 0x28: 1, 0x29: 1, 0x2A: 1}
_BINARY = {0x09, 0x16}
_PAIR = 0x26
_IDENTIFIER = 0x0B

_KINDS = {
    2: "CONNACK",
    3: "PUBLISH",
    4: "PUBACK",
    5: "PUBREC",
    6: "PUBREL",
    7: "PUBCOMP",
    9: "SUBACK",
    11: "UNSUBACK",
    13: "PINGRESP",
    14: "DISCONNECT",
    15: "AUTH",
}


# -- making -----------------------------------------------------------------------------------------------------------


def number(value: int) -> bytes:
    """A variable byte integer."""
    out = b""
    while True:
        value, low = divmod(value, 128)
        out += bytes([low | (128 if value else 0)])
        if not value:
            return out


def text(value: str | bytes) -> bytes:
    """A string or binary data behind its length of two bytes; bytes may be anything, valid or not."""
    data = value.encode() if isinstance(value, str) else value
    return len(data).to_bytes(2, "big") + data


def frame(first: int, *parts: bytes) -> bytes:
    """A packet: first byte, remaining length, and the rest."""
    body = b"".join(parts)
    return bytes([first]) + number(len(body)) + body


def properties(*items: Property) -> bytes:
    """The property length and the properties, in the given order."""
    block = b"".join(_property(identifier, value) for identifier, value in items)
    return number(len(block)) + block


def _property(identifier: int, value: Any) -> bytes:
    head = bytes([identifier])
    if identifier == _IDENTIFIER:
        return head + number(value)
    if isinstance(value, int):
        return head + value.to_bytes(_SIZES[identifier], "big")
    if isinstance(value, tuple):
        return head + text(value[0]) + text(value[1])
    return head + text(value)


@attrs.frozen
class Will:
    topic: str | bytes = "will"
    payload: bytes = b"gone"
    qos: int = 0
    retain: bool = False
    props: tuple[Property, ...] = ()


def connect(
    client_id: str | bytes = "c",
    version: int = 5,
    *,
    clean: bool = True,
    keep_alive: int = 0,
    will: Will | None = None,
    username: str | bytes | None = None,
    password: bytes | None = None,
    props: Sequence[Property] = (),
    flags: int | None = None,
    name: str = "MQTT",
) -> bytes:
    """CONNECT. ``flags`` overrules what follows from the rest."""
    right = clean * 2 | (password is not None) * 0x40 | (username is not None) * 0x80
    parts = [text(client_id)]
    if will is not None:
        right |= 4 | will.qos << 3 | will.retain * 0x20
        parts += [properties(*will.props)] if version == 5 else []
        parts += [text(will.topic), text(will.payload)]
    parts += [text(item) for item in (username, password) if item is not None]
    head = text(name) + bytes([version, right if flags is None else flags]) + keep_alive.to_bytes(2, "big")
    return frame(0x10, head, properties(*props) if version == 5 else b"", *parts)


def publish(
    topic: str | bytes = "t",
    payload: bytes = b"",
    qos: int = 0,
    packet_id: int = 0,
    version: int = 5,
    *,
    retain: bool = False,
    dup: bool = False,
    props: Sequence[Property] = (),
) -> bytes:
    first = 0x30 | dup * 8 | qos << 1 | retain
    number_ = packet_id.to_bytes(2, "big") if qos else b""
    return frame(first, text(topic), number_, properties(*props) if version == 5 else b"", payload)


def ack(first: int, packet_id: int, *rest: int) -> bytes:
    """PUBACK 0x40, PUBREC 0x50, PUBREL 0x62, PUBCOMP 0x70, with a reason code if there is one."""
    return frame(first, packet_id.to_bytes(2, "big"), bytes(rest))


def subscribe(packet_id: int, *filters: Filter, version: int = 5, props: Sequence[Property] = ()) -> bytes:
    parts = [packet_id.to_bytes(2, "big"), properties(*props) if version == 5 else b""]
    for item in filters:
        name, options = (item, 0) if isinstance(item, str) else item
        parts += [text(name), bytes([options])]
    return frame(0x82, *parts)


def unsubscribe(packet_id: int, *filters: str, version: int = 5, props: Sequence[Property] = ()) -> bytes:
    head = packet_id.to_bytes(2, "big") + (properties(*props) if version == 5 else b"")
    return frame(0xA2, head, *map(text, filters))


def disconnect(code: int | None = None, *props: Property) -> bytes:
    """DISCONNECT; ``E0 00`` without a code."""
    if code is None:
        return b"\xe0\x00"
    return frame(0xE0, bytes([code]), properties(*props) if props else b"")


def auth(code: int, *props: Property) -> bytes:
    return frame(0xF0, bytes([code]), properties(*props))


# -- reading ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Seen:
    """A packet of the server. ``codes``: the reason codes; CONNACK has its acknowledge flags in ``flags``."""

    kind: str
    flags: int = 0
    packet_id: int = 0
    codes: tuple[int, ...] = ()
    topic: str = ""
    payload: bytes = b""
    props: tuple[Property, ...] = ()
    size: int = 0

    @property
    def code(self) -> int:
        (code,) = self.codes
        return code

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3

    @property
    def retain(self) -> int:
        return self.flags & 1

    @property
    def dup(self) -> int:
        return self.flags >> 3 & 1

    def prop(self, identifier: int) -> Any:
        """The value of a property; None if it is not there. Fails if it is there twice."""
        values = self.all(identifier)
        assert len(values) <= 1
        return values[0] if values else None

    def all(self, identifier: int) -> list[Any]:
        return [value for name, value in self.props if name == identifier]


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, size: int) -> bytes:
        assert size <= len(self.data), "the packet is too short"
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def variable(self) -> int:
        value = shift = 0
        while True:
            byte = self.unsigned(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def binary(self) -> bytes:
        return self.take(self.unsigned(2))

    def text(self) -> str:
        return self.binary().decode()

    def props(self) -> tuple[Property, ...]:
        block = _Cursor(self.take(self.variable()))
        found: list[Property] = []
        while block.data:
            identifier = block.unsigned(1)
            found.append((identifier, block._value(identifier)))
        return tuple(found)

    def _value(self, identifier: int) -> Any:
        if identifier == _IDENTIFIER:
            return self.variable()
        if identifier in _SIZES:
            return self.unsigned(_SIZES[identifier])
        if identifier == _PAIR:
            return self.text(), self.text()
        return self.binary() if identifier in _BINARY else self.text()


def split(data: bytes) -> list[bytes]:
    """A stream of whole packets, packet by packet."""
    packets = []
    while data:
        cursor = _Cursor(data[1:])
        remaining = cursor.variable()
        end = len(data) - len(cursor.data) + remaining
        assert end <= len(data), "half a packet"
        packets.append(data[:end])
        data = data[end:]
    return packets


def read(packet: bytes, version: int) -> Seen:
    """What a packet of the server says."""
    kind, flags = _KINDS[packet[0] >> 4], packet[0] & 15
    body = _Cursor(packet[1:])
    assert body.variable() == len(body.data), "the remaining length is wrong"
    seen = Seen(kind, flags, size=len(packet))
    match kind:
        case "CONNACK":
            flags, code = body.take(2)
            props = body.props() if version == 5 else ()
            seen = attrs.evolve(seen, flags=flags, codes=(code,), props=props)
        case "PUBLISH":
            topic = body.text()
            packet_id = body.unsigned(2) if flags & 6 else 0
            props = body.props() if version == 5 else ()
            payload = body.take(len(body.data))
            seen = attrs.evolve(seen, topic=topic, packet_id=packet_id, props=props, payload=payload)
        case "PUBACK" | "PUBREC" | "PUBREL" | "PUBCOMP":
            packet_id = body.unsigned(2)
            code = body.unsigned(1) if version == 5 and body.data else 0
            props = body.props() if body.data else ()
            seen = attrs.evolve(seen, packet_id=packet_id, codes=(code,), props=props)
        case "SUBACK" | "UNSUBACK":
            packet_id = body.unsigned(2)
            props = body.props() if version == 5 else ()
            seen = attrs.evolve(seen, packet_id=packet_id, props=props, codes=tuple(body.take(len(body.data))))
        case "DISCONNECT" | "AUTH":
            code = body.unsigned(1) if body.data else 0
            props = body.props() if body.data else ()
            seen = attrs.evolve(seen, codes=(code,), props=props)
    assert not body.data, f"{len(body.data)} bytes too many in {kind}"
    return seen
