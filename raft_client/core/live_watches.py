"""Watches that are live: what is broadcast is decoded once, and offered to those that may want it.

Source: State Watch pattern; facts (kvstore and watch) §8.4, R8 and R11.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raft_client.core.watch_state import WatchState
from raft_client.core.watch_table import WatchTable, unreadable
from raft_client.wire.key_changes import Change
from raft_client.wire.log_entry import LogEntry, Position


class LiveWatches:
    """Offer entries to the live watches. One whose consumer is slow falls behind, or ends, as it was asked to."""

    def __init__(self, table: WatchTable) -> None:
        self._table = table

    def offer(self, entries: Iterable[LogEntry]) -> None:
        """What was broadcast next: each entry is decoded once, and remembered."""
        table = self._table
        for entry in entries:
            before, table.position = table.position, entry.position
            table.history.append(entry)
            if entry.is_state and table.live:
                self._offer_entry(entry, before)

    def _offer_entry(self, entry: LogEntry, before: Position) -> None:
        try:
            changes = self._table.codec.decode(entry.data)
        except Exception as error:  # noqa: BLE001 - the codec is the user's, and must not stop the client
            self._table.end_all([w for w in self._table.watches.values() if w.is_live], unreadable(entry, error))
            return
        wanted: dict[WatchState, list[Change]] = {}
        for change in changes:
            for watch in self._table.live.candidates(change.key):
                wanted.setdefault(watch, []).append(change)
        for watch, candidates in wanted.items():
            if watch.is_live and entry.index > watch.seen.index:
                self._offer_changes(watch, entry, candidates, before)

    def _offer_changes(
        self, watch: WatchState, entry: LogEntry, candidates: Sequence[Change], before: Position
    ) -> None:
        if watch.size > self._table.room(watch):
            self._table.fall_behind(watch, before)
            self._table.overflowed(watch)
            return
        selected = self._table.select(watch, candidates, of_its_keys=True)
        if selected:
            self._table.push_event(watch, entry, selected)
