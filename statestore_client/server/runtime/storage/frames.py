"""Frames: how bytes stand in a file so that each bit of them is checked.

A frame is a header of 16 bytes (number, length, checksum of the content, checksum of the header; 32 bits each,
big-endian) and the content. Numbers count from 0 in each file. The checksum of the header begins with the *seed* of the
file: a frame of another file, or one at another place of this file, is none here. CRC-32 finds every single changed
bit, and every run of up to 32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import attrs
import msgpack

from statestore_client.server.journal import DamagedRecordError

if TYPE_CHECKING:
    from statestore_client.server.runtime.storage.filesystem import File

__all__ = ["Frame", "FrameReader", "frame", "has_successor", "pack", "read_frames", "sound_frames", "unpack"]

_HEADER: Final = struct.Struct(">4I")
_CHECKED_BYTES: Final = 12  # of a header

_CHUNK_BYTES: Final = 256 * 1024

#: How many frames in a row may be broken, to find one behind them.
_MOST_BROKEN: Final = 100

pack: Final = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def unpack(content: bytes) -> Any:
    """Sequences as tuples. Raises DamagedRecordError."""
    try:
        return msgpack.unpackb(content, use_list=False)
    except (ValueError, msgpack.UnpackException) as error:  # written by another program
        raise DamagedRecordError(f"not MessagePack: {error!r}") from error


def frame(seed: int, number: int, content: bytes) -> bytes:
    """The bytes of one frame."""
    checked = struct.pack(">3I", number, len(content), crc32(content))
    return b"".join((checked, crc32(checked, seed).to_bytes(4, "big"), content))


@attrs.frozen
class Frame:
    """One that was read, and where it ends in its file."""

    number: int
    content: bytes
    end: int

    @property
    def start(self) -> int:
        """Of its header."""
        return self.end - len(self.content) - _HEADER.size


class FrameReader:
    """Reads a file from an offset on, many bytes at a time."""

    def __init__(self, file: File, offset: int) -> None:
        self._file = file
        self._next = offset
        self._chunk = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        """Fewer bytes at the end of the file only."""
        data = self._chunk[self._at : self._at + count]
        self._at += len(data)
        if len(data) == count:
            return data
        self._chunk = self._file.read(max(count - len(data), _CHUNK_BYTES), self._next)
        self._next += len(self._chunk)
        more = self._chunk[: count - len(data)]
        self._at = len(more)
        return data + more


def read_frames(file: File, offset: int, seed: int, number: int) -> Iterator[Frame]:
    """From this offset and number on, up to the first that is none."""
    reader, size = FrameReader(file, offset), file.size
    while (length := _length(header := reader.take(_HEADER.size), seed, number)) is not None:
        if offset + _HEADER.size + length > size:
            return
        content = reader.take(length)
        if len(content) < length or crc32(content) != _HEADER.unpack(header)[2]:
            return
        offset += _HEADER.size + length
        yield Frame(number, content, offset)
        number += 1


def sound_frames(file: File, offset: int, seed: int, number: int) -> Iterator[Frame]:
    """The same, and those behind others that are broken."""
    while True:
        for each in read_frames(file, offset, seed, number):
            yield each
            offset, number = each.end, each.number + 1
        found = _next_header(file.read(max(file.size - offset, 0), offset), seed, number)
        if found is None:
            return
        offset, number = offset + found[0], found[1]


def _next_header(data: bytes, seed: int, number: int) -> tuple[int, int] | None:
    """Behind a broken frame of this number: where it is, and its number."""
    for wanted in range(number + 1, number + _MOST_BROKEN):
        at = data.find(wanted.to_bytes(4, "big"), 1)
        while at >= 0:
            if _length(data[at : at + _HEADER.size], seed, wanted) is not None:
                return at, wanted
            at = data.find(wanted.to_bytes(4, "big"), at + 1)
    return None


def has_successor(file: File, offset: int, seed: int, number: int) -> bool:
    """Whether anything was written behind the frame of this number, which is broken and begins at this offset.

    A frame is on the disk before the next one is written: what a crash breaks is the last.
    """
    rest = file.read(max(file.size - offset, 0), offset)
    length = _length(rest[: _HEADER.size], seed, number)
    if length is not None:
        return len(rest) > _HEADER.size + length
    return _next_header(rest, seed, number) is not None


def _length(header: bytes, seed: int, number: int) -> int | None:
    """Of the content; None if this is not a header with this number."""
    if len(header) < _HEADER.size:
        return None
    found, length, _, checksum = _HEADER.unpack(header)
    is_sound = found == number and crc32(header[:_CHECKED_BYTES], seed) == checksum
    return length if is_sound else None
