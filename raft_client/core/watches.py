"""All watches of a client with one codec: what changed under a key, a prefix or a condition, from any index on.

::

    leader that serves watches --> ServedWatches --+                       +--> next_item() of each consumer
                                                   +--> queue of a watch --+
    the log, as it grows -------> LogWatches ------+     (WatchTable)      +--> Progress, Suspended, Resumed

Both sources promise the same, and a watch may go from one to the other. A user sees these differences: an event that
was read from the log has its entry; the leader sends nothing but what is wanted; and what a codec of the user's own
reads always comes from the log.

Invariant: a watch hands out the events of its selector in the order of their indexes, none twice, none left out; all
changes of one entry are one event.
Invariant: after :meth:`Watches.cancel` a watch hands out nothing.
Invariant: a watch ends with an error, which comes after everything that was seen before it; it never just stops.

Source: State Watch pattern; facts (kvstore and watch) §8.4, R1 to R14.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import get_args

from raft_client.core.calls import Call
from raft_client.core.entries_stream import check_buffer
from raft_client.core.log_watches import LogWatches
from raft_client.core.selectors import Selector
from raft_client.core.served_watches import ServedWatches, WatchSession
from raft_client.core.stream_actions import Freshness, StreamAction, SubscriptionState
from raft_client.core.watch_events import DEFAULT_QUEUE_BYTES, Overflow, Phase, WatchCounts, WatchItem, WatchState
from raft_client.core.watch_table import WatchTable
from raft_client.errors import ClientClosedError, InvalidArgumentError, RaftError
from raft_client.wire.key_changes import EntryCodec
from raft_client.wire.log_entry import Position


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
        touch: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``session``: what the codec reads is what the leader may serve; None: it is not asked.

        ``touch`` is called before what that leader says changes anything here; it returns the time.
        """
        self._silence_s = silence_s
        self._progress_s = progress_s
        self._ids = count(1)
        self._table = WatchTable(ident, codec, total_bytes, on_empty=self._stop)
        self._log = LogWatches(self._table, silence_s)
        self._touch = touch
        self._served = (
            None if session is None else ServedWatches(self._table, self._log, session, silence_s, self._leader_said)
        )
        self._table.sources = (self._log,) if self._served is None else (self._log, self._served)
        self._table.source = self._table.sources[-1]
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
        if self._log.subscription is not None:
            return self._log.subscription.state
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
        return not self._table.watches and (self._served is None or self._served.is_idle)

    def resume_after(self, watch: WatchState) -> Position | None:
        """A watch that starts after this one misses nothing that ``watch`` did not hand out. None: it has no start.

        It is that of the last event only while there are more; then the log up to here had nothing for it.
        """
        return self._table.resume_after(watch)

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do, in monotonic seconds."""
        soonest = self._log.next_deadline()
        heartbeat_at = None if self._served is None else self._served.heartbeat_at
        for at in (self._silent_at, self._progress_at, heartbeat_at):
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
        tells_progress: bool = False,
    ) -> WatchState:
        """Hand out what ``selector`` matches in the entries after ``after``; None: from the log's end on.

        When the entries after ``after`` were compacted the watch ends with HistoryOutrunError, or, with ``relist``,
        hands out the snapshot and goes on after it; with TermMismatchError when it is another log. ``previous`` keeps
        the last value of every key that the selector looks at, ``connection_events`` hands out Suspended and Resumed,
        ``tells_progress`` hands out Progress as often as the leader tells of any. Raises ClientClosedError, and
        InvalidArgumentError.
        """
        if self._closed:
            raise ClientClosedError
        if overflow not in get_args(Overflow):
            raise InvalidArgumentError(f"overflow must be {' or '.join(get_args(Overflow))}, not {overflow!r}")
        start = None if after is None else Position.of(after)
        watch = WatchState(
            next(self._ids), selector, start, overflow, relist, connection_events, check_buffer(queue_bytes)
        )
        watch.tells_progress = tells_progress
        if previous:
            watch.values, watch.knows_all = {}, start is not None and start.index == 0
        self._table.watches[watch.id] = watch
        if connection_events:
            self._table.wants_link[watch.id] = watch
        self._table.source.begin(watch)
        return watch

    def next_item(self, watch: WatchState, now: float) -> WatchItem | None:
        """The next event; None when there is none yet, or no more: then ``watch.error`` says why."""
        item = watch.pop()
        if watch.phase is Phase.BEHIND and watch.size <= self._table.room(watch) // 2:
            self._log.catch_up(watch, now)
        elif watch.phase is Phase.WAITING and self._log.subscription is None and not self._is_silent:
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
            watch.seen = watch.handed_out
            watch.clear()
            watch.notify()
        self._table.watches.clear()
        self._table.actions.clear()
        self._log.subscription = None

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
        self._log.wake(call, now)

    def receive_broadcast(self, url: str, frames: Sequence[bytes], now: float) -> None:
        """A message on the SUB socket to ``url``."""
        if self._log.subscription is not None:
            self._log.subscription.receive_broadcast(url, frames, now)
            self._log.pump(now)

    def cannot_listen(self, url: str, why: str, now: float) -> None:
        """The SUB socket to ``url`` could not be made."""
        if self._log.subscription is not None:
            self._log.subscription.cannot_listen(url, why, now)
            self._log.pump(now)

    def connection_lost(self, url: str, now: float) -> None:
        """The connection of the SUB socket to ``url`` broke, or could not be made."""
        if self._log.subscription is not None:
            self._log.subscription.connection_lost(url, now)
            self._log.pump(now)

    def leader_changed(self, now: float) -> None:
        """The client found another leader: do not wait for the silence."""
        if self._log.subscription is not None:
            self._log.subscription.leader_changed(now)
            self._log.pump(now)

    def finished(self, call: Call, result: object, now: float) -> None:
        """A submitted call has its result."""
        if self._served is not None and self._served.finished(call, result):
            self._leader_said_at(now)
            self._read_the_log_instead()
        else:
            self._log.finished(call, result, now)
            if self._log.subscription is not None:
                self._progress_at = self._progress_at or now + self._progress_s

    def failed(self, call: Call, error: RaftError, now: float) -> None:
        """A submitted call failed for good."""
        if self._served is not None and self._served.failed(call, error):
            self._read_the_log_instead()
        else:
            self._log.failed(call, error, now)

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self._silent_at is not None and now >= self._silent_at:
            self._silent_at = None
            self._is_silent = True
        if self._progress_at is not None and now >= self._progress_at:
            self._progress_at = now + self._progress_s
            self._table.report_progress()
        if self._served is not None:
            self._served.tick(now)
        self._log.tick(now)

    def take_actions(self) -> list[StreamAction]:
        """What to do now, in this order."""
        if self._table.wants_link:
            self._table.report_link(lambda watch: self.state_of(watch).freshness)
        actions, self._table.actions = self._table.actions, []
        return actions

    # -- who serves them -----------------------------------------------------------------------------------------------

    def _leader_said(self) -> float:
        """The leader that is to serve watches says something, which is being read. Returns the time."""
        now = self._touch()
        self._leader_said_at(now)
        return now

    def _leader_said_at(self, now: float) -> None:
        if self._table.watches:
            self._silent_at = now + self._silence_s
            self._is_silent = False
            self._progress_at = self._progress_at or now + self._progress_s

    def _read_the_log_instead(self) -> None:
        """If the leader does not serve watches: all of them go on where they are, in the log."""
        if self._table.source is self._log and self._log.subscription is None:
            for watch in self._table.watches.values():
                self._log.begin(watch)

    def _stop(self) -> None:
        """Without watches nothing is read."""
        self._log.stop()
        if self._served is not None:
            self._served.stop()
        self._progress_at = self._silent_at = None
        self._is_silent = False
