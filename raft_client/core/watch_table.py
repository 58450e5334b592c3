"""All watches with one codec: which there are, how far they are, what they want done.

What is broadcast is decoded once, and offered to the *live* watches that may want it. A watch that is *behind* takes
from the memory of the last entries, or from a reader of its own, as much as its queue has room for; when nothing is
missing any more it is live.

Invariant: ``seen`` of a watch never goes back.
Invariant: a watch that is behind takes each entry after ``watch.seen`` once, in order.

Source: State Watch pattern; facts (kvstore and watch) §8.4, R8 and R11.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, Protocol

from raft_client.core.calls import Again, Call, FollowUps, GetLogInfo
from raft_client.core.entries_stream import EntriesStream, EntryBatch, SnapshotPolicy
from raft_client.core.selectors import SelectorIndex, Where
from raft_client.core.stream_actions import Cancel, FollowUp, Freshness, Restart, StreamAction, Submit
from raft_client.core.watch_events import (
    Phase,
    Progress,
    Resumed,
    SnapshotEvent,
    Suspended,
    WatchCounts,
    WatchEvent,
    WatchItem,
    WatchState,
)
from raft_client.errors import ProtocolError, SubscriberOverflowError, TermMismatchError
from raft_client.wire.key_changes import Change, EntryCodec
from raft_client.wire.log_entry import LogEntry, Position, SnapshotChunk, position_after

# -- the last entries --------------------------------------------------------------------------------------------------
# Source: State Watch pattern, "Storing Event History"; here what is no longer in memory is still in the log.


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

    def term_of(self, index: int) -> int:
        """The term of the entry at ``index``; 0 when it is not there."""
        skip = index - self._entries[0].index if self._entries else -1
        return self._entries[skip].term if 0 <= skip < len(self._entries) else 0

    def clear(self) -> None:
        """Forget them all: the next one has any index."""
        self._entries.clear()
        self._bytes = 0


# -- the watches -------------------------------------------------------------------------------------------------------

#: The entries that are remembered.
_RECENT_BYTES: Final = 1024 * 1024
#: What an event costs beside its keys and values.
_EVENT_BYTES: Final = 100


class WatchSource(Protocol):
    """The watches that the leader serves, as the table needs them: see :mod:`raft_client.core.served_watches`."""

    is_refused: bool

    def begin(self, watch: WatchState) -> None: ...
    def drop(self, watch: WatchState) -> None: ...


class WatchTable:
    """Shared by the parts of :class:`~raft_client.core.watches.Watches`; nobody else uses it.

    ``on_empty`` is called when the last watch has ended.
    """

    def __init__(self, ident: bytes, codec: EntryCodec, total_bytes: int, on_empty: Callable[[], None]) -> None:
        self.ident = ident
        self.codec = codec
        self.total_bytes = total_bytes
        self._on_empty = on_empty
        self.watches: dict[int, WatchState] = {}
        self.told_of: dict[int, WatchState] = {}  # those that want to know whether the leader is heard
        self.live: SelectorIndex[WatchState] = SelectorIndex()
        self.readers: dict[Call, WatchState] = {}
        self.questions: dict[Call, WatchState] = {}  # where the log ends, each for the start of one watch
        self.position: Position = Position(0)  # of the last entry that live watches were offered
        self.history: EventHistory = EventHistory(_RECENT_BYTES)
        self.paused: dict[WatchState, float] = {}  # watches that pause before they read again
        #: Those that the leader serves; None: what the codec reads, no leader could.
        self.served: WatchSource | None = None
        self.actions: list[StreamAction] = []

    def room(self, watch: WatchState) -> int:
        """What may wait for its consumer: as much as it was given, but no more than its share of what there is for all.

        Invariant: what was broadcast and waits in all queues together is no more than ``total_bytes``, and one event
        for each watch. One that is behind holds besides, once, what its reader had received: up to ``_READER_BYTES``
        and the messages that a peer sends ahead.
        """
        return min(watch.queue_bytes, self.total_bytes // max(1, len(self.watches)))

    def go_live(self, watch: WatchState) -> None:
        watch.phase = Phase.LIVE
        self.live.add(watch, watch.selector)
        watch.notify()

    def fall_behind(self, watch: WatchState, seen: Position) -> None:
        watch.seen = max(watch.seen, seen)
        watch.phase = Phase.BEHIND
        self.live.discard(watch, watch.selector)

    # -- how far they are ----------------------------------------------------------------------------------------------

    @property
    def counts(self) -> WatchCounts:
        watches = self.watches.values()
        return WatchCounts(
            len(watches),
            sum(watch.is_live for watch in watches),
            sum(watch.waiting for watch in watches),
            sum(watch.size for watch in watches),
        )

    def resume_after(self, watch: WatchState) -> Position | None:
        if watch.started_after is None:
            return None
        return self.place_of(watch) if watch.idle else max(watch.told, watch.started_after)

    def place_of(self, watch: WatchState) -> Position:
        """The position of what it has in its queue, or has handed out."""
        return max(watch.seen, self.position) if watch.phase is Phase.LIVE else max(watch.seen, watch.told)

    def report_progress(self) -> None:
        """To the live watches that have been quiet."""
        for watch in self.watches.values():
            position = self.place_of(watch)
            if watch.is_live and watch.idle and position.index > watch.told.index:
                self.push(watch, Progress(watch.id, position), 0)

    def tell_of_the_link(self, freshness_of: Callable[[WatchState], Freshness]) -> None:
        """Tell the watches that asked for it whether a leader is heard, after all that came before."""
        for watch in self.told_of.values():
            freshness = freshness_of(watch)
            if freshness is Freshness.SILENT and not watch.suspended:
                watch.suspended = True
                self.push(watch, Suspended(watch.id, self.place_of(watch)), 0)
            elif freshness is Freshness.FRESH and watch.suspended and watch.is_live:
                watch.suspended = False
                self.push(watch, Resumed(watch.id, self.place_of(watch)), 0)

    # -- where they read -----------------------------------------------------------------------------------------------

    @property
    def is_served(self) -> bool:
        """Whether the leader is to serve them."""
        return self.served is not None and not self.served.is_refused

    def begin(self, watch: WatchState) -> None:
        """Let the leader serve it."""
        if self.served is not None:
            self.served.begin(watch)

    def ask_for_the_end(self, watch: WatchState) -> None:
        """The watch is to go on in the log, once it is known where that ends."""
        question = GetLogInfo(self.ident, of_leader=True)
        self.questions[question] = watch
        self.actions.append(Submit(question))

    def stop_reading(self, watch: WatchState) -> None:
        if watch.reader is not None and self.readers.pop(watch.reader, None) is not None:
            self.actions.append(Cancel(watch.reader, watch.reader.stop()))
        watch.reader = None

    # -- events --------------------------------------------------------------------------------------------------------

    def select(self, watch: WatchState, changes: Sequence[Change], *, of_its_keys: bool) -> Sequence[Change]:
        """What the watch wants. A condition may look at anything, and so concerns every key."""
        selector = watch.selector
        try:
            if isinstance(selector, Where):
                return [change for change in map(watch.note, changes) if selector.matches(change)]
            wanted = changes if of_its_keys else [change for change in changes if selector.matches(change)]
            return wanted if watch.values is None else list(map(watch.note, wanted))
        except Exception as error:  # noqa: BLE001 - the predicate is the user's, and concerns its watch alone
            self.end(watch, error)
            return ()

    def push_event(self, watch: WatchState, entry: LogEntry, changes: Sequence[Change]) -> None:
        self.push(watch, WatchEvent(watch.id, entry.position, tuple(changes), entry), bytes_of(changes))

    def push(self, watch: WatchState, item: WatchItem, size: int) -> None:
        watch.push(item, size + _EVENT_BYTES)

    def overflowed(self, watch: WatchState) -> None:
        """It has fallen behind because its consumer is slow: that is its end, if it was asked to."""
        if watch.overflow == "error":
            text = f"{watch.size} bytes of {watch.waiting} events wait for the reader of the watch, more than its"
            if self.room(watch) == watch.queue_bytes:
                text = f"{text} queue_bytes={watch.queue_bytes}"
            else:
                text = f"{text} share of the {self.total_bytes} bytes for the {len(self.watches)} watches of the client"
            self.end(watch, SubscriberOverflowError(text))

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self, watch: WatchState, error: Exception) -> None:
        if watch.phase is Phase.ENDED:
            return
        if watch.is_live:
            self.live.discard(watch, watch.selector)
        watch.phase, watch.error = Phase.ENDED, error
        self.stop_reading(watch)
        self.paused.pop(watch, None)
        if self.served is not None:
            self.served.drop(watch)
        for question in [q for q, w in self.questions.items() if w is watch]:
            del self.questions[question]
            self.actions.append(Cancel(question))
        del self.watches[watch.id]
        self.told_of.pop(watch.id, None)
        watch.notify()
        if not self.watches:
            self._on_empty()

    def end_all(self, watches: Iterable[WatchState], error: Exception) -> None:
        for watch in list(watches):
            self.end(watch, error)


def bytes_of(changes: Sequence[Change]) -> int:
    """Of keys and values."""
    return sum([len(change.key) + len(change.value or b"") for change in changes])


def unreadable(entry: LogEntry, error: Exception) -> ProtocolError:
    """The error of watches whose codec failed on this entry."""
    return ProtocolError(f"the codec cannot read the entry {entry.index}: {type(error).__name__}: {error}")


# -- live watches ------------------------------------------------------------------------------------------------------


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


# -- watches that read the log -----------------------------------------------------------------------------------------


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
