"""Messages between sites <-> bytes: an array of MessagePack, the code first.

What is read is checked field by field, and raises :class:`~statestore_client.errors.RemoteProtocolError` and nothing
else. An entry of another site that cannot be read says nothing about those beside it. Fields after those of a message's
table are ignored: a newer release has added them.

Each reader of a field takes one thing that was decoded and gives the value, or raises :class:`FieldError`, which says
what it must be. Nothing there is larger than the message that it came in.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

import msgpack

from statestore_client.errors import InvalidArgumentError, RemoteProtocolError
from statestore_client.wire.kvstore.messages import (
    MAX_ITEMS,
    MAX_MESSAGE,
    MAX_PATH,
    MAX_PATH_BYTES,
    MAX_PREFIXES,
    MAX_VALUES_BYTES,
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
    GetLostKeys,
    GetOwnKeys,
    GetPeers,
    GetSummary,
    Heartbeat,
    Hello,
    HelloWanted,
    Leave,
    LostKeys,
    Message,
    OwnKeys,
    OwnKeyState,
    PeerInfo,
    PeersReply,
    Piece,
    RangeSumsReply,
    Refusal,
    Set,
    SetResult,
    Summary,
    Sync,
    SyncReply,
    Wanted,
    path_fits,
)
from statestore_client.wire.kvstore.value import INFINITE_TTL_MS, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


#: UTF-8 bytes of the name of a site or area, and of a capability; characters of an originator, which the store checks.
MAX_NAME: Final = 255

_MIN_INT: Final = -(1 << 63)
_MAX_INT: Final = (1 << 63) - 1
#: In place of an entry that cannot be read. No store takes it, as it has no originator.
_UNREADABLE: Final = Value(0, "", None, 0)


class FieldError(ValueError):
    """Says what the field must be."""


def integer(value: Any) -> int:
    """0 to 2^64 - 1."""
    # True and False are integers to Python, and not to MessagePack.
    if type(value) is not int or value < 0:
        raise FieldError("must be an integer from 0 to 2^64 - 1")
    return value


def optional_integer(value: Any) -> int | None:
    """The same, or nil."""
    return None if value is None else integer(value)


def optional_data(value: Any) -> bytes | None:
    """Bytes, or nil."""
    if value is not None and type(value) is not bytes:
        raise FieldError("must be bytes or nil")
    return value


def boolean(value: Any) -> bool:
    """True or false, and not a number."""
    if type(value) is not bool:
        raise FieldError("must be true or false")
    return value


def text(value: Any) -> str:
    """A text, which may be empty."""
    if not _is_text(value):
        raise FieldError("must be a text")
    return value


def _is_text(value: Any) -> TypeGuard[str]:
    """Bytes that are not UTF-8 are surrogates here, which no text may have."""
    if type(value) is not str:
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _array(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise FieldError("must be an array")
    return value


def name(value: Any) -> str:
    """The name of a site, of an area or of a capability."""
    if not _is_text(value) or not 0 < len(value.encode()) <= MAX_NAME:
        raise FieldError(f"must be a name of 1 to {MAX_NAME} bytes")
    return value


def names(value: Any) -> tuple[str, ...]:
    """Names of areas, originators or capabilities."""
    return tuple(map(name, _array(value)))


def path(value: Any) -> tuple[str, ...]:
    """Names of the sites that an update came through."""
    found = names(value)
    if not path_fits(found):
        raise FieldError(
            f"must have at most {MAX_PATH} sites, whose names have at most {MAX_PATH_BYTES} bytes together"
        )
    return found


def texts(value: Any) -> tuple[str, ...]:
    """Patterns of keys, keys that have expired, or addresses."""
    found = _array(value)
    for key in found:
        if not _is_text(key):
            raise FieldError("must be an array of texts")
    return found


def _check_number(value: Any) -> None:
    if len(value) > MAX_ITEMS:
        raise FieldError(f"must be at most {MAX_ITEMS}, and not {len(value)}: send several messages")


def keys(value: Any) -> tuple[str, ...]:
    """Keys, as many as are done at once."""
    _check_number(_array(value))
    return texts(value)


def numbers(value: Any) -> tuple[int, ...]:
    """Numbers of ranges, ascending, as many as may be asked for at once: each one is answered with its sums."""
    found = tuple(map(integer, _array(value)))
    if len(found) > MAX_PREFIXES:
        raise FieldError(f"must have at most {MAX_PREFIXES} ranges")
    if any(one >= other for one, other in pairwise(found)):
        raise FieldError("must be ranges in ascending order, each once")
    return found


def ranges(value: Any) -> tuple[tuple[int, int], ...]:
    """Pairs of first and last position, ascending and apart."""
    found = []
    end = -1
    _check_number(_array(value))
    for pair in value:
        if type(pair) is not tuple or len(pair) != 2:
            raise FieldError("must be an array of pairs")
        first, last = integer(pair[0]), integer(pair[1])
        if not end < first <= last:
            raise FieldError("must be ranges in ascending order that do not overlap")
        found.append((first, last))
        end = last
    return tuple(found)


def sums(value: Any) -> tuple[int, ...]:
    """Sums of 8 bytes each, the most significant byte first."""
    if type(value) is not bytes or len(value) % 8:
        raise FieldError("must be bytes, eight for each sum")
    return Struct(f">{len(value) // 8}Q").unpack(value)


def packed_sums(value: tuple[int, ...]) -> bytes:
    """The other way."""
    return Struct(f">{len(value)}Q").pack(*value)


def _mapping(value: Any, read: Callable[[Any], Any]) -> dict[str, Any]:
    if type(value) is not dict:
        raise FieldError("must be a map of keys")
    for key, item in value.items():
        if not _is_text(key):
            raise FieldError("must be a map with texts as keys")
        value[key] = read(item)
    return value


def _items(value: Any, read: Callable[[Any], Any]) -> dict[str, Any]:
    """As many as are done at once."""
    if type(value) is dict:
        _check_number(value)
    return _mapping(value, read)


def reasons(value: Any) -> dict[str, int]:
    """Key -> a number: of a reason, say."""
    return _mapping(value, integer)


def _signed(value: Any) -> int:
    if type(value) is not int or not _MIN_INT <= value <= _MAX_INT:
        raise FieldError("must have integers of 64 bits with a sign as versions and times")
    return value


def _originator(value: Any) -> str:
    if not _is_text(value) or len(value) > MAX_NAME:
        raise FieldError(f"must have originators of at most {MAX_NAME} characters")
    return value


def _entry(value: Any) -> Value:
    if type(value) is not tuple or len(value) < 5:
        raise FieldError("must have entries of five fields")
    version, originator, data, ttl_ms, ttl_version = value[:5]
    hash_ = None
    if data is None:
        hash_ = None if len(value) == 5 else _signed(value[5])
    elif type(data) is not bytes:
        raise FieldError("must have values that are bytes or nil")
    _signed(version), _signed(ttl_ms), _signed(ttl_version), _originator(originator)
    return Value(version, originator, data, ttl_ms, ttl_version, hash_)


def entries(value: Any) -> dict[str, Value]:
    """Key -> entry: version, originator, value or nil, TTL in ms, TTL version, hash (only without a value). The store
    makes the hash of what it takes.
    """
    return _checked_size(_items(value, _entry))


def _checked_size(found: dict[str, Value]) -> dict[str, Value]:
    if len(found) > 1 and sum(len(entry.value or b"") for entry in found.values()) > MAX_VALUES_BYTES:
        raise FieldError(
            f"must have values of at most {MAX_VALUES_BYTES} bytes together, or one: send several messages"
        )
    return found


def said_entries(value: Any) -> dict[str, Value]:
    """The same, of a site to another one. One that cannot be read says nothing about the others: in its place is one
    that the store refuses, and counts. Where the key itself is none, the entry is left out.
    """
    return _checked_size(_items(_with_text_keys(value), _readable_entry))


def _with_text_keys(value: Any) -> Any:
    if type(value) is dict and not all(map(_is_text, value)):
        return {key: item for key, item in value.items() if _is_text(key)}
    return value


def _readable_entry(value: Any) -> Value:
    try:
        return _entry(value)
    except FieldError:
        return _UNREADABLE


def packed_entries(value: Mapping[str, Value]) -> dict[str, tuple[Any, ...]]:
    """The other way."""
    packed: dict[str, tuple[Any, ...]] = {}
    for key, entry in value.items():
        fields = (entry.version, entry.originator, entry.value, entry.ttl_ms, entry.ttl_version)
        packed[key] = fields if entry.value is not None or entry.hash is None else (*fields, entry.hash)
    return packed


def _hash(value: Any) -> Value:
    if type(value) is not tuple or len(value) < 4:
        raise FieldError("must have hashes of four fields")
    version, originator, ttl_version, hash_ = value[:4]
    return Value(_signed(version), _originator(originator), None, INFINITE_TTL_MS, _signed(ttl_version), _signed(hash_))


def hashes(value: Any) -> dict[str, Value]:
    """Key -> version, originator, TTL version, hash: what two entries are compared by. The TTL is not part of it."""
    return _items(value, _hash)


def said_hashes(value: Any) -> dict[str, Value]:
    """The same, without those that cannot be read: their entries are sent, as if the other side did not have them."""
    found = _items(_with_text_keys(value), _readable_hash)
    return {key: entry for key, entry in found.items() if entry is not _UNREADABLE}


def _readable_hash(value: Any) -> Value:
    try:
        return _hash(value)
    except FieldError:
        return _UNREADABLE


def packed_hashes(value: Mapping[str, Value]) -> dict[str, tuple[Any, ...]]:
    """The other way."""
    return {key: (entry.version, entry.originator, entry.ttl_version, entry.hash) for key, entry in value.items()}


def _fields(value: Any, count: int, what: str) -> tuple[Any, ...]:
    """The first ``count`` of an array. Those after them are of a newer release."""
    if type(value) is not tuple or len(value) < count:
        raise FieldError(f"must have {what} of {count} fields")
    return value[:count]


def wanted(value: Any) -> Wanted:
    """Patterns, originators, whether all of both, without TTLs alone, without values."""
    patterns, originators, match_all, ignore_ttl, omit_values = _fields(value, 5, "a filter")
    return Wanted(texts(patterns), texts(originators), boolean(match_all), boolean(ignore_ttl), boolean(omit_values))


def packed_wanted(value: Wanted) -> tuple[Any, ...]:
    """The other way."""
    return value.patterns, value.originators, value.match_all, value.ignore_ttl, value.omit_values


def _piece(value: Any) -> Piece:
    number, sender, found, expired_keys = _fields(value, 4, "publications")
    return Piece(integer(number), None if sender is None else name(sender), entries(found), texts(expired_keys))


def pieces(value: Any) -> tuple[Piece, ...]:
    """Publications: number, the site that they came from or nil, entries, expired keys."""
    return tuple(map(_piece, _array(value)))


def packed_pieces(value: tuple[Piece, ...]) -> list[tuple[Any, ...]]:
    """The other way."""
    return [(each.number, each.sender, packed_entries(each.entries), each.expired_keys) for each in value]


def _peer(value: Any) -> PeerInfo:
    state, since_ms, flaps, is_connected, urls = _fields(value, 5, "peers")
    return PeerInfo(integer(state), integer(since_ms), integer(flaps), boolean(is_connected), texts(urls))


def peers(value: Any) -> dict[str, PeerInfo]:
    """Name -> state, since when in ms, flaps, whether it is connected, addresses."""
    return _mapping(value, _peer)


def packed_peers(value: Mapping[str, PeerInfo]) -> dict[str, tuple[Any, ...]]:
    """The other way."""
    return {name: (each.state, each.since_ms, each.flaps, each.is_connected, each.urls) for name, each in value.items()}


def counters(value: Any) -> dict[str, dict[str, int]]:
    """Area -> counter -> number."""
    return _mapping(value, reasons)


def _own_key(value: Any) -> OwnKeyState:
    entry, is_persisted, is_contested = _fields(value, 3, "own keys")
    return OwnKeyState(_entry(entry), boolean(is_persisted), boolean(is_contested))


def own_keys(value: Any) -> dict[str, OwnKeyState]:
    """Key -> entry, whether it is persisted, whether it is contested."""
    return _mapping(value, _own_key)


def packed_own_keys(value: Mapping[str, OwnKeyState]) -> dict[str, tuple[Any, ...]]:
    """The other way."""
    entries = packed_entries({key: each.entry for key, each in value.items()})
    return {key: (entries[key], each.is_persisted, each.is_contested) for key, each in value.items()}


def _loss(value: Any) -> tuple[str, int]:
    originator, version = _fields(value, 2, "lost keys")
    return text(originator), integer(version)


def losses(value: Any) -> dict[str, tuple[str, int]]:
    """Key -> originator, version."""
    return _mapping(value, _loss)


#: Name of the field, what reads it, what writes it (None: as it is).
_Field: TypeAlias = tuple[str, Callable[[Any], Any], Callable[[Any], Any] | None]


def _plain(name: str, read: Callable[[Any], Any]) -> _Field:
    return name, read, None


#: Items of an array or a map: a path may have so many names, a site so many peers. What has more is not read at all.
_MOST: Final = 1024

_ID: Final = _plain("id", integer)
_AREA: Final = _plain("area", text)
_NEXT: Final = _plain("next", optional_integer)
_START: Final = _plain("start", integer)
_HISTORY: Final = _plain("history", integer)
_AFTER: Final = _plain("after", optional_integer)
_LAST: Final = _plain("last", integer)
_HOLD: Final = _plain("hold_ms", integer)
_PATTERNS: Final = _plain("patterns", texts)
_PATH: Final = _plain("path", path)
_REASON: Final = _plain("reason", integer)
_TEXT: Final = _plain("text", text)
_ENTRIES: Final[_Field] = ("entries", entries, packed_entries)
_SAID_ENTRIES: Final[_Field] = ("entries", said_entries, packed_entries)

_SHAPES: Final[dict[int, tuple[Callable[..., Message], tuple[_Field, ...]]]] = {
    1: (Hello, (
        _plain("version", integer), _plain("name", name), _plain("incarnation", integer),
        _plain("areas", names), _plain("capabilities", names), _plain("is_reply", boolean),
    )),
    2: (HelloWanted, ()),
    3: (Heartbeat, (_plain("incarnation", integer), _plain("floods", integer))),
    4: (Refusal, (_REASON, _TEXT)),
    5: (Flood, (_plain("number", integer), _AREA, _PATH, _SAID_ENTRIES)),
    6: (Leave, ()),
    16: (Get, (_ID, _AREA, _plain("keys", keys))),
    17: (GetFiltered, (
        _ID, _AREA, _PATTERNS, _plain("originators", texts), _plain("match_all", boolean),
        _plain("omit_values", boolean), _START,
    )),
    18: (GetHashes, (_ID, _AREA, _PATTERNS, _START)),
    19: (Set, (_ID, _AREA, _ENTRIES, _PATH)),
    20: (CompareRanges, (
        _ID, _AREA, _plain("level", integer), _plain("prefixes", numbers),
        _plain("sum", optional_integer),
    )),
    21: (Sync, (_ID, _AREA, _plain("ranges", ranges), ("hashes", said_hashes, packed_hashes))),
    22: (Finalize, (_ID, _AREA, _SAID_ENTRIES, _plain("is_last", boolean))),
    23: (ChangeOwnKey, (
        _ID, _AREA, _plain("action", integer), _plain("key", text), _plain("value", optional_data),
        _plain("version", optional_integer), _plain("ttl_ms", optional_integer),
    )),
    24: (Follow, (
        _ID, _AREA, ("wanted", wanted, packed_wanted), _HISTORY, _AFTER, _HOLD,
    )),
    25: (GetPeers, (_ID, _AREA, _HISTORY, _AFTER, _HOLD)),
    26: (GetSummary, (_ID,)),
    27: (GetOwnKeys, (_ID, _AREA, _START)),
    28: (ChangePeer, (_ID, _plain("url", text), _plain("is_wanted", boolean))),
    29: (GetLostKeys, (_ID, _AREA, _HISTORY, _AFTER, _HOLD)),
    32: (Found, (_ID, _ENTRIES, _NEXT)),
    33: (SetResult, (_ID, _plain("reasons", reasons))),
    34: (RangeSumsReply, (_ID, _plain("is_equal", boolean), ("sums", sums, packed_sums))),
    35: (SyncReply, (_ID, _SAID_ENTRIES, _plain("to_be_updated", keys), _NEXT)),
    36: (Failure, (_ID, _REASON, _TEXT)),
    37: (Followed, (
        _ID, _HISTORY, _LAST, _plain("is_gap", boolean), ("pieces", pieces, packed_pieces),
    )),
    38: (PeersReply, (
        _ID, _HISTORY, _LAST, ("peers", peers, packed_peers), _plain("unreached", texts),
    )),
    39: (Summary, (
        _ID, _plain("name", name), _plain("incarnation", integer), _plain("areas", counters),
    )),
    40: (OwnKeys, (_ID, ("keys", own_keys, packed_own_keys), _NEXT)),
    41: (LostKeys, (_ID, _HISTORY, _LAST, _plain("keys", losses))),
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


def _unpacked(data: bytes) -> tuple[Any, ...]:
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
    array = _unpacked(data)
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
        except FieldError as error:
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
