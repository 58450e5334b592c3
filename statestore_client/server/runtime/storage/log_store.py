"""Database and logs together: a log-structured store, for one thread and one :class:`Folder`.

Batches are appended to a log. When it has become long, or most of what is in the files is over, a new log is begun, and
the records of the database and the old logs are written into a new database, a little at a time between two batches:
*folding*. So the files are never much larger than twice what is alive, and no batch waits for more than one step.

What makes a crash harmless, in this order:

1. the new log is on the disk, with its name, before the old one says that it goes on there;
2. the new database is on the disk before it gets its name, and the old logs go when that is on the disk, too.

A disk with room for batches but not for a new database stops nobody: it is tried again when the log is longer.

What is there is checked before anything is changed (:mod:`statestore_client.server.runtime.storage.files`).
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from raft_client._common.durable_files import is_full
from statestore_client.server.journal import Stream, WriteBatch
from statestore_client.server.runtime.storage.files import (
    DATABASE_NAME,
    FRAME_BYTES,
    TEMPORARY_NAME,
    Contents,
    Database,
    DatabaseWriter,
    Head,
    Log,
    LogMark,
    log_name,
    logs_in,
    make_log,
    note,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from raft_client._common.durable_files import Folder
    from statestore_client.server.journal import Subject

#: What a record costs beside its content, roughly.
_RECORD_BYTES: Final = 32

#: Of those that are written by now: how many are forgotten at a time.
_RECORDS_AT_ONCE: Final = 256

#: Work on a new database for each byte that is appended meanwhile: it is done before the next log is as long.
_WORK_PER_BYTE: Final = 4


def records_of(
    database: Database, latest: dict[Stream, dict[Subject, bytes | None]], stream: Stream
) -> Iterator[tuple[Subject, bytes]]:
    """All records of a stream, those with numbers in order: what the logs come to, over what the database has."""
    newer = latest[stream]
    old = ((subject, data) for subject, data in database.load(stream) if subject not in newer)
    new = ((subject, data) for subject, data in newer.items() if data is not None)
    yield from sorted(chain(old, new), key=_subject) if stream.is_numbered else chain(old, new)


class LogStore:
    """Invariant: the records of the database with the batches of the logs on top of them are what was appended. After
    an error that need not hold: nothing may be called any more but :meth:`close`.
    """

    #: A log that is not longer is left alone. To read as much takes a start a tenth of a second.
    short_bytes = 16 * 1024 * 1024
    #: A longer one is folded however large the database is: its records are in memory while it is.
    long_bytes = 256 * 1024 * 1024
    #: Files that are not larger are left alone, also when most of what is in them is over.
    small_bytes = 1024 * 1024
    #: Of a new database, between two batches.
    step_bytes = FRAME_BYTES

    def __init__(self, folder: Folder, identity: bytes) -> None:
        """Open what is there; make it, with this identity (16 random bytes), if the folder has none of our files."""
        self._folder = folder
        names = folder.names()
        if DATABASE_NAME not in names and not logs_in(names):
            self._make_database(Head(identity, 1, is_new=True), folder)
        self._work: Generator[int] | None = None
        self._fold_from = 0
        contents = Contents(folder)
        try:
            self._latest: dict[Stream, dict[Subject, bytes | None]] | None = contents.latest()
            self._database, self._logs = contents.database, contents.logs
            self._begin(contents)
        except BaseException:
            contents.close()
            raise

    @staticmethod
    def _make_database(head: Head, folder: Folder) -> None:
        file = folder.open(TEMPORARY_NAME, create=True)
        try:
            DatabaseWriter(file, head).finish(LogMark(head.generation, 0))
        finally:
            file.close()
        folder.replace(DATABASE_NAME, TEMPORARY_NAME)
        folder.sync()

    def _begin(self, contents: Contents) -> None:
        """Put in order what a crash left, and write something: that shows at once whether it is possible."""
        folder, head = self._folder, self._database.head
        for name in contents.leftovers:
            folder.remove(name)
        if head.is_new:
            head = Head(head.identity, head.generation)
            self._logs = [self._new_log(head)]
            self._database.file.close()  # Windows replaces no open files
            self._make_database(head, folder)
            self._database = Database(folder.open(DATABASE_NAME))
        for log in self._logs:
            mark = self._database.mark
            vouched = mark.frames if mark.generation == log.head.generation else 0
            if log.has_rest or (mark.generation <= log.head.generation and vouched < log.frames):
                log.repair(vouched)
        self.append(WriteBatch(()))

    def _new_log(self, head: Head) -> Log:
        log = make_log(self._folder.open(log_name(head.generation), create=True), head)
        self._folder.sync()
        return log

    # -- reading ------------------------------------------------------------------------------------------------------

    def load(self, stream: Stream) -> Iterator[tuple[Subject, bytes]]:
        """All records of a stream, those with numbers in order. Not after :meth:`forget`."""
        if self._latest is None:
            raise RuntimeError("load() comes before the first batch")
        yield from records_of(self._database, self._latest, stream)

    def forget(self) -> None:
        """All is loaded: what was read from the logs is not needed any more."""
        self._latest = None

    # -- writing ------------------------------------------------------------------------------------------------------

    @property
    def is_in_place(self) -> bool:
        """Whether the files are still those that were opened: what is written into others does not survive."""
        log = self._logs[-1]
        is_current = self._folder.is_current
        return is_current(DATABASE_NAME, self._database.file) and is_current(log_name(log.head.generation), log.file)

    @property
    def log_bytes(self) -> int:
        """How long the log is that is appended to."""
        return self._logs[-1].end

    def append(self, batch: WriteBatch) -> None:
        """On the disk when this returns."""
        log = self._logs[-1]
        try:
            log.append(batch)
        except OSError as error:
            if self._work is None or not is_full(error):
                raise
            self._give_up()
            log.append(batch)  # the whole frame: whatever the disk has of it
        self._database.note(LogMark(log.head.generation, log.frames))
        if self._latest is not None:
            for each in batch.changes:
                note(self._latest, each.stream, each.puts, each.removals)

    # -- folding ------------------------------------------------------------------------------------------------------

    @property
    def wants_work(self) -> bool:
        """Whether there is something to fold, or a new database is being written."""
        is_wanted = len(self._logs) > 1 or self._is_long or self._is_wasteful(2, self.short_bytes)
        return self._work is not None or (is_wanted and self.log_bytes >= self._fold_from)

    @property
    def wants_work_when_quiet(self) -> bool:
        """The same, for the time when nobody waits: what is small can wait for it."""
        return self.wants_work or (self._is_wasteful(3, self.small_bytes) and self.log_bytes >= self._fold_from)

    @property
    def lacks_room(self) -> bool:
        """Whether there was no room for a new database the last time."""
        return self._fold_from > 0

    @property
    def _is_long(self) -> bool:
        return self._logs[-1].end > max(self.short_bytes, min(self.long_bytes, self._database.size))

    def _is_wasteful(self, parts: int, worthwhile_bytes: int) -> bool:
        """Whether at least one of so many parts of the records is over, as far as that is known."""
        log = self._logs[-1]
        is_over = parts * log.removals > self._database.records + log.puts
        return is_over and self._database.size + log.end > worthwhile_bytes

    def work(self, appended: int = 0) -> None:
        """One step, of about :attr:`step_bytes`; more of them if this many bytes were appended meanwhile."""
        if self._work is None:
            self._work = self._fold()
        left = max(self.step_bytes, _WORK_PER_BYTE * appended)
        try:
            for size in self._work:
                left -= size
                if left <= 0:
                    return
            self._work = None
        except OSError as error:
            if not is_full(error):
                raise
            self._give_up()

    def _give_up(self) -> None:
        """The log needs what room there is."""
        if self._work is not None:
            self._work.close()
            self._work = None
        self._folder.remove(TEMPORARY_NAME)
        self._fold_from = self.log_bytes + self.short_bytes

    def _fold(self) -> Generator[int]:
        if len(self._logs) == 1:
            self._go_on_in_new_log()
            yield 0
        *old, log = self._logs
        latest: dict[Stream, dict[Subject, bytes | None]] = {stream: {} for stream in Stream}
        for each in old:
            for size, changes in each.batches():
                for stream, puts, removals in changes:
                    note(latest, stream, puts, removals)
                yield size
        head = Head(log.head.identity, log.head.generation)
        file = self._folder.open(TEMPORARY_NAME, create=True)
        try:
            writer = DatabaseWriter(file, head)
            for content, stream, flat in self._database.frames():
                _copy(writer, content, stream, flat, latest[stream])
                yield len(content)
            for stream, records in latest.items():
                for subject, data in records.items():
                    if data is not None:
                        writer.put(stream, subject, data)
                    yield len(data or b"") + _RECORD_BYTES
            for records in latest.values():
                yield from _let_go(records)
            writer.finish(LogMark(head.generation, log.frames))
        finally:
            file.close()
        self._replace_database(writer, old)

    def _go_on_in_new_log(self) -> None:
        log = self._logs[-1]
        new = self._new_log(Head(log.head.identity, log.head.generation + 1))
        try:
            log.finish()
        except OSError:
            new.file.close()  # what is appended may still go into the old one
            raise
        self._logs.append(new)

    def _replace_database(self, writer: DatabaseWriter, old: list[Log]) -> None:
        self._database.file.close()  # as above
        self._folder.replace(DATABASE_NAME, TEMPORARY_NAME)
        self._folder.sync()
        self._database = Database(self._folder.open(DATABASE_NAME), writer.layout)
        self._fold_from = 0
        del self._logs[: len(old)]
        for log in old:
            log.file.close()
            self._folder.remove(log_name(log.head.generation))

    def finish(self) -> None:
        """At the end: the marks are on the disk, too."""
        self._database.file.sync()

    def close(self) -> None:
        """Let go of the files. A database that is being written is left for the next start to remove."""
        self._work = None
        self._database.file.close()
        for log in self._logs:
            log.file.close()


def _subject(record: tuple[Subject, bytes]) -> Any:
    return record[0]


def _let_go(records: dict[Subject, bytes | None]) -> Iterator[int]:
    """A million at once would stop the other threads for a tenth of a second."""
    while records:
        for _ in range(min(len(records), _RECORDS_AT_ONCE)):
            records.popitem()
        yield _RECORDS_AT_ONCE * _RECORD_BYTES


def _copy(
    writer: DatabaseWriter, content: bytes, stream: Stream, flat: tuple[Any, ...], latest: dict[Subject, bytes | None]
) -> None:
    """One frame of the old database, without what has changed since; what took its place comes later."""
    if len(content) >= FRAME_BYTES // 2 and latest.keys().isdisjoint(flat[::2]):
        writer.put_frame(stream, content, len(flat) // 2)
        return
    for subject, data in zip(flat[::2], flat[1::2], strict=True):
        if subject not in latest:
            writer.put(stream, subject, data)
