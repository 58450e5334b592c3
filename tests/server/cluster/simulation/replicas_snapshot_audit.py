"""What is in a snapshot was in the log before: no row in it is one that was never committed, or an outdated one. With
the batches since its index it is whole.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

from replicas_machine import Rows

from statestore_client.server.cluster.entries import Assembly, Part, Snapshot, unpack_batch

if TYPE_CHECKING:
    from replicas_world import World

    from statestore_client.server.journal import Stream, Subject, WriteBatch

_Row: TypeAlias = "tuple[Stream, Subject]"


class SnapshotAudit:
    """Knows how each row changed, and by which entry."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._history: defaultdict[_Row, list[tuple[int, bytes | None]]] = defaultdict(list)
        self._assembly = Assembly()
        self._found: set[_Row] = set()

    def changed(self, index: int, batch: WriteBatch) -> None:
        """By a valid batch."""
        for changes in batch.changes:
            for subject, packed in changes.puts:
                self._history[changes.stream, subject].append((index, packed))
            for subject in changes.removals:
                self._history[changes.stream, subject].append((index, None))

    def rows_at(self, index: int) -> Rows:
        """All rows after this entry."""
        rows: Rows = {}
        for (stream, subject), history in self._history.items():
            packed = next((packed for at, packed in reversed(history) if at <= index), None)
            if packed is not None:
                rows[stream, str(subject)] = packed
        return rows

    def receive(self, index: int, body: Snapshot | Part) -> None:
        """A valid entry of a snapshot."""
        if isinstance(body, Snapshot):
            self._assembly = Assembly()
            self._found.clear()
            return
        rows = self._assembly.add(body.data, is_last=body.is_last)
        for changes in () if rows is None else unpack_batch(rows).changes:
            for subject, packed in changes.puts:
                if not self._was(changes.stream, subject, packed, body.index):
                    row = f"{changes.stream.value} {subject!r}"
                    self._world.complain(f"{row} in the snapshot part {index} is a row that the log did not have")
                self._found.add((changes.stream, subject))
        if body.is_end:
            self._check_whole(body.index)

    def _check_whole(self, since: int) -> None:
        for (stream, subject), history in self._history.items():
            at, packed = history[-1]
            if at <= since and packed is not None and (stream, subject) not in self._found:
                self._world.complain(f"{stream.value} {subject!r} is missing in the snapshot of {since}")

    def _was(self, stream: Stream, subject: Subject, packed: bytes, since: int) -> bool:
        """At that index or later."""
        for at, other in reversed(self._history[stream, subject]):
            if other == packed:
                return True
            if at <= since:
                break
        return False
