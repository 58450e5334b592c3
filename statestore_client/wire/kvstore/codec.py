"""Messages between sites <-> bytes: an array of MessagePack, the code first.

What is read is checked field by field, and raises :class:`~statestore_client.errors.RemoteProtocolError` and nothing
else. An entry of another site that cannot be read says nothing about those beside it. Fields after those of a message's
table are ignored: a newer release has added them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgpack

from statestore_client.errors import InvalidArgumentError, RemoteProtocolError
from statestore_client.wire.kvstore import fields
from statestore_client.wire.kvstore.messages import (
    MAX_MESSAGE,
    ChangeOwnKey,
    ChangePeer,
    CompareRanges,
    Failure,
    Finalize,
    Flood,
    Follow,
    Followed,
    Found,
    Get,
    GetFiltered,
    GetHashes,
    GetOwnKeys,
    GetPeers,
    GetSummary,
    Heartbeat,
    Hello,
    HelloWanted,
    Leave,
    Message,
    OwnKeys,
    PeersReply,
    RangeSumsReply,
    Refusal,
    Set,
    SetResult,
    Summary,
    Sync,
    SyncReply,
)

#: Name of the field, what reads it, what writes it (None: as it is).
_Field: TypeAlias = tuple[str, Callable[[Any], Any], Callable[[Any], Any] | None]


def _plain(name: str, read: Callable[[Any], Any]) -> _Field:
    return name, read, None


#: Items of an array or a map: a path may have so many names, a site so many peers. What has more is not read at all.
_MOST: Final = 1024

_ID: Final = _plain("id", fields.integer)
_AREA: Final = _plain("area", fields.text)
_NEXT: Final = _plain("next", fields.optional_integer)
_START: Final = _plain("start", fields.integer)
_HISTORY: Final = _plain("history", fields.integer)
_AFTER: Final = _plain("after", fields.optional_integer)
_LAST: Final = _plain("last", fields.integer)
_HOLD: Final = _plain("hold_ms", fields.integer)
_PATTERNS: Final = _plain("patterns", fields.texts)
_PATH: Final = _plain("path", fields.path)
_REASON: Final = _plain("reason", fields.integer)
_TEXT: Final = _plain("text", fields.text)
_ENTRIES: Final[_Field] = ("entries", fields.entries, fields.packed_entries)
_SAID_ENTRIES: Final[_Field] = ("entries", fields.said_entries, fields.packed_entries)

_SHAPES: Final[dict[int, tuple[Callable[..., Message], tuple[_Field, ...]]]] = {
    1: (Hello, (
        _plain("version", fields.integer), _plain("name", fields.name), _plain("incarnation", fields.integer),
        _plain("areas", fields.names), _plain("capabilities", fields.names), _plain("is_reply", fields.boolean),
    )),
    2: (HelloWanted, ()),
    3: (Heartbeat, (_plain("incarnation", fields.integer), _plain("floods", fields.integer))),
    4: (Refusal, (_REASON, _TEXT)),
    5: (Flood, (_plain("number", fields.integer), _AREA, _PATH, _SAID_ENTRIES)),
    6: (Leave, ()),
    16: (Get, (_ID, _AREA, _plain("keys", fields.keys))),
    17: (GetFiltered, (
        _ID, _AREA, _PATTERNS, _plain("originators", fields.texts), _plain("match_all", fields.boolean),
        _plain("omit_values", fields.boolean), _START,
    )),
    18: (GetHashes, (_ID, _AREA, _PATTERNS, _START)),
    19: (Set, (_ID, _AREA, _ENTRIES, _PATH)),
    20: (CompareRanges, (
        _ID, _AREA, _plain("level", fields.integer), _plain("prefixes", fields.numbers),
        _plain("sum", fields.optional_integer),
    )),
    21: (Sync, (_ID, _AREA, _plain("ranges", fields.ranges), ("hashes", fields.said_hashes, fields.packed_hashes))),
    22: (Finalize, (_ID, _AREA, _SAID_ENTRIES, _plain("is_last", fields.boolean))),
    23: (ChangeOwnKey, (
        _ID, _AREA, _plain("action", fields.integer), _plain("key", fields.text), _plain("value", fields.optional_data),
        _plain("version", fields.optional_integer), _plain("ttl_ms", fields.optional_integer),
    )),
    24: (Follow, (
        _ID, _AREA, ("wanted", fields.wanted, fields.packed_wanted), _HISTORY, _AFTER, _HOLD,
    )),
    25: (GetPeers, (_ID, _AREA, _HISTORY, _AFTER, _HOLD)),
    26: (GetSummary, (_ID,)),
    27: (GetOwnKeys, (_ID, _AREA, _START)),
    28: (ChangePeer, (_ID, _plain("url", fields.text), _plain("is_wanted", fields.boolean))),
    32: (Found, (_ID, _ENTRIES, _NEXT)),
    33: (SetResult, (_ID, _plain("reasons", fields.reasons))),
    34: (RangeSumsReply, (_ID, _plain("is_equal", fields.boolean), ("sums", fields.sums, fields.packed_sums))),
    35: (SyncReply, (_ID, _SAID_ENTRIES, _plain("to_be_updated", fields.keys), _NEXT)),
    36: (Failure, (_ID, _REASON, _TEXT)),
    37: (Followed, (
        _ID, _HISTORY, _LAST, _plain("is_gap", fields.boolean), ("pieces", fields.pieces, fields.packed_pieces),
    )),
    38: (PeersReply, (
        _ID, _HISTORY, _LAST, ("peers", fields.peers, fields.packed_peers), _plain("unreached", fields.texts),
    )),
    39: (Summary, (
        _ID, _plain("name", fields.name), _plain("incarnation", fields.integer), _plain("areas", fields.counters),
    )),
    40: (OwnKeys, (_ID, ("keys", fields.own_keys, fields.packed_own_keys), _NEXT)),
}  # fmt: skip
_CODES: Final = {shape[0]: code for code, shape in _SHAPES.items()}

#: A message with such a code has a request id after it, and wants an answer.
REQUEST_CODES: Final = range(16, 32)


def encode(message: Message) -> bytes:
    """The bytes of one frame. Raises InvalidArgumentError if they are more than :data:`MAX_MESSAGE`."""
    code = _CODES[type(message)]
    values: list[Any] = [code]
    for name, _, write in _SHAPES[code][1]:
        value = getattr(message, name)
        values.append(value if write is None else write(value))
    packed: bytes = msgpack.packb(values)
    if len(packed) > MAX_MESSAGE:
        raise InvalidArgumentError(f"a message of {len(packed)} bytes; {MAX_MESSAGE} are allowed")
    return packed


def _array(data: bytes) -> tuple[Any, ...]:
    if len(data) > MAX_MESSAGE:
        raise RemoteProtocolError(f"a message of {len(data)} bytes; {MAX_MESSAGE} are allowed")
    try:
        array = msgpack.unpackb(
            data,
            raw=False,
            unicode_errors="surrogateescape",
            use_list=False,
            strict_map_key=True,
            max_array_len=_MOST,
            max_map_len=_MOST,
        )
    # What msgpack raises: ValueError and its kinds, RecursionError and OverflowError come out of depth and of dates.
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"a message between sites that is not valid MessagePack: {error}") from error
    if type(array) is not tuple or not array or type(array[0]) is not int:
        raise RemoteProtocolError("a message between sites must be an array that begins with a code")
    return array


def decode(data: bytes) -> Message:
    """One message. Raises RemoteProtocolError for anything else."""
    array = _array(data)
    code = array[0]
    shape = _SHAPES.get(code)
    if shape is None:
        raise RemoteProtocolError(f"a message between sites with code {code}, which this release does not know")
    make, parts = shape
    if len(array) <= len(parts):
        raise RemoteProtocolError(f"message {code} between sites has {len(array) - 1} fields, {len(parts)} are needed")
    values = []
    for (name, read, _), value in zip(parts, array[1:], strict=False):
        try:
            values.append(read(value))
        except fields.FieldError as error:
            raise RemoteProtocolError(f"message {code} between sites: {name} {error}") from error
    return make(*values)


def request_in(data: bytes) -> tuple[int, int] | None:
    """Code and id of a request that could not be read, to answer it with an error. None if it is not a request at all.
    What comes after them is not looked at.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=MAX_MESSAGE, max_array_len=_MOST, max_map_len=_MOST)
    try:
        unpacker.feed(data)
        size = unpacker.read_array_header()
        code, number = unpacker.unpack(), unpacker.unpack()
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return None
    has_id = size > 1 and type(code) is int and code in REQUEST_CODES and type(number) is int and number >= 0
    return (code, number) if has_id else None


def knows(code: int) -> bool:
    """Whether this release has such a message."""
    return code in _SHAPES
