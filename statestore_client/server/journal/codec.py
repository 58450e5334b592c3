"""Records as bytes: a checksum, then MessagePack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgpack

from statestore_client.server.journal.streams import ALL_STREAMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore_client.server.journal.streams import Stream, Subject

__all__ = ["DamagedRecordError", "seal", "unseal"]

_CHECKSUM_BYTES: Final = 4

_STREAMS: Final = {stream: crc32(stream.value.encode()) for stream in ALL_STREAMS}

_pack: Final = msgpack.Packer(use_bin_type=True, autoreset=True).pack


class DamagedRecordError(Exception):
    """The bytes are not those that were written."""


def seal(stream: Stream, subject: Subject, fields: Sequence[object]) -> bytes:
    """Numbers, texts, bytes, None, and sequences of them. The checksum is also over the stream and the subject: under
    another name the record means something else.
    """
    packed: bytes = _pack(fields)
    return crc32(packed, _seed(stream, subject)).to_bytes(_CHECKSUM_BYTES, "big") + packed


def unseal(stream: Stream, subject: Subject, data: bytes) -> Any:
    """The fields, sequences as tuples. Raises DamagedRecordError."""
    packed = data[_CHECKSUM_BYTES:]
    if crc32(packed, _seed(stream, subject)) != int.from_bytes(data[:_CHECKSUM_BYTES], "big"):
        raise DamagedRecordError("the checksum is wrong")
    try:
        return msgpack.unpackb(packed, use_list=False)
    except (ValueError, msgpack.UnpackException) as error:  # sealed by another program
        raise DamagedRecordError(f"not MessagePack: {error}") from error


def _seed(stream: Stream, subject: Subject) -> int:
    """Packed, a text, the same as bytes, and a number differ."""
    return crc32(_pack(subject), _STREAMS[stream])
