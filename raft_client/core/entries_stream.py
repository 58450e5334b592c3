"""A stream of log entries out of a cluster: one RequestEntries, as many messages as it takes.

::

    frames()  ask for what follows ``position``          called anew for each peer, after each break
       |
    receive() MORE  -> entries into the queue, one follow-up      CHUNK -> snapshot bytes into the queue, one follow-up
       |      LAST  -> finished                                   a gap -> ask again, under a new request id
       |
    next_batch() the consumer takes; resume() releases the follow-ups that were held back while the queue was full

The peer sends five messages ahead and one more for each follow-up, so holding follow-ups back is all the flow control
there is. It forgets a stream of which it has heard nothing for five seconds; a consumer that was away for longer than
three gets its stream from a new request. A peer whose snapshot has no bytes says nothing: that request times out.

Invariant: the batches handed out are entries with consecutive indexes, and snapshots whose bytes are in order; the
first entry after a snapshot follows its index. A snapshot whose last chunk did not come is void: the entries or the
snapshot after it start again from the index before it.
Invariant: all chunks of a snapshot come from one peer over one link, but for those before the one after which the
reader wants to go on. When the peer or the link changes, the snapshot starts again.
Invariant: what was handed out ends at ``taken``. When the term or the id is known of the entry to start after, that
entry is asked for as well, and nothing is handed out before both were found to be the same.
Invariant: :meth:`Cursor.position` is after the last item that was handed out, and never after one that was not.

Source: ØMQ Raft protocol, "RequestEntries RPC"; facts §1.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from enum import StrEnum
from operator import length_hint
from typing import Final, TypeAlias

from raft_client.core.calls import ACCEPTED, Again, Failed, Finished, FollowUps, NotLeader, Retry, Verdict
from raft_client.errors import (
    HistoryOutrunError,
    InvalidArgumentError,
    OutOfDateLogError,
    ProtocolError,
    RaftError,
    TermMismatchError,
)
from raft_client.wire.client_requests import LogInfoReply, RequestLogInfo
from raft_client.wire.frames import MAX_UINT
from raft_client.wire.log_entry import (
    LogEntry,
    Position,
    SnapshotChunk,
    SnapshotProgress,
    newest_id,
    position_after,
)
from raft_client.wire.streams import EntriesReply, EntriesStatus, RequestEntries

#: What a stream may hold for a slow consumer, beside the five messages that the peer has sent already.
DEFAULT_BUFFER_BYTES: Final = 4 * 1024 * 1024
#: A peer drops a stream after 5 seconds of silence (REQUEST_ENTRIES_TTL). Its clock may have started before ours.
_STALL_S: Final = 3.0
#: A new leader learns within one round of heartbeats what is committed; a log that lags for longer lost something.
_LAG_PAUSE_S: Final = 0.3
_MAX_LAGS: Final = 10
#: The reply to RequestLogInfo has nine frames (facts §1.4), and a chunk of a snapshot has four.
_LOG_INFO_FRAMES: Final = 9
#: Breaks in a row without a single new entry before the peer is taken for broken.
_MAX_BREAKS: Final = 5

#: Consecutive entries, never none; or one piece of a snapshot.
EntryBatch: TypeAlias = Sequence[LogEntry] | SnapshotChunk


class SnapshotPolicy(StrEnum):
    """What to do when the entries that were asked for exist only in a snapshot."""

    DELIVER = "deliver"  # hand out its chunks, then the entries after it
    REFUSE = "refuse"  # end with HistoryOutrunError
    SKIP = "skip"  # go on with the entries after it: those in it are lost to the reader


def check_buffer(buffer_bytes: object) -> int:
    """How much may wait for a reader. Raises InvalidArgumentError."""
    if isinstance(buffer_bytes, bool) or not isinstance(buffer_bytes, int) or buffer_bytes < 1:
        raise InvalidArgumentError(f"a buffer is a number of bytes, at least 1, not {buffer_bytes!r}")
    return buffer_bytes


def snapshot_policy(value: object) -> SnapshotPolicy:
    """The policy, or its text. Raises InvalidArgumentError."""
    try:
        return SnapshotPolicy(value)  # type: ignore[arg-type]  # the call refuses what is not one of its values
    except ValueError:
        text = f"snapshot must be {', '.join(SnapshotPolicy)}, not {value!r}"
        raise InvalidArgumentError(text, argument="snapshot") from None


class EntriesStream:
    """The entries after ``after``: ``count`` of them, or up to what the leader has applied.

    Snapshot chunks do not count. ``count=0`` asks for the snapshot alone, and hands out nothing when there is none.
    ``learn`` asks for the entry at ``after``, too, for the sake of its term and id. The result is the index of the last
    entry. Errors: HistoryOutrunError (see :class:`SnapshotPolicy`), OutOfDateLogError when the log ends before
    ``after``, TermMismatchError when it has another entry there, ProtocolError.
    """

    __slots__ = (
        "_asked_after",
        "_back",
        "_breaks",
        "_buffer_bytes",
        "_confirms",
        "_entry_id",
        "_ident",
        "_lags",
        "_learns",
        "_offset",
        "_owed",
        "_policy",
        "_queue",
        "_queued_bytes",
        "_refused",
        "_remaining",
        "_snapshot",
        "_stalled",
        "_taken",
        "_taken_at",
        "_term",
        "paused",
        "position",
        "snapshot_index",
    )

    request_id: bytes | None = None
    repeatable = True
    changes = False
    needs_slot = False
    keeps_slot = False
    has_new_id = True

    def __init__(
        self,
        ident: bytes,
        after: Position | int,
        *,
        count: int | None = None,
        snapshot: SnapshotPolicy = SnapshotPolicy.DELIVER,
        snapshot_after: SnapshotChunk | None = None,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        learn: bool = False,
    ) -> None:
        if not isinstance(snapshot_after, SnapshotChunk | None):
            raise InvalidArgumentError(f"snapshot_after is a SnapshotChunk, not {snapshot_after!r}")
        if snapshot_after is not None and snapshot_after.is_last:
            raise InvalidArgumentError("the snapshot is complete with that chunk: go on after its index")
        start = Position.of(after)
        RequestEntries(ident, start.index, count)  # refuses what no peer would understand
        self._ident = ident
        self._remaining = count
        self._policy = snapshot_policy(snapshot)
        self._buffer_bytes = check_buffer(buffer_bytes)
        #: The index up to which everything was received.
        self.position: int = start.index
        self._term = start.term  # of the entry there; 0 while it is not known
        self._entry_id = start.entry_id  # of that entry, or the newest one before it that has an id; likewise
        # What is known of it is to be checked, or learnt.
        self._confirms = start.index > 0 and (start.term > 0 or start.entry_id != b"" or learn)
        self._learns = learn
        self._back = 0  # so many entries there have no id: the one before them tells whether the log is the same
        self._asked_after = start.index  # by the request under way
        self._taken = start
        self._refused: SnapshotChunk | None = None  # where the history begins; how far it goes is being asked
        #: The index of the last snapshot that came or was skipped; None while there was none.
        self.snapshot_index: int | None = None
        self._snapshot = SnapshotProgress(snapshot_after)
        self._offset: int | None = None  # where to go on in the peer's snapshot, once it is known to be the same
        self._queue: deque[tuple[EntryBatch, int]] = deque()  # with its bytes
        self._queued_bytes = 0
        self._owed: list[list[bytes]] = []  # follow-ups that are held back, in order
        #: Whether there are any: then the peer may be silent.
        self.paused: bool = False
        self._taken_at: float | None = None  # monotonic seconds
        self._stalled = False
        self._lags = 0
        self._breaks = 0

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def received(self) -> Position:
        """Everything up to here was received; ``position``, with what is known of its entry."""
        return Position(self.position, self._term, self._entry_id)

    @property
    def taken(self) -> Position:
        """Everything up to here was handed out. A snapshot counts when its last chunk was."""
        return self._taken if self._queue else self.received

    # -- the side of the cluster ---------------------------------------------------------------------------------------

    def frames(self) -> list[bytes]:
        """The request for what is still missing. What was owed to an earlier request is forgotten."""
        self._owed.clear()
        self.paused = self._stalled = False
        self._refused = None
        # A request with a count of 0 would mean "stop"; whoever wants the snapshot alone stops after it.
        count = self._remaining if self._remaining != 0 else 1
        self._asked_after = self.position
        if self._confirms:
            self._asked_after -= 1 + self._back
            count = None if count is None else min(count + 1 + self._back, MAX_UINT)
        offset, self._offset = self._offset, None
        return RequestEntries(self._ident, self._asked_after, count, offset).to_frames()

    def moved(self) -> None:
        """Another peer: its snapshot of the same state need not have the same bytes, so it has to start anew."""
        self._snapshot.restart()
        self._offset = None
        self._back = 0

    def stop(self) -> list[bytes]:
        """The follow-up that ends the stream early. The peer does not answer it."""
        return RequestEntries(self._ident, self.position, 0).to_frames()

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        """One message of the stream. Raises ProtocolError."""
        if self._refused is not None:
            return self._receive_log_info(self._refused, frames)
        reply = EntriesReply.from_frames(frames)
        if reply.status is EntriesStatus.NOT_LEADER:
            return NotLeader(reply.leader_id)
        if reply.chunk is not None:
            return self._receive_chunk(reply.chunk)
        return self._receive_entries(reply, sum(map(len, frames)))

    def _receive_entries(self, reply: EntriesReply, size: int) -> Verdict:
        is_last = reply.status is EntriesStatus.LAST
        last_index = self.position if reply.last_index is None else reply.last_index
        first_index = reply.entries[0].index if reply.entries else last_index + 1
        due = self.position - self._back if self._confirms else self.position + 1
        if first_index > due:
            return self._break(f"the entry {first_index} came instead of {due}")
        if is_last and last_index < self.position:
            return self._lag(last_index)
        if self._confirms and last_index >= due:
            verdict = self._confirm_by_entry(reply.entries[due - first_index])
            if verdict is not None:
                return verdict
        self._take_entries(reply.entries[self.position + 1 - first_index :], size)
        if is_last:
            return Finished(self.position)
        if self._remaining == 0:
            return Finished(self.position, last=self.stop())
        return self._follow_up(RequestEntries(self._ident, last_index))

    def _take_entries(self, entries: Sequence[LogEntry], size: int) -> None:
        if self._remaining is not None:
            entries = entries[: self._remaining]
            self._remaining -= len(entries)
        if not entries:
            return  # all of them came before
        self.position, self._term = entries[-1].index, entries[-1].term
        self._entry_id = newest_id(entries) or self._entry_id
        self._snapshot.restart()
        self._push(entries, size)

    def _confirm_by_entry(self, entry: LogEntry) -> Verdict | None:
        """Compare the entry at ``position`` with what is known of it, or learn it. One without an id is compared by
        that before it, which is asked for."""
        if not self._back:
            if self._term not in (0, entry.term):
                error = self._mismatch(entry.term, f"has the term {entry.term} there")
                return Failed(error, last=self.stop())
            self._term = entry.term
        if (self._entry_id or self._learns) and not entry.entry_id and entry.index > 1:
            self._back += 1
            return Again(self.stop())
        if self._entry_id and entry.entry_id != self._entry_id:
            text = f"has the request id {entry.request_id} at {entry.index} in place of {self._entry_id.hex()}"
            return Failed(self._mismatch(self._term, text), last=self.stop())
        self._entry_id = entry.entry_id
        self._confirms = False
        return None

    def _confirm_by_end(self, term: int) -> RaftError | None:
        """By the term of the entry at ``position``, where a snapshot ends: it is learnt, or must be the same."""
        if self._term not in (0, term):
            return self._mismatch(term, f"has the term {term} there")
        self._term = term
        self._confirms = False
        return None

    def _confirm_by(self, chunk: SnapshotChunk) -> Verdict | None:
        """As far as a snapshot can tell: terms never go down."""
        if self._back and chunk.index < self.position:  # what is there was compared, and nothing before it is left
            self._confirms = False
            return Again(self.stop())
        if chunk.index == self.position:  # it ends right there, and the entries after it can be had
            mismatch = self._confirm_by_end(chunk.term)
            return Again(self.stop()) if mismatch is None else Failed(mismatch, last=self.stop())
        if chunk.term < self._term:
            text = f"has a snapshot up to {chunk.index} of the term {chunk.term}"
            return Failed(self._mismatch(chunk.term, text), last=self.stop())
        self._confirms = False
        return None

    def _mismatch(self, found: int, what: str) -> TermMismatchError:
        text = f"the entry {self.position} was of the term {self._term}, and the log {what}: it is another log"
        return TermMismatchError(text, index=self.position, term=self._term, found_term=found)

    def _receive_chunk(self, chunk: SnapshotChunk) -> Verdict:
        if self._confirms and (chunk.index >= self.position or self._back):
            verdict = self._confirm_by(chunk)
            if verdict is not None:
                return verdict
        if chunk.index <= self.position:
            return self._break(f"a snapshot up to {chunk.index} came instead of the entry {self.position + 1}")
        if self._policy is SnapshotPolicy.REFUSE:
            self._refused = chunk
            return FollowUps((self.stop(), RequestLogInfo(self._ident).to_frames()))
        self.snapshot_index = chunk.index
        if self._policy is SnapshotPolicy.SKIP:
            stop = self.stop()
            self.position, self._term, self._entry_id = chunk.index, chunk.term, b""
            return Again(stop) if self._remaining != 0 else Finished(self.position, last=stop)
        return self._deliver_chunk(chunk)

    def _deliver_chunk(self, chunk: SnapshotChunk) -> Verdict:
        try:
            new = self._snapshot.take(chunk)
        except ProtocolError as error:
            return self._break(error.message)
        if new is not None:
            self._push(new, len(new.data))
        elif chunk.end < self._snapshot.position:
            # Only now is it safe to ask for the rest: a peer whose snapshot is shorter than the offset that it is asked
            # for never lets go of it again (facts §1.4).
            self._offset = self._snapshot.position
            return self._break(f"the snapshot does not go on at {self._offset}")
        if not self._snapshot.complete:
            return self._follow_up(RequestEntries(self._ident, self._asked_after))
        self.position, self._term, self._entry_id = chunk.index, chunk.term, b""
        self._snapshot.restart()
        if self._remaining == 0:
            return Finished(self.position)  # the peer forgets the stream with the last chunk of its own accord
        # Also of its own accord it starts a new one with this: the count counts again.
        return self._follow_up(RequestEntries(self._ident, self.position, self._remaining))

    def _receive_log_info(self, refused: SnapshotChunk, frames: Sequence[bytes]) -> Verdict:
        """How far the log goes of which the beginning is gone. What was on its way of the snapshot comes before."""
        if len(frames) < _LOG_INFO_FRAMES:
            return ACCEPTED
        current = LogInfoReply.from_frames(frames).last_applied
        text = (
            f"the entries after {self.position} were compacted into a snapshot up to {refused.index}; "
            f"the log has those from {refused.index + 1} to {current}"
        )
        return Failed(HistoryOutrunError(text, snapshot_index=refused.index, current_index=current))

    def _push(self, batch: EntryBatch, size: int) -> None:
        self._lags = self._breaks = 0
        self._queue.append((batch, size))
        self._queued_bytes += size

    def _follow_up(self, request: RequestEntries) -> FollowUps:
        """Each message is answered with exactly one follow-up, in order: at once, or when there is room again."""
        if self._queued_bytes <= self._buffer_bytes and not self._owed:
            return FollowUps((request.to_frames(),), wake=True)
        self._owed.append(request.to_frames())
        self.paused = True
        return FollowUps(wake=True)

    def _break(self, reason: str) -> Verdict:
        """Something was lost on the way: ask again for what is missing."""
        self._breaks += 1
        if self._breaks > _MAX_BREAKS:
            return Failed(ProtocolError(reason), last=self.stop())
        return Again(self.stop())

    def _lag(self, last_index: int) -> Verdict:
        """This leader has applied less than we have seen, or were told of.

        A new leader does not know yet what is committed (no entry of its own term is); one that was cut off from the
        others still believes that it leads. Or the caller is mistaken, which must not affect others.
        """
        self._lags += 1
        error = OutOfDateLogError(f"the log ends at {last_index}, before {self.position}")
        if self._lags > _MAX_LAGS:
            return Failed(error)
        return Retry(_LAG_PAUSE_S, error, doubts_leader=True)

    # -- the side of the consumer --------------------------------------------------------------------------------------

    def next_batch(self, now: float) -> EntryBatch | None:
        """The next batch, or None when there is none yet, or none any more. Then call :meth:`resume`."""
        if self._owed and (self._taken_at is None or now - self._taken_at > _STALL_S):
            self._stalled = True
        self._taken_at = now
        if not self._queue:
            return None
        batch, size = self._queue.popleft()
        self._queued_bytes -= size
        self._taken = position_after(batch, self._taken)
        return batch

    def resume(self) -> FollowUps | Again | None:
        """What to send now that something was taken: nothing, the follow-ups, or a new request for the rest."""
        if not self._owed or self._queued_bytes > self._buffer_bytes // 2:
            return None
        if self._stalled:
            return Again(self.stop())
        owed = tuple(self._owed)
        self._owed.clear()
        self.paused = False
        return FollowUps(owed)


# -- where a reader stands ---------------------------------------------------------------------------------------------


class Cursor:
    """The batch that an iterator is at. An iterator over a list knows how much is left: so counting costs nothing."""

    __slots__ = ("_batch", "_before", "rest")

    def __init__(self) -> None:
        self._batch: EntryBatch = ()
        self._before = Position(0)
        #: What is left of the batch, one by one.
        self.rest: Iterator[LogEntry | SnapshotChunk] = iter(())

    def enter(self, batch: EntryBatch, before: Position) -> None:
        """Begin with a batch that a reader took who was at ``before``."""
        self._batch, self._before = batch, before
        self.rest = iter((batch,) if isinstance(batch, SnapshotChunk) else batch)

    def take_rest(self) -> EntryBatch | None:
        """What is left of the batch, all at once; None when nothing is."""
        rest = list(self.rest)  # and not a new iterator: a loop may be in the middle of this one
        if isinstance(self._batch, SnapshotChunk) or not rest:
            return self._batch if rest else None
        return [item for item in rest if not isinstance(item, SnapshotChunk)]

    def position(self, taken: Position) -> Position:
        """After the last item that was handed out; ``taken`` is after the whole batch."""
        left = length_hint(self.rest)
        if not left:
            return taken
        if isinstance(self._batch, SnapshotChunk) or left == len(self._batch):
            return self._before
        found = self._batch[-1 - left].position
        return found if found.entry_id else position_after(self._batch[:-left], self._before)
