"""The part of RESP3 that the state store speaks: its values, and how they are written.

==========================  ==========================  =========================
bytes                       value                       where it occurs
==========================  ==========================  =========================
``*2\\r\\n...``               ``tuple``                   requests, SCAN pages, NOTIFY
``$3\\r\\nabc\\r\\n``           ``bytes``                   keys, values, verbs
``+OK\\r\\n``                 :class:`SimpleString`       success
``-ERR syntax error\\r\\n``   :class:`ErrorString`        refusals
``:1\\r\\n``                  ``int`` (64 bits)           counts
``$-1`` ``*-1`` ``_``       ``None``                    nothing there
==========================  ==========================  =========================

Reading is :mod:`.resp3_decoder`'s.

Source: RESP3 specification (redis/redis-specifications); state store protocol, "Payload format".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "COUNT_OF_HEADER",
    "CRLF",
    "HEADER_OF_LENGTH",
    "INT64",
    "SHORT_BLOB",
    "ErrorString",
    "SimpleString",
    "Value",
    "encode",
    "encode_array",
    "encode_array_apart",
    "encode_blob",
    "encode_error",
    "encode_null",
    "encode_number",
    "encode_simple",
    "header_of_short_blob",
]


@attrs.frozen
class SimpleString:
    """``+text``. Neither CR nor LF."""

    text: str


@attrs.frozen
class ErrorString:
    """``-text``. Neither CR nor LF."""

    text: str


Value: TypeAlias = "bytes | SimpleString | ErrorString | int | tuple[Value, ...] | None"

# Ready-made for what nearly every payload consists of; reading looks the same up.
CRLF: Final = b"\r\n"
INT64: Final = range(-(2**63), 2**63)
_SHORT_ARRAY: Final = 8  # items; no command has more
_HEADER_OF_COUNT: Final = tuple(b"*%d" % count for count in range(_SHORT_ARRAY))
COUNT_OF_HEADER: Final = {header: count for count, header in enumerate(_HEADER_OF_COUNT) if count}
SHORT_BLOB: Final = 1024  # bytes; the headers of shorter ones are looked up
HEADER_OF_LENGTH: Final = tuple(b"$%d" % length for length in range(SHORT_BLOB))
_START_OF_BLOB: Final = tuple(b"\r\n$%d\r\n" % length for length in range(SHORT_BLOB))

#: ``$3`` for 3. Raises IndexError from 1024 on.
header_of_short_blob: Final = HEADER_OF_LENGTH.__getitem__


def encode_array(items: Sequence[bytes]) -> bytes:
    """An array of blob strings: every request, and every notification."""
    # Joined once: formatting with %b copies a value of a megabyte three times, and slowly.
    count = len(items)
    parts = [_HEADER_OF_COUNT[count] if count < _SHORT_ARRAY else b"*%d" % count]
    for item in items:
        size = len(item)
        parts += (_START_OF_BLOB[size] if size < SHORT_BLOB else b"\r\n$%d\r\n" % size, item)
    parts.append(CRLF)
    return b"".join(parts)


def encode_array_apart(items: Sequence[bytes], large: int) -> tuple[bytes, ...]:
    """The same in pieces: items of ``large`` bytes and more are not copied."""
    pieces: list[bytes] = []
    start = b"*%d" % len(items)
    for item in items:
        start += b"\r\n$%d\r\n" % len(item)
        if len(item) < large:
            start += item
        else:
            pieces += (start, item)
            start = b""
    return (*pieces, start + CRLF)


def encode_blob(value: bytes) -> bytes:
    """``$3\\r\\nabc\\r\\n``."""
    return b"".join((b"$%d\r\n" % len(value), value, CRLF))


def encode_simple(text: str) -> bytes:
    """``+OK\\r\\n``. Raises ValueError when ``text`` has a CR or LF."""
    return b"+%b\r\n" % _line_text(text)


def encode_error(text: str) -> bytes:
    """``-ERR syntax error\\r\\n``. Raises ValueError when ``text`` has a CR or LF."""
    return b"-%b\r\n" % _line_text(text)


def encode_number(number: int) -> bytes:
    """``:1\\r\\n``. Raises ValueError beyond 64 bits."""
    if number not in INT64:
        raise ValueError(f"{number} does not fit into 64 bits")
    return b":%d\r\n" % number


def encode_null() -> bytes:
    """``$-1\\r\\n``, the form of RESP2 that the state store sends."""
    return b"$-1\r\n"


def encode(value: Value) -> bytes:
    """Any value. The hot paths call the encoder of their type."""
    match value:
        case bytes():
            return encode_blob(value)
        case tuple():
            return b"*%d\r\n%b" % (len(value), b"".join([encode(item) for item in value]))
        case SimpleString(text=text):
            return encode_simple(text)
        case ErrorString(text=text):
            return encode_error(text)
        case int():
            return encode_number(value)
        case None:
            return encode_null()


def _line_text(text: str) -> bytes:
    if "\r" in text or "\n" in text:
        raise ValueError("a line cannot contain CR or LF")
    return text.encode()
