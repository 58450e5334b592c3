"""All watches of a client over one subscription: what changed under a key, a prefix or a condition, from any index on.

::

                 +--> watch (live)     all live watches share one subscription; an entry is decoded once
    subscription +--> watch (live)
                 |     ^ caught up
                 +--> watch (behind) <-- a reader of its own: it starts in the past, or its consumer was slow

The subscription starts at the end of the log; a watch that starts earlier reads up to it. The last entries are
remembered for watches that have nearly caught up. A slow consumer never holds up the others: its watch falls behind and
reads the log again later, or ends, as it was asked to.

Invariant: a watch hands out the events of its selector in the order of their indexes, none twice, none left out; all
changes of one entry are one event.
Invariant: after :meth:`Watches.cancel` a watch hands out nothing.
Invariant: a watch ends with an error, which comes after everything that was seen before it; it never just stops.

Source: State Watch pattern; facts (kvstore and watch) §8.4, R1 to R14.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import get_args

from raft_client.core.calls import Call
from raft_client.core.entries_stream import SnapshotPolicy, check_buffer
from raft_client.core.selectors import Selector
from raft_client.core.served_watches import ServedWatches, WatchSession
from raft_client.core.stream_actions import Cancel, Freshness, StreamAction, SubscriptionState
from raft_client.core.subscription import Subscription
from raft_client.core.watch_events import DEFAULT_QUEUE_BYTES, Overflow, Phase, WatchCounts, WatchItem, WatchState
from raft_client.core.watch_table import LiveWatches, WatchCatchUp, WatchTable
from raft_client.errors import ClientClosedError, HistoryOutrunError, InvalidArgumentError, RaftError
from raft_client.wire.client_requests import LogInfoReply
from raft_client.wire.key_changes import EntryCodec
from raft_client.wire.log_entry import Position, SnapshotChunk


class Watches:
    """Everything that a client decides about watches. No clock, no sockets: ``now`` is in monotonic seconds.

    Report what happens, call :meth:`tick` at :meth:`next_deadline`; after each, and after each :meth:`next_item`, carry
    out :meth:`take_actions`.
    """

    def __init__(
        self,
        ident: bytes,
        codec: EntryCodec,
        *,
        silence_s: float = 1.0,
        progress_s: float = 10.0,
        total_bytes: int = 64 * 1024 * 1024,
        session: WatchSession | None = None,
    ) -> None:
        """``session``: what the codec reads is what the leader may serve; None: it is not asked."""
        self._silence_s = silence_s
        self._progress_s = progress_s
        self._ids = count(1)
        self._table = WatchTable(ident, codec, total_bytes, on_empty=self._stop)
        self._catch_up = WatchCatchUp(self._table)
        self._live = LiveWatches(self._table)
        self._served = None if session is None else ServedWatches(self._table, self._catch_up, session, silence_s)
        self._table.served = self._served
        self._subscription: Subscription | None = None
        self._progress_at: float | None = None  # monotonic seconds
        self._silent_at: float | None = None  # when the first question where the log ends has waited for too long
        self._is_silent = False  # it has
        self._closed = False

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Watches that have not ended."""
        return len(self._table.watches)

    @property
    def position(self) -> int:
        """The number of the last event that live watches were offered; 0 while there is no subscription."""
        return self._table.position.index

    @property
    def state(self) -> SubscriptionState:
        """How far live watches are from the end of the log."""
        if self._subscription is not None:
            return self._subscription.state
        return SubscriptionState(Freshness.SILENT if self._is_silent else Freshness.STALE)

    def state_of(self, watch: WatchState) -> SubscriptionState:
        """How far one watch is from the end of the log: it may have some way to go to where the live ones are."""
        state = self.state
        if watch.phase is Phase.SERVED and state.freshness is not Freshness.SILENT:
            missing = max(0, watch.known_index - watch.seen.index)
            return SubscriptionState(Freshness.STALE if missing else Freshness.FRESH, missing)
        if state.freshness is Freshness.SILENT or watch.is_live:
            return state
        behind = max(0, self._table.position.index - watch.seen.index) if watch.phase is Phase.BEHIND else 0
        return SubscriptionState(Freshness.STALE, state.missing + behind)

    @property
    def counts(self) -> WatchCounts:
        """The watches that have not ended, and their queues."""
        return self._table.counts

    @property
    def is_idle(self) -> bool:
        """Whether there are none, and nothing is to be heard of those that there were."""
        return not self.count and (self._served is None or self._served.is_idle)

    def resume_after(self, watch: WatchState) -> Position | None:
        """A watch that starts after this one misses nothing that ``watch`` did not hand out. None: it has no start.

        It is that of the last event only while there are more; then the log up to here had nothing for it.
        """
        return self._table.resume_after(watch)

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do, in monotonic seconds."""
        soonest = min(self._table.paused.values(), default=None)
        for at in (
            self._silent_at,
            self._progress_at,
            None if self._subscription is None else self._subscription.next_deadline(),
            None if self._served is None else self._served.heartbeat_at,
        ):
            if at is not None and (soonest is None or at < soonest):
                soonest = at
        return soonest

    # -- the side of the consumers -------------------------------------------------------------------------------------

    def watch(
        self,
        selector: Selector,
        *,
        after: Position | int | None = None,
        overflow: Overflow = "reread",
        relist: bool = False,
        previous: bool = False,
        connection_events: bool = False,
        queue_bytes: int = DEFAULT_QUEUE_BYTES,
    ) -> WatchState:
        """Hand out what ``selector`` matches in the entries after ``after``; None: from the log's end on.

        When the entries after ``after`` were compacted the watch ends with HistoryOutrunError, or, with ``relist``,
        hands out the snapshot and goes on after it; with TermMismatchError when it is another log. ``previous`` keeps
        the last value of every key that the selector looks at, ``connection_events`` hands out Suspended and Resumed.
        Raises ClientClosedError, and InvalidArgumentError.
        """
        if self._closed:
            raise ClientClosedError
        if overflow not in get_args(Overflow):
            raise InvalidArgumentError(f"overflow must be {' or '.join(get_args(Overflow))}, not {overflow!r}")
        start = None if after is None else Position.of(after)
        watch = WatchState(
            next(self._ids), selector, start, overflow, relist, connection_events, check_buffer(queue_bytes)
        )
        if previous:
            watch.values, watch.knows_all = {}, start is not None and start.index == 0
        self._table.watches[watch.id] = watch
        if connection_events:
            self._table.told_of[watch.id] = watch
        if start is not None and self._subscription is not None:
            self._place(watch, start, self._table.position)
        elif self._table.is_served:
            self._table.begin(watch)
        else:
            self._table.ask_for_the_end(watch)
        return watch

    def next_item(self, watch: WatchState, now: float) -> WatchItem | None:
        """The next event; None when there is none yet, or no more: then ``watch.error`` says why."""
        item = watch.pop()
        if watch.phase is Phase.BEHIND and watch.size <= self._table.room(watch) // 2:
            self._catch_up.catch_up(watch, now)
        elif watch.phase is Phase.WAITING and self._subscription is None and not self._is_silent:
            self._silent_at = self._silent_at or now + self._silence_s
        return item

    def cancel(self, watch: WatchState) -> None:
        """End a watch; nothing more of it is handed out. Again, or of one that has ended: nothing happens."""
        self._cancel(watch, ClientClosedError("the watch was cancelled"))

    def close(self) -> None:
        """End all watches. What they have not handed out is lost."""
        self._closed = True
        for watch in list(self._table.watches.values()):
            self._cancel(watch, ClientClosedError())
        if self._served is not None:
            self._served.close()

    def give_up(self, error: RaftError) -> None:
        """An exception has cut a change: hand out nothing more, and want nothing."""
        self._closed = True
        for watch in list(self._table.watches.values()):
            watch.phase, watch.error = Phase.ENDED, error
            watch.seen = watch.told
            watch.clear()
            watch.notify()
        self._table.watches.clear()
        self._table.actions.clear()
        self._subscription = None

    def notify(self) -> None:
        """Wake all consumers."""
        for watch in self._table.watches.values():
            watch.notify()

    def _cancel(self, watch: WatchState, error: Exception) -> None:
        resume_after = self.resume_after(watch)
        watch.clear()
        if resume_after is not None:
            watch.seen = resume_after  # and not what was in the queue
        self._table.end(watch, error)

    # -- what the shell reports ----------------------------------------------------------------------------------------

    def wake(self, call: Call, now: float) -> None:
        """A submitted call has something in its queue."""
        watch = self._table.readers.get(call)
        if watch is not None:
            self._catch_up.catch_up(watch, now)
        elif self._served is not None and self._served.wake(call, now):
            self._heard(now)
        else:
            self._pump(now)

    def receive_broadcast(self, url: str, frames: Sequence[bytes], now: float) -> None:
        """A message on the SUB socket to ``url``."""
        if self._subscription is not None:
            self._subscription.receive_broadcast(url, frames, now)
            self._pump(now)

    def cannot_listen(self, url: str, why: str, now: float) -> None:
        """The SUB socket to ``url`` could not be made."""
        if self._subscription is not None:
            self._subscription.cannot_listen(url, why, now)
            self._pump(now)

    def connection_lost(self, url: str, now: float) -> None:
        """The connection of the SUB socket to ``url`` broke, or could not be made."""
        if self._subscription is not None:
            self._subscription.connection_lost(url, now)
            self._pump(now)

    def finished(self, call: Call, result: object, now: float) -> None:
        """A submitted call has its result."""
        watch = self._table.readers.pop(call, None)
        if watch is not None and watch.reader is not None:
            self._catch_up.reader_finished(watch, watch.reader, now)
        elif self._served is not None and self._served.finished(call, result):
            self._heard(now)
            self._read_the_log_instead()
        elif isinstance(result, LogInfoReply):
            self._end_is_known(self._table.questions.pop(call, None), result.last_applied, now)
        elif self._subscription is not None:
            self._subscription.finished(call, result, now)
            self._pump(now)

    def failed(self, call: Call, error: RaftError, now: float) -> None:
        """A submitted call failed for good."""
        watch = self._table.readers.pop(call, None)
        if watch is not None and watch.reader is not None:
            self._catch_up.drain(watch, watch.reader, now)
            self._table.end(watch, error)
        elif call in self._table.questions:
            self._table.end(self._table.questions.pop(call), error)
        elif self._served is not None and self._served.failed(call, error):
            self._read_the_log_instead()
        elif self._subscription is not None:
            self._subscription.failed(call, error, now)
            self._pump(now)

    def leader_changed(self, now: float) -> None:
        """The client found another leader: do not wait for the silence."""
        if self._subscription is not None:
            self._subscription.leader_changed(now)
            self._pump(now)

    def tick(self, now: float) -> None:
        """Time has passed."""
        for watch in [w for w, at in self._table.paused.items() if now >= at]:
            del self._table.paused[watch]
            self._catch_up.catch_up(watch, now)
        if self._silent_at is not None and now >= self._silent_at:
            self._silent_at = None
            self._is_silent = True
        if self._progress_at is not None and now >= self._progress_at:
            self._progress_at = now + self._progress_s
            self._table.report_progress()
        if self._served is not None:
            self._served.tick(now)
        if self._subscription is not None:
            self._subscription.tick(now)
            self._pump(now)

    def take_actions(self) -> list[StreamAction]:
        """What to do now, in this order."""
        if self._table.told_of:
            self._table.tell_of_the_link(lambda watch: self.state_of(watch).freshness)
        actions, self._table.actions = self._table.actions, []
        return actions

    # -- who serves them -----------------------------------------------------------------------------------------------

    def _heard(self, now: float) -> None:
        """The leader that is to serve watches has said something."""
        if self._table.watches:
            self._silent_at = now + self._silence_s
            self._is_silent = False
            self._progress_at = self._progress_at or now + self._progress_s

    def _read_the_log_instead(self) -> None:
        """If the leader does not serve watches: all of them go on where they are, in the log."""
        if self._table.is_served or self._subscription is not None:
            return
        self._table.paused.clear()
        asking = set(self._table.questions.values())
        for watch in self._table.watches.values():
            self._table.stop_reading(watch)
            watch.phase = Phase.WAITING
            if watch not in asking:
                self._table.ask_for_the_end(watch)

    # -- where watches start -------------------------------------------------------------------------------------------

    def _end_is_known(self, watch: WatchState | None, end: int, now: float) -> None:
        """The log ended at the index ``end`` when the leader was asked, which was after the watch was made."""
        if watch is None:
            return
        after = watch.after = Position(end) if watch.after is None else watch.after
        if self._table.is_served:
            self._table.begin(watch)
            return
        if self._subscription is None:
            self._begin(end, now)
        self._place(watch, after, max(Position(end), self._table.position))

    def _place(self, watch: WatchState, after: Position, end: Position) -> None:
        watch.start_after(after)
        watch.phase = Phase.BEHIND
        if watch.seen.index > end.index:
            self._catch_up.start_reader(watch)  # it finds out whether the log was ever that long
        else:
            self._catch_up.find_source(watch)

    def _begin(self, after: int, now: float) -> None:
        self._table.position = Position(after)
        self._table.history.clear()
        self._progress_at = now + self._progress_s
        self._silent_at = None
        self._is_silent = False
        self._subscription = Subscription(
            self._table.ident, after, snapshot=SnapshotPolicy.REFUSE, silence_s=self._silence_s, learn=True
        )
        self._subscription.start(now)
        self._pump(now)

    # -- live ----------------------------------------------------------------------------------------------------------

    def _pump(self, now: float) -> None:
        """Offer what the subscription has to the live watches."""
        subscription = self._subscription
        if subscription is None:
            return
        while (batch := subscription.next_batch(now)) is not None:
            if not isinstance(batch, SnapshotChunk):
                self._live.offer(batch)
        self._table.position = max(self._table.position, subscription.taken)  # the term where it began is learnt
        self._table.actions += subscription.take_actions()
        if subscription.error is not None and subscription is self._subscription:
            self._subscription_ended(subscription.error, now)

    def _subscription_ended(self, error: Exception, now: float) -> None:
        """The entries after our position are in a snapshot by now, or the log is no longer the one it was."""
        self._subscription = None
        index = error.snapshot_index if isinstance(error, HistoryOutrunError) else None
        survivors = []
        for watch in list(self._table.watches.values()):
            if watch.is_live:
                self._table.fall_behind(watch, self._table.position)
            if index is None or (watch.phase is Phase.BEHIND and watch.seen.index < index and not watch.relist):
                self._table.end(watch, error)
            else:
                survivors.append(watch)
        if index is not None and survivors:
            self._begin(index, now)
        for watch in survivors:
            if watch.phase is Phase.BEHIND:
                self._catch_up.catch_up(watch, now)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Without watches nothing is read."""
        self._table.actions += [Cancel(question) for question in self._table.questions]
        self._table.questions.clear()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()
            self._table.actions += subscription.take_actions()
        if self._served is not None:
            self._served.stop()
        self._progress_at = self._silent_at = None
        self._is_silent = False
        self._table.position = Position(0)
        self._table.history.clear()
