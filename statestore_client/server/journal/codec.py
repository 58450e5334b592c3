"""Records as bytes: a checksum, then MessagePack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgpack

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DamagedRecordError", "seal", "unseal"]

_CHECKSUM_BYTES: Final = 4

_pack: Final = msgpack.Packer(use_bin_type=True, autoreset=True).pack


class DamagedRecordError(Exception):
    """The bytes are not those that were written."""


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
