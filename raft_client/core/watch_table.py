"""All watches with one codec: which there are, how far they are, what they want done.

Invariant: ``seen`` of a watch never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from raft_client.core.calls import Call, GetLogInfo
from raft_client.core.event_history import EventHistory
from raft_client.core.freshness import Freshness
from raft_client.core.selectors import SelectorIndex, Where
from raft_client.core.stream_actions import Cancel, Submit, SubscriptionAction
from raft_client.core.watch_events import Progress, Resumed, Suspended, WatchEvent, WatchItem
from raft_client.core.watch_state import Phase, WatchCounts, WatchReady, WatchState
from raft_client.errors import ProtocolError, SubscriberOverflowError
from raft_client.wire.key_changes import Change, EntryCodec
from raft_client.wire.log_entry import LogEntry, Position

if TYPE_CHECKING:
    from raft_client.core.served_watches import ServedWatches

#: The entries that are remembered.
_RECENT_BYTES: Final = 1024 * 1024
#: What an event costs beside its keys and values.
_EVENT_BYTES: Final = 100

WatchAction: TypeAlias = SubscriptionAction | WatchReady


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
        self.served: ServedWatches | None = None
        self.actions: list[WatchAction] = []

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
        self.actions.append(WatchReady(watch))

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
        if watch.idle:  # else its consumer has no reason to wait
            self.actions.append(WatchReady(watch))
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
        self.actions.append(WatchReady(watch))
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
