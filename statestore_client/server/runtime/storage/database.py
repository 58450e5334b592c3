"""``statestore.db``: all records as they once were, and how far the log has come that belongs to them.

::

    0      "statestore data\\n", then a frame: format, identity, generation, whether its log is still to be made
    1024   a mark: generation and number of the last frame of the log that is known to be on the disk, and its checksum
    2048   another mark; they are written in turns, so that a torn one leaves the one before it
    4096   frames: the name of a stream, then subjects and records in turns; the last one: how many records there are

Records never change here: the file is written as a whole, under another name, and takes the place of its predecessor.
Only the marks are written while it is in use: after each batch, without waiting for the disk. A killed process leaves
them exact; a power failure may leave older ones.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import attrs

from statestore_client.errors import DataFormatError
from statestore_client.server.journal import DamagedRecordError, Stream
from statestore_client.server.runtime.storage.frames import frame, pack, read_frames, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.server.journal import Subject
    from statestore_client.server.runtime.storage.filesystem import File
    from statestore_client.server.runtime.storage.frames import Frame

__all__ = [
    "FORMAT_VERSION",
    "FRAME_BYTES",
    "Database",
    "DatabaseWriter",
    "Head",
    "LogMark",
    "head_bytes",
    "read_head",
]

#: Of the files and of the records in them. A release that changes either adds one, and reads the older ones. (1 and 2
#: were sqlite databases of development versions.)
FORMAT_VERSION: Final = 3

#: Content of a frame with records, roughly: what is done at a time when the file is written anew.
FRAME_BYTES: Final = 64 * 1024

DATABASE_MAGIC: Final = b"statestore data\n"
_MARKS: Final = (1024, 2048)  # in sectors of their own
DATABASE_START: Final = 4096

_MARK: Final = struct.Struct(">2Q")
_MARK_BYTES: Final = _MARK.size + 4

#: So much is written before the disk is told to keep it: a fsync of everything at once would hold up the next batch.
_SYNC_BYTES: Final = 1024 * 1024


@attrs.frozen
class Head:
    """What the files of a directory have in common, and what tells them from others."""

    identity: bytes
    generation: int
    is_new: bool = False  # no log was made yet, and nothing acknowledged

    def seed(self, kind: bytes) -> int:
        """Of the frames in the database, or in the log of this generation."""
        return crc32(kind + self.identity + self.generation.to_bytes(8, "big"))


def head_bytes(magic: bytes, head: Head) -> bytes:
    """The beginning of a file."""
    return magic + frame(0, 0, pack((FORMAT_VERSION, head.identity, head.generation, head.is_new)))


def read_head(file: File, magic: bytes) -> tuple[Head, int]:
    """And where it ends. Raises DamagedRecordError, DataFormatError."""
    if file.read(len(magic), 0) != magic:
        raise DamagedRecordError("it does not begin as it should")
    first = next(read_frames(file, len(magic), 0, 0), None)
    if first is None:
        raise DamagedRecordError("its head is broken")
    version, *fields = unpack(first.content)
    if version > FORMAT_VERSION:
        raise DataFormatError(
            f"written by a newer release (format {version}, this one reads up to {FORMAT_VERSION}). "
            "Use that release or a newer one."
        )
    return Head(*fields), first.end


@attrs.frozen(order=True)
class LogMark:
    """A place in the logs: that frame is on the disk."""

    generation: int
    frames: int

    def to_bytes(self, seed: int) -> bytes:
        packed = _MARK.pack(self.generation, self.frames)
        return packed + crc32(packed, seed).to_bytes(4, "big")


def _read_mark(data: bytes, seed: int) -> LogMark | None:
    packed = data[: _MARK.size]
    is_sound = len(data) == _MARK_BYTES and crc32(packed, seed).to_bytes(4, "big") == data[_MARK.size :]
    return LogMark(*_MARK.unpack(packed)) if is_sound else None


@attrs.define(eq=False)
class FrameLayout:
    """Where the records of each stream are: offsets and numbers of frames. How many there are, and where they end."""

    frames: dict[str, list[tuple[int, int]]] = attrs.Factory(lambda: defaultdict(list))
    records: int = 0
    end: int = DATABASE_START

    def add(self, stream: str, records: int, number: int, end: int) -> None:
        self.frames[stream].append((self.end, number))
        self.records += records
        self.end = end


class Database:
    """One that is there. What is in it is checked when it is opened, and again when it is read."""

    def __init__(self, file: File, layout: FrameLayout | None = None) -> None:
        """``layout``: of one that was just written. Raises DamagedRecordError, DataFormatError, OSError."""
        self.file = file
        self.head: Head
        self.head, _ = read_head(file, DATABASE_MAGIC)
        self._seed = self.head.seed(b"database")
        self.mark: LogMark = self._newest_mark()
        self._layout = layout or self._look_through()
        self._next_mark = 0

    @property
    def records(self) -> int:
        """How many there are."""
        return self._layout.records

    @property
    def size(self) -> int:
        """How long the file is."""
        return self._layout.end

    def _newest_mark(self) -> LogMark:
        found = [_read_mark(self.file.read(_MARK_BYTES, offset), self._seed) for offset in _MARKS]
        sound = [mark for mark in found if mark is not None]
        if not sound:
            raise DamagedRecordError("both marks that say how far its log has come are broken")
        return max(sound)

    def _look_through(self) -> FrameLayout:
        layout, number = FrameLayout(), 0
        for each in read_frames(self.file, DATABASE_START, self._seed, 1):
            stream, content = unpack(each.content)
            if stream is None:
                if layout.records == content and each.end == self.file.size:
                    return layout
                break
            layout.add(stream, len(content) // 2, each.number, each.end)
            number = each.number
        raise DamagedRecordError(f"it is broken or cut off at byte {layout.end}, after frame {number}")

    def note(self, mark: LogMark) -> None:
        """The log has come so far."""
        self.file.write(mark.to_bytes(self._seed), _MARKS[self._next_mark])
        self._next_mark ^= 1
        self.mark = mark

    def load(self, stream: Stream) -> Iterator[tuple[Subject, bytes]]:
        """The records of one stream."""
        for offset, number in self._layout.frames.get(stream.value, ()):
            _, flat = unpack(self._frame(offset, number).content)
            yield from zip(flat[::2], flat[1::2], strict=True)

    def frames(self) -> Iterator[tuple[bytes, Stream, tuple[Any, ...]]]:
        """All that has records: the content as it is, and what it means."""
        for name, positions in self._layout.frames.items():
            for offset, number in positions:
                content = self._frame(offset, number).content
                yield content, Stream(name), unpack(content)[1]

    def _frame(self, offset: int, number: int) -> Frame:
        found = next(read_frames(self.file, offset, self._seed, number), None)
        if found is None:
            raise DamagedRecordError(f"the database changed while it was in use: frame {number} is broken")
        return found


class DatabaseWriter:
    """Writes a new one. It counts when its file has got its name, which is the caller's business."""

    def __init__(self, file: File, head: Head) -> None:
        self._file = file
        self._head = head
        self._seed = head.seed(b"database")
        self._number = 1
        self._synced = DATABASE_START
        self.layout: FrameLayout = FrameLayout()
        self._parts: dict[Stream, list[object]] = defaultdict(list)
        self._sizes: dict[Stream, int] = defaultdict(int)

    def put(self, stream: Stream, subject: Subject, data: bytes) -> None:
        """One record."""
        self._parts[stream] += (subject, data)
        self._sizes[stream] += len(data) + (len(subject) if isinstance(subject, (str, bytes)) else 8)
        if self._sizes[stream] >= FRAME_BYTES:
            self._flush(stream)

    def put_frame(self, stream: Stream, content: bytes, records: int) -> None:
        """The content of a frame of another database, which has not changed."""
        self._append(content, stream.value, records)

    def finish(self, mark: LogMark) -> None:
        """It is whole, and on the disk."""
        for stream in list(self._parts):
            self._flush(stream)
        self._append(pack((None, self.layout.records)))
        head = bytearray(DATABASE_START)
        first = head_bytes(DATABASE_MAGIC, self._head)
        head[: len(first)] = first
        for offset in _MARKS:
            head[offset : offset + _MARK_BYTES] = mark.to_bytes(self._seed)
        self._file.write(bytes(head), 0)
        self._file.sync()

    def _flush(self, stream: Stream) -> None:
        parts = self._parts.pop(stream, None)
        self._sizes.pop(stream, None)
        if parts:
            self._append(pack((stream.value, parts)), stream.value, len(parts) // 2)

    def _append(self, content: bytes, stream: str | None = None, records: int = 0) -> None:
        data = frame(self._seed, self._number, content)
        at = self.layout.end
        self._file.write(data, at)
        if stream is not None:
            self.layout.add(stream, records, self._number, at + len(data))
        self._number += 1
        if at + len(data) - self._synced >= _SYNC_BYTES:
            self._file.sync()
            self._synced = at + len(data)
