"""A log in memory as jobs write it step by step, and as a node reads it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TypeAlias

from raft_client.server.node.ready import Persist
from raft_client.server.node.stored_log import Configuration, HardState, SnapshotMeta
from raft_client.wire.configuration import decode_config
from raft_client.wire.log_entry import EntryKind, LogEntry
from raft_client.wire.snapshots import SnapshotChunk

__all__ = ["Image", "ImageReader", "Step", "steps_of"]

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

    def read_snapshot(self, offset: int, size: int) -> bytes:
        return self.cache.snapshot_data[offset : offset + size]
