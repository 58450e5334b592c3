"""All watches with one codec: what each of them has in its queue, what they want done, and how a watch ends.

Events come from a *source* (:class:`WatchSource`): the leader that serves watches
(:mod:`raft_client.core.served_watches`), or the log (:mod:`raft_client.core.log_watches`). Selection, the limits of
queues, overflow, progress and the end are the same whichever it is.

Invariant: ``seen`` of a watch never goes back.

Source: State Watch pattern; facts (kvstore and watch) §8.4, R8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from raft_client.core.selectors import Where
from raft_client.core.stream_actions import Freshness, StreamAction
from raft_client.core.watch_events import (
    Phase,
    Progress,
    Resumed,
    Suspended,
    WatchCounts,
    WatchEvent,
    WatchState,
    bytes_of,
)
from raft_client.errors import SubscriberOverflowError
from raft_client.wire.key_changes import Change, EntryCodec
from raft_client.wire.log_entry import LogEntry, Position


class WatchSource(Protocol):
    """Where the events of watches come from."""

    def begin(self, watch: WatchState) -> None:
        """Go on with a watch where it is; nothing if that is under way."""

    def drop(self, watch: WatchState) -> None:
        """A watch wants nothing more."""


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
        self.wants_link: dict[int, WatchState] = {}  # those that want to know whether the leader is heard
        self.position: Position = Position(0)  # of the last entry that live watches were offered
        self.sources: tuple[WatchSource, ...] = ()
        self.source: WatchSource  # of these, the one that watches are begun at
        self.actions: list[StreamAction] = []

    def room(self, watch: WatchState) -> int:
        """What may wait for its consumer: as much as it was given, but no more than its share of what there is for all.

        Invariant: what was broadcast and waits in all queues together is no more than ``total_bytes``, and one event
        for each watch. One that is behind holds besides, once, what its reader had received: up to ``_READER_BYTES``
        and the messages that a peer sends ahead.
        """
        return min(watch.queue_bytes, self.total_bytes // max(1, len(self.watches)))

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
        return self.place_of(watch) if watch.idle else max(watch.handed_out, watch.started_after)

    def place_of(self, watch: WatchState) -> Position:
        """The position of what it has in its queue, or has handed out."""
        return max(watch.seen, self.position) if watch.phase is Phase.LIVE else max(watch.seen, watch.handed_out)

    def report_progress(self) -> None:
        """To the live watches that have been quiet."""
        for watch in self.watches.values():
            position = self.place_of(watch)
            if watch.is_live and watch.idle and position.index > watch.handed_out.index:
                watch.push(Progress(watch.id, position), 0)

    def report_link(self, freshness_of: Callable[[WatchState], Freshness]) -> None:
        """Tell the watches that asked for it whether a leader is heard, after all that came before."""
        for watch in self.wants_link.values():
            freshness = freshness_of(watch)
            if freshness is Freshness.SILENT and not watch.suspended:
                watch.suspended = True
                watch.push(Suspended(watch.id, self.place_of(watch)), 0)
            elif freshness is Freshness.FRESH and watch.suspended and watch.is_live:
                watch.suspended = False
                watch.push(Resumed(watch.id, self.place_of(watch)), 0)

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

    def offer(
        self,
        watch: WatchState,
        position: Position,
        changes: Sequence[Change],
        entry: LogEntry | None = None,
        before: Position | None = None,
    ) -> None:
        """What comes next for a watch that its source keeps up to date. If its queue is full it is behind from here on.

        That is its end, if it was asked to. With an ``entry``, the changes are those of its keys, and it missed nothing
        up to ``before``.
        """
        if watch.size > self.room(watch):
            self.source.drop(watch)
            watch.phase = Phase.BEHIND
            if before is not None:
                watch.seen = max(watch.seen, before)
            if watch.overflow == "error":
                self.end(watch, self._overflow(watch))
            return
        watch.seen = position
        if selected := self.select(watch, changes, of_its_keys=entry is not None):
            watch.push(WatchEvent(watch.id, position, tuple(selected), entry), bytes_of(selected))

    def _overflow(self, watch: WatchState) -> SubscriberOverflowError:
        text = f"{watch.size} bytes of {watch.waiting} events wait for the reader of the watch, more than its"
        if self.room(watch) == watch.queue_bytes:
            return SubscriberOverflowError(f"{text} queue_bytes={watch.queue_bytes}")
        return SubscriberOverflowError(
            f"{text} share of the {self.total_bytes} bytes for the {len(self.watches)} watches of the client"
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self, watch: WatchState, error: Exception) -> None:
        if watch.phase is Phase.ENDED:
            return
        for source in self.sources:
            source.drop(watch)
        watch.phase, watch.error = Phase.ENDED, error
        del self.watches[watch.id]
        self.wants_link.pop(watch.id, None)
        watch.notify()
        if not self.watches:
            self._on_empty()

    def end_all(self, watches: Iterable[WatchState], error: Exception) -> None:
        for watch in list(watches):
            self.end(watch, error)
