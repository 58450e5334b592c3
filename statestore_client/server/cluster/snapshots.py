"""Snapshots in the log: all rows as of an index, so that what is before can be trimmed.

The rows are written a few at a time, each as it is then, beside all other entries. A reader begins with the entries
after the index and notes which rows they touch; of the parts it keeps the other ones, which nobody has changed since.
So nobody stands still for a snapshot, and no copy of the rows is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statestore_client.server.cluster.entries import (
    Assembly,
    LogEntry,
    Part,
    Snapshot,
    pack_batch,
    pieces,
    unpack_batch,
)
from statestore_client.server.cluster.fence import Verdict
from statestore_client.server.journal import Changes, WriteBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.server.cluster.entries import Body
    from statestore_client.server.cluster.fence import Fence
    from statestore_client.server.cluster.interface import Appends, ClusterSettings, SentEntry
    from statestore_client.server.journal import Stream, Subject

#: Bytes per second, so that other entries do not wait for longer than a few milliseconds.
_PACE: Final = 8 << 20
#: A part of less takes as long: a part without rows, which only waits, must not follow upon another one at once.
_SMALL_PART: Final = 32 << 10
#: A log of less is read in a fraction of a second.
_MIN_LOG_BYTES: Final = 64 << 20
_STATES: Final = 4


def is_snapshot_wanted(log_bytes: int, state_bytes: int, *, is_active: bool) -> bool:
    """Whether the log since the last one is much longer than what it comes to. The active server is a little later, so
    that a standby does it if there is one.
    """
    most = max(_MIN_LOG_BYTES, _STATES * state_bytes)
    return log_bytes > (most * 5 // 4 if is_active else most)


class SnapshotReader:
    """Rows of the snapshot that begins at ``at``."""

    def __init__(self, at: int) -> None:
        self.at = at
        self._assembly = Assembly()
        self._touched: set[tuple[Stream, Subject]] = set()

    def touch(self, batch: WriteBatch) -> None:
        """A batch after the snapshot's index: it is newer than any part."""
        self._touched |= batch.subjects()

    def receive(self, at: int, part: Part) -> WriteBatch | None:
        """A valid part of the snapshot that begins at this index: rows to restore, if they are complete."""
        if at != self.at:
            return None
        rows = self._assembly.add(part.data, is_last=part.is_last)
        return None if rows is None else self._untouched(unpack_batch(rows))

    def _untouched(self, rows: WriteBatch) -> WriteBatch:
        kept = []
        for changes in rows.changes:
            puts = tuple(put for put in changes.puts if (changes.stream, put[0]) not in self._touched)
            if puts:
                kept.append(Changes(changes.stream, puts, ()))
        return WriteBatch(tuple(kept))


class SnapshotWriter:
    """Writes one snapshot, an entry after the other. ``rows`` gives those that there were at the beginning, as they are
    when it is asked: those removed since may be left out.
    """

    def __init__(
        self, settings: ClusterSettings, fence: Fence, appends: Appends, rows: Iterator[WriteBatch], now: float
    ) -> None:
        self._settings = settings
        self._fence = fence
        self._appends = appends
        self._index = fence.index
        self._parts = self._cut(rows)
        self._number = 0
        self._due_at = float("inf")
        self._sent: SentEntry | None = None
        self._send(0, Snapshot(fence.index, fence.pack()), now)

    def _cut(self, rows: Iterator[WriteBatch]) -> Iterator[Part]:
        for batch in rows:
            for piece, is_last in pieces(pack_batch(batch), self._settings.part_bytes):
                yield Part(self._index, piece, is_last)
        yield Part(self._index, pack_batch(WriteBatch(())), is_end=True)

    def _send(self, seq: int, body: Body, now: float) -> None:
        fence = self._fence
        entry = LogEntry(fence.epoch, seq, self._settings.life, fence.log_ms, fence.base, body)
        self._sent = self._appends.send(entry, now)

    def receive(self, entry: LogEntry, verdict: Verdict) -> bool:
        """One of its entries came back. Returns whether the snapshot goes on."""
        if self._sent is None or self._sent.entry != entry:
            return True  # a copy of an earlier one
        if verdict is not Verdict.VALID:
            return False  # another snapshot came first
        size = len(entry.body.data) if isinstance(entry.body, Part) else 0
        self._due_at = self._sent.sent_at + max(size, _SMALL_PART) / _PACE
        self._sent = None
        return not (isinstance(entry.body, Part) and entry.body.is_end)

    def failed(self, ticket: int) -> None:
        """Try again."""
        if self._sent is not None and self._sent.ticket == ticket:
            self._appends.repeat(self._sent)

    def tick(self, now: float) -> None:
        """Send the next part, if it is time."""
        if now >= self.next_deadline():
            part = next(self._parts)
            self._send(self._number, part, now)
            self._number += 1

    def next_deadline(self) -> float:
        """When to call :meth:`tick`."""
        return self._due_at if self._sent is None else float("inf")
