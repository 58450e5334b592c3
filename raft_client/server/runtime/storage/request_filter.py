"""Whether a segment may have a request id, without a look at its index on the disk.

Clients that repeat what they append give many entries ids of one and the same second, and each segment that has ids of
that second is asked for each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

_BITS_PER_ID: Final = 8


class RequestFilter:
    """A Bloom filter with two hashes and 8 to 16 bits for each id: of ids that are not there, 1 to 5 % may be.

    For this process only: Python's hashes differ from one to the next, so that nobody can choose ids that collide.
    """

    __slots__ = ("_bytes", "_mask")

    def __init__(self, ids: Collection[bytes]) -> None:
        size = 1 << (_BITS_PER_ID * len(ids) // 8).bit_length()
        self._mask = mask = size - 1
        self._bytes = data = bytearray(size)
        for raw in ids:
            value = hash(raw)
            data[value >> 3 & mask] |= 1 << (value & 7)
            data[value >> 35 & mask] |= 1 << (value >> 32 & 7)

    def may_have(self, raw: bytes) -> bool:
        """False for most ids that are not there, and for none that is."""
        value, data, mask = hash(raw), self._bytes, self._mask
        return bool(data[value >> 3 & mask] >> (value & 7) & data[value >> 35 & mask] >> (value >> 32 & 7) & 1)
