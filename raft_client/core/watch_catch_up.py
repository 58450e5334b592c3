"""Watches that are behind: each reads the log on its own until it has seen what the live ones have.

``WatchCatchUp`` keeps the books of all watches. One that is behind takes from the memory of the last entries, or from a
reader of its own, as much as its queue has room for; when nothing is missing any more it is live, and
:class:`~raft_client.core.watches.Watches` offers it what comes in.

Invariant: a watch that is behind takes each entry after ``watch.seen`` once, in order; ``seen`` never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final, TypeAlias, TypedDict

from raft_client.core.calls import Call
from raft_client.core.entries_stream import EntriesStream, EntryBatch, SnapshotPolicy
from raft_client.core.event_history import EventHistory
from raft_client.core.selectors import SelectorIndex, Where
from raft_client.core.stream_actions import Cancel, Ended, FollowUp, Ready, Restart, Submit, SubscriptionAction
from raft_client.core.subscription import Subscription
from raft_client.core.verdicts import Again, FollowUps
from raft_client.core.watch_events import SnapshotEvent, WatchEvent, WatchItem
from raft_client.core.watch_state import Phase, WatchReady, WatchState
from raft_client.errors import ProtocolError, TermMismatchError
from raft_client.wire.key_changes import Change, EntryCodec
from raft_client.wire.log_entry import LogEntry
from raft_client.wire.positions import Position, position_after
from raft_client.wire.snapshots import SnapshotChunk

__all__ = ["WatchAction", "WatchCatchUp", "WatchLimits", "unreadable"]

#: What the reader of one watch may hold, beside the watch's own queue.
_READER_BYTES: Final = 256 * 1024
#: The entries that are remembered.
_RECENT_BYTES: Final = 1024 * 1024
#: What an event costs beside its keys and values.
_EVENT_BYTES: Final = 100
#: Before a watch reads again when the last reading brought nothing, although there is more (a new leader lags).
_READ_AGAIN_S: Final = 0.1


WatchAction: TypeAlias = SubscriptionAction | WatchReady


class WatchLimits(TypedDict, total=False):
    """What the watches leave to the settings of their client."""

    silence_s: float
    progress_s: float
    total_bytes: int


class WatchCatchUp:
    """The books of all watches with one codec, and the reading of those that are behind."""

    def __init__(
        self,
        ident: bytes,
        codec: EntryCodec,
        *,
        silence_s: float = 1.0,
        progress_s: float = 10.0,
        total_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._ident = ident
        self._codec = codec
        self._silence_s = silence_s
        self._progress_s = progress_s
        self._total_bytes = total_bytes
        self._ids = count(1)
        self._watches: dict[int, WatchState] = {}
        self._told_of: dict[int, WatchState] = {}  # those that want to know whether the leader is heard
        self._live: SelectorIndex[WatchState] = SelectorIndex()
        self._readers: dict[Call, WatchState] = {}
        self._ends: dict[Call, WatchState] = {}  # questions where the log ends, each for the start of one watch
        self._subscription: Subscription | None = None
        self._position = Position(0)  # of the last entry that live watches were offered
        self._recent = EventHistory(_RECENT_BYTES)
        self._progress_at: float | None = None  # monotonic seconds
        self._silent_at: float | None = None  # when the first question where the log ends has waited for too long
        self._is_silent = False  # it has
        self._again: dict[WatchState, float] = {}  # watches that pause before they read again
        self._actions: list[WatchAction] = []
        self._closed = False

    def _room(self, watch: WatchState) -> int:
        """What may wait for its consumer: as much as it was given, but no more than its share of what there is for all.

        Invariant: what was broadcast and waits in all queues together is no more than ``total_bytes``, and one event
        for each watch. One that is behind holds besides, once, what its reader had received: up to ``_READER_BYTES``
        and the messages that a peer sends ahead.
        """
        return min(watch.queue_bytes, self._total_bytes // max(1, len(self._watches)))

    def _go_live(self, watch: WatchState) -> None:
        watch.phase = Phase.LIVE
        self._live.add(watch, watch.selector)
        self._actions.append(WatchReady(watch))

    def _fall_behind(self, watch: WatchState, seen: Position) -> None:
        watch.seen = max(watch.seen, seen)
        watch.phase = Phase.BEHIND
        self._live.discard(watch, watch.selector)

    # -- behind --------------------------------------------------------------------------------------------------------

    def _catch_up(self, watch: WatchState, now: float) -> None:
        """From its reader, then from memory; live when it has seen what the live ones have; else from a new reader."""
        if watch.reader is not None:
            self._read_on(watch, watch.reader, now)
        else:
            self._find_source(watch)

    def _find_source(self, watch: WatchState) -> None:
        if watch.phase is Phase.BEHIND and watch not in self._again:
            if watch.confirms:
                self._confirm(watch)
            if not watch.confirms:
                self._replay(watch)
            if watch.phase is Phase.BEHIND and watch.confirms:
                self._start_reader(watch)
            elif watch.phase is Phase.BEHIND and watch.seen.index >= self._position.index:
                self._go_live(watch)
            elif watch.phase is Phase.BEHIND and watch.size <= self._room(watch):
                self._start_reader(watch)

    def _confirm(self, watch: WatchState) -> None:
        """From what is known here; else its reader asks."""
        seen = watch.seen
        term = self._position.term if self._position.index == seen.index else self._recent.term_of(seen.index)
        watch.confirms = not term
        if term and term != seen.term:
            text = f"the entry {seen.index} was of the term {seen.term}, and the log has the term {term} there"
            error = TermMismatchError(f"{text}: it is another log", index=seen.index, term=seen.term, found_term=term)
            self._end(watch, error)

    def _start_reader(self, watch: WatchState) -> None:
        policy = SnapshotPolicy.DELIVER if watch.relist else SnapshotPolicy.REFUSE
        after = watch.seen if watch.confirms else watch.seen.index
        watch.reader = EntriesStream(self._ident, after, snapshot=policy, buffer_bytes=_READER_BYTES)
        watch.read_from = watch.seen
        self._readers[watch.reader] = watch
        self._actions.append(Submit(watch.reader))

    def _read_on(self, watch: WatchState, reader: EntriesStream, now: float) -> None:
        """Take what the reader has, while there is room."""
        while watch.size <= self._room(watch) and (batch := reader.next_batch(now)) is not None:
            self._take(watch, batch)
        if watch.reader is not reader:
            return  # the watch ended on the way
        match reader.resume():
            case FollowUps(frames=frames):
                self._actions.append(FollowUp(reader, frames))
            case Again(last=last):
                self._actions.append(Restart(reader, last))

    def _drain(self, watch: WatchState, reader: EntriesStream, now: float) -> None:
        """The reader is done: take all it has, room or not. It never holds much."""
        watch.reader = None
        watch.confirms = False
        while watch.phase is Phase.BEHIND and (batch := reader.next_batch(now)) is not None:
            self._take(watch, batch)

    def _reader_finished(self, watch: WatchState, reader: EntriesStream, now: float) -> None:
        self._drain(watch, reader, now)
        if watch.phase is Phase.BEHIND:
            if watch.seen.index == watch.read_from.index and watch.seen.index < self._position.index:
                self._again[watch] = now + _READ_AGAIN_S
            self._catch_up(watch, now)

    def _replay(self, watch: WatchState) -> None:
        """Take from memory what the watch has not seen, if all of that is there."""
        for entry in self._recent.after(watch.seen.index):
            if watch.size > self._room(watch) or watch.phase is not Phase.BEHIND:
                return
            self._take(watch, (entry,))

    def _take(self, watch: WatchState, batch: EntryBatch) -> None:
        watch.confirms = False
        if isinstance(batch, SnapshotChunk):
            watch.forget()
            watch.seen = position_after(batch, watch.seen)
            self._push(watch, SnapshotEvent(watch.id, batch, watch.seen), len(batch.data))
            return
        for entry in batch:
            if watch.phase is Phase.BEHIND and entry.index > watch.seen.index:
                watch.seen = entry.position
                if entry.is_state:
                    self._take_entry(watch, entry)

    def _take_entry(self, watch: WatchState, entry: LogEntry) -> None:
        try:
            changes = self._codec.decode(entry.data)
        except Exception as error:  # noqa: BLE001 - the codec is the user's, and must not stop the client
            self._end(watch, unreadable(entry, error))
            return
        selected = self._select(watch, changes, of_its_keys=False)
        if selected:
            self._push_event(watch, entry, selected)

    # -- both ----------------------------------------------------------------------------------------------------------

    def _select(self, watch: WatchState, changes: Sequence[Change], *, of_its_keys: bool) -> Sequence[Change]:
        """What the watch wants. A condition may look at anything, and so concerns every key."""
        selector = watch.selector
        try:
            if isinstance(selector, Where):
                return [change for change in map(watch.note, changes) if selector.matches(change)]
            wanted = changes if of_its_keys else [change for change in changes if selector.matches(change)]
            return wanted if watch.values is None else list(map(watch.note, wanted))
        except Exception as error:  # noqa: BLE001 - the predicate is the user's, and concerns its watch alone
            self._end(watch, error)
            return ()

    def _push_event(self, watch: WatchState, entry: LogEntry, changes: Sequence[Change]) -> None:
        size = sum([len(change.key) + len(change.value or b"") for change in changes])
        self._push(watch, WatchEvent(watch.id, entry, tuple(changes)), size)

    def _push(self, watch: WatchState, item: WatchItem, size: int) -> None:
        if watch.idle:  # else its consumer has no reason to wait
            self._actions.append(WatchReady(watch))
        watch.push(item, size + _EVENT_BYTES)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _end(self, watch: WatchState, error: Exception) -> None:
        if watch.phase is Phase.ENDED:
            return
        if watch.is_live:
            self._live.discard(watch, watch.selector)
        watch.phase, watch.error = Phase.ENDED, error
        if watch.reader is not None and self._readers.pop(watch.reader, None) is not None:
            self._actions.append(Cancel(watch.reader, watch.reader.stop()))
        watch.reader = None
        self._again.pop(watch, None)
        for question in [q for q, w in self._ends.items() if w is watch]:
            del self._ends[question]
            self._actions.append(Cancel(question))
        del self._watches[watch.id]
        self._told_of.pop(watch.id, None)
        self._actions.append(WatchReady(watch))
        if not self._watches:
            self._stop()

    def _end_all(self, watches: Iterable[WatchState], error: Exception) -> None:
        for watch in list(watches):
            self._end(watch, error)

    def _pass_on(self, subscription: Subscription) -> None:
        """The watches share it: no consumer waits for its batches, or is told of its end."""
        self._actions += [a for a in subscription.take_actions() if not isinstance(a, Ready | Ended)]

    def _stop(self) -> None:
        """Without watches nothing is read."""
        self._actions += [Cancel(question) for question in self._ends]
        self._ends.clear()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()
            self._pass_on(subscription)
        self._progress_at = self._silent_at = None
        self._is_silent = False
        self._position = Position(0)
        self._recent.clear()


def unreadable(entry: LogEntry, error: Exception) -> ProtocolError:
    """The error of watches whose codec failed on this entry."""
    return ProtocolError(f"the codec cannot read the entry {entry.index}: {type(error).__name__}: {error}")
