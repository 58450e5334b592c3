"""``statestore-N.log``: batches in the order in which they came, one frame each.

::

    0      "statestore log \\n", then a frame: format, identity, generation
    then   frames from 1 on: stream, puts and removals of each stream that the batch changes; empty at each start;
           nil: it goes on in the log of the next generation
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from statestore_client.server.journal import DamagedRecordError, Stream
from statestore_client.server.runtime.storage.database import Head, head_bytes, read_head
from statestore_client.server.runtime.storage.frames import frame, has_successor, pack, read_frames, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from statestore_client.server.journal import Subject, WriteBatch
    from statestore_client.server.runtime.storage.filesystem import File

__all__ = ["LOG_MAGIC", "Log", "log_start", "make_log", "note"]

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
