"""Watches that read the log: what changed under a key, a prefix or a condition, from any index on.

::

                 +--> watch (live)     all live watches share one subscription; an entry is decoded once
    subscription +--> watch (live)
                 |     ^ caught up
                 +--> watch (behind) <-- a reader of its own: it starts in the past, or its consumer was slow

The subscription starts at the end of the log; a watch that starts earlier reads up to it. The last entries are
remembered for watches that have nearly caught up. A slow consumer never holds up the others: its watch falls behind and
reads the log again later, or ends, as it was asked to.

Watches that the leader serves read here what it has forgotten, and then go back to it.

Invariant: a watch that is behind takes each entry after ``watch.seen`` once, in order.
Invariant: a watch has one call at most, a question or a reader.

Source: State Watch pattern; facts (kvstore and watch) §8.4, R2, R4, R5, R8 and R11.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from raft_client.core.calls import Again, Call, FollowUps, GetLogInfo
from raft_client.core.entries_stream import EntriesStream, EntryBatch, SnapshotPolicy
from raft_client.core.selectors import SelectorIndex
from raft_client.core.stream_actions import Cancel, FollowUp, Restart, Submit
from raft_client.core.subscription import Subscription
from raft_client.core.watch_events import Phase, SnapshotEvent, WatchEvent, WatchState, bytes_of
from raft_client.core.watch_table import WatchTable
from raft_client.errors import HistoryOutrunError, ProtocolError, RaftError, TermMismatchError
from raft_client.wire.client_requests import LogInfoReply
from raft_client.wire.key_changes import Change
from raft_client.wire.log_entry import LogEntry, Position, SnapshotChunk, position_after

# -- the last entries --------------------------------------------------------------------------------------------------
# Source: State Watch pattern, "Storing Event History"; here what is no longer in memory is still in the log.


#: The entries that are remembered.
_RECENT_BYTES: Final = 1024 * 1024
#: What an entry costs beside its bytes.
_ENTRY_BYTES: Final = 100


class EventHistory:
    """Entries with consecutive indexes, the oldest being dropped when they take more than ``limit`` bytes."""

    __slots__ = ("_bytes", "_entries", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: deque[LogEntry] = deque()
        self._bytes = 0

    def append(self, entry: LogEntry) -> None:
        """The entry after the last one."""
        self._entries.append(entry)
        self._bytes += entry.size + _ENTRY_BYTES
        while self._bytes > self._limit:
            self._bytes -= self._entries.popleft().size + _ENTRY_BYTES

    def after(self, index: int) -> Iterable[LogEntry]:
        """All entries after ``index``; nothing when the first of them is no longer there."""
        skip = index + 1 - self._entries[0].index if self._entries else -1
        return islice(self._entries, skip, None) if skip >= 0 else ()

    def position_of(self, index: int) -> Position:
        """What is known of the entry at ``index``: its index alone when it is not there."""
        skip = index - self._entries[0].index if self._entries else -1
        return self._entries[skip].position if 0 <= skip < len(self._entries) else Position(index)

    def clear(self) -> None:
        """Forget them all: the next one has any index."""
        self._entries.clear()
        self._bytes = 0


# -- watches that read the log -----------------------------------------------------------------------------------------

#: What the reader of one watch may hold, beside the watch's own queue.
_READER_BYTES: Final = 256 * 1024
#: Before a watch reads again when the last reading brought nothing, although there is more (a new leader lags).
_READ_AGAIN_S: Final = 0.1


class LogWatches:
    """A :class:`~raft_client.core.watch_table.WatchSource`: one subscription, and the readers of those behind it."""

    def __init__(self, table: WatchTable, silence_s: float) -> None:
        self._table = table
        self._silence_s = silence_s
        #: None: it is not known where the log ends, or the leader serves the watches.
        self.subscription: Subscription | None = None
        self._live: SelectorIndex[WatchState] = SelectorIndex()
        self._recent = EventHistory(_RECENT_BYTES)
        self._calls: dict[Call, WatchState] = {}  # questions where the log ends, and readers
        self._confirming: set[Call] = set()  # of those, what reads nothing but the entry at the start of a watch
        self._paused: dict[WatchState, float] = {}  # until when they wait before they read again, monotonic seconds

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do, in monotonic seconds."""
        soonest = min(self._paused.values()) if self._paused else None
        other = None if self.subscription is None else self.subscription.next_deadline()
        return other if soonest is None or (other is not None and other < soonest) else soonest

    # -- what is wanted ------------------------------------------------------------------------------------------------

    def begin(self, watch: WatchState) -> None:
        """Go on with this watch in the log, once it is known where that ends."""
        if watch.after is not None and self.subscription is not None:
            self._place(watch, watch.after, self._table.position)
        elif watch.question is None:
            self.drop(watch)
            watch.phase = Phase.WAITING
            self.ask_for_the_end(watch)

    def drop(self, watch: WatchState) -> None:
        """Nothing more is read for it."""
        self._live.discard(watch, watch.selector)
        self._paused.pop(watch, None)
        for call in (watch.question, watch.reader):
            if call is not None and self._calls.pop(call, None) is not None:
                self._confirming.discard(call)
                self._table.actions.append(Cancel(call, call.stop() if isinstance(call, EntriesStream) else None))
        watch.question = watch.reader = None

    def stop(self) -> None:
        """Without watches nothing is read."""
        subscription, self.subscription = self.subscription, None
        if subscription is not None:
            subscription.close()
            self._table.actions += subscription.take_actions()
        self._table.position = Position(0)
        self._recent.clear()

    def ask_for_the_end(self, watch: WatchState) -> None:
        """The watch starts where the log ends now, or goes on there."""
        watch.question = GetLogInfo(self._table.ident, of_leader=True)
        self._submit(watch.question, watch)

    def read(self, watch: WatchState) -> None:
        """With a reader of its own, which also finds out whether the log is the one that its start is of."""
        policy = SnapshotPolicy.DELIVER if watch.relist else SnapshotPolicy.REFUSE
        after = watch.seen if watch.confirms else watch.seen.index
        watch.reader = EntriesStream(self._table.ident, after, snapshot=policy, buffer_bytes=_READER_BYTES)
        watch.read_from = watch.seen
        self._submit(watch.reader, watch)

    def confirm(self, watch: WatchState, after: Position) -> None:
        """Find out whether the log is the one that the start is of. Then its source goes on, or it ends.

        Where that entry was compacted nobody can tell, but the source may still know what follows.
        """
        watch.start_after(after)
        watch.phase, watch.read_from = Phase.BEHIND, after
        watch.reader = EntriesStream(self._table.ident, after, count=0, snapshot=SnapshotPolicy.REFUSE)
        self._confirming.add(watch.reader)
        self._submit(watch.reader, watch)

    def _submit(self, call: Call, watch: WatchState) -> None:
        self._calls[call] = watch
        self._table.actions.append(Submit(call))

    # -- what is reported ----------------------------------------------------------------------------------------------

    def wake(self, call: Call, now: float) -> None:
        """A submitted call has something in its queue."""
        watch = self._calls.get(call)
        if watch is not None:
            self.catch_up(watch, now)
        else:
            self.pump(now)

    def finished(self, call: Call, result: object, now: float) -> None:
        """A submitted call has its result."""
        watch = self._calls.pop(call, None)
        if watch is None:
            if self.subscription is not None:
                self.subscription.finished(call, result, now)
                self.pump(now)
        elif isinstance(result, LogInfoReply):
            watch.question = None
            self._end_is_known(watch, result.last_applied, now)
        elif isinstance(call, EntriesStream):
            self._reader_finished(watch, call, now)

    def failed(self, call: Call, error: RaftError, now: float) -> None:
        """A submitted call failed for good."""
        watch = self._calls.pop(call, None)
        if watch is None:
            if self.subscription is not None:
                self.subscription.failed(call, error, now)
                self.pump(now)
            return
        if isinstance(call, EntriesStream):
            self._drain(watch, call, now)
        if self._only_confirmed(call) and isinstance(error, HistoryOutrunError):
            self._go_on(watch)
        else:
            self._table.end(watch, error)

    def tick(self, now: float) -> None:
        """Time has passed."""
        for watch in [watch for watch, at in self._paused.items() if now >= at]:
            del self._paused[watch]
            self.catch_up(watch, now)
        if self.subscription is not None:
            self.subscription.tick(now)
            self.pump(now)

    # -- where watches start -------------------------------------------------------------------------------------------

    def _end_is_known(self, watch: WatchState, end: int, now: float) -> None:
        """The log ended at the index ``end`` when the leader was asked, which was after the watch was made."""
        after = watch.after = Position(end) if watch.after is None else watch.after
        if self._table.source is not self:
            self._table.source.begin(watch)
            return
        if self.subscription is None:
            self._subscribe(end, now)
        self._place(watch, after, max(Position(end), self._table.position))

    def _place(self, watch: WatchState, after: Position, end: Position) -> None:
        watch.start_after(after)
        watch.phase = Phase.BEHIND
        if watch.seen.index > end.index:
            self.read(watch)  # it finds out whether the log was ever that long
        else:
            self._go_on(watch)

    def _subscribe(self, after: int, now: float) -> None:
        self._table.position = Position(after)
        self._recent.clear()
        self.subscription = Subscription(
            self._table.ident, after, snapshot=SnapshotPolicy.REFUSE, silence_s=self._silence_s, learn=True
        )
        self.subscription.start(now)
        self.pump(now)

    # -- live ----------------------------------------------------------------------------------------------------------

    def pump(self, now: float) -> None:
        """Offer what the subscription has to the live watches. One whose consumer is slow falls behind, or ends."""
        subscription, table = self.subscription, self._table
        if subscription is None:
            return
        while (batch := subscription.next_batch(now)) is not None:
            if not isinstance(batch, SnapshotChunk):
                self._offer(batch)
        table.position = max(subscription.taken, table.position)  # what it began after is learnt
        table.actions += subscription.take_actions()
        if subscription.error is not None and subscription is self.subscription:
            self._subscription_ended(subscription.error, now)

    def _subscription_ended(self, error: Exception, now: float) -> None:
        """The entries after our position are in a snapshot by now, or the log is no longer the one it was."""
        self.subscription = None
        index = error.snapshot_index if isinstance(error, HistoryOutrunError) else None
        survivors = []
        for watch in list(self._table.watches.values()):
            if watch.is_live:
                self.drop(watch)
                watch.phase, watch.seen = Phase.BEHIND, max(watch.seen, self._table.position)
            if index is None or (watch.phase is Phase.BEHIND and watch.seen.index < index and not watch.relist):
                self._table.end(watch, error)
            else:
                survivors.append(watch)
        if index is not None and survivors:
            self._subscribe(index, now)
        for watch in survivors:
            if watch.phase is Phase.BEHIND:
                self.catch_up(watch, now)

    def _offer(self, entries: Iterable[LogEntry]) -> None:
        """Each entry is decoded once, and remembered."""
        table = self._table
        for entry in entries:
            before, table.position = table.position, position_after((entry,), table.position)
            self._recent.append(entry)
            if entry.is_state and self._live:
                self._offer_entry(entry, before)

    def _offer_entry(self, entry: LogEntry, before: Position) -> None:
        table = self._table
        try:
            changes = table.codec.decode(entry.data)
        except Exception as error:  # noqa: BLE001 - the codec is the user's, and must not stop the client
            table.end_all([w for w in table.watches.values() if w.is_live], _unreadable(entry, error))
            return
        wanted: dict[WatchState, list[Change]] = {}
        for change in changes:
            for watch in self._live.candidates(change.key):
                wanted.setdefault(watch, []).append(change)
        for watch, candidates in wanted.items():
            if watch.phase is Phase.LIVE and entry.index > watch.seen.index:
                table.offer(watch, table.position, candidates, entry, before)

    def _go_live(self, watch: WatchState) -> None:
        watch.phase = Phase.LIVE
        self._live.add(watch, watch.selector)
        watch.notify()

    # -- behind --------------------------------------------------------------------------------------------------------

    def catch_up(self, watch: WatchState, now: float) -> None:
        """With what its reader has. Without one: from memory, live if nothing is missing then; else with a new one."""
        if watch.reader is not None:
            self._read_on(watch, watch.reader, now)
        else:
            self._go_on(watch)

    def _go_on(self, watch: WatchState) -> None:
        table = self._table
        if watch.phase is not Phase.BEHIND or watch in self._paused:
            return
        if table.source is not self:
            table.source.begin(watch)
            return
        if watch.confirms:
            self._confirm(watch)
        if not watch.confirms:
            self._replay(watch)
        if watch.error is not None:
            return  # it has ended
        if not watch.confirms and watch.seen.index >= table.position.index:
            self._go_live(watch)
        elif watch.confirms or watch.size <= table.room(watch):
            self.read(watch)

    def _confirm(self, watch: WatchState) -> None:
        """From what is known here; else its reader asks."""
        seen, known = watch.seen, self._table.position
        found = known if known.index == seen.index else self._recent.position_of(seen.index)
        watch.confirms = not found.term or (seen.entry_id != b"" and not found.entry_id)
        if seen.contradicts(found):
            text = f"the watch is to go on after {seen}, and the log has {found} there: it is another log"
            error = TermMismatchError(text, index=seen.index, term=seen.term, found_term=found.term)
            self._table.end(watch, error)

    def _replay(self, watch: WatchState) -> None:
        """Take from memory what the watch has not seen, if all of that is there."""
        for entry in self._recent.after(watch.seen.index):
            if watch.size > self._table.room(watch) or watch.phase is not Phase.BEHIND:
                return
            self._take(watch, (entry,))

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

    def _reader_finished(self, watch: WatchState, reader: EntriesStream, now: float) -> None:
        only_confirmed = self._only_confirmed(reader)
        self._drain(watch, reader, now)
        if watch.phase is Phase.BEHIND:
            is_lagging = self._table.source is not self or watch.seen.index < self._table.position.index
            if is_lagging and not only_confirmed and watch.seen.index == watch.read_from.index:
                self._paused[watch] = now + _READ_AGAIN_S
            self._go_on(watch)

    def _only_confirmed(self, call: Call) -> bool:
        """Whether the call that is over was to read nothing. Asked once."""
        was_confirming = call in self._confirming
        self._confirming.discard(call)
        return was_confirming

    def _drain(self, watch: WatchState, reader: EntriesStream, now: float) -> None:
        """The reader is done: take all it has, room or not. It never holds much."""
        watch.reader = None
        watch.confirms = False
        while watch.phase is Phase.BEHIND and (batch := reader.next_batch(now)) is not None:
            self._take(watch, batch)

    def _take(self, watch: WatchState, batch: EntryBatch) -> None:
        watch.confirms = False
        if isinstance(batch, SnapshotChunk):
            watch.forget()
            watch.seen = position_after(batch, watch.seen)
            watch.push(SnapshotEvent(watch.id, batch, watch.seen), len(batch.data))
            return
        for entry in batch:
            if watch.phase is Phase.BEHIND and entry.index > watch.seen.index:
                watch.seen = position_after((entry,), watch.seen)
                if entry.is_state:
                    self._take_entry(watch, entry)

    def _take_entry(self, watch: WatchState, entry: LogEntry) -> None:
        try:
            changes: Sequence[Change] = self._table.codec.decode(entry.data)
        except Exception as error:  # noqa: BLE001 - the codec is the user's, and must not stop the client
            self._table.end(watch, _unreadable(entry, error))
            return
        if selected := self._table.select(watch, changes, of_its_keys=False):
            watch.push(WatchEvent(watch.id, watch.seen, tuple(selected), entry), bytes_of(selected))


def _unreadable(entry: LogEntry, error: Exception) -> ProtocolError:
    """The error of watches whose codec failed on this entry."""
    return ProtocolError(f"the codec cannot read the entry {entry.index}: {type(error).__name__}: {error}")
