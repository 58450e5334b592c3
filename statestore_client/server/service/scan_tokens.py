"""Continuation tokens of SCAN, sealed: where the next page begins is often a key that its reader may not read.

A page ends at the last key that was looked at, whether or not it matched: who may read ``*/public`` would learn the
names of all other keys, and could put the window where it likes. So a token is encrypted and authenticated, with a
key of the store's own. It holds the place, and means something only together with what it was made for: the user and
the pattern. A token that was altered, or is another user's, another pattern's or another store's, is a syntax error.

The construction is that of SIV (RFC 5297), on what the standard library has: the tag is a keyed BLAKE2b over all that
is sealed or belongs to it, and the place is masked with SHAKE256 of another key and the tag. The moment is sealed as
well, so that no two tokens are equal, and the length of the place is rounded up: neither tells of the key in it.

The key also gives the store a name that clients may know: whoever finds another one knows that this store is not the
one that was there before, but has begun empty.

Invariant: the key is on the disk, or in the log, before the answer to any write is sent, or any token that was made
with it: after a restart or a failover a listing goes on, and the name is the same. Without a journal it ends with the
store, as the keys do.
"""

from __future__ import annotations

import struct
from hashlib import blake2b, shake_256
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, Final

import attrs

from statestore_client.errors import RequestSyntaxError
from statestore_client.server.journal import DamagedRecordError, PlainRecord, Stream, load, records_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore_client.server.journal import Journal, StoredRecords, WriteBatch

#: Of the key: one half authenticates, the other one encrypts.
TOKEN_KEY_BYTES: Final = 64
_HALF: Final = TOKEN_KEY_BYTES // 2

_TAG_BYTES: Final = 16
#: Monotonic seconds, and the length of the place.
_HEAD: Final = struct.Struct(">dI")
#: A place is padded to a multiple of this, or of the power of two from an eighth to a quarter of its length.
_BLOCK: Final = 64

_SUBJECT: Final = b"key"


@attrs.frozen
class _KeyRecord(PlainRecord):
    key: bytes = attrs.field(repr=False)


class ScanTokens:
    """Seals and opens. ``key`` has ``TOKEN_KEY_BYTES`` random bytes; an earlier life's takes its place."""

    __slots__ = ("_key", "_stream", "is_written")

    def __init__(self, key: bytes, journal: Journal | None) -> None:
        self._key = key
        self._stream = None if journal is None else journal[Stream.TOKENS]
        #: Whether the journal has the key, if there is one.
        self.is_written: bool = journal is None

    @property
    def store_id(self) -> str:
        """The name of the store: it tells nothing of the key."""
        return blake2b(b"the name of the store", digest_size=8, key=self._key[:_HALF]).hexdigest()

    def write(self) -> None:
        """Have the key written down."""
        if self._stream is not None:
            self._stream.put(_SUBJECT, _KeyRecord(self._key))
        self.is_written = True

    def seal(self, place: bytes, user: str | None, pattern: bytes, moment: float) -> bytes:
        """The token for this place, made at ``moment`` (monotonic seconds)."""
        plain = _HEAD.pack(moment, len(place)) + place
        block = max(_BLOCK, 1 << (len(plain).bit_length() - 3))
        plain += bytes(-len(plain) % block)
        tag = self._tag(plain, user, pattern)
        return tag + self._masked(plain, tag)

    def open(self, token: bytes, user: str | None, pattern: bytes) -> bytes:
        """The place. Raises RequestSyntaxError for a token that was not made for this user and pattern."""
        tag = token[:_TAG_BYTES]
        plain = self._masked(token[_TAG_BYTES:], tag)
        if len(plain) < _BLOCK or not compare_digest(tag, self._tag(plain, user, pattern)):
            raise RequestSyntaxError
        _, length = _HEAD.unpack_from(plain)
        return plain[_HEAD.size : _HEAD.size + length]

    def restore(self, storage: StoredRecords) -> None:
        """Go on with the key of an earlier life, if it has made a token. Raises DamagedRecordError."""
        self._take(load(storage, Stream.TOKENS))

    def absorb(self, batch: WriteBatch) -> None:
        """Follow another server, which wrote this batch. Raises DamagedRecordError."""
        for changes in batch.changes:
            if changes.stream is Stream.TOKENS:
                self._take(records_in(changes))

    def _take(self, rows: Iterable[tuple[Any, Any]]) -> None:
        for _, fields in rows:
            match fields:
                case (bytes() as key,) if len(key) == TOKEN_KEY_BYTES:
                    self._key, self.is_written = key, True
                case _:
                    raise DamagedRecordError("the record of the key of continuation tokens")

    def _tag(self, plain: bytes, user: str | None, pattern: bytes) -> bytes:
        made_for = repr((user, pattern)).encode("utf-8", "surrogatepass")
        hashed = blake2b(struct.pack(">I", len(made_for)), digest_size=_TAG_BYTES, key=self._key[:_HALF])
        hashed.update(made_for)
        hashed.update(plain)
        return hashed.digest()

    def _masked(self, data: bytes, tag: bytes) -> bytes:
        mask = shake_256(self._key[_HALF:] + tag).digest(len(data))
        return (int.from_bytes(data, "big") ^ int.from_bytes(mask, "big")).to_bytes(len(data), "big")
