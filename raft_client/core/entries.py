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
Invariant: all chunks of a snapshot come from one peer over one link. When that changes, the snapshot starts again.

Source: ØMQ Raft protocol, "RequestEntries RPC"; facts §1.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, TypeAlias

from raft_client.core.calls import Again, Failed, Finished, FollowUps, NotLeader, Retry, Verdict
from raft_client.errors import HistoryOutrunError, InvalidArgumentError, OutOfDateLogError, ProtocolError
from raft_client.wire.entries import LogEntry
from raft_client.wire.snapshots import SnapshotChunk, SnapshotProgress
from raft_client.wire.streams import EntriesReply, EntriesStatus, RequestEntries

__all__ = ["DEFAULT_BUFFER_BYTES", "Batch", "EntriesCall", "SnapshotPolicy"]

#: What a stream may hold for a slow consumer, beside the five messages that the peer has sent already.
DEFAULT_BUFFER_BYTES: Final = 4 * 1024 * 1024
#: A peer drops a stream after 5 seconds of silence (REQUEST_ENTRIES_TTL). Its clock may have started before ours.
_STALL_S: Final = 3.0
#: A new leader learns within one round of heartbeats what is committed; a log that lags for longer lost something.
_LAG_PAUSE_S: Final = 0.3
_MAX_LAGS: Final = 10
#: Breaks in a row without a single new entry before the peer is taken for broken.
_MAX_BREAKS: Final = 5

#: Consecutive entries, never none; or one piece of a snapshot.
Batch: TypeAlias = Sequence[LogEntry] | SnapshotChunk


class SnapshotPolicy(StrEnum):
    """What to do when the entries that were asked for exist only in a snapshot."""

    DELIVER = "deliver"  # hand out its chunks, then the entries after it
    REFUSE = "refuse"  # end with HistoryOutrunError
    SKIP = "skip"  # go on with the entries after it: those in it are lost to the reader


class EntriesCall:
    """The entries after the index ``after``: ``count`` of them, or up to what the leader has applied.

    Snapshot chunks do not count. ``count=0`` asks for the snapshot alone, and hands out nothing when there is none.
    The result is the index of the last entry. Errors: HistoryOutrunError (see :class:`SnapshotPolicy`),
    OutOfDateLogError when the log ends before ``after``, ProtocolError.
    """

    __slots__ = (
        "_breaks",
        "_buffer_bytes",
        "_ident",
        "_lags",
        "_offset",
        "_owed",
        "_policy",
        "_queue",
        "_queued_bytes",
        "_remaining",
        "_snapshot",
        "_stalled",
        "_taken_at",
        "paused",
        "position",
        "snapshot_index",
    )

    request_id: bytes | None = None
    repeatable = True
    changes = False
    needs_slot = False
    has_new_id = True

    def __init__(
        self,
        ident: bytes,
        after: int,
        *,
        count: int | None = None,
        snapshot: SnapshotPolicy = SnapshotPolicy.DELIVER,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    ) -> None:
        RequestEntries(ident, after, count)  # refuses what no peer would understand
        if buffer_bytes < 1:
            raise InvalidArgumentError("buffer_bytes must be at least 1")
        self._ident = ident
        self._remaining = count
        self._policy = SnapshotPolicy(snapshot)
        self._buffer_bytes = buffer_bytes
        #: The index up to which everything was received.
        self.position = after
        #: The index of the last snapshot that came or was skipped; None while there was none.
        self.snapshot_index: int | None = None
        self._snapshot = SnapshotProgress()
        self._offset: int | None = None  # where to go on in the peer's snapshot, once it is known to be the same
        self._queue: deque[tuple[Batch, int]] = deque()  # with its bytes
        self._queued_bytes = 0
        self._owed: list[list[bytes]] = []  # follow-ups that are held back, in order
        #: Whether there are any: then the peer may be silent.
        self.paused = False
        self._taken_at: float | None = None  # monotonic seconds
        self._stalled = False
        self._lags = 0
        self._breaks = 0

    # -- the side of the cluster ---------------------------------------------------------------------------------------

    def frames(self) -> list[bytes]:
        """The request for what is still missing. What was owed to an earlier request is forgotten."""
        self._owed.clear()
        self.paused = self._stalled = False
        # A request with a count of 0 would mean "stop"; whoever wants the snapshot alone stops after it.
        count = self._remaining if self._remaining != 0 else 1
        offset, self._offset = self._offset, None
        return RequestEntries(self._ident, self.position, count, offset).to_frames()

    def moved(self) -> None:
        """Another peer: its snapshot of the same state need not have the same bytes, so it has to start anew."""
        self._snapshot.restart()
        self._offset = None

    def stop(self) -> list[bytes]:
        """The follow-up that ends the stream early. The peer does not answer it."""
        return RequestEntries(self._ident, self.position, 0).to_frames()

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        """One message of the stream. Raises ProtocolError."""
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
        if first_index > self.position + 1:
            return self._break(f"the entry {first_index} came where {self.position + 1} was due")
        if is_last and last_index < self.position:
            return self._lag(last_index)
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
        self.position = entries[-1].index
        self._snapshot.restart()
        self._push(entries, size)

    def _receive_chunk(self, chunk: SnapshotChunk) -> Verdict:
        if chunk.index <= self.position:
            return self._break(f"a snapshot up to {chunk.index} came where the entry {self.position + 1} was due")
        if self._policy is SnapshotPolicy.REFUSE:
            return Failed(self._outrun(chunk), last=self.stop())
        self.snapshot_index = chunk.index
        if self._policy is SnapshotPolicy.SKIP:
            stop = self.stop()
            self.position = chunk.index
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
            return self._follow_up(RequestEntries(self._ident, self.position))
        self.position = chunk.index
        self._snapshot.restart()
        if self._remaining == 0:
            return Finished(self.position)  # the peer forgets the stream with the last chunk of its own accord
        # Also of its own accord it starts a new one with this: the count counts again.
        return self._follow_up(RequestEntries(self._ident, self.position, self._remaining))

    def _outrun(self, chunk: SnapshotChunk) -> HistoryOutrunError:
        text = f"the entries after {self.position} were compacted into a snapshot up to {chunk.index}"
        return HistoryOutrunError(text, snapshot_index=chunk.index)

    def _push(self, batch: Batch, size: int) -> None:
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
        """Something was lost on the way: ask anew for what is missing."""
        self._breaks += 1
        if self._breaks > _MAX_BREAKS:
            return Failed(ProtocolError(reason), last=self.stop())
        return Again(self.stop())

    def _lag(self, last_index: int) -> Verdict:
        """This leader has applied less than we have seen, or were told of.

        A new leader does not know yet what is committed (no entry of its own term is); one that was cut off from the
        others believes to be the leader still. Or whoever asks is mistaken: then nobody else should feel it.
        """
        self._lags += 1
        error = OutOfDateLogError(f"the log ends at {last_index}, before {self.position}")
        if self._lags > _MAX_LAGS:
            return Failed(error)
        return Retry(_LAG_PAUSE_S, error, doubts_leader=True)

    # -- the side of the consumer --------------------------------------------------------------------------------------

    def next_batch(self, now: float) -> Batch | None:
        """The next batch, or None when there is none yet, or none any more. Then call :meth:`resume`."""
        if self._owed and (self._taken_at is None or now - self._taken_at > _STALL_S):
            self._stalled = True
        self._taken_at = now
        if not self._queue:
            return None
        batch, size = self._queue.popleft()
        self._queued_bytes -= size
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
