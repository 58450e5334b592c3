"""Where the reader of a stream stands, entry by entry: streams hand out batches, and iterators take them apart.

Invariant: :meth:`Cursor.position` is after the last item that was handed out, and never after one that was not.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint

from raft_client.core.entries_stream import EntryBatch
from raft_client.wire.log_entry import LogEntry, Position, SnapshotChunk


class Cursor:
    """The batch that an iterator is at. An iterator over a list knows how much is left: so counting costs nothing."""

    __slots__ = ("_batch", "_before", "rest")

    def __init__(self) -> None:
        self._batch: EntryBatch = ()
        self._before = Position(0)
        #: What is left of the batch, one by one.
        self.rest: Iterator[LogEntry | SnapshotChunk] = iter(())

    def enter(self, batch: EntryBatch, before: Position) -> None:
        """Begin with a batch that a reader took who was at ``before``."""
        self._batch, self._before = batch, before
        self.rest = iter((batch,) if isinstance(batch, SnapshotChunk) else batch)

    def take_rest(self) -> EntryBatch | None:
        """What is left of the batch, all at once; None when nothing is."""
        rest = list(self.rest)  # and not a new iterator: a loop may be in the middle of this one
        if isinstance(self._batch, SnapshotChunk) or not rest:
            return self._batch if rest else None
        return [item for item in rest if not isinstance(item, SnapshotChunk)]

    def position(self, taken: Position) -> Position:
        """After the last item that was handed out; ``taken`` is after the whole batch."""
        left = length_hint(self.rest)
        if not left:
            return taken
        if isinstance(self._batch, SnapshotChunk) or left == len(self._batch):
            return self._before
        return self._batch[-1 - left].position
