"""A PUBLISH as the standard reads it, field by field, with nothing remembered: what our decoder is compared with.

Two judges: :func:`strict` goes by our own table of properties, and names the same reason code, offset and text of a
refusal; :func:`by_the_letter` is written from MQTT 5.0 sections 1.5, 2.2.2 and 3.3 alone, and only says *refused*.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import Publish, PublishProperties
from statestore_client.mqtt.packets import properties as layouts
from statestore_client.mqtt.packets.primitives import Reader, malformed, protocol_error
from statestore_client.mqtt.packets.topics import topic_name_problem

#: What came of one packet: its value, or reason code, offset and text of the refusal.
Outcome: TypeAlias = object


def strict(raw: bytes) -> Outcome:
    """What :class:`Reader` and the table of properties make of one whole PUBLISH."""
    reader = Reader(raw, 1, len(raw))
    try:
        reader.variable()
        return _read(raw[0], reader)
    except PacketError as error:
        return (error.reason_code, error.offset, str(error))


def _read(first: int, reader: Reader) -> Publish:
    start = reader.pos
    topic = reader.text()
    problem = topic_name_problem(topic) if topic else None
    if problem is not None:
        raise malformed(problem, start)
    packet_id = reader.packet_id() if first & 6 else 0
    properties = layouts.PUBLISH.decode(reader, max_repeats=1024)
    if not topic and properties.topic_alias is None:
        raise protocol_error("neither a topic nor a topic alias", start)
    return Publish(topic, reader.rest(), first >> 1 & 3, first & 1 == 1, first & 8 == 8, packet_id, properties)


def by_the_letter(raw: bytes) -> Publish | None:
    """The packet, or None where the standard has a receiver refuse it. ``raw`` is all of it."""
    try:
        return _ByTheLetter(raw).packet()
    except (IndexError, ValueError):
        return None


class _ByTheLetter:
    def __init__(self, raw: bytes) -> None:
        self._first = raw[0]
        self._rest = raw[1:]
        if self._variable() != len(self._rest):
            raise ValueError

    def packet(self) -> Publish:
        topic = self._text()
        packet_id = self._number(2) if self._first & 6 else 0
        if "+" in topic or "#" in topic or (self._first & 6 and not packet_id):
            raise ValueError
        block = self._take(self._variable())
        payload, self._rest = self._rest, block
        properties = self._properties()
        if not topic and properties.topic_alias is None:
            raise ValueError
        qos, retain, dup = self._first >> 1 & 3, bool(self._first & 1), bool(self._first & 8)
        return Publish(topic, payload, qos, retain, dup, packet_id, properties)

    def _properties(self) -> PublishProperties:
        found: dict[str, Any] = {}
        users: list[tuple[str, str]] = []
        ids: list[int] = []
        while self._rest:
            identifier = self._variable()
            if identifier == 0x26:
                users.append((self._text(), self._text()))
            elif identifier == 0x0B:
                ids.append(self._variable())
            else:
                name, value = self._property(identifier)
                if name in found:
                    raise ValueError
                found[name] = value
        topic = found.get("response_topic", "r")
        if found.get("payload_format", 0) > 1 or found.get("topic_alias") == 0 or 0 in ids:
            raise ValueError
        if not topic or "+" in topic or "#" in topic:
            raise ValueError
        return PublishProperties(**found, user_properties=tuple(users), subscription_ids=tuple(ids))

    def _property(self, identifier: int) -> tuple[str, Any]:
        match identifier:
            case 0x01:
                return "payload_format", self._number(1)
            case 0x02:
                return "message_expiry", self._number(4)
            case 0x03:
                return "content_type", self._text()
            case 0x08:
                return "response_topic", self._text()
            case 0x09:
                return "correlation_data", self._take(self._number(2))
            case 0x23:
                return "topic_alias", self._number(2)
        raise ValueError

    def _take(self, size: int) -> bytes:
        if size > len(self._rest):
            raise IndexError
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def _variable(self) -> int:
        value = 0
        for place in range(4):
            byte = self._number(1)
            value += (byte & 127) * 128**place
            if byte < 128:
                if place and not byte:
                    raise ValueError
                return value
        raise ValueError

    def _text(self) -> str:
        text = self._take(self._number(2)).decode()
        if "\0" in text:
            raise ValueError
        return text
