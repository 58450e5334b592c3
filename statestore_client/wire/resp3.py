r"""The part of RESP3 that the state store speaks: its values, how they are written, and how they are read.

==========================  ==========================  =========================
bytes                       value                       where it occurs
==========================  ==========================  =========================
``*2\r\n...``               ``tuple``                   requests, SCAN pages, NOTIFY
``$3\r\nabc\r\n``           ``bytes``                   keys, values, verbs
``+OK\r\n``                 :class:`SimpleString`       success
``-ERR syntax error\r\n``   :class:`ErrorString`        refusals
``:1\r\n``                  ``int`` (64 bits)           counts
``$-1`` ``*-1`` ``_``       ``None``                    nothing there
==========================  ==========================  =========================

There are functions for one whole value, short ways for what nearly every payload is, and a decoder for values out of a
stream. Reading is strict: canonical numbers (no sign but ``-``, no leading zeros), exact lengths, CRLF after all of it.
Whatever else arrives raises :class:`~statestore_client.errors.Resp3Error` with the byte offset, and nothing but that.

Source: RESP3 specification (redis/redis-specifications); state store protocol, "Payload format".
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from statestore_client.errors import Resp3Error
from statestore_client.wire.protocol import MAX_PACKET_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence


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


@attrs.frozen
class Limits:
    """What one value may cost before it is refused. A peer that sends more is broken or hostile."""

    max_bytes: int = MAX_PACKET_SIZE  # of MQTT: no payload can be longer
    max_items: int = 1_048_576  # elements of all arrays together: 16 MiB of "_\r\n" would cost 40 times as much
    max_depth: int = 16  # a SCAN page needs 2
    max_line: int = 65_536  # a simple or error string; numbers and lengths have their own, far shorter limit


DEFAULT_LIMITS: Final = Limits()


class NeedData(Enum):
    """More bytes are needed. A value rather than an exception: it is the normal state of a stream."""

    NEED_DATA = "need data"


NEED_DATA: Final = NeedData.NEED_DATA

_NUMBER_LINE: Final = 20  # "-9223372036854775808"
_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]*")


def decode(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> Value:
    """The one value in ``data``. Raises Resp3Error when it is malformed, incomplete, or followed by anything."""
    if limits is DEFAULT_LIMITS:
        simple = split_blobs(data) if data.startswith(b"*") else cut_blob(data)
        if simple is not None:
            return simple
    decoder = Decoder(limits)
    decoder.feed(data)
    value = decoder.next()
    if value is NEED_DATA:
        raise Resp3Error("the value is incomplete", offset=len(data))
    if decoder.buffered:
        raise Resp3Error("bytes after the value", offset=len(data) - decoder.buffered)
    return value


def split_blobs(data: bytes) -> tuple[bytes, ...] | None:
    """A short array of short blobs, or None for everything else, well formed or not.

    Every request looks like this, and splitting is seven to ten times as fast as parsing. Invariant: returns only what
    the parser would return, because each length line must equal the one that we would write for the bytes that follow
    it (a blob with CRLF inside never does).
    """
    if len(data) > DEFAULT_LIMITS.max_bytes:
        return None
    parts = data.split(CRLF, 16)
    count = COUNT_OF_HEADER.get(parts[0])
    if count is None or len(parts) != 2 * count + 2 or parts[-1]:
        return None
    blobs = parts[2::2]
    for header, blob in zip(parts[1::2], blobs, strict=False):
        length = len(blob)
        if header != (HEADER_OF_LENGTH[length] if length < SHORT_BLOB else b"$%d" % length):
            return None
    return tuple(blobs)


def cut_blob(data: bytes) -> bytes | None:
    """One blob string, what every GET is answered with, or None for everything else: ten times as fast as parsing. The
    same invariant holds.
    """
    start = data.find(CRLF, 1, _NUMBER_LINE) + 2
    length = len(data) - start - 2
    if start < 2 or length < 0 or len(data) > DEFAULT_LIMITS.max_bytes:
        return None
    header = HEADER_OF_LENGTH[length] if length < SHORT_BLOB else b"$%d" % length
    if data[: start - 2] != header or not data.endswith(CRLF):
        return None
    return data[start:-2]


def cut_large_blob(data: memoryview) -> bytes | None:
    """The same from memory that is not ours: the blob is copied, and nothing else."""
    front = bytes(data[:_NUMBER_LINE])
    start = front.find(CRLF, 1) + 2
    length = len(data) - start - 2
    if start < 2 or length < 0 or front[: start - 2] != b"$%d" % length or bytes(data[-2:]) != CRLF:
        return None
    return bytes(data[start:-2])


@attrs.define(eq=False)
class _OpenArray:
    count: int
    items: list[Value] = attrs.Factory(list)


class Decoder:
    """Values out of a stream that arrives in pieces of any size.

    ::

        decoder.feed(data)
        while (value := decoder.next()) is not NEED_DATA:
            ...

    Every byte is looked at a fixed number of times however small the pieces are. After a Resp3Error the stream cannot
    be resynchronised: ``next()`` raises it again. Offsets count from the start of the value that failed.
    """

    __slots__ = ("_blob_end", "_buffer", "_error", "_items", "_limits", "_open", "_position", "_searched")

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        # Invariant: the buffer starts with the first byte of the value being read, so positions in it are offsets.
        self._buffer = bytearray()
        self._error: Resp3Error | None = None
        self._restart()

    def _restart(self) -> None:
        self._position = 0  # all before it is understood
        self._searched = 0  # no CRLF starts before it in the line at _position
        self._blob_end: int | None = None  # set between the length of a blob and its last byte
        self._open: list[_OpenArray] = []
        self._items = 0

    @property
    def buffered(self) -> int:
        """Bytes that belong to no value returned so far."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the stream."""
        self._buffer += data

    def next(self) -> Value | NeedData:
        """The next complete value, or ``NEED_DATA``. Raises Resp3Error."""
        if self._error is not None:
            raise self._error
        try:
            return self._next()
        except Resp3Error as error:
            self._error = error
            raise

    def _next(self) -> Value | NeedData:
        while True:
            value = self._read_one()
            if value is NEED_DATA:
                return NEED_DATA
            if isinstance(value, _OpenArray):
                continue
            while self._open:
                innermost = self._open[-1]
                innermost.items.append(value)
                if len(innermost.items) < innermost.count:
                    break
                value = tuple(self._open.pop().items)
            else:
                del self._buffer[: self._position]
                self._restart()
                return value

    def _read_one(self) -> Value | NeedData | _OpenArray:
        """One scalar, one empty array, or the start of an array that was put on the stack."""
        if self._blob_end is not None:
            return self._read_blob(self._blob_end)
        start = self._position
        if start >= len(self._buffer):
            return NEED_DATA
        kind = self._buffer[start : start + 1]
        if kind not in b"*$+-:_":
            raise Resp3Error(f"no RESP3 type starts with {bytes(kind)!r}", offset=start)
        line = self._read_line(start + 1, self._limits.max_line if kind in b"+-" else _NUMBER_LINE)
        if line is NEED_DATA:
            return NEED_DATA
        if kind == b"$":
            return self._start_blob(start, line)
        if kind == b"*":
            return self._start_array(start, line)
        if kind == b":":
            return _number(line, start + 1)
        if kind == b"_":
            if line:
                raise Resp3Error("a null has no content", offset=start + 1)
            return None
        text = _text(line, start + 1)
        return SimpleString(text) if kind == b"+" else ErrorString(text)

    def _read_line(self, start: int, max_length: int) -> bytes | NeedData:
        end = self._buffer.find(CRLF, max(start, self._searched), start + max_length + 2)
        if end < 0:
            if len(self._buffer) >= start + max_length + 2:
                raise Resp3Error(f"a line of more than {max_length} bytes", offset=start)
            self._searched = len(self._buffer) - 1  # its last byte may be the CR
            return NEED_DATA
        self._advance(end + 2)
        return bytes(self._buffer[start:end])

    def _advance(self, position: int) -> None:
        if position > self._limits.max_bytes:
            raise Resp3Error(f"a value of more than {self._limits.max_bytes} bytes", offset=self._position)
        self._position = position

    def _start_blob(self, start: int, line: bytes) -> Value | NeedData:
        length = _length(line, start + 1)
        if length is None:
            return None
        end = self._position + length
        if end + 2 > self._limits.max_bytes:
            raise Resp3Error(f"a value of more than {self._limits.max_bytes} bytes", offset=start)
        self._blob_end = end
        return self._read_blob(end)

    def _read_blob(self, end: int) -> bytes | NeedData:
        if len(self._buffer) < end + 2:
            return NEED_DATA
        if self._buffer[end : end + 2] != CRLF:
            raise Resp3Error("a blob is longer or shorter than its length says", offset=end)
        with memoryview(self._buffer) as view:
            blob = bytes(view[self._position : end])
        self._advance(end + 2)
        self._blob_end = None
        return blob

    def _start_array(self, start: int, line: bytes) -> Value | _OpenArray:
        count = _length(line, start + 1)
        if not count:
            return None if count is None else ()
        self._items += count
        if self._items > self._limits.max_items:
            raise Resp3Error(f"more than {self._limits.max_items} elements", offset=start)
        if len(self._open) >= self._limits.max_depth:
            raise Resp3Error(f"arrays nested deeper than {self._limits.max_depth}", offset=start)
        array = _OpenArray(count)
        self._open.append(array)
        return array


def _length(line: bytes, offset: int) -> int | None:
    """A length or count; None for -1, the null of RESP2."""
    length = _number(line, offset)
    if length < -1:
        raise Resp3Error("a negative length", offset=offset)
    return None if length == -1 else length


def _number(line: bytes, offset: int) -> int:
    if not _NUMBER.fullmatch(line):
        raise Resp3Error(f"{line!r} is not a number", offset=offset)
    number = int(line)
    if number not in INT64:
        raise Resp3Error("a number beyond 64 bits", offset=offset)
    return number


def _text(line: bytes, offset: int) -> str:
    for byte in (b"\r", b"\n"):
        if byte in line:
            raise Resp3Error("a lone CR or LF in a line", offset=offset + line.index(byte))
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise Resp3Error("a line that is not UTF-8", offset=offset + error.start) from None
