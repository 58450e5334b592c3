"""Records as bytes: a checksum, then MessagePack. And moments: what is monotonic here is a wall clock on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import attrs
import msgpack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore_client.wire.instant import Instant

__all__ = ["DamagedRecordError", "WallClock", "seal", "unseal"]

_CHECKSUM_BYTES: Final = 4

_pack: Final = msgpack.Packer(use_bin_type=True, autoreset=True).pack


class DamagedRecordError(Exception):
    """The bytes are not those that were written."""


@attrs.frozen
class WallClock:
    """Converts deadlines between this process's monotonic clock and the wall clock, as they stand at one moment."""

    ahead_ms: float

    @classmethod
    def at(cls, now: Instant) -> WallClock:
        return cls(now.wall_ms - now.monotonic * 1000)

    def wall_ms(self, monotonic: float | None) -> int | None:
        """Milliseconds since the Unix epoch; None stays None."""
        return None if monotonic is None else round(monotonic * 1000 + self.ahead_ms)

    def monotonic(self, wall_ms: int | None) -> float | None:
        """The opposite: in this process, perhaps before its beginning."""
        return None if wall_ms is None else (wall_ms - self.ahead_ms) / 1000


def seal(fields: Sequence[object]) -> bytes:
    """Numbers, texts, bytes, None, and sequences of them."""
    packed: bytes = _pack(fields)
    return crc32(packed).to_bytes(_CHECKSUM_BYTES, "big") + packed


def unseal(data: bytes) -> Any:
    """The fields, sequences as tuples. Raises DamagedRecordError."""
    packed = data[_CHECKSUM_BYTES:]
    if crc32(packed) != int.from_bytes(data[:_CHECKSUM_BYTES], "big"):
        raise DamagedRecordError("the checksum is wrong")
    try:
        return msgpack.unpackb(packed, use_list=False)
    except (ValueError, msgpack.UnpackException) as error:  # sealed by another program
        raise DamagedRecordError(f"no MessagePack: {error}") from error
