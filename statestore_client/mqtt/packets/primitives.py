"""The data types of the MQTT wire: integers, variable byte integers, UTF-8 strings, binary data, both directions.

Source: MQTT 5.0 section 1.5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sized
from typing import Final, TypeVar

from statestore_client.errors import InvalidArgumentError, PacketError
from statestore_client.mqtt.packets.types import ReasonCode

_K = TypeVar("_K", bound=Sized)
_V = TypeVar("_V")


class BoundedCache(dict[_K, _V]):
    """Remembers a function's results, for the few strings that repeat in nearly every packet.

    ``cache[key]`` is ``function(key)``, mostly from memory. The function has no effects; what it raises is not kept.

    Invariant: at most ``ENTRIES`` short keys, whatever peers send. When full, it is emptied: the frequent strings are
    back after one packet, while a rule for who may stay would cost more than it saves. With several threads a few
    entries more are possible, wrong ones are not.
    """

    ENTRIES = 1024
    #: Bytes or characters of a key, or of both parts of a pair.
    LONGEST = 192

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[_K], _V]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, key: _K) -> _V:
        value = self._function(key)
        size = sum(map(len, key)) if isinstance(key, tuple) else len(key)
        if size <= self.LONGEST:
            if len(self) >= self.ENTRIES:
                self.clear()
            self[key] = value
        return value


#: The largest variable byte integer: four groups of seven bits.
MAX_VARIABLE: Final = 268_435_455

_MAX_LENGTH: Final = 65_535  # strings and binary data carry a two-byte length

#: Remaining lengths and property lengths are mostly below this; those are ready-made.
_SHORT: Final = 1024
_SHORT_VARIABLES: Final = tuple(bytes((n,)) if n < 128 else bytes((n & 127 | 128, n >> 7)) for n in range(_SHORT))


_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


def has_control(text: str) -> bool:
    """Whether there is a control character in it (U+0000 to U+001F, U+007F to U+009F)."""
    return not text.isprintable() and _CONTROL.search(text) is not None


def malformed(message: str, offset: int) -> PacketError:
    """Bytes that are not a packet (MQTT 5.0, 1.2 *malformed packet*)."""
    return PacketError(message, reason_code=ReasonCode.MALFORMED_PACKET, offset=offset)


def protocol_error(message: str, offset: int) -> PacketError:
    """A packet that can be read but says what is not allowed (MQTT 5.0, 1.2 *protocol error*)."""
    return PacketError(message, reason_code=ReasonCode.PROTOCOL_ERROR, offset=offset)


# -- writing ----------------------------------------------------------------------------------------------------------


def encode_variable(value: int) -> bytes:
    """A variable byte integer of one to four bytes. (MQTT 5.0, 1.5.5)"""
    if 0 <= value < _SHORT:
        return _SHORT_VARIABLES[value]
    if _SHORT <= value < 128 * 128:
        return bytes((value & 127 | 128, value >> 7))
    if not 0 <= value <= MAX_VARIABLE:
        raise InvalidArgumentError(f"{value} does not fit a variable byte integer")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_unsigned(value: int, size: int) -> bytes:
    """A big-endian integer of ``size`` bytes."""
    try:
        return value.to_bytes(size, "big")
    except OverflowError:
        raise InvalidArgumentError(f"{value} does not fit {size} unsigned bytes") from None


def encode_text(text: str) -> bytes:
    """A UTF-8 string with its two-byte length. (MQTT 5.0, 1.5.4)"""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError("an MQTT string cannot carry surrogates") from None
    if len(data) > _MAX_LENGTH:
        raise InvalidArgumentError(f"an MQTT string has at most {_MAX_LENGTH} bytes, not {len(data)}")
    if "\0" in text:
        raise InvalidArgumentError("an MQTT string cannot carry U+0000")
    return len(data).to_bytes(2, "big") + data


def encode_binary(data: bytes) -> bytes:
    """Binary data with its two-byte length. (MQTT 5.0, 1.5.6)"""
    if len(data) > _MAX_LENGTH:
        raise InvalidArgumentError(f"binary data has at most {_MAX_LENGTH} bytes, not {len(data)}")
    return len(data).to_bytes(2, "big") + data


# -- reading ----------------------------------------------------------------------------------------------------------


def decode_variable(data: bytes, pos: int, end: int) -> tuple[int, int] | None:
    """(value, position after it), or None when ``data`` ends before the integer does.

    Longer encodings than needed are read here; a caller that must refuse them looks for a zero last byte.
    """
    value = shift = 0
    for index in range(pos, min(pos + 4, end)):
        byte = data[index]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, index + 1
        shift += 7
    if end - pos >= 4:
        raise malformed("a variable byte integer has at most four bytes", pos)
    return None


def plain_text(data: bytes) -> str:
    """The bytes of a string as a text. Raises ValueError for what no string may be."""
    text = data.decode()  # no surrogates either: [MQTT-1.5.4-1]
    if "\0" in text:
        raise ValueError("U+0000 in a string")  # [MQTT-1.5.4-2]
    return text


def _too_short(size: int, pos: int, end: int) -> PacketError:
    return malformed(f"{size} bytes expected, {end - pos} left", pos)


# Each of these reads one value that starts at ``pos`` and may not go beyond ``end``: (value, position after it).


def read_byte(data: bytes, pos: int, end: int) -> tuple[int, int]:
    if pos >= end:
        raise _too_short(1, pos, end)
    return data[pos], pos + 1


def read_two_bytes(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """A two byte integer. (MQTT 5.0, 1.5.2)"""
    if pos + 2 > end:
        raise _too_short(2, pos, end)
    return data[pos] << 8 | data[pos + 1], pos + 2


def read_four_bytes(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """A four byte integer. (MQTT 5.0, 1.5.3)"""
    if pos + 4 > end:
        raise _too_short(4, pos, end)
    return int.from_bytes(data[pos : pos + 4], "big"), pos + 4


def read_variable(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """A variable byte integer in as few bytes as possible. (MQTT 5.0, 1.5.5)"""
    if pos < end and data[pos] < 128:
        return data[pos], pos + 1
    if pos + 1 < end and 0 < data[pos + 1] < 128:
        return data[pos] + ((data[pos + 1] - 1) << 7), pos + 2
    found = decode_variable(data, pos, end)
    if found is None:
        raise malformed("the packet ends inside a variable byte integer", pos)
    stop = found[1]
    if stop - pos > 1 and data[stop - 1] == 0:
        raise malformed("a variable byte integer uses as few bytes as it can", pos)  # [MQTT-1.5.5-1]
    return found


def read_binary(data: bytes, pos: int, end: int) -> tuple[bytes, int]:
    """Binary data behind its two-byte length. (MQTT 5.0, 1.5.6)"""
    start = pos + 2
    if start > end:
        raise _too_short(2, pos, end)
    stop = start + (data[pos] << 8 | data[pos + 1])
    if stop > end:
        raise _too_short(stop - start, start, end)
    return data[start:stop], stop


def read_text(data: bytes, pos: int, end: int) -> tuple[str, int]:
    """A UTF-8 string behind its two-byte length. (MQTT 5.0, 1.5.4)"""
    raw, stop = read_binary(data, pos, end)
    try:
        return plain_text(raw), stop
    except UnicodeDecodeError as error:
        raise malformed(f"not UTF-8: {error.reason}", pos + 2 + error.start) from None
    except ValueError as error:
        raise malformed(str(error), pos + 2) from None


def read_pair(data: bytes, pos: int, end: int) -> tuple[tuple[str, str], int]:
    """Two strings. (MQTT 5.0, 1.5.7)"""
    first, middle = read_text(data, pos, end)
    second, stop = read_text(data, middle, end)
    return (first, second), stop


class Reader:
    """A cursor over one packet inside a longer buffer.

    Invariant: never reads at or behind ``end``, whatever the lengths in the data say. Every refusal is a
    :class:`PacketError` whose offset counts from the start of the buffer.
    """

    __slots__ = ("data", "end", "pos")

    def __init__(self, data: bytes, pos: int, end: int) -> None:
        self.data: bytes = data
        self.pos: int = pos
        self.end: int = end

    def byte(self) -> int:
        value, self.pos = read_byte(self.data, self.pos, self.end)
        return value

    def two_bytes(self) -> int:
        value, self.pos = read_two_bytes(self.data, self.pos, self.end)
        return value

    def variable(self) -> int:
        value, self.pos = read_variable(self.data, self.pos, self.end)
        return value

    def binary(self) -> bytes:
        value, self.pos = read_binary(self.data, self.pos, self.end)
        return value

    def text(self) -> str:
        value, self.pos = read_text(self.data, self.pos, self.end)
        return value

    def name(self) -> str:
        """A string that names something: without control characters, which a receiver may refuse (MQTT 5.0, 1.5.4).

        They have no use in names, and mislead readers of a log or a list of topics.
        """
        start = self.pos
        text = self.text()
        if has_control(text):
            raise malformed("a control character in a name", start + 2)
        return text

    def rest(self) -> bytes:
        pos, self.pos = self.pos, self.end
        return self.data[pos : self.end]

    def packet_id(self) -> int:
        start = self.pos
        packet_id = self.two_bytes()
        if packet_id == 0:
            raise protocol_error("packet identifier 0", start)  # [MQTT-2.2.1-3]
        return packet_id

    def finish(self) -> None:
        """Raise unless everything was read."""
        if self.pos != self.end:
            raise malformed(f"{self.end - self.pos} bytes too many", self.pos)
