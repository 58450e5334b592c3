"""Batches of entries that wait for a reader."""

from __future__ import annotations

from collections import deque

from raft_client.core.entries import Batch
from raft_client.wire.snapshots import SnapshotChunk

__all__ = ["BatchQueue"]


class BatchQueue:
    """Batches in order, and their bytes."""

    __slots__ = ("_batches", "size")

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    def push(self, batch: Batch) -> None:
        self._batches.append(batch)
        self.size += _size(batch)

    def pop(self) -> Batch:
        batch = self._batches.popleft()
        self.size -= _size(batch)
        return batch

    def clear(self) -> None:
        self._batches.clear()
        self.size = 0


def _size(batch: Batch) -> int:
    return len(batch.data) if isinstance(batch, SnapshotChunk) else sum([len(entry.frame) for entry in batch])
