"""The requests of the state store: bytes <-> commands.

Source: state store protocol, "Supported commands", "SET options", "Request format", "KEYNOTIFY request messages"; the
bytes of SCAN and of ``NEX`` without a value are those of the official SDKs.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from statestore_client.errors import RequestSyntaxError, Resp3Error, UnknownCommandError, WrongArgumentCountError
from statestore_client.wire.hot_value import hot_value
from statestore_client.wire.messages import Payload
from statestore_client.wire.protocol import Dialect
from statestore_client.wire.resp3 import (
    Limits,
    decode,
    encode_array,
    encode_array_apart,
    header_of_short_blob,
    split_blobs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: PX is a 64-bit number of milliseconds.
MAX_EXPIRY_MS: Final = 2**63 - 1
#: Bytes of a value from which on it is sent as a piece of its own: to copy it would take longer than to send the piece.
LARGE_VALUE: Final = 64 * 1024


class Condition(StrEnum):
    """When a SET is applied."""

    NX = "NX"  # only if the key does not exist
    NEX = "NEX"  # only if the key does not exist, or holds this value already


_CONDITION_BYTES: Final = {Condition.NX: b"NX", Condition.NEX: b"NEX"}


@hot_value
class Set:
    """``SET key value [NX|NEX] [PX ms]``. Without ``expiry_ms`` the key lives until it is deleted.

    ``expected`` is the value that NEX compares with; None, as on the wire of the real service, means ``value`` itself.
    ``persist`` marks what must be on disk. It is not part of the payload: it goes beside it, as the user property
    ``aio-persistence`` (state store facts, 1.1).
    """

    key: bytes
    value: bytes = attrs.field(repr=False)
    condition: Condition | None = None
    expiry_ms: int | None = None
    expected: bytes | None = attrs.field(default=None, repr=False)
    persist: bool = False

    def encode(self) -> bytes:
        """The payload of the request."""
        return encode_array(self._items())

    def encode_apart(self) -> tuple[bytes, ...]:
        """The same in pieces, one of which is the value itself."""
        return encode_array_apart(self._items(), LARGE_VALUE)

    def _items(self) -> Sequence[bytes]:
        items = [b"SET", self.key, self.value]
        if self.condition is not None:
            items.append(_CONDITION_BYTES[self.condition])
        if self.expected is not None:
            items.append(self.expected)
        if self.expiry_ms is not None:
            items += (b"PX", b"%d" % self.expiry_ms)
        return items


@hot_value
class Get:
    """``GET key``."""

    key: bytes

    def encode(self) -> bytes:
        """The payload of the request."""
        return encode_array((b"GET", self.key))


@hot_value
class Del:
    """``DEL key``."""

    key: bytes

    def encode(self) -> bytes:
        """The payload of the request."""
        return encode_array((b"DEL", self.key))


@hot_value
class VDel:
    """``VDEL key value``: delete the key if it holds this value."""

    key: bytes
    value: bytes = attrs.field(repr=False)

    def encode(self) -> bytes:
        """The payload of the request."""
        return encode_array((b"VDEL", self.key, self.value))


@hot_value
class KeyNotify:
    """``KEYNOTIFY key [STOP]``: start or stop telling this client about changes of the key.

    ``KEYNOTIFY key GET`` of the document, which asks for the new values as well, is the same: they are always told.
    """

    key: bytes
    stop: bool = False

    def encode(self) -> bytes:
        """The payload of the request."""
        return encode_array((b"KEYNOTIFY", self.key, b"STOP") if self.stop else (b"KEYNOTIFY", self.key))


@hot_value
class Scan:
    """``SCAN pattern [token]``: one page of the keys that match. ``token`` continues where the page before it ended.

    ``entries`` asks for all that is known of each key. It is not part of the payload: it goes beside it, as the user
    property ``statestore-scan``, and servers that do not know it answer with keys.
    """

    pattern: bytes
    token: bytes | None = None
    entries: bool = False

    def encode(self) -> bytes:
        """The payload of the request."""
        return encode_array((b"SCAN", self.pattern) if self.token is None else (b"SCAN", self.pattern, self.token))


Command: TypeAlias = Set | Get | Del | VDel | KeyNotify | Scan


def encode_payload(command: Command) -> Payload:
    """The payload of the request, with a large value apart."""
    if type(command) is Set:
        if len(command.value) >= LARGE_VALUE:
            return command.encode_apart()
        if command.condition is None and command.expected is None and command.expiry_ms is None:
            return encode_array((b"SET", command.key, command.value))
    return command.encode()


#: The command with most words: ``SET key value NEX expected PX ms`` of the document.
_MOST_WORDS: Final = 7
_WORDS: Final = Limits(max_items=_MOST_WORDS, max_depth=1)
_COUNT: Final = re.compile(rb"\*([0-9]{1,19})\r\n")


def decode_command(payload: bytes, dialect: Dialect = Dialect.SERVICE) -> Command:
    """Read the payload of a request. One with more words than any command has is refused at its first line: a million
    empty words would take seconds to read.

    The document's dialect also reads verbs in lower case (its examples), ``NEX value`` (its list of options) and
    ``KEYNOTIFY key GET`` (its example of a notification).
    Raises UnknownCommandError, WrongArgumentCountError, and RequestSyntaxError for everything else that is wrong. Keys
    may be empty here: the store refuses them.
    """
    command = _short_set(payload)
    if command is not None:
        return command
    arguments = split_blobs(payload) or _arguments(payload)
    reader = _READERS.get(arguments[0])
    if reader is None and dialect is Dialect.DOCUMENT and arguments[0].islower():
        reader = _READERS.get(arguments[0].upper())
    if reader is None:
        raise UnknownCommandError
    return reader(arguments, dialect)


def is_key_notify(payload: bytes) -> bool:
    """Whether a payload names KEYNOTIFY, also one that :func:`decode_command` refuses: the document has failures of
    KEYNOTIFY look different from those of all others. What is not RESP3, or has too many words, names nothing.
    """
    try:
        items = decode(payload, limits=_WORDS)
    except Resp3Error:
        return False
    return isinstance(items, tuple) and items[:1] in ((b"KEYNOTIFY",), (b"keynotify",))


_START_OF_SET: Final = b"*3\r\n$3\r\nSET\r\n"


def _short_set(payload: bytes) -> Set | None:
    """``SET key value`` without options and with a short key and value, or None for everything else.

    Most requests are that, and this takes less than half as long as the general way (1.0 and 2.5 µs). Invariant:
    returns only what the general way would, because every header must equal the one that we would write for what
    follows it; a key or value with CRLF inside is cut too short for its header.
    """
    if not payload.startswith(_START_OF_SET):
        return None
    try:
        _, _, _, header_of_key, key, header_of_value, value, rest = payload.split(b"\r\n", 7)
        if (
            header_of_key == header_of_short_blob(len(key))
            and header_of_value == header_of_short_blob(len(value))
            and not rest
        ):
            return Set(key, value)
    except (ValueError, IndexError):
        pass
    return None


def _arguments(payload: bytes) -> Sequence[bytes]:
    count = _COUNT.match(payload)
    if count is not None and int(count[1]) > _MOST_WORDS:
        raise WrongArgumentCountError
    try:
        items = decode(payload, limits=_WORDS)
    except Resp3Error as error:
        raise RequestSyntaxError from error
    if not isinstance(items, tuple) or not items:
        raise RequestSyntaxError
    arguments = [item for item in items if isinstance(item, bytes)]
    if len(arguments) != len(items):
        raise RequestSyntaxError
    return arguments


def _read_set(arguments: Sequence[bytes], dialect: Dialect) -> Set:
    count = len(arguments)
    if count == 3:
        return Set(arguments[1], arguments[2])
    if not 3 <= count <= (7 if dialect is Dialect.DOCUMENT else 6):
        raise WrongArgumentCountError
    condition: Condition | None = None
    expected: bytes | None = None
    expiry_ms: int | None = None
    position = 3
    while position < count:
        option = arguments[position]
        position += 1
        if option == b"PX" and expiry_ms is None and position < count:
            expiry_ms = _expiry_ms(arguments[position])
            position += 1
        elif option in (b"NX", b"NEX") and condition is None:
            condition = Condition.NX if option == b"NX" else Condition.NEX
            if option == b"NEX" and dialect is Dialect.DOCUMENT and _value_follows(arguments[position:]):
                expected = arguments[position]
                position += 1
        else:
            raise RequestSyntaxError
    return Set(arguments[1], arguments[2], condition, expiry_ms, expected)


def _value_follows(rest: Sequence[bytes]) -> bool:
    """Whether a NEX of the document is followed by a value. ``NEX PX 10000`` is one of its examples, so PX is none."""
    return bool(rest) and not (len(rest) == 2 and rest[0] == b"PX")


_EXPIRY: Final = re.compile(rb"([0-9]{1,19})(?:\.([0-9]{1,19}))?")


def _expiry_ms(text: bytes) -> int:
    """Milliseconds, rounded up: the .NET SDK prints a double, which may have a fraction."""
    match = _EXPIRY.fullmatch(text)
    if match is None:
        raise RequestSyntaxError
    expiry_ms = int(match[1]) + (match[2] is not None and int(match[2]) > 0)
    if not 1 <= expiry_ms <= MAX_EXPIRY_MS:
        raise RequestSyntaxError
    return expiry_ms


def _read_get(arguments: Sequence[bytes], _dialect: Dialect) -> Get:
    _expect(arguments, 2)
    return Get(arguments[1])


def _read_del(arguments: Sequence[bytes], _dialect: Dialect) -> Del:
    _expect(arguments, 2)
    return Del(arguments[1])


def _read_vdel(arguments: Sequence[bytes], _dialect: Dialect) -> VDel:
    _expect(arguments, 3)
    return VDel(arguments[1], arguments[2])


def _read_key_notify(arguments: Sequence[bytes], dialect: Dialect) -> KeyNotify:
    _expect(arguments, 2, 3)
    option = arguments[2] if len(arguments) == 3 else None
    if option not in ((None, b"STOP", b"GET") if dialect is Dialect.DOCUMENT else (None, b"STOP")):
        raise RequestSyntaxError
    return KeyNotify(arguments[1], stop=option == b"STOP")


def _read_scan(arguments: Sequence[bytes], _dialect: Dialect) -> Scan:
    _expect(arguments, 2, 3)
    return Scan(arguments[1], arguments[2] if len(arguments) == 3 else None)


def _expect(arguments: Sequence[bytes], *counts: int) -> None:
    if len(arguments) not in counts:
        raise WrongArgumentCountError


_READERS: Final[dict[bytes, Callable[[Sequence[bytes], Dialect], Command]]] = {
    b"SET": _read_set,
    b"GET": _read_get,
    b"DEL": _read_del,
    b"VDEL": _read_vdel,
    b"KEYNOTIFY": _read_key_notify,
    b"SCAN": _read_scan,
}
