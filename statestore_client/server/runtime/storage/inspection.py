"""A data directory whose server is not running, for people: which sessions and retained messages are in it.

Nothing of it comes to life: no will goes out, nothing expires. What is removed here is removed with all that belongs to
it, in one transaction.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final

import attrs

from raft_client._common.durable_files import SystemFolder
from statestore_client.errors import DataDirectoryError
from statestore_client.server.broker import Broker
from statestore_client.server.broker.limits import NEVER_EXPIRES
from statestore_client.server.broker.records import DeliveryRecord, GrantRecord, MessageRecord, SessionRecord
from statestore_client.server.broker.retained import sort_key
from statestore_client.server.broker.topic_tree import FilterTree
from statestore_client.server.journal import (
    Changes,
    DamagedRecordError,
    Journal,
    Stream,
    StreamTables,
    Timeline,
    TimeRecord,
    WriteBatch,
    load,
    unseal,
)
from statestore_client.server.runtime.clock import monotonic_origin, system_clock
from statestore_client.server.runtime.storage.directory import DirectoryLock, check_finished, check_ours, refusals
from statestore_client.server.runtime.storage.disk_storage import DiskStorage
from statestore_client.server.runtime.storage.files import (
    DATABASE_MAGIC,
    DATABASE_NAME,
    DATABASE_START,
    FORMAT_VERSION,
    LOG_MAGIC,
    Contents,
    Head,
    log_name,
    log_start,
    logs_in,
    note,
    read_head,
    sound_frames,
    unpack,
)
from statestore_client.server.runtime.storage.log_store import records_of
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import StateStore
from statestore_client.wire.administration import RetainedInfo, SessionInfo
from statestore_client.wire.hlc import HybridLogicalClock

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from statestore_client.server.journal import StoredRecords, Subject

# -- integrity check ---------------------------------------------------------------------------------------------------
#
# What is wrong with a data directory, and what of it can still be read. Changes nothing.
#
# The verdict is the server's own: the same code decides. The rest is for people who have no backup: frames that are
# whole are found behind broken ones, too, as each says where it stands and to which file it belongs.


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
    written. ``format`` is that of the files, None if none of them says it.
    """

    problem: str | None
    files: tuple[CheckedFile, ...]
    records: dict[str, int]
    broken_records: int
    format: int | None


def check(directory: str | os.PathLike[str]) -> Finding:
    """Raises DataInUseError while a server has it; DataDirectoryError if it is none, DataFormatError."""
    check_finished(Path(directory))
    with surveyed(Path(directory)) as (finding, _):
        return finding


@contextmanager
def surveyed(path: Path) -> Iterator[tuple[Finding, Survey]]:
    """What :func:`check` finds, and what can be read. No server can have the directory meanwhile."""
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
            survey = Survey(folder)
            problem = _verdict(folder)
        except BaseException:
            if lock is not None:
                lock.close()
            raise
    try:
        yield survey.finding(problem), survey
    finally:
        if lock is not None:
            lock.close()


def _verdict(folder: SystemFolder) -> str | None:
    try:
        contents = Contents(folder)
        try:
            fill_machines(_Stored(contents))
        finally:
            contents.close()
    except DamagedRecordError as error:
        return str(error)
    return None


class _Stored:
    """StoredRecords of a sound directory."""

    def __init__(self, contents: Contents) -> None:
        self._database = contents.database
        self._latest = contents.latest()

    def load(self, stream: Stream) -> Iterator[tuple[Subject, bytes]]:
        return records_of(self._database, self._latest, stream)


def fill_machines(storage: StoredRecords) -> None:
    """As a server does at its start. Raises DamagedRecordError: records do not fit together."""
    journal, now = Journal(monotonic_origin()), system_clock()
    service = StateStoreService(
        StateStore(clock=HybridLogicalClock("check", guard=nullcontext()), journal=journal),
        token_key=bytes(TOKEN_KEY_BYTES),  # it makes no tokens
        journal=journal,
    )
    journal.resume(storage, now)
    service.restore(storage, journal.timeline)
    Broker(random=SystemRandom(), applications=(service,), journal=journal).restore(storage, now)


class Survey:
    """Reads whatever can be read. ``broken`` are records that are not what was written."""

    def __init__(self, folder: SystemFolder) -> None:
        self.files: list[CheckedFile] = []
        self.broken: list[tuple[Stream, Subject]] = []
        self._folder = folder
        self._latest: dict[Stream, dict[Subject, bytes | None]] = {stream: {} for stream in Stream}
        self._names = folder.names()
        generations = logs_in(self._names)
        self._first = generations[0] if generations else 1
        self._has_database_head = False
        self._identity = self._find_identity(generations)
        if DATABASE_NAME in self._names:
            self._read(DATABASE_NAME, is_database=True)
        for generation in generations:
            if not self._is_in_database(generation):
                self._read(log_name(generation), is_database=False, generation=generation)
        self.sound: StreamTables = self._sound()

    def _is_in_database(self, generation: int) -> bool:
        """Whether a log of this generation is one that a crash has left: what is in it is older than the database."""
        return self._has_database_head and generation < self._first

    def _find_identity(self, generations: list[int]) -> bytes:
        """Of the directory, from any head that can be read."""
        for name in (DATABASE_NAME, *map(log_name, generations)):
            head = self._head(name) if name in self._names else None
            if head is not None:
                if name == DATABASE_NAME:
                    self._first, self._has_database_head = head.generation, True
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

    def _sound(self) -> StreamTables:
        """What can be read, and is what was written."""
        tables = StreamTables()
        for stream, records in self._latest.items():
            for subject, data in records.items():
                if data is None:
                    continue
                try:
                    unseal(stream, subject, data)
                except DamagedRecordError:
                    self.broken.append((stream, subject))
                else:
                    tables.streams[stream][subject] = data
        return tables

    def finding(self, problem: str | None) -> Finding:
        """``problem`` is what a server says."""
        counts = {stream.value: len(records) for stream, records in self.sound.streams.items() if records}
        number = FORMAT_VERSION if self._identity else None
        return Finding(problem, tuple(self.files), counts, len(self.broken), number)


# -- inspection --------------------------------------------------------------------------------------------------------


class DataDirectory:
    """Opens and locks the directory for the time of a ``with``. Raises DataInUseError while a server has it."""

    is_running = False

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._path = Path(directory)
        self.where: str = f"in {directory}"
        self._storage = DiskStorage(directory, create=False)
        try:
            with refusals(self._path):
                # Deadlines become moments that can be shown: as the server would have kept them had it gone on.
                self._timeline = Timeline.shown(self._storage)
                last = TimeRecord.last(self._storage)
            self._stopped_at = None if last is None else last.wall_ms / 1000
        except BaseException:
            self._storage.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._storage.close()

    def sessions(self) -> list[SessionInfo]:
        """In the order of their client identifiers."""
        grants: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for subject, fields in self._load(Stream.SUBSCRIPTIONS):
            number, _, topic_filter = subject.partition(" ")
            grants[int(number)].append((topic_filter, GrantRecord.read(fields).grant.qos))
        deliveries = [DeliveryRecord.read(fields, self._timeline) for _, fields in self._load(Stream.DELIVERIES)]
        queued = Counter(record.session for record in deliveries if not record.packet_id)
        in_flight = Counter(record.session for record in deliveries if record.packet_id)
        in_flight.update(session for _, (session, _) in self._load(Stream.RELEASES))
        unreleased = Counter(subject >> 16 for subject, _ in self._load(Stream.INBOUND))
        found = []
        for client_id, fields in self._load(Stream.SESSIONS):
            record = SessionRecord.read(fields, self._timeline)
            number = record.number
            counts = (queued[number], in_flight[number], unreleased[number])
            found.append(_session(client_id, record, self._stopped_at, tuple(sorted(grants[number])), counts))
        return sorted(found, key=lambda session: session.client_id)

    def session(self, client_id: str) -> SessionInfo | None:
        """One of them."""
        return next((session for session in self.sessions() if session.client_id == client_id), None)

    def prune_sessions(self, away_s: float | None) -> list[str]:
        """Remove those that are over, or whose clients have been away for this long; which."""
        now = time.time()
        found = [session.client_id for session in self.sessions() if session.is_dispensable(now, away_s)]
        self.remove_sessions(found)
        return found

    def remove_sessions(self, client_ids: Iterable[str], *, force: bool = False) -> tuple[list[str], list[str]]:
        """Remove those that are there, with all that they hold; which were not, and which are connected: none. Their
        wills are not sent.
        """
        del force
        wanted = dict.fromkeys(client_ids)
        numbers = {
            SessionRecord.read(fields, self._timeline).number: client_id
            for client_id, fields in self._load(Stream.SESSIONS)
            if client_id in wanted
        }
        removals: dict[Stream, list[Subject]] = {Stream.SESSIONS: list(numbers.values())}
        for stream in (Stream.SUBSCRIPTIONS, Stream.CURSORS):
            removals[stream] = [s for s, _ in self._load(stream) if int(s.partition(" ")[0]) in numbers]
        removals[Stream.INBOUND] = [s for s, _ in self._load(Stream.INBOUND) if s >> 16 in numbers]
        for stream in (Stream.DELIVERIES, Stream.RELEASES):
            removals[stream] = [s for s, fields in self._load(stream) if fields[0] in numbers]
        removals[Stream.MESSAGES] = self._messages_of(set(removals[Stream.DELIVERIES]))
        self._remove(removals)
        there = set(numbers.values())
        return [client_id for client_id in wanted if client_id not in there], []

    def _messages_of(self, deliveries: set[Subject]) -> list[Subject]:
        """The messages that nobody else is to get."""
        own: set[Subject] = set()
        others: set[Subject] = {fields[0] for _, fields in self._load(Stream.COPIES)}
        for number, fields in self._load(Stream.DELIVERIES):
            message = DeliveryRecord.read(fields, self._timeline).message
            if isinstance(message, int):  # otherwise it is inside the delivery
                (own if number in deliveries else others).add(message)
        return list(own - others)

    def retained(self, topic_filter: str | None, *, payloads: bool = False) -> list[RetainedInfo]:
        """Those that the filter matches, None for all, in the order in which a server has them."""
        del payloads  # they are read anyway
        tree: FilterTree[bool] = FilterTree()
        if topic_filter is not None:
            tree.insert(topic_filter, True)
        read = (MessageRecord.read(fields, self._timeline).message for _, fields in self._load(Stream.RETAINED))
        messages = [message for message in read if topic_filter is None or tree.match(message.topic)]
        return [
            RetainedInfo(each.topic, each.qos, each.publisher, each.expires_at, len(each.payload), each.payload)
            for each in sorted(messages, key=lambda message: sort_key(message.topic))
        ]

    def remove_retained(self, topics: Iterable[str]) -> int:
        """Remove those that are there; how many there were."""
        wanted = set(topics)
        found: list[Subject] = [topic for topic, _ in self._load(Stream.RETAINED) if topic in wanted]
        self._remove({Stream.RETAINED: found})
        return len(found)

    def _load(self, stream: Stream) -> list[tuple[Any, Any]]:
        with refusals(self._path):
            return list(load(self._storage, stream))

    def _remove(self, removals: dict[Stream, list[Subject]]) -> None:
        changes = tuple(Changes(stream, (), tuple(subjects)) for stream, subjects in removals.items() if subjects)
        if changes:
            self._storage.write(WriteBatch(changes))


def _session(
    client_id: str,
    record: SessionRecord,
    stopped_at: float | None,
    subscriptions: tuple[tuple[str, int], ...],
    counts: tuple[int, int, int],
) -> SessionInfo:
    queued, in_flight, unreleased = counts
    return SessionInfo(
        client_id,
        record.user,
        None if record.expiry_s == NEVER_EXPIRES else record.expiry_s,
        record.left_at is None,
        stopped_at if record.left_at is None else record.left_at,
        None if record.will is None else record.will.topic,
        subscriptions,
        queued,
        in_flight,
        unreleased,
    )
