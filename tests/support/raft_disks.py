"""The disk of a simulated peer, and its log as jobs write it step by step and as a node reads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import TypeAlias

from raft_client.errors import RaftError
from raft_client.server.node.ready import Configuration, HardState, Persist, SnapshotMeta
from raft_client.wire.configuration import decode_config
from raft_client.wire.log_entry import EntryKind, LogEntry, SnapshotChunk
from raft_client.wire.request_id import RequestId

# -- raft log image ----------------------------------------------------------------------------------------------------

# A log in memory as jobs write it step by step, and as a node reads it.


Step: TypeAlias = HardState | SnapshotChunk | SnapshotMeta | int | LogEntry


def steps_of(job: Persist) -> list[Step]:
    """What is written one after the other. A number cuts the log after this index."""
    steps = (job.hard_state, job.chunk, job.install, job.truncate_after)
    return [*(step for step in steps if step is not None), *job.entries]


class Image:
    """What is on the disk, or in the cache before it."""

    def __init__(self, start: Configuration) -> None:
        self.start = start
        self.hard_state = HardState()
        self.snapshot: SnapshotMeta | None = None
        self.snapshot_data = b""
        self.before = 0  # the index before the first entry
        self.before_term = 0
        self.entries: list[LogEntry] = []
        self.configurations = [start]
        self.incoming: tuple[tuple[int, int, int], bytes] | None = None  # a snapshot that is not complete

    def copy(self) -> Image:
        other = copy(self)
        other.entries = list(self.entries)
        other.configurations = list(self.configurations)
        return other

    @property
    def last_index(self) -> int:
        return self.before + len(self.entries)

    def term_at(self, index: int) -> int | None:
        if index == self.before:
            return self.before_term
        return self.entries[index - self.before - 1].term if self.before < index <= self.last_index else None

    def entry(self, index: int) -> LogEntry:
        return self.entries[index - self.before - 1]

    def apply(self, step: Step) -> None:
        match step:
            case HardState():
                self.hard_state = step
            case SnapshotChunk():
                self._receive(step)
            case SnapshotMeta():
                if self.incoming is not None and len(self.incoming[1]) == step.size:
                    self.install(step, self.incoming[1])
            case int():
                self._cut(step)
            case LogEntry():
                self._append(step)

    def _receive(self, chunk: SnapshotChunk) -> None:
        name = (chunk.index, chunk.term, chunk.size)
        data = self.incoming[1] if self.incoming is not None and self.incoming[0] == name else b""
        self.incoming = (name, data[: chunk.offset] + chunk.data)

    def _append(self, entry: LogEntry) -> None:
        if entry.index != self.last_index + 1:
            return  # a gap that a lost write left: who opens the log ends before it
        self.entries.append(entry)
        if entry.kind is EntryKind.CONFIG:
            self.configurations.append(Configuration(entry.index, decode_config(entry.data)))

    def _cut(self, after: int) -> None:
        del self.entries[max(0, after - self.before) :]
        while len(self.configurations) > 1 and self.configurations[-1].index > after:
            self.configurations.pop()

    def install(self, meta: SnapshotMeta, data: bytes) -> None:
        """The snapshot replaces what is before its end; what follows stays if it follows that very entry."""
        tail = self.entries[meta.index - self.before :] if self.term_at(meta.index) == meta.term else []
        later = [each for each in self.configurations if each.index > meta.index] if tail else []
        self.snapshot, self.snapshot_data, self.incoming = meta, data, None
        self.before, self.before_term = meta.index, meta.term
        self.entries, self.configurations = tail, [meta.configuration, *later]


class ImageReader:
    """The part of a StoredLog that reads: all of it comes from ``cache``."""

    recent_bytes = 4 * 1024 * 1024

    def __init__(self, start: Configuration) -> None:
        self.cache = Image(start)

    @property
    def hard_state(self) -> HardState:
        return self.cache.hard_state

    @property
    def configurations(self) -> Sequence[Configuration]:
        return tuple(self.cache.configurations)

    @property
    def snapshot(self) -> SnapshotMeta | None:
        return self.cache.snapshot

    @property
    def first_index(self) -> int:
        return self.cache.before + 1

    @property
    def last_index(self) -> int:
        return self.cache.last_index

    def term_at(self, index: int) -> int | None:
        return self.cache.term_at(index)

    def entries(self, after: int, last: int, max_bytes: int) -> list[LogEntry]:
        before, found = self.cache.before, list[LogEntry]()
        for entry in self.cache.entries[max(0, after - before) : max(0, last - before)]:
            self.look_at(entry)
            max_bytes -= entry.size
            if found and max_bytes < 0:
                break
            found.append(entry)
        return found

    def look_at(self, entry: LogEntry) -> None:
        """Raises what reading this entry raises."""

    def last_at_hand(self, after: int, max_bytes: int) -> int:
        return self.last_index

    def is_snapshot_at_hand(self, offset: int, size: int) -> bool:
        return True

    def read_snapshot(self, offset: int, size: int) -> bytes:
        return self.cache.snapshot_data[offset : offset + size]


# -- raft simulated disk -----------------------------------------------------------------------------------------------

# The disk of a peer, as jobs see it: what is written is in the cache, what was synced survives a power failure.
#
# A job is written step by step in the order of its fields. A power failure leaves any first part of the one under way,
# and so does an error. After a sync that failed, the cache says that everything is there and the disk never hears of it
# again (as Linux does): only who opens the log anew finds out.


class DamagedLogError(RaftError):
    """What was synced is not there any more, or not as it was."""


class SimulatedLog(ImageReader):
    """A StoredLog: the cache of a disk with crash semantics."""

    def __init__(self, start: Configuration) -> None:
        super().__init__(start)
        self.durable = Image(start)
        self.damaged_at: int | None = None  # reading this entry fails
        self._forgotten_s = 0.0  # ids made before that time are not known
        self._ids: dict[bytes, int] = {}
        #: Whether it may not be: then what comes right takes longer.
        self.reads_disk = False
        #: Whether what is to be read is at hand; what is not is after ``read_ahead``.
        self.is_in_memory: Callable[[], bool] = lambda: True
        self._wanted: set[tuple[int, int]] = set()
        self._was_read: set[tuple[int, int]] = set()

    # -- what a node reads ---------------------------------------------------------------------------------------------

    def last_at_hand(self, after: int, max_bytes: int) -> int:
        return self.last_index if self._is_at_hand(after, max_bytes) else after

    def is_snapshot_at_hand(self, offset: int, size: int) -> bool:
        return self._is_at_hand(-1 - offset, size)

    def _is_at_hand(self, begin: int, size: int) -> bool:
        if (begin, size) in self._was_read or self.is_in_memory():
            self._was_read.discard((begin, size))
            return True
        self._wanted.add((begin, size))
        return False

    @property
    def wants_reading(self) -> bool:
        return bool(self._wanted)

    def read_ahead(self) -> None:
        self._was_read |= self._wanted
        self._wanted.clear()

    def look_at(self, entry: LogEntry) -> None:
        if entry.index == self.damaged_at:
            raise DamagedLogError(f"the entry {entry.index} is not what was written")

    def index_of_request(self, request_id: bytes) -> int | None:
        return self._ids.get(request_id)

    @property
    def prune_index(self) -> int:
        for entry in self.cache.entries:
            if any(entry.request_id.raw) and entry.request_id.seconds >= self._forgotten_s:
                return entry.index - 1
        return self.last_index

    def newest_request_s(self) -> float:
        ids = (entry.request_id for entry in self.cache.entries)
        return max((each.seconds for each in ids if any(each.raw)), default=-math.inf)

    # -- what a disk does ----------------------------------------------------------------------------------------------

    def write(self, job: Persist) -> None:
        """Into the cache."""
        for step in steps_of(job):
            if not isinstance(step, LogEntry):
                if isinstance(step, SnapshotMeta) and self.cache.term_at(step.index) != step.term:
                    self._ids.clear()  # what it replaces may never have been committed
                self.cache.apply(step)
                if isinstance(step, int | SnapshotMeta):
                    self._index_ids()
                continue
            self.cache.apply(step)
            if step.request_id.raw != bytes(12):
                self._ids[step.request_id.raw] = step.index

    def sync(self, job: Persist, share: float = 1.0) -> None:
        """What ``write`` wrote reaches the disk; with a share below one, only the first part of it."""
        steps = steps_of(job)
        for step in steps[: len(steps) if share >= 1.0 else int(share * (len(steps) + 1))]:
            self.durable.apply(step)

    def compact(self, meta: SnapshotMeta, data: bytes) -> None:
        """Durable at once: a file of its own, renamed when it is synced."""
        self.cache.install(meta, data)
        self.durable.install(meta, data)

    def forget_requests(self, before_s: float) -> None:
        """Ids made before that time (seconds since 1970) are not known any more; a start finds those of entries."""
        if before_s > self._forgotten_s:
            self._forgotten_s = before_s
            self._forget()

    def _forget(self) -> None:
        self._ids = {raw: at for raw, at in self._ids.items() if RequestId(raw).seconds >= self._forgotten_s}

    def reopen(self) -> None:
        """After the process ended: what is on the disk is all there is. Raises DamagedLogError."""
        if self.damaged_at is not None and self.durable.before < self.damaged_at <= self.durable.last_index:
            raise DamagedLogError(f"the entry {self.damaged_at} is not what was written")
        self.cache = self.durable.copy()
        self._wanted.clear()
        self._was_read.clear()
        self._forgotten_s = 0.0
        self._index_ids()

    def _index_ids(self) -> None:
        """Ids before the first entry stay known: a compaction keeps them."""
        cache = self.cache
        self._ids = {name: index for name, index in self._ids.items() if index <= cache.before}
        self._ids.update(self._ids_in(cache.entries))
        self._forget()

    def _ids_in(self, entries: Sequence[LogEntry]) -> Iterator[tuple[bytes, int]]:
        return ((entry.request_id.raw, entry.index) for entry in entries if any(entry.request_id.raw))
