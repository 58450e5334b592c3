"""All watches of a client over one subscription: what changed under a key, a prefix or a condition, from any index on.

::

                         +--> watch (live)     all live watches share one subscription; an entry is decoded once
    subscription --> hub +--> watch (live)
                         |     ^ caught up
                         +--> watch (behind) <-- a reader of its own: it starts in the past, or its consumer was slow

The subscription starts at the end of the log; whoever starts earlier reads up to it. The hub remembers the last entries
for watches that have nearly caught up. A slow consumer never holds up the others: its watch falls behind and reads the
log again later, or ends, as it was asked to.

Invariant: a watch hands out the events of its selector in the order of their indexes, none twice, none left out; all
changes of one entry are one event.
Invariant: after :meth:`WatchHub.cancel` a watch hands out nothing.
Invariant: a watch ends with an error, which comes after everything that was seen before it; it never just stops.

Source: State Watch pattern; facts (kvstore and watch) §8.4, R1 to R14.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raft_client.core.calls import Call, GetLogInfo
from raft_client.core.catching_up import CatchingUp, WatchAction, unreadable
from raft_client.core.entries import SnapshotPolicy
from raft_client.core.selectors import Selector, Where
from raft_client.core.streaming import Freshness, Submit, SubscriptionState
from raft_client.core.subscription import Subscription
from raft_client.core.watch import Overflow, Phase, Progress, Watch, WatchItem, WatchReady
from raft_client.errors import (
    ClientClosedError,
    HistoryOutrunError,
    InvalidArgumentError,
    RaftError,
    SubscriberOverflowError,
)
from raft_client.wire.calls import LogInfoReply
from raft_client.wire.changes import Change
from raft_client.wire.entries import LogEntry
from raft_client.wire.frames import MAX_UINT
from raft_client.wire.snapshots import SnapshotChunk

__all__ = ["WatchAction", "WatchHub", "WatchReady"]


class WatchHub(CatchingUp):
    """Everything that a client decides about watches. No clock, no sockets: ``now`` is in monotonic seconds.

    Report what happens, call :meth:`tick` at :meth:`next_deadline`; after each, and after each :meth:`next_item`, carry
    out :meth:`take_actions`.
    """

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Watches that have not ended."""
        return len(self._watches)

    @property
    def position(self) -> int:
        """The number of the last event that live watches were offered; 0 while there is no subscription."""
        return self._position

    @property
    def state(self) -> SubscriptionState:
        """How far live watches are from the end of the log."""
        return self._subscription.state if self._subscription else SubscriptionState(Freshness.STALE)

    def resume_after(self, watch: Watch) -> int | None:
        """A watch that starts after this index misses nothing that ``watch`` did not hand out. None: it has no start.

        It is the index of the last event only while there are more; then the log up to here had nothing for it.
        """
        if watch.started_after is None:
            return None
        if not watch.idle:
            return max(watch.told, watch.started_after)
        return max(watch.seen, self._position) if watch.is_live else max(watch.seen, watch.told)

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do, in monotonic seconds."""
        silent_at = self._subscription.next_deadline() if self._subscription else None
        deadlines = [at for at in (silent_at, self._progress_at) if at is not None]
        return min([*deadlines, *self._again.values()], default=None)

    # -- the side of the consumers -------------------------------------------------------------------------------------

    def watch(
        self, selector: Selector, *, after: int | None = None, overflow: Overflow = "reread", relist: bool = False
    ) -> Watch:
        """Hand out what ``selector`` matches in the entries after the index ``after``; None: from the log's end on.

        When the entries after ``after`` were compacted the watch ends with HistoryOutrunError, or, with ``relist``,
        hands out the snapshot and goes on after it. Raises ClientClosedError, and InvalidArgumentError.
        """
        if self._closed:
            raise ClientClosedError
        if after is not None and not 0 <= after <= MAX_UINT:
            raise InvalidArgumentError("a watch starts after an index from 0 to 2^53 - 1")
        watch = Watch(next(self._ids), selector, after, overflow, relist)
        self._watches[watch.id] = watch
        if after is not None and self._subscription is not None:
            self._place(watch, after, self._position)
        else:
            question = GetLogInfo(self._ident, of_leader=True)
            self._ends[question] = watch
            self._actions.append(Submit(question))
        return watch

    def next_item(self, watch: Watch, now: float) -> WatchItem | None:
        """The next event; None when there is none yet, or no more: then ``watch.error`` says why."""
        item = watch.pop()
        if watch.phase is Phase.BEHIND and watch.size <= self._watch_bytes // 2:
            self._catch_up(watch, now)
        return item

    def cancel(self, watch: Watch) -> None:
        """End a watch; nothing more of it is handed out. Again, or of one that has ended: nothing happens."""
        self._cancel(watch, ClientClosedError("the watch was cancelled"))

    def close(self) -> None:
        """End all watches. What they have not handed out is lost."""
        self._closed = True
        for watch in list(self._watches.values()):
            self._cancel(watch, ClientClosedError())

    def _cancel(self, watch: Watch, error: Exception) -> None:
        resume_after = self.resume_after(watch)
        watch.clear()
        if resume_after is not None:
            watch.seen = resume_after  # and not what was in the queue
        self._end(watch, error)

    # -- what the shell reports ----------------------------------------------------------------------------------------

    def wake(self, call: Call, now: float) -> None:
        """A submitted call has something in its queue."""
        watch = self._readers.get(call)
        if watch is None:
            self._pump(now)
        else:
            self._catch_up(watch, now)

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

    def finished(self, call: Call, result: object, now: float) -> None:
        """A submitted call has its result."""
        watch = self._readers.pop(call, None)
        if watch is not None and watch.reader is not None:
            self._reader_finished(watch, watch.reader, now)
        elif isinstance(result, LogInfoReply):
            self._end_is_known(self._ends.pop(call, None), result.last_applied, now)
        elif self._subscription is not None:
            self._subscription.finished(call, result, now)
            self._pump(now)

    def failed(self, call: Call, error: RaftError, now: float) -> None:
        """A submitted call failed for good."""
        watch = self._readers.pop(call, None)
        if watch is not None and watch.reader is not None:
            self._drain(watch, watch.reader, now)
            self._end(watch, error)
        elif call in self._ends:
            self._end(self._ends.pop(call), error)
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
        for watch in [w for w, at in self._again.items() if now >= at]:
            del self._again[watch]
            self._catch_up(watch, now)
        if self._progress_at is not None and now >= self._progress_at:
            self._progress_at = now + self._progress_s
            self._report_progress()
        if self._subscription is not None:
            self._subscription.tick(now)
            self._pump(now)

    def take_actions(self) -> list[WatchAction]:
        """What to do now, in this order."""
        actions, self._actions = self._actions, []
        return actions

    # -- where watches start -------------------------------------------------------------------------------------------

    def _end_is_known(self, watch: Watch | None, end: int, now: float) -> None:
        """The log ended at ``end`` when the leader was asked, which was after the watch was made."""
        if watch is None:
            return
        if self._subscription is None:
            self._begin(end, now)
        self._place(watch, end if watch.after is None else watch.after, max(end, self._position))

    def _place(self, watch: Watch, after: int, end: int) -> None:
        watch.started_after = watch.seen = watch.told = after
        watch.phase = Phase.BEHIND
        if after > end:
            self._start_reader(watch)  # it finds out whether the log was ever so long
        else:
            self._find_source(watch)

    def _begin(self, after: int, now: float) -> None:
        self._position = after
        self._recent.clear()
        self._progress_at = now + self._progress_s
        self._subscription = Subscription(self._ident, after, snapshot=SnapshotPolicy.REFUSE, silence_s=self._silence_s)
        self._subscription.start()
        self._pump(now)

    # -- live ----------------------------------------------------------------------------------------------------------

    def _pump(self, now: float) -> None:
        """Offer what the subscription has to the live watches."""
        subscription = self._subscription
        if subscription is None:
            return
        while (batch := subscription.next_batch(now)) is not None:
            if not isinstance(batch, SnapshotChunk):
                self._offer(batch)
        self._pass_on(subscription)
        if subscription.error is not None and subscription is self._subscription:
            self._subscription_ended(subscription.error, now)

    def _offer(self, entries: Iterable[LogEntry]) -> None:
        for entry in entries:
            self._position = entry.index
            self._recent.append(entry)
            if entry.is_state and self._live:
                self._offer_entry(entry)

    def _offer_entry(self, entry: LogEntry) -> None:
        try:
            changes = self._codec.decode(entry.data)
        except Exception as error:  # noqa: BLE001 - the codec is the user's, and must not stop the client
            self._end_all([w for w in self._watches.values() if w.is_live], unreadable(entry, error))
            return
        wanted: dict[Watch, list[Change]] = {}
        for change in changes:
            for watch in self._live.candidates(change.key):
                wanted.setdefault(watch, []).append(change)
        for watch, candidates in wanted.items():
            if watch.is_live and entry.index > watch.seen:
                self._offer_changes(watch, entry, candidates)

    def _offer_changes(self, watch: Watch, entry: LogEntry, candidates: Sequence[Change]) -> None:
        if watch.size > self._watch_bytes:
            self._fall_behind(watch, entry.index - 1)
            if watch.overflow == "error":
                text = f"the reader of the watch is more than {self._watch_bytes} bytes behind"
                self._end(watch, SubscriberOverflowError(text))
            return
        # The index has done the work, unless there is a predicate.
        selected = self._select(watch, candidates) if isinstance(watch.selector, Where) else candidates
        if selected:
            self._push_event(watch, entry, selected)

    def _subscription_ended(self, error: Exception, now: float) -> None:
        """The entries after our position are in a snapshot by now, or the log is no longer the one it was."""
        self._subscription = None
        index = error.snapshot_index if isinstance(error, HistoryOutrunError) else None
        survivors = []
        for watch in list(self._watches.values()):
            if watch.is_live:
                self._fall_behind(watch, self._position)
            if index is None or (watch.phase is Phase.BEHIND and watch.seen < index and not watch.relist):
                self._end(watch, error)
            else:
                survivors.append(watch)
        if index is not None and survivors:
            self._begin(index, now)
        for watch in survivors:
            if watch.phase is Phase.BEHIND:
                self._catch_up(watch, now)

    def _report_progress(self) -> None:
        for watch in self._watches.values():
            index = max(watch.seen, self._position)
            if watch.is_live and watch.idle and index > watch.told:
                self._push(watch, Progress(watch.id, index), 0)
