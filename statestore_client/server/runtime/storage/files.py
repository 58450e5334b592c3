"""The two files of a data directory, byte by byte: the database and its log, both made of frames.

A frame holds bytes in a file so that each bit of them is checked.

A frame is a header of 16 bytes (number, length, checksum of the content, checksum of the header; 32 bits each,
big-endian) and the content. Numbers count from 0 in each file. The checksum of the header begins with the *seed* of the
file: a frame of another file, or one at another place of this file, is none here. CRC-32 finds every single changed
bit, and every run of up to 32.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import attrs
import msgpack

from statestore_client.errors import DataFormatError
from statestore_client.server.journal import DamagedRecordError, Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raft_client._common.durable_files import File, Folder
    from statestore_client.server.journal import Subject, WriteBatch

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


# -- contents ----------------------------------------------------------------------------------------------------------
#
# What is in a folder of the store: which files there are, which belong together, and whether anything is lost.
#
# What is there is checked before anything is changed. A database names the log that must be there, and marks how far
# the logs had come: fewer frames than that are a loss, and refused. What is broken at the end of the last log, with
# nothing behind it and no mark for it, is what a crash left of a batch that was not acknowledged.


DATABASE_NAME: Final = "statestore.db"

#: Of a database that is being written.
TEMPORARY_NAME: Final = "statestore.db-new"

_LOG_NAME: Final = re.compile(r"statestore-(\d{1,18})\.log")


def log_name(generation: int) -> str:
    return f"statestore-{generation}.log"


def logs_in(names: set[str]) -> list[int]:
    """The generations of the logs that are there."""
    return sorted(int(found[1]) for found in map(_LOG_NAME.fullmatch, names) if found)


class Contents:
    """What is in a folder, checked and unchanged."""

    def __init__(self, folder: Folder) -> None:
        """Raises DamagedRecordError, DataFormatError, OSError."""
        self._names = folder.names()
        self._generations = logs_in(self._names)
        self._files: list[Database | Log] = []
        try:
            self.database: Database = self._open_database(folder)
            self.logs: list[Log] = self._open_logs(folder)
            self._validate()
        except BaseException:
            self.close()
            raise

    def _open_database(self, folder: Folder) -> Database:
        if DATABASE_NAME not in self._names:
            raise DamagedRecordError(f"{DATABASE_NAME} is gone, and what was written last is still in its log")
        file = folder.open(DATABASE_NAME)
        try:
            database = Database(file)
        except DamagedRecordError as error:
            file.close()
            raise DamagedRecordError(f"{DATABASE_NAME}: {error}") from error
        except BaseException:
            file.close()
            raise
        self._files.append(database)
        return database

    def _open_logs(self, folder: Folder) -> list[Log]:
        """Those that belong to the database; none if it is new."""
        logs: list[Log] = []
        generation = self.database.head.generation
        while not self.database.head.is_new and not (logs and not logs[-1].has_ended):
            name = log_name(generation)
            if generation not in self._generations:
                raise DamagedRecordError(f"{name} is gone, and what was written last with it")
            file = folder.open(name)
            try:
                log = Log(file, Head(self.database.head.identity, generation))
            except DamagedRecordError as error:
                file.close()
                raise DamagedRecordError(f"{name}: {error}") from error
            except BaseException:
                file.close()
                raise
            self._files.append(log)
            logs.append(log)
            generation += 1
        self._check_next(folder, generation)
        return logs

    def _check_next(self, folder: Folder, generation: int) -> None:
        """A log that is not known to be needed was begun when a crash came, and nothing was written into it."""
        if any(each > generation for each in self._generations):
            raise DamagedRecordError("there are logs of a later time than the database")
        if generation in self._generations:
            file = folder.open(log_name(generation))
            try:
                has_frames = Log(file, Head(self.database.head.identity, generation)).frames > 0
            except DamagedRecordError:
                has_frames = False  # it was not even begun
            finally:
                file.close()
            if has_frames:
                raise DamagedRecordError(
                    f"what leads to {log_name(generation)}, which is in use, is damaged or too old"
                )

    def _validate(self) -> None:
        mark = self.database.mark
        for log in self.logs:
            name = log_name(log.head.generation)
            if log.has_more_behind:
                problem = "and what was written after the damage cannot be read"
                raise DamagedRecordError(f"{name} is damaged at byte {log.end}, {problem}")
            is_short = log.head.generation == mark.generation and log.frames < mark.frames
            if is_short or (log is self.logs[-1] and log.head.generation < mark.generation):
                raise DamagedRecordError(
                    f"{name} was cut off or is damaged at byte {log.end}: what was written last is lost"
                )

    @property
    def leftovers(self) -> list[str]:
        """Files that a crash left, and that nobody needs."""
        needed = {log.head.generation for log in self.logs}
        logs = [log_name(generation) for generation in self._generations if generation not in needed]
        return [*logs, *([TEMPORARY_NAME] if TEMPORARY_NAME in self._names else [])]

    def latest(self) -> dict[Stream, dict[Subject, bytes | None]]:
        """What the logs come to; None for what was removed. Raises DamagedRecordError."""
        latest: dict[Stream, dict[Subject, bytes | None]] = {stream: {} for stream in Stream}
        for log in self.logs:
            for _, changes in log.batches():
                for stream, puts, removals in changes:
                    note(latest, stream, puts, removals)
                    log.puts += len(puts) * (stream is not Stream.CLOCK)
                    log.removals += len(removals)
        return latest

    def close(self) -> None:
        for each in self._files:
            each.file.close()
        self._files.clear()


# -- database ----------------------------------------------------------------------------------------------------------
#
# ``statestore.db``: all records as they once were, and how far the log has come that belongs to them.
#
# ::
#
#     0      "statestore data\n", then a frame: format, identity, generation, whether its log is still to be made
#     1024   a mark: generation and number of the last frame of the log that is known to be on disk, and its checksum
#     2048   another mark; they are written in turns, so that a torn one leaves the one before it
#     4096   frames: the name of a stream, then subjects and records in turns; the last one: how many records there are
#
# Records never change here: the file is written as a whole, under another name, and takes the place of its predecessor.
# Only the marks are written while it is in use: after each batch, without waiting for the disk. A killed process leaves
# them exact; a power failure may leave older ones.


#: Of the files and of the records in them. A release that changes either adds one, and reads the older ones. (1 and 2
#: were sqlite databases of development versions.)
FORMAT_VERSION: Final = 3
#: The release that began to read a format.
FIRST_VERSIONS: Final = {3: "0.2.0"}

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


# -- log ---------------------------------------------------------------------------------------------------------------
#
# ``statestore-N.log``: batches in the order in which they came, one frame each.
#
# ::
#
#     0      "statestore log \n", then a frame: format, identity, generation
#     then   frames from 1 on: stream, puts and removals of each stream that the batch changes; empty at each start;
#            nil: it goes on in the log of the next generation


LOG_MAGIC: Final = b"statestore log \n"

_ENDS: Final = pack(None)


def make_log(file: File, head: Head) -> Log:
    """In an empty file. It is on the disk then; its name is the caller's business."""
    file.write(head_bytes(LOG_MAGIC, head), 0)
    file.sync()
    return Log(file, head)


def log_start(head: Head) -> int:
    """Where the first batch is in a log with such a head."""
    return len(head_bytes(LOG_MAGIC, head))


class Log:
    """One that is there, up to the first frame that is broken."""

    def __init__(self, file: File, expected: Head) -> None:
        """Raises DamagedRecordError, DataFormatError, OSError."""
        self.file = file
        self.head: Head
        self.head, self._start = read_head(file, LOG_MAGIC)
        if (self.head.identity, self.head.generation) != (expected.identity, expected.generation):
            raise DamagedRecordError("it belongs to another directory, or to another time of this one")
        self._seed = self.head.seed(b"log")
        self.frames: int = 0
        self.end: int = self._start
        self.has_ended: bool = False
        #: Records that were put and removed, to tell what is worth to be cleared away.
        self.puts: int = 0
        self.removals: int = 0
        for each in read_frames(file, self._start, self._seed, 1):
            self.frames, self.end = each.number, each.end
            if each.content == _ENDS:
                self.has_ended = True
                break

    @property
    def has_rest(self) -> bool:
        """Whether there is something after the last sound frame: what a crash left of one, or damage."""
        return self.file.size > self.end

    @property
    def has_more_behind(self) -> bool:
        """Whether that is damage: something was written behind the frame that is broken."""
        return self.has_rest and (self.has_ended or has_successor(self.file, self.end, self._seed, self.frames + 1))

    def repair(self, frames_on_disk: int) -> None:
        """After a crash: cut off what is left of the last frame; write those again of which nobody can tell whether
        they are on the disk: they may be in the memory of the system only, when an error kept them from the disk.
        """
        if self.has_rest:
            self.file.truncate(self.end)
        for each in read_frames(self.file, self._start, self._seed, 1):
            if each.number > frames_on_disk:
                data = frame(self._seed, each.number, each.content)
                self.file.write(data, each.end - len(data))
        self.file.sync()

    def batches(self) -> Iterator[tuple[int, Sequence[tuple[Stream, Any, Any]]]]:
        """Bytes of each frame; streams, puts and removals in it. Raises DamagedRecordError."""
        for each in read_frames(self.file, self._start, self._seed, 1):
            if each.content == _ENDS or each.number > self.frames:
                return
            try:
                changes = [(Stream(name), puts, removals) for name, puts, removals in unpack(each.content)]
            except (TypeError, ValueError) as error:
                raise DamagedRecordError(f"batch {each.number} of the log: {error}") from error
            yield len(each.content), changes

    def append(self, batch: WriteBatch) -> None:
        """On the disk when this returns."""
        self._append(pack([(each.stream.value, each.puts, each.removals) for each in batch.changes]))
        for each in batch.changes:
            self.puts += len(each.puts) * (each.stream is not Stream.CLOCK)  # has one record that is always replaced
            self.removals += len(each.removals)

    def finish(self) -> None:
        """What comes next is in the log of the next generation, which is on the disk already."""
        self._append(_ENDS)
        self.has_ended = True

    def _append(self, content: bytes) -> None:
        data = frame(self._seed, self.frames + 1, content)
        self.file.write(data, self.end)
        self.file.sync()
        self.frames += 1
        self.end += len(data)


def note(latest: dict[Stream, dict[Subject, bytes | None]], stream: Stream, puts: Any, removals: Any) -> None:
    """One batch more."""
    records = latest[stream]
    for subject in removals:
        records.pop(subject, None)
        records[subject] = None
    records.update(puts)
