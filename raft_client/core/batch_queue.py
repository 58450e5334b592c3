"""Batches of entries that wait for a reader."""

from __future__ import annotations

from collections import deque

from raft_client.core.entries_stream import EntryBatch
from raft_client.wire.log_entry import SnapshotChunk


class BatchQueue:
    """Batches in order, and their bytes."""

    __slots__ = ("_batches", "size")

    def __init__(self) -> None:
        self._batches: deque[EntryBatch] = deque()
        self.size: int = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    def push(self, batch: EntryBatch) -> None:
        self._batches.append(batch)
        self.size += _size(batch)

    def pop(self) -> EntryBatch:
        batch = self._batches.popleft()
        self.size -= _size(batch)
        return batch

    def clear(self) -> None:
        self._batches.clear()
        self.size = 0


def _size(batch: EntryBatch) -> int:
    return len(batch.data) if isinstance(batch, SnapshotChunk) else sum([len(entry.frame) for entry in batch])
