"""Watches that are behind: each reads the log on its own until it has seen what the live ones have.

One that is behind takes from the memory of the last entries, or from a reader of its own, as much as its queue has room
for; when nothing is missing any more it is live (:mod:`raft_client.core.live_watches`).

Invariant: a watch that is behind takes each entry after ``watch.seen`` once, in order.
"""

from __future__ import annotations

from typing import Final

from raft_client.core.entries_stream import EntriesStream, EntryBatch, SnapshotPolicy
from raft_client.core.stream_actions import FollowUp, Restart, Submit
from raft_client.core.verdicts import Again, FollowUps
from raft_client.core.watch_events import SnapshotEvent
from raft_client.core.watch_state import Phase, WatchState
from raft_client.core.watch_table import WatchTable, unreadable
from raft_client.errors import TermMismatchError
from raft_client.wire.log_entry import LogEntry, SnapshotChunk, position_after

#: What the reader of one watch may hold, beside the watch's own queue.
_READER_BYTES: Final = 256 * 1024
#: Before a watch reads again when the last reading brought nothing, although there is more (a new leader lags).
_READ_AGAIN_S: Final = 0.1


class WatchCatchUp:
    """The reading of the watches that are behind."""

    def __init__(self, table: WatchTable) -> None:
        self._table = table

    def catch_up(self, watch: WatchState, now: float) -> None:
        """From its reader, then from memory; live when it has seen what the live ones have; else from a new reader."""
        if watch.reader is not None:
            self._read_on(watch, watch.reader, now)
        else:
            self.find_source(watch)

    def find_source(self, watch: WatchState) -> None:
        if watch.phase is not Phase.BEHIND or watch in self._table.paused:
            return
        if self._table.is_served:
            self._table.begin(watch)
        else:
            if watch.confirms:
                self._confirm(watch)
            if not watch.confirms:
                self._replay(watch)
            if watch.phase is Phase.BEHIND and watch.confirms:
                self.start_reader(watch)
            elif watch.phase is Phase.BEHIND and watch.seen.index >= self._table.position.index:
                self._table.go_live(watch)
            elif watch.phase is Phase.BEHIND and watch.size <= self._table.room(watch):
                self.start_reader(watch)

    def _confirm(self, watch: WatchState) -> None:
        """From what is known here; else its reader asks."""
        seen, table = watch.seen, self._table
        known = table.position
        term = known.term if known.index == seen.index else table.history.term_of(seen.index)
        watch.confirms = not term
        if term and term != seen.term:
            text = f"the entry {seen.index} was of the term {seen.term}, and the log has the term {term} there"
            error = TermMismatchError(f"{text}: it is another log", index=seen.index, term=seen.term, found_term=term)
            self._table.end(watch, error)

    def start_reader(self, watch: WatchState) -> None:
        policy = SnapshotPolicy.DELIVER if watch.relist else SnapshotPolicy.REFUSE
        after = watch.seen if watch.confirms else watch.seen.index
        watch.reader = EntriesStream(self._table.ident, after, snapshot=policy, buffer_bytes=_READER_BYTES)
        watch.read_from = watch.seen
        self._table.readers[watch.reader] = watch
        self._table.actions.append(Submit(watch.reader))

    def _read_on(self, watch: WatchState, reader: EntriesStream, now: float) -> None:
        """Take what the reader has, while there is room."""
        while watch.size <= self._table.room(watch) and (batch := reader.next_batch(now)) is not None:
            self._take(watch, batch)
        if watch.reader is not reader:
            return  # the watch ended on the way
        match reader.resume():
            case FollowUps(frames=frames):
                self._table.actions.append(FollowUp(reader, frames))
            case Again(last=last):
                self._table.actions.append(Restart(reader, last))

    def drain(self, watch: WatchState, reader: EntriesStream, now: float) -> None:
        """The reader is done: take all it has, room or not. It never holds much."""
        watch.reader = None
        watch.confirms = False
        while watch.phase is Phase.BEHIND and (batch := reader.next_batch(now)) is not None:
            self._take(watch, batch)

    def reader_finished(self, watch: WatchState, reader: EntriesStream, now: float) -> None:
        self.drain(watch, reader, now)
        if watch.phase is Phase.BEHIND:
            if watch.seen.index == watch.read_from.index and (
                self._table.is_served or watch.seen.index < self._table.position.index
            ):
                self._table.paused[watch] = now + _READ_AGAIN_S
            self.catch_up(watch, now)

    def _replay(self, watch: WatchState) -> None:
        """Take from memory what the watch has not seen, if all of that is there."""
        for entry in self._table.history.after(watch.seen.index):
            if watch.size > self._table.room(watch) or watch.phase is not Phase.BEHIND:
                return
            self._take(watch, (entry,))

    def _take(self, watch: WatchState, batch: EntryBatch) -> None:
        watch.confirms = False
        if isinstance(batch, SnapshotChunk):
            watch.forget()
            watch.seen = position_after(batch, watch.seen)
            self._table.push(watch, SnapshotEvent(watch.id, batch, watch.seen), len(batch.data))
            return
        for entry in batch:
            if watch.phase is Phase.BEHIND and entry.index > watch.seen.index:
                watch.seen = entry.position
                if entry.is_state:
                    self._take_entry(watch, entry)

    def _take_entry(self, watch: WatchState, entry: LogEntry) -> None:
        try:
            changes = self._table.codec.decode(entry.data)
        except Exception as error:  # noqa: BLE001 - the codec is the user's, and must not stop the client
            self._table.end(watch, unreadable(entry, error))
            return
        selected = self._table.select(watch, changes, of_its_keys=False)
        if selected:
            self._table.push_event(watch, entry, selected)
