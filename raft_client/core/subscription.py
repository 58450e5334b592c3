"""The log as it grows: entries from an index on, then what the leader broadcasts, and never one twice or out of order.

::

    broadcast follows the position  ----------------------------------->  queue  --> next_batch()
    broadcast further ahead, or none for the position: a gap                ^
         |                                                                  |
         +--> reader: an EntriesStream from the position on -- finished ------+
              (meanwhile broadcasts wait in *ahead*, as far as there is room; what does not fit is read later)

A slow consumer lets the queue fill; then broadcasts are only counted, and a reader fetches them when there is room
again: its flow control reaches back to the peer.

When nothing was broadcast for a second (leaders broadcast twice a second even if idle), or the connection broke, the
leader is looked for and its broadcasts are listened to anew. Sooner than that, after three times the longest pause that
it has lately made, it is asked whether it still leads. That costs two questions where all is well, and finds the next
leader of a machine that is lost half a second earlier where leaders broadcast ten times a second.

Entries of any peer are applied ones, so what a former leader still broadcasts is true; but while it is cut off from the
others it may lag behind them and not know (facts §3: no check-quorum).

Invariant: the entries handed out have consecutive indexes from the one after ``after`` on, snapshots aside.
Invariant: at most one reader and one search are under way.

Source: ØMQ Raft protocol, "BroadcastStateUrl RPC", "StateBroadcast"; facts §1.4 and §2 (Subscriber).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from raft_client.core.calls import Again, Call, Finished, FollowUps, GetLogInfo, NotLeader, Retry, Verdict
from raft_client.core.entries_stream import (
    DEFAULT_BUFFER_BYTES,
    EntriesStream,
    EntryBatch,
    SnapshotPolicy,
    check_buffer,
    snapshot_policy,
)
from raft_client.core.stream_actions import (
    Cancel,
    Consumer,
    FollowUp,
    Freshness,
    Listen,
    Restart,
    StopListening,
    StreamAction,
    Submit,
    SubscriptionState,
)
from raft_client.errors import ClientClosedError, ProtocolError, RaftError, RequestTimeoutError
from raft_client.wire.client_requests import (
    BroadcastStateUrl,
    BroadcastStateUrlReply,
    ConfigReply,
    LogInfoReply,
    RequestConfig,
)
from raft_client.wire.log_entry import LogEntry, Position, SnapshotChunk, position_after
from raft_client.wire.streams import StateBroadcast

# -- batches that wait for a reader ------------------------------------------------------------------------------------


class BatchQueue:
    """Batches in order, and their bytes."""

    __slots__ = ("_batches", "size")

    def __init__(self) -> None:
        self._batches: deque[EntryBatch] = deque()
        self.size: int = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    def push(self, batch: EntryBatch) -> None:
        self._batches.append(batch)
        self.size += _size(batch)

    def pop(self) -> EntryBatch:
        batch = self._batches.popleft()
        self.size -= _size(batch)
        return batch

    def clear(self) -> None:
        self._batches.clear()
        self.size = 0


def _size(batch: EntryBatch) -> int:
    return len(batch.data) if isinstance(batch, SnapshotChunk) else sum([len(entry.frame) for entry in batch])


# -- where the leader broadcasts ---------------------------------------------------------------------------------------
# Source: ØMQ Raft protocol, "RequestConfig RPC" and "BroadcastStateUrl RPC"; facts §1.4.


#: SERVER_ELECTION_GRACE_MS: by then it knows, or another peer leads.
_PAUSE_S: Final = 0.3


class FindBroadcast:
    """Where does the leader broadcast? Result: the URL of its PUB socket.

    Every peer answers BroadcastStateUrl with its own URL, but only the leader broadcasts (facts §1.4). So the peer is
    asked first whether it leads, on the same link. One that leads and broadcasts nowhere is asked again later. Peers
    whose state machine is not a BroadcastStateMachine do not answer the second question at all.
    """

    __slots__ = ("_ident", "_leads")

    request_id: bytes | None = None
    repeatable = True
    changes = False
    paused = False
    needs_slot = False  # a peer that does not broadcast may never answer
    keeps_slot = False
    has_new_id = True

    def __init__(self, ident: bytes) -> None:
        self._ident = ident
        self._leads = False

    def moved(self) -> None:
        """Each time it is sent it starts from the first question."""

    def frames(self) -> list[bytes]:
        self._leads = False
        return RequestConfig(self._ident).to_frames()

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        if self._leads:
            url = BroadcastStateUrlReply.from_frames(frames).url
            return Finished(url) if url else Retry(_PAUSE_S, RequestTimeoutError("the leader does not broadcast"))
        reply = ConfigReply.from_frames(frames)
        if not reply.is_leader:
            return NotLeader(reply.leader_id)
        self._leads = True
        return FollowUps((BroadcastStateUrl(self._ident).to_frames(),))


#: Between two readers of which the first brought nothing (leaders broadcast more than they hand out), and between two
#: attempts to listen to the same URL.
_AGAIN_S: Final = 0.1
#: Pauses between broadcasts that are not out of the ordinary; a long one counts half as much after the last number.
_ORDINARY_PAUSES: Final = 3.0
_SHORTEST_DOUBT_S: Final = 0.25
_PAUSE_HALVES_S: Final = 5.0
#: What is known to exist is broadcast within this time, or it was lost.
_BROADCAST_WITHIN_S: Final = 0.1


class Subscription:
    """Everything a subscriber decides. No clock, no sockets: ``now`` is in monotonic seconds.

    Call :meth:`start`, report what happens, call :meth:`tick` at :meth:`next_deadline`; after each, and after each
    :meth:`next_batch`, carry out :meth:`take_actions`.
    """

    def __init__(
        self,
        ident: bytes,
        after: Position | int | None,
        *,
        snapshot: SnapshotPolicy = SnapshotPolicy.DELIVER,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        silence_s: float = 1.0,
        learn: bool = False,
    ) -> None:
        """``after`` None: the end of the log, which is asked for first. ``learn``: also its term where it starts."""
        self._ident = ident
        self._policy = snapshot_policy(snapshot)
        self._buffer_bytes = check_buffer(buffer_bytes)
        self._silence_s = silence_s
        self._end_of_log = (
            GetLogInfo(ident, of_leader=True) if after is None else None
        )  # None: where it starts is known
        start = Position.of(0 if after is None else after)
        self._position = self._taken = start  # everything up to there was received; and handed out
        self._confirms = True  # the term at ``after``, if there is one
        self._learn = learn or after is None
        self._known = self._position.index  # the highest index that is known to exist
        self._queue = BatchQueue()
        self._ahead = BatchQueue()  # broadcasts after the gap that the reader fills
        self._reader: EntriesStream | None = None
        self._read_from = self._known
        self._read_at: float | None = None  # a pause before the next reader, monotonic seconds
        self._finder: FindBroadcast | None = None
        self._url: str | None = None
        self._silent_at: float | None = None
        self._listened_at = 0.0
        self._find_at: float | None = None  # the connection broke
        self._heard_at: float | None = None  # the last broadcast at this URL
        self._pause_s = 0.0  # the longest between two of them, lately
        self._doubt_at: float | None = None  # when the present one is out of the ordinary
        self._only_doubts = False  # the search under way may find that all is well
        self._heard = False
        self._is_silent = False  # nothing was heard although there was time to
        self._actions: list[StreamAction] = []
        #: Woken when a batch may be taken; without one, the driver of this machine looks after each report.
        self.consumer: Consumer | None = None
        #: Why it ended; None while it goes on.
        self.error: RaftError | None = None

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Everything up to this index was received, although not all of it may have been taken."""
        return max(self._position.index, self._reader.position) if self._reader else self._position.index

    @property
    def is_placed(self) -> bool:
        """Whether it is known where it starts; until then, its positions mean nothing."""
        return self._end_of_log is None

    @property
    def taken(self) -> Position:
        """Everything up to here was handed out. A snapshot counts when its last chunk was."""
        if self._queue:
            return self._taken
        return self._reader.taken if self._reader else self._position

    @property
    def state(self) -> SubscriptionState:
        """How far the queue is from the end of the log."""
        missing = max(0, self._known - self.position)
        if not self._heard:
            return SubscriptionState(Freshness.SILENT if self._is_silent else Freshness.STALE, missing)
        fresh = not missing and self._reader is None
        return SubscriptionState(Freshness.FRESH if fresh else Freshness.STALE, missing)

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do, in monotonic seconds."""
        soonest = None
        for at in (self._silent_at, self._find_at, self._read_at, self._doubt_at):
            if at is not None and (soonest is None or at < soonest):
                soonest = at
        return soonest

    # -- what the shell reports ----------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Fetch what is there already, and find out where the rest will come from."""
        self._silent_at = now + self._silence_s
        if self._end_of_log is not None:
            self._actions.append(Submit(self._end_of_log))
        self._find()
        self._read()

    def _place(self, end: int) -> None:
        """The log ended there when the leader was asked, which was after :meth:`start`."""
        self._end_of_log = None
        self._position = self._taken = Position(end)
        self._known = max(self._known, end)
        self.notify()
        self._find()
        self._read()

    def receive_broadcast(self, url: str, frames: Sequence[bytes], now: float) -> None:
        """A message on the SUB socket to ``url``. One that cannot be read is dropped: what it held becomes a gap."""
        if url != self._url or not frames or frames[0] != self._ident:
            return  # a SUB socket lets every ident through that starts like ours
        try:
            broadcast = StateBroadcast.from_frames(frames)
        except ProtocolError:
            return
        self._heard = True
        self._is_silent = False
        self._silent_at = now + self._silence_s
        self._find_at = None
        self._measure_pause(now)
        self._known = max(self._known, broadcast.last_applied)
        self._take_broadcast(broadcast.entries)
        self._fill()

    def _measure_pause(self, now: float) -> None:
        if self._heard_at is not None:
            pause_s = now - self._heard_at
            self._pause_s = max(pause_s, self._pause_s * 0.5 ** (pause_s / _PAUSE_HALVES_S))
            doubt_s = max(_SHORTEST_DOUBT_S, _ORDINARY_PAUSES * self._pause_s)
            self._doubt_at = now + doubt_s if doubt_s < self._silence_s else None
        self._heard_at = now

    def cannot_listen(self, url: str, why: str, _now: float) -> None:
        """What the leader says of its broadcasts is of no use, and it will say it again."""
        if url == self._url and self.error is None:
            self._url = None
            self._end(ProtocolError(f"the leader broadcasts at {url!r}, which {why}"))

    def connection_lost(self, url: str, now: float) -> None:
        """The connection of the SUB socket broke, or could not be made: do not wait for the silence."""
        if url == self._url and self._find_at is None:
            self._find_at = max(now, self._listened_at + _AGAIN_S)
            self.tick(now)

    def expect(self, index: int, now: float) -> None:
        """There is an entry with this index: it is read if it is not broadcast soon."""
        self._known = max(self._known, index)
        if self.position < index and self._read_at is None:
            self._read_at = now + _BROADCAST_WITHIN_S

    def wake(self, _call: Call, _now: float) -> None:
        """A submitted call has something in its queue."""
        self.notify()

    def notify(self) -> None:
        """Wake the consumer."""
        if self.consumer is not None:
            self.consumer.notify()

    def finished(self, call: Call, result: object, now: float) -> None:
        """A submitted call has its result."""
        if call is self._end_of_log and isinstance(result, LogInfoReply):
            self._place(result.last_applied)
        elif call is self._reader:
            self._reader_finished(now)
        elif call is self._finder and isinstance(result, str):
            self._finder = None
            if not self._only_doubts or result != self._url:
                self._listen(result, now)
                self._read()  # what was broadcast before the SUB socket is connected

    def failed(self, call: Call, error: RaftError, now: float) -> None:
        """A submitted call failed for good: so does the subscription."""
        if call is self._reader:
            self._keep_what_was_read(now)
        elif call is self._finder:
            self._finder = None
        elif call is not self._end_of_log:
            return
        self._end(error)

    def leader_changed(self, now: float) -> None:
        """The client found another leader: do not wait for the silence."""
        if self.error is None and self._url is not None:
            self._silent_at = now
            self.tick(now)

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self._silent_at is not None and now >= self._silent_at:
            self._silent_at = None  # until it listens again
            self._heard = False
            self._is_silent = True
            self._find()
        if self._find_at is not None and now >= self._find_at:
            self._find_at = None
            self._find()
        if self._doubt_at is not None and now >= self._doubt_at:
            self._doubt_at = None
            self._find(only_doubts=True)
        if self._read_at is not None and now >= self._read_at:
            self._read_at = None
            self._fill()

    def close(self) -> None:
        """The end: nothing more is handed out."""
        taken = self.taken
        if self.error is None:
            self._end(ClientClosedError("the subscription is closed"))
        self._queue.clear()
        self._position = taken

    def give_up(self, error: RaftError) -> None:
        """An exception has cut a change: hand out nothing more, and want nothing."""
        if self.error is None:
            self.error = error
        self._position = min(self.taken, self._position)
        self._queue.clear()
        self._ahead.clear()
        self._actions.clear()
        self._end_of_log = self._reader = self._finder = self._url = None
        self._silent_at = self._find_at = self._read_at = self._doubt_at = None

    def take_actions(self) -> list[StreamAction]:
        """What to do now, in this order."""
        actions, self._actions = self._actions, []
        return actions

    # -- the side of the consumer --------------------------------------------------------------------------------------

    def next_batch(self, now: float) -> EntryBatch | None:
        """Entries with consecutive indexes, or a piece of a snapshot; None when there is nothing yet, or no more."""
        if self._queue:
            batch: EntryBatch | None = self._take()
        elif self._reader is not None:
            batch = self._reader.next_batch(now)
        else:
            return None
        if self._reader is not None:
            self._resume(self._reader)
        elif self.error is None:
            self._fill()
        return batch

    def _take(self) -> EntryBatch:
        batch = self._queue.pop()
        self._taken = position_after(batch, self._taken)
        return batch

    def _resume(self, reader: EntriesStream) -> None:
        match reader.resume():
            case FollowUps(frames=frames):
                self._actions.append(FollowUp(reader, frames))
            case Again(last=last):
                self._actions.append(Restart(reader, last))

    # -- filling the queue ---------------------------------------------------------------------------------------------

    def _take_broadcast(self, entries: Sequence[LogEntry]) -> None:
        if not entries or entries[-1].index <= self._position.index:
            return
        if self._reader is not None:
            if self._ahead.size <= self._buffer_bytes:
                self._ahead.push(entries)
        elif entries[0].index <= self._position.index + 1 and self._queue.size <= self._buffer_bytes:
            self._push(entries)

    def _push(self, entries: Sequence[LogEntry]) -> None:
        was_empty = not self._queue
        if was_empty:
            self._taken = self._position
        self._queue.push(entries[max(0, self._position.index + 1 - entries[0].index) :])
        self._position = position_after(entries, self._position)
        if was_empty:  # a consumer waits for an empty queue only
            self.notify()

    def _fill(self) -> None:
        """Read what is known to exist and did not come, if there is room for it."""
        has_room = self._queue.size <= self._buffer_bytes // 2
        if self._position.index < self._known and has_room and self._read_at is None:
            self._read()

    def _read(self) -> None:
        if self._reader is None and self.error is None and self.is_placed:
            self._read_at = None
            self._read_from = self._position.index
            self._reader = EntriesStream(
                self._ident,
                self._position if self._confirms else self._read_from,
                snapshot=self._policy,
                buffer_bytes=self._buffer_bytes,
                learn=self._learn and self._confirms,
            )
            self._actions.append(Submit(self._reader))

    def _reader_finished(self, now: float) -> None:
        self._keep_what_was_read(now)
        self._confirms = False
        progress = self._position.index > self._read_from
        while self._ahead:
            entries = self._ahead.pop()
            if not isinstance(entries, SnapshotChunk):
                self._take_broadcast(entries)
        if not progress and self._position.index < self._known:
            self._read_at = now + _AGAIN_S
        self._fill()

    def _keep_what_was_read(self, now: float) -> None:
        """The reader is done: its queue becomes part of the subscription's."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        if not self._queue:
            self._taken = reader.taken
        self._position = max(reader.received, self._position)  # of the same place the reader may have learnt the id
        self._known = max(self._known, self._position.index)
        while (batch := reader.next_batch(now)) is not None:
            self._queue.push(batch)
        self.notify()

    # -- following the leader ------------------------------------------------------------------------------------------

    def _find(self, *, only_doubts: bool = False) -> None:
        self._only_doubts = only_doubts and (self._finder is None or self._only_doubts)
        if self._finder is None and self.error is None and self.is_placed:
            self._finder = FindBroadcast(self._ident)
            self._actions.append(Submit(self._finder))

    def _listen(self, url: str, now: float) -> None:
        """Also to the same URL anew: the connection may be half dead, and libzmq would not know."""
        if self._url is not None:
            self._actions.append(StopListening(self._url))
        self._url = url
        self._listened_at, self._silent_at, self._find_at = now, now + self._silence_s, None
        self._heard_at, self._pause_s, self._doubt_at = None, 0.0, None
        self._actions.append(Listen(url))

    def _end(self, error: RaftError) -> None:
        self.error = error
        if self._end_of_log is not None:
            self._actions.append(Cancel(self._end_of_log))
        if self._reader is not None:
            self._actions.append(Cancel(self._reader, self._reader.stop()))
        if self._finder is not None:
            self._actions.append(Cancel(self._finder))
        if self._url is not None:
            self._actions.append(StopListening(self._url))
        self._reader = self._finder = self._url = self._silent_at = self._find_at = self._read_at = self._doubt_at = (
            None
        )
        self._ahead.clear()
        self.notify()
