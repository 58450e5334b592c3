"""Entries of the KvStore, as stores, messages and clients have them: values, limits, reasons, publications.

Entries are ordered by *version*, *originator* (the site that made it) and *value*: the greatest one wins everywhere.
The *TTL version* is not part of what an entry says: whoever keeps it alive raises it; its time begins again.

Source: KvStore, "Versioning of K-V pairs", "Time-To-Live(ttl)"; facts §1, §2.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from hashlib import blake2b
from struct import Struct
from typing import Final

import attrs

from statestore_client.wire.hot_value import hot_value

#: Below this is what sites export from their state stores: ``sites/NAME/KEY``. At a site that has a bridge no client
#: writes there.
RESERVED: Final = "sites/"

#: The TTL of what never expires (the least integer of 32 bits, as Open/R has it).
INFINITE_TTL_MS: Final = -(1 << 31)

#: The greatest version, and TTL version, that a store takes. Open/R takes 2^63 - 1, which nothing can override.
MAX_VERSION: Final = 1 << 62

#: The longest TTL, some 285 years: moments and TTLs stay exact as floats.
MAX_TTL_MS: Final = 9_000_000_000_000

#: UTF-8 bytes of a key: a message of 1 MiB has room for more than a hundred such keys and their entries.
MAX_KEY_BYTES: Final = 4096
#: UTF-8 bytes of the name of a site.
MAX_ORIGINATOR_BYTES: Final = 255
#: Leaves 128 KiB of a message of 1 MiB for the key, the names of the sites that it came through, and the frame.
MAX_VALUE_BYTES: Final = (1 << 20) - (1 << 17)

_AS_INTEGER: Final = Struct(">q").unpack


class NoMergeReason(IntEnum):
    """Why an entry of a request was not merged. Up to 6 the numbers are Open/R's."""

    UNKNOWN = 0
    NO_MATCHED_KEY = 1  # Open/R's stores may have a filter; this one has none
    INVALID_TTL = 2
    OLD_VERSION = 3
    NO_NEED_TO_UPDATE = 4
    LOOP_DETECTED = 5
    INCONSISTENCY_DETECTED = 6
    INVALID_VERSION = 7  # above MAX_VERSION; of a TTL version also below 0
    INVALID_KEY = 8  # empty, longer than MAX_KEY_BYTES, or not UTF-8
    INVALID_ORIGINATOR = 9  # empty, longer than MAX_ORIGINATOR_BYTES, or not UTF-8
    VALUE_TOO_LARGE = 10
    NO_ROOM = 11  # the area holds as many keys, or bytes, as it may


@hot_value
class Value:
    """One entry: what is stored under a key."""

    version: int
    originator: str
    #: None: this is about the TTL (or the hash) of a value that the receiver has. ``b""`` is a value.
    value: bytes | None
    #: Milliseconds from 1 to MAX_TTL_MS, or INFINITE_TTL_MS.
    ttl_ms: int = INFINITE_TTL_MS
    ttl_version: int = 0
    #: ``hash_of()`` the first three. A store fills it in when it takes an entry that has a value and no hash.
    hash: int | None = None

    @property
    def is_ttl_only(self) -> bool:
        """Carries no value: refreshes the TTL of one that the receiver has."""
        return self.value is None

    def without_value(self) -> Value:
        """The same entry with its hash alone."""
        return Value(self.version, self.originator, None, self.ttl_ms, self.ttl_version, self.hash)


@attrs.frozen
class Publication:
    """A change of an area, as its subscribers see it."""

    area: str
    #: Numbers the publications of one area at one site since its start, from 1 on, with no gap.
    number: int
    #: What was taken, as it came: without a value if only the TTL has changed.
    entries: Mapping[str, Value]
    #: Keys whose time to live is over. Each site finds that out for itself; it is never sent to another one.
    expired_keys: tuple[str, ...] = ()
    #: The site that it came from directly; None if it began here.
    sender: str | None = None


def hash_of(version: int, originator: str, value: bytes) -> int:
    """BLAKE2b of 8 bytes, as a signed integer, over ``version:length of originator:originator value`` in UTF-8.

    The same on every host, and so without Python's own hash. Equal hashes of a key stand for equal entries in a full
    sync, where the values themselves are not sent.
    """
    name = originator.encode()
    data = b"%d:%d:%b%b" % (version, len(name), name, value)
    digest: int = _AS_INTEGER(blake2b(data, digest_size=8).digest())[0]
    return digest


class Comparison(Enum):
    """What :func:`compare` finds."""

    FIRST = "first"
    SECOND = "second"
    TIED = "tied"
    #: Same version and originator, and the values differ, or may, but one of them is not there.
    UNKNOWN = "unknown"


def compare(first: Value, second: Value) -> Comparison:
    """By version, originator, value, then TTL version; by hash where a value is not there.

    Originators are compared by code points, which is the order of their UTF-8 bytes; a shorter prefix is smaller.
    """
    if first.version != second.version:
        return _greater(first.version > second.version)
    if first.originator != second.originator:
        return _greater(first.originator > second.originator)
    if first.hash is not None and first.hash == second.hash:
        if first.ttl_version != second.ttl_version:
            return _greater(first.ttl_version > second.ttl_version)
        return Comparison.TIED
    if first.value is None or second.value is None:
        return Comparison.UNKNOWN
    if first.value != second.value:
        return _greater(first.value > second.value)
    return Comparison.TIED


def _greater(is_first: bool) -> Comparison:
    return Comparison.FIRST if is_first else Comparison.SECOND
