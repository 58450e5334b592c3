"""The value types of ØMQ Raft: one frame <-> one value.

=======  ==================================================  ==========================================
type     bytes                                               value
=======  ==================================================  ==========================================
uint     ``00``, ``ff``, ``0001`` (256): little endian,      ``int``, 0 to 2^53 - 1
         as short as possible, never empty
nuint    the same; empty                                     ``int``; ``None``
uint32   the same, 1 to 4 bytes                              ``int``, 0 to 2^32 - 1
bool     ``01``; empty                                       ``bool``
string   UTF-8                                               ``str``
json     MessagePack                                         what JSON knows, see :data:`JsonValue`
=======  ==================================================  ==========================================

Writing raises :class:`~raft_client.errors.InvalidArgumentError` for what the other side could not read: a malformed
frame ends the process of a Node peer (facts §1.4). Reading raises :class:`~raft_client.errors.ProtocolError`, and
nothing but that; it is as lenient as the Node peers are (zero padding, any length).

Source: ØMQ Raft protocol, the types of frames; facts §1.2 where the published text and the peers disagree.
"""

from __future__ import annotations

import math
import struct
from typing import Final, Protocol, TypeAlias, TypeVar, dataclass_transform

import attrs
import msgpack

from raft_client.errors import InvalidArgumentError, ProtocolError

T = TypeVar("T")

#: One frame as a socket hands it over.
Buffer: TypeAlias = bytes | memoryview
#: What crosses in a json frame. Numbers are those of JavaScript: an integral float *is* an integer.
JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

#: The largest integer that a double holds exactly, and the largest that a Node peer accepts.
MAX_UINT: Final = 2**53 - 1
_MAX_UINT32: Final = 2**32 - 1
#: Deeper than any message of the protocol (a peer list has two levels), far from the interpreter's recursion limit.
_MAX_DEPTH: Final = 32
_SHORT_UINTS: Final = tuple(bytes((number,)) for number in range(256))


class Message(Protocol):
    """What can be sent."""

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        ...


@dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
def hot_value(cls: type[T]) -> type[T]:
    """Make a class on the hot path: its values compare by value and can be hashed.

    The type checker takes them for ``attrs.frozen`` and refuses to assign to their fields; at run time nothing does,
    because setting the fields of a frozen object takes three times as long.
    """
    return attrs.define(unsafe_hash=True)(cls)


def encode_uint(number: int) -> bytes:
    """As few bytes as possible, little endian. Raises InvalidArgumentError unless 0 <= ``number`` <= 2^53 - 1."""
    if type(number) is not int or not 0 <= number <= MAX_UINT:
        raise InvalidArgumentError(f"not an unsigned integer of at most 53 bits: {_show(number)}")
    if number < 256:
        return _SHORT_UINTS[number]
    return number.to_bytes((number.bit_length() + 7) >> 3, "little")


def decode_uint(frame: Buffer) -> int:
    """Raises ProtocolError when the frame is empty or the number exceeds 2^53 - 1."""
    number = int.from_bytes(frame, "little")
    if number > MAX_UINT:
        raise ProtocolError("an unsigned integer of more than 53 bits")
    if not number and not len(frame):
        raise ProtocolError("an empty frame in place of an unsigned integer")
    return number


def encode_nuint(number: int | None) -> bytes:
    """Like :func:`encode_uint`; ``None`` is the empty frame."""
    return b"" if number is None else encode_uint(number)


def decode_nuint(frame: Buffer) -> int | None:
    """Like :func:`decode_uint`; the empty frame is ``None``."""
    return decode_uint(frame) if len(frame) else None


def encode_uint32(number: int) -> bytes:
    """1 to 4 bytes: the request id of everything that is not an update. Raises InvalidArgumentError above 2^32 - 1."""
    frame = encode_uint(number)
    if number > _MAX_UINT32:
        raise InvalidArgumentError(f"not an unsigned integer of at most 32 bits: {number}")
    return frame


def encode_bool(value: bool) -> bytes:
    """``01`` or the empty frame."""
    return b"\x01" if value else b""


def decode_bool(frame: Buffer) -> bool:
    """True when there is a first byte and it is not 0. Every frame is a bool."""
    return len(frame) > 0 and frame[0] != 0


def encode_string(text: str) -> bytes:
    """UTF-8. Raises InvalidArgumentError for lone surrogates, which UTF-8 cannot carry."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError("a text that cannot be encoded as UTF-8") from None


def decode_string(frame: Buffer) -> str:
    """Raises ProtocolError when the bytes are not UTF-8."""
    try:
        return str(frame, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a string that is not UTF-8 at byte {error.start}") from None


def encode_json(value: JsonValue) -> bytes:
    """MessagePack of what JSON knows. Raises InvalidArgumentError for anything else; integers have at most 53 bits."""
    try:
        if type(value) is not int or not -MAX_UINT <= value <= MAX_UINT:  # the index of an append: at once
            _check_json(value, _MAX_DEPTH)
        packed: bytes = msgpack.packb(value)
    except (ProtocolError, UnicodeEncodeError) as error:
        raise InvalidArgumentError(f"cannot be sent as json: {error}") from None
    return packed


def decode_json(frame: Buffer) -> JsonValue:
    """One MessagePack value, integral floats turned into integers. Raises ProtocolError.

    The coercion is needed: the MessagePack library of the Node peers writes every integer from 2^31 on as a double, so
    the two-billionth log index arrives as ``cb 41e0…`` (facts §1.2).
    """
    try:
        value = msgpack.unpackb(frame, strict_map_key=True)
    # The documented errors of unpackb are ValueErrors, but struct.error and others escape from broken extension types.
    except (ValueError, TypeError, OverflowError, RecursionError, struct.error, msgpack.UnpackException) as error:
        raise ProtocolError(f"a json frame that is not MessagePack: {type(error).__name__}") from None
    if type(value) is int and -MAX_UINT <= value <= MAX_UINT:
        return value  # the index of an append, without the ceremony
    return _check_json(value, _MAX_DEPTH)


def _check_json(value: object, depth: int) -> JsonValue:
    """``value`` with its integral floats as integers. Raises ProtocolError for what JSON does not know."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        if not -MAX_UINT <= value <= MAX_UINT:
            raise ProtocolError("an integer of more than 53 bits in json")
        return value
    if isinstance(value, float):
        return _check_float(value)
    if not depth:
        raise ProtocolError(f"json nested deeper than {_MAX_DEPTH}")
    if isinstance(value, list | tuple):
        return [_check_json(item, depth - 1) for item in value]
    if isinstance(value, dict):
        return {_check_name(name): _check_json(item, depth - 1) for name, item in value.items()}
    raise ProtocolError(f"a {type(value).__name__} is not json")


def _check_float(value: float) -> int | float:
    if not math.isfinite(value):
        raise ProtocolError("a number in json that is not finite")
    return int(value) if value.is_integer() and abs(value) <= MAX_UINT else value


def _check_name(name: object) -> str:
    if not isinstance(name, str):
        raise ProtocolError(f"a {type(name).__name__} as the name of a json property")
    return name


def _show(number: object) -> str:
    """For messages. A huge number is not printed: its decimal form is slow, or refused by the interpreter."""
    return repr(number) if not isinstance(number, int) or number.bit_length() <= 64 else "a number of more than 64 bits"
