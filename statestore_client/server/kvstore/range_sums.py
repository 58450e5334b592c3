"""Sums over the hashes of a store's entries, for the whole and for ranges of positions, kept as entries change.

======  ==============  ===========================================================================================
level   ranges          how their sums are had
======  ==============  ===========================================================================================
0       1               kept
8       256             added up, from 16 of the next level: positions that begin with the same 8 bits
12      4,096           kept
16      65,536          added up, from the hashes of the entries in each range, which are kept
======  ==============  ===========================================================================================

Two stores with equal sums have equal entries, but for one chance in 2^64. A change costs two additions. What is added
up is asked for rarely, and little of it at once: with a million keys that takes half a millisecond. Zero is the sum of
an empty range.

Source: ``docs/decisions/0045-the-wire-between-sites.md``.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from statestore_client.wire.kvstore.messages import MAX_POSITION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from statestore_client.wire.kvstore.value import Value

__all__ = ["LEVELS", "LOWEST", "RangeSums", "level_below", "position", "positions_of"]

#: Bits of each level, the whole first. Part of the protocol.
LEVELS: Final = (0, 8, 12, 16)
LOWEST: Final = LEVELS[-1]
_BUCKETS: Final = 16
#: The level whose sums are kept.
_KEPT_LEVEL: Final = 12
#: Numbers of buckets that differ in these bits only have one integer that notes which of them are there.
_GROUP: Final = 8
_IN_GROUP: Final = (1 << _GROUP) - 1

# Odd constants, so that each multiplication is a permutation of the 64-bit numbers. Part of the protocol.
_MIX_HASH: Final = 0x9E3779B97F4A7C15
_MIX_TTL_VERSION: Final = 0xC2B2AE3D27D4EB4F
_MIX_END: Final = 0xFF51AFD7ED558CCD


def position(key: str) -> int:
    """Where a key stands, 0 to 2^64 - 1; the same at every site."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")


def entry_hash(at: int, entry: Value) -> int:
    """A number of 64 bits that differs if the position, version, originator, value or TTL version does.

    Raises ValueError for an entry that was never stored: the store gives each one its hash.
    """
    if entry.hash is None:
        raise ValueError("an entry without a hash is not in any store")
    mixed = at ^ (entry.hash * _MIX_HASH & MAX_POSITION) ^ (entry.ttl_version * _MIX_TTL_VERSION & MAX_POSITION)
    mixed = (mixed ^ mixed >> 33) * _MIX_END & MAX_POSITION
    return mixed ^ mixed >> 29


def level_below(level: int) -> int:
    """The next finer level. Raises ValueError for the finest and for what is not a level."""
    if level not in LEVELS[:-1]:
        raise ValueError(f"there are no ranges below level {level}")
    return LEVELS[LEVELS.index(level) + 1]


def positions_of(level: int, prefix: int) -> tuple[int, int]:
    """First and last position of a range."""
    shift = 64 - level
    return prefix << shift, (prefix + 1 << shift) - 1


class RangeSums:
    """The sums of one area's store."""

    __slots__ = ("_buckets", "_count", "_groups", "_sums", "total")

    def __init__(self) -> None:
        #: Of all entries.
        self.total: int = 0
        self._sums = [0] * (1 << _KEPT_LEVEL)
        self._buckets: dict[int, dict[str, int]] = {}
        #: A bit for each bucket that is there: the next one is found without a look at each number in between.
        self._groups = [0] * (1 << _BUCKETS - _GROUP)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def change(self, key: str, entry: Value | None) -> None:
        """The store has this entry for the key from now on; None: it has none."""
        at = position(key)
        number = at >> 64 - _BUCKETS
        bucket = self._buckets.get(number)
        old = bucket.get(key) if bucket else None
        if entry is None:
            if bucket is None or old is None:
                return
            new = 0
            del bucket[key]
            self._count -= 1
            if not bucket:
                del self._buckets[number]
                self._groups[number >> _GROUP] ^= 1 << (number & _IN_GROUP)
        else:
            new = entry_hash(at, entry)
            if bucket is None:
                bucket = self._buckets[number] = {}
                self._groups[number >> _GROUP] ^= 1 << (number & _IN_GROUP)
            bucket[key] = new
            self._count += old is None
        difference = new - (old or 0)
        self.total = self.total + difference & MAX_POSITION
        kept = at >> 64 - _KEPT_LEVEL
        self._sums[kept] = self._sums[kept] + difference & MAX_POSITION

    def sums_below(self, level: int, prefixes: Iterable[int]) -> tuple[int, ...]:
        """For each range the sums of the ranges of the next level in it. Raises ValueError for what does not exist."""
        below = level_below(level)
        width = below - level
        found: list[int] = []
        for prefix in prefixes:
            if prefix >> level:
                raise ValueError(f"there is no range {prefix} at level {level}")
            found.extend(self._sums_of(below, prefix << width, prefix + 1 << width))
        return tuple(found)

    def _sums_of(self, level: int, first: int, end: int) -> Iterable[int]:
        """Of the ranges of a level from ``first`` on."""
        if level == _KEPT_LEVEL:
            return self._sums[first:end]
        if level < _KEPT_LEVEL:
            width = 1 << _KEPT_LEVEL - level
            parts = self._sums[first * width : end * width]
            return [sum(parts[at : at + width]) & MAX_POSITION for at in range(0, len(parts), width)]
        buckets = map(self._buckets.get, range(first, end))
        return [sum(bucket.values()) & MAX_POSITION if bucket else 0 for bucket in buckets]

    def keys_in(self, first: int, last: int) -> Iterator[tuple[int, str]]:
        """Position and key of all that stands from ``first`` to ``last``, both included, in the order of positions.

        Take what is needed of it before anything changes.
        """
        shift = 64 - _BUCKETS
        for number in self._buckets_in(first >> shift, last >> shift):
            placed = sorted((position(key), key) for key in self._buckets[number])
            yield from (pair for pair in placed if first <= pair[0] <= last)

    def _buckets_in(self, first: int, last: int) -> Iterator[int]:
        """Those that are there, in the order of their numbers."""
        skipped = first & _IN_GROUP
        for group in range(first >> _GROUP, (last >> _GROUP) + 1):
            bits = self._groups[group] >> skipped << skipped
            skipped = 0
            while bits:
                lowest = bits & -bits
                bits ^= lowest
                number = (group << _GROUP) + lowest.bit_length() - 1
                if number > last:
                    return
                yield number
