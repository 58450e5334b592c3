"""What is wrong with a data directory, and what of it can still be read. Changes nothing.

The verdict is the server's own: the same code decides. The rest is for people who have no backup: frames that are whole
are found behind broken ones, too, as each says where it stands and to which file it belongs.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final

import attrs

from statestore_client.errors import DataDirectoryError
from statestore_client.server.broker import Broker
from statestore_client.server.journal import DamagedRecordError, Journal, Stream, unseal
from statestore_client.server.runtime.clock import monotonic_origin, system_clock
from statestore_client.server.runtime.storage.contents import DATABASE_NAME, Contents, log_name, logs_in
from statestore_client.server.runtime.storage.database import DATABASE_MAGIC, DATABASE_START, Head, read_head
from statestore_client.server.runtime.storage.directory import DirectoryLock, check_ours, refusals
from statestore_client.server.runtime.storage.filesystem import SystemFolder
from statestore_client.server.runtime.storage.frames import sound_frames, unpack
from statestore_client.server.runtime.storage.log import LOG_MAGIC, log_start, note
from statestore_client.server.runtime.storage.log_store import records_of
from statestore_client.server.service.service import TOKEN_KEY_BYTES, StateStoreService
from statestore_client.server.store import StateStore
from statestore_client.wire.hlc import HybridLogicalClock

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from statestore_client.server.journal import Done, StreamStorage, Subject, WriteBatch

__all__ = ["CheckedFile", "Finding", "check"]

#: In the directory of a server with a peer of its own.
_LOG_OF_PEER: Final = "log/meta"


@attrs.frozen
class CheckedFile:
    """``frames`` can be read; of the database, all but the last hold records, of a log each is a batch. ``gaps``: bytes
    from and to that cannot.
    """

    name: str
    size: int
    frames: int
    gaps: tuple[tuple[int, int], ...]


@attrs.frozen
class Finding:
    """``problem`` is what a server says that refuses the directory; None if it does not. ``records`` are those that
    can be read, by stream, with the state after the last batch that can be read; ``broken_records`` are not what was
    written.
    """

    problem: str | None
    files: tuple[CheckedFile, ...]
    records: dict[str, int]
    broken_records: int


def check(directory: str | os.PathLike[str]) -> Finding:
    """Raises DataInUseError while a server has it; DataDirectoryError if it is none, DataFormatError."""
    path = Path(directory)
    with refusals(path):
        if not path.is_dir():
            raise DataDirectoryError(f"{path} is not a data directory")
        check_ours(path)
        folder = SystemFolder(path, read_only=True)
        names = folder.names()
        if DATABASE_NAME not in names and not logs_in(names):
            text = f"there is no {DATABASE_NAME} in it"
            if (path / _LOG_OF_PEER).is_file():
                folder_of_log = (path / _LOG_OF_PEER).parent
                text = (
                    f"a server with --cluster has it for its log, which is checked with 'zmqraft check {folder_of_log}'"
                )
            raise DataDirectoryError(f"{path} is not a data directory: {text}")
        lock = DirectoryLock.existing(path, folder)
        try:
            return _find(folder)
        finally:
            if lock is not None:
                lock.close()


def _find(folder: SystemFolder) -> Finding:
    survey = _Survey(folder)
    counts = survey.counts()
    return Finding(_verdict(folder), tuple(survey.files), counts, survey.broken_records)


def _verdict(folder: SystemFolder) -> str | None:
    try:
        contents = Contents(folder)
        try:
            _fill_machines(_Stored(contents))
        finally:
            contents.close()
    except DamagedRecordError as error:
        return str(error)
    return None


class _Stored:
    """A StreamStorage to read from."""

    def __init__(self, contents: Contents) -> None:
        self._database = contents.database
        self._latest = contents.latest()

    def load(self, stream: Stream) -> Iterator[tuple[Subject, bytes]]:
        return records_of(self._database, self._latest, stream)

    def append(self, batch: WriteBatch, done: Done) -> None:
        """Never called: a check changes nothing, and machines that are being filled append nothing."""
        raise NotImplementedError

    def close(self) -> None:
        """The files are somebody else's."""


def _fill_machines(storage: StreamStorage) -> None:
    """As a server does at its start. Raises DamagedRecordError: records do not fit together."""
    journal, now = Journal(monotonic_origin()), system_clock()
    service = StateStoreService(
        StateStore(clock=HybridLogicalClock("check", guard=nullcontext()), journal=journal),
        token_key=bytes(TOKEN_KEY_BYTES),  # it makes no tokens
        journal=journal,
    )
    journal.resume(storage, now)
    service.restore(storage, journal.timeline)
    Broker(random=SystemRandom(), application=service, journal=journal).restore(storage, now)


class _Survey:
    """Reads whatever can be read."""

    def __init__(self, folder: SystemFolder) -> None:
        self.files: list[CheckedFile] = []
        self.broken_records = 0
        self._folder = folder
        self._latest: dict[Stream, dict[Subject, bytes | None]] = {stream: {} for stream in Stream}
        self._names = folder.names()
        generations = logs_in(self._names)
        self._first = generations[0] if generations else 1
        self._identity = self._find_identity(generations)
        if DATABASE_NAME in self._names:
            self._read(DATABASE_NAME, is_database=True)
        for generation in generations:
            self._read(log_name(generation), is_database=False, generation=generation)

    def _find_identity(self, generations: list[int]) -> bytes:
        """Of the directory, from any head that can be read."""
        for name in (DATABASE_NAME, *map(log_name, generations)):
            head = self._head(name) if name in self._names else None
            if head is not None:
                self._first = head.generation if name == DATABASE_NAME else self._first
                return head.identity
        return b""

    def _head(self, name: str) -> Head | None:
        file = self._folder.open(name)
        try:
            return read_head(file, DATABASE_MAGIC if name == DATABASE_NAME else LOG_MAGIC)[0]
        except DamagedRecordError:
            return None
        finally:
            file.close()

    def _read(self, name: str, *, is_database: bool, generation: int = 0) -> None:
        """A head that is broken is like that of the other files."""
        file = self._folder.open(name)
        try:
            head = Head(self._identity, self._first if is_database else generation)
            start = DATABASE_START if is_database else log_start(head)
            seed = head.seed(b"database" if is_database else b"log")
            frames, gaps, at = 0, list[tuple[int, int]](), start
            for each in sound_frames(file, start, seed, 1):
                if each.start > at:
                    gaps.append((at, each.start))
                frames, at = frames + 1, each.end
                self._note(unpack(each.content), is_database=is_database)
            if file.size > at:
                gaps.append((at, file.size))
            self.files.append(CheckedFile(name, file.size, frames, tuple(gaps)))
        finally:
            file.close()

    def _note(self, content: Any, *, is_database: bool) -> None:
        if content is None or (is_database and content[0] is None):
            return  # the end
        for name, *rest in (content,) if is_database else content:
            if is_database:
                note(self._latest, Stream(name), zip(rest[0][::2], rest[0][1::2], strict=True), ())
            else:
                note(self._latest, Stream(name), *rest)

    def counts(self) -> dict[str, int]:
        """Of records that are what was written."""
        found = Counter(stream.value for stream, _ in self._records())
        return {stream.value: found[stream.value] for stream in Stream if found[stream.value]}

    def _records(self) -> Iterator[tuple[Stream, Subject]]:
        for stream, records in self._latest.items():
            for subject, data in records.items():
                if data is not None and self._is_sound(stream, subject, data):
                    yield stream, subject

    def _is_sound(self, stream: Stream, subject: Subject, data: bytes) -> bool:
        try:
            unseal(stream, subject, data)
        except DamagedRecordError:
            self.broken_records += 1
            return False
        return True
