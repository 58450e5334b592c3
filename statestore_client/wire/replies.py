"""The answers of the state store, and its notifications of changed keys: bytes <-> values.

Writing differs by dialect; reading accepts what either of them, or a server written from the document, sends:

======================  ==========================  ======================================
reply                   real service                published document
======================  ==========================  ======================================
:class:`Ok`             ``+OK``                     the same
:class:`NotApplied`     ``:-1``                     ``-1``
:class:`NotFound`        ``$-1``                     the same
:class:`Found`          ``$4 1234``                 the same
:class:`Count`          ``:1``                      the same
:class:`ErrorReply`        ``-ERR text`` and CRLF      ``-ERR text`` without CRLF; to
                                                    KEYNOTIFY ``-ERR: text`` and CRLF
:class:`Keys`           ``*2 *1 $3 key $5 token``   has no SCAN
:class:`Entries`        ``*3 $7 ENTRIES *1 $9 …``   the same; only of this package's server, and if asked for
======================  ==========================  ======================================

The document's word for a deleted key in a notification is ``DEL``, the real service sends ``DELETE``; both are read.

Source: state store protocol, "Response format" to "-ERR responses", "KEYNOTIFY response message", "KEYNOTIFY
notification message format".
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias

import attrs

from statestore_client import errors
from statestore_client.errors import FencingTokenTooOldError, Resp3Error, ServerError, TimestampError
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.hot_value import hot_value
from statestore_client.wire.protocol import Dialect
from statestore_client.wire.resp3 import (
    ErrorString,
    Limits,
    SimpleString,
    Value,
    cut_blob,
    cut_large_blob,
    decode,
    encode,
    encode_array,
    encode_blob,
    encode_error,
    split_blobs,
)


@attrs.frozen
class Ok:
    """SET or KEYNOTIFY done."""


@attrs.frozen
class NotApplied:
    """The condition of SET NX, SET NEX or VDEL does not hold. Nothing changed; this is not an error."""


@attrs.frozen
class NotFound:
    """GET of a key that does not exist."""


@attrs.frozen
class Found:
    """GET of a key that exists. Its value may be empty."""

    value: bytes = attrs.field(repr=False)


@attrs.frozen
class Count:
    """How many keys DEL or VDEL deleted; 0 to KEYNOTIFY STOP of a key that was not observed."""

    count: int


@attrs.frozen
class Keys:
    """One page of SCAN. It may be empty and have a successor: only ``token`` None means the end."""

    keys: tuple[bytes, ...]
    token: bytes | None = None


@hot_value
class KeyEntry:
    """All that is known of one key. ``expiry_ms`` is the time that is left, None for ever; ``fence`` the newest token
    that it was written with; ``observers`` the number of clients that are told of its changes.
    """

    key: bytes
    value: bytes = attrs.field(repr=False)
    version: HlcTimestamp
    expiry_ms: int | None = None
    fence: HlcTimestamp | None = None
    observers: int = 0


@attrs.frozen
class Entries:
    """One page of a SCAN that asked for entries, as :class:`Keys`, but in byte order, and with keys that are not UTF-8
    if the pattern is a prefix and a star.
    """

    entries: tuple[KeyEntry, ...]
    token: bytes | None = None


@attrs.frozen
class ErrorReply:
    """The command was not applied; the error says why."""

    error: ServerError


Reply: TypeAlias = Ok | NotApplied | NotFound | Found | Count | Keys | Entries | ErrorReply

OK: Final = Ok()
NOT_APPLIED: Final = NotApplied()
MISSING: Final = NotFound()
COUNT_0: Final = Count(0)
COUNT_1: Final = Count(1)

#: What a page of entries begins with; one of keys begins with an array.
_ENTRIES: Final = b"ENTRIES"
_TOO_OLD_IN_DOCUMENT: Final = FencingTokenTooOldError.wire_text.replace("version than", "version that")
_REFUSALS: Final[dict[str, type[ServerError]]] = {
    **{
        kind.wire_text: kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, ServerError) and kind.wire_text
    },
    _TOO_OLD_IN_DOCUMENT: FencingTokenTooOldError,
}


# -- writing -----------------------------------------------------------------------------------------------------------


def encode_reply(reply: Reply, dialect: Dialect = Dialect.SERVICE, *, to_key_notify: bool = False) -> bytes:
    """The payload of the response. ``to_key_notify``: the document writes refusals of KEYNOTIFY in another way."""
    match reply:
        case Ok():
            return b"+OK\r\n"
        case Found(value=value):
            return encode_blob(value)
        case NotFound():
            return b"$-1\r\n"
        case Count(count=count):
            return b":%d\r\n" % count
        case NotApplied():
            return b":-1\r\n" if dialect is Dialect.SERVICE else b"-1\r\n"
        case Keys(keys=keys, token=token):
            return encode((keys,) if token is None else (keys, token))
        case Entries(entries=entries, token=token):
            blobs = encode_array([_encode_entry(entry) for entry in entries])
            parts = (b"*%d\r\n" % (2 if token is None else 3), encode_blob(_ENTRIES), blobs)
            return b"".join(parts if token is None else (*parts, encode_blob(token)))
        case ErrorReply(error=error):
            return _encode_refusal(error, dialect, to_key_notify)


def _encode_entry(entry: KeyEntry) -> bytes:
    """A blob of its own, in which an array of blobs is, as those are split fast: key, value, version, milliseconds that
    are left of its time (empty: no end), fence (empty: none), observers.
    """
    expiry = b"" if entry.expiry_ms is None else b"%d" % entry.expiry_ms
    fence = b"" if entry.fence is None else str(entry.fence).encode()
    return encode_array((entry.key, entry.value, str(entry.version).encode(), expiry, fence, b"%d" % entry.observers))


def _encode_refusal(error: ServerError, dialect: Dialect, to_key_notify: bool) -> bytes:
    if dialect is Dialect.SERVICE:
        return encode_error(f"ERR {error.message}")
    text = error.message
    if text == FencingTokenTooOldError.wire_text:
        text = _TOO_OLD_IN_DOCUMENT  # its misspelling is what a client written from the document compares with
    if to_key_notify:
        return encode_error(f"ERR: {text}")
    return encode_error(f"ERR {text}").removesuffix(b"\r\n")


# -- reading -----------------------------------------------------------------------------------------------------------

_FIXED: Final[dict[bytes, Reply]] = {
    b"+OK\r\n": OK,
    b":1\r\n": COUNT_1,
    b":0\r\n": COUNT_0,
    b":-1\r\n": NOT_APPLIED,
    b"-1\r\n": NOT_APPLIED,  # before it is read as the RESP3 error "1"
    b"-1": NOT_APPLIED,
    b"$-1\r\n": MISSING,
    b"_\r\n": MISSING,
}
_LONGEST_FIXED: Final = max(map(len, _FIXED))


def decode_reply(payload: bytes | memoryview) -> Reply:
    """Read the payload of a response, in either dialect.

    What a reply means depends on the command: to a SET, ``Missing`` is one more way to say "not applied".
    Raises Resp3Error for what is malformed and for what no command is answered with.
    """
    if isinstance(payload, memoryview):
        large = cut_large_blob(payload)
        return decode_reply(bytes(payload)) if large is None else Found(large)
    if len(payload) <= _LONGEST_FIXED:  # looking up a megabyte would read all of it
        reply = _FIXED.get(payload)
        if reply is not None:
            return reply
    blob = cut_blob(payload)
    if blob is not None:
        return Found(blob)
    value = _decode_with_or_without_crlf(payload)
    match value:
        case bytes():
            return Found(value)
        case ErrorString(text=text):
            return ErrorReply(_refusal(text))
        case SimpleString(text="OK"):
            return OK
        case int() if value >= 0:
            return Count(value)
        case -1:
            return NOT_APPLIED
        case None if not payload.startswith(b"*"):
            return MISSING
        case tuple():
            return _page(value)
    raise Resp3Error("this is not a reply of a state store", offset=0)


def _decode_with_or_without_crlf(payload: bytes) -> Value:
    """The document's examples leave out the last CRLF here and there."""
    try:
        return decode(payload)
    except Resp3Error:
        if not payload or payload.startswith(b"*") or payload.endswith(b"\r\n"):
            raise
    return decode(payload + b"\r\n")


def _refusal(text: str) -> ServerError:
    """``ERR text``, ``ERR: text``, or an unknown word in place of ERR, which is kept."""
    word, _, rest = text.partition(" ")
    text = rest.strip() if word in ("ERR", "ERR:") else text
    return _REFUSALS.get(text, errors.UnknownServerError)(text)


def _page(value: tuple[Value, ...]) -> Keys | Entries:
    if value[:1] == (_ENTRIES,):
        return _page_of_entries(value)
    if not 1 <= len(value) <= 2:
        raise Resp3Error("a SCAN page has one or two elements", offset=0)
    keys, token = value[0], value[1] if len(value) == 2 else None
    if not isinstance(keys, tuple) or (len(value) == 2 and not isinstance(token, bytes)):
        raise Resp3Error("a SCAN page is an array of keys and a token", offset=0)
    names = tuple(key for key in keys if isinstance(key, bytes))
    if len(names) != len(keys):
        raise Resp3Error("a key in a SCAN page is not a blob", offset=0)
    return Keys(names, token if isinstance(token, bytes) else None)


def _page_of_entries(value: tuple[Value, ...]) -> Entries:
    match value:
        case (_, tuple() as blobs):
            return Entries(tuple(map(_entry, blobs)))
        case (_, tuple() as blobs, bytes() as token):
            return Entries(tuple(map(_entry, blobs)), token)
    raise Resp3Error("a SCAN page of entries is an array of them and a token", offset=0)


_WORDS_OF_ENTRY: Final = Limits(max_items=6, max_depth=1)


def _entry(blob: Value) -> KeyEntry:
    match (split_blobs(blob) or decode(blob, limits=_WORDS_OF_ENTRY)) if isinstance(blob, bytes) else blob:
        case (
            bytes() as key,
            bytes() as data,
            bytes() as version,
            bytes() as expiry,
            bytes() as fence,
            bytes() as seen,
        ):
            try:
                expiry_ms = int(expiry) if expiry else None
                mark = HlcTimestamp.parse(fence.decode()) if fence else None
                return KeyEntry(key, data, HlcTimestamp.parse(version.decode()), expiry_ms, mark, int(seen))
            except (ValueError, TimestampError) as error:
                raise Resp3Error(f"an entry in a SCAN page cannot be read: {error}", offset=0) from None
    raise Resp3Error("an entry in a SCAN page is not six blobs", offset=0)


class Operation(StrEnum):
    """What happened to the key."""

    SET = "SET"
    DELETE = "DELETE"  # by DEL, VDEL, or because it expired


@hot_value
class Notification:
    """``value`` is what the key was set to; None after a deletion, and when a server leaves it out: the document sends
    it to those only who asked with ``KEYNOTIFY key GET``."""

    operation: Operation
    value: bytes | None = attrs.field(default=None, repr=False)


_DELETED: Final = Notification(Operation.DELETE)
_DELETE_PAYLOAD: Final = {
    Dialect.SERVICE: b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n",
    Dialect.DOCUMENT: b"*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n",
}


def encode_notification(notification: Notification, dialect: Dialect = Dialect.SERVICE) -> bytes:
    """The payload of the message."""
    if notification.operation is Operation.DELETE:
        return _DELETE_PAYLOAD[dialect]
    value = notification.value
    if value is None:
        return encode_array((b"NOTIFY", b"SET"))
    return b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$%d\r\n%b\r\n" % (len(value), value)


_WORDS: Final = Limits(max_items=4, max_depth=1)


def decode_notification(payload: bytes) -> Notification:
    """Read the payload of a message on a notification topic. Raises Resp3Error."""
    match split_blobs(payload) or decode(payload, limits=_WORDS):
        case (b"NOTIFY", b"SET", b"VALUE", bytes() as value):
            return Notification(Operation.SET, value)
        case (b"NOTIFY", b"SET"):
            return Notification(Operation.SET)
        case (b"NOTIFY", b"DELETE" | b"DEL"):
            return _DELETED
    raise Resp3Error("this is not a notification of a state store", offset=0)
