"""What the driver of a stream asks of the log: how far it goes, and where the next micro-batch ends.

Spark asks 88 times a second while nothing happens, so an answer of the leader counts for a moment. The client stays
open as long as the process that Spark runs the reader in; nobody tells that process when to stop, it is killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from raft_client.clocks import monotonic
from raft_client.core.calls import LogInfo
from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.errors import OutOfDateLogError
from raft_client.settings import RaftSettings
from raft_client.spark.offsets import StreamOffset
from raft_client.spark.ranges import outrun
from raft_client.spark.reading import confirm, log_info_from, open_client
from raft_client.spark.start_by_time import index_before
from raft_client.spark.stream_options import LATEST, StreamOptions
from raft_client.wire.log_entry import LogEntry, Position

if TYPE_CHECKING:
    from raft_client.sync.client import RaftClient

#: How long an answer of the leader counts. A new entry waits for half of it on average, of the 0.3 s of a micro-batch.
_TAIL_S: Final = 0.05


class StreamPlanner:
    """Where micro-batches begin and end. One for each run of a query; not for several threads."""

    def __init__(self, settings: RaftSettings, options: StreamOptions) -> None:
        self._settings = settings
        self._options = options
        self._client: RaftClient | None = None
        self._info: LogInfo | None = None
        self._asked_at = 0.0
        self._confirmed = False
        self._target: int | None = None

    def first(self) -> StreamOffset:
        """Where the stream begins, when no checkpoint says it. Raises OutOfDateLogError beyond the end of the log."""
        first, time_s = self._options.first_index, self._options.starting_time
        info = log_info_from(self._open(), first - 1 if first else 0)
        if first is not None:
            if first - 1 > info.last_applied:
                raise OutOfDateLogError(f"the log ends at {info.last_applied}, before startingIndex={first}")
            return StreamOffset.at(Position(first - 1))
        if self._options.starting_index == LATEST:
            return StreamOffset.at(Position(info.last_applied))
        oldest = info.first_index - 1
        if time_s is not None:
            return StreamOffset.at(Position(index_before(self._open(), oldest, info.last_applied, int(time_s))))
        return StreamOffset.at(Position(0 if self._options.policy is SnapshotPolicy.DELIVER else oldest))

    def next(self, start: StreamOffset, limit: int | None, max_bytes: int | None = None) -> StreamOffset:
        """The next micro-batch, of ``limit`` entries and ``max_bytes`` at most; ``start`` itself when nothing is new.

        Never before ``start``, whatever a new leader says. Raises TermMismatchError when ``start`` is of another log,
        OutOfDateLogError when the log has lost what was read, and HistoryOutrunError when it was compacted before it
        was read, unless the options say what to do then.
        """
        end = self._tail(start.until.index)
        begin, delivers = self._begin(start)
        self._confirm(begin.until)
        reached = begin.until.index
        for bound in (self._target, self._options.ending_index, None if limit is None else reached + limit):
            end = end if bound is None else min(end, bound)
        if end < reached or (end == reached and not delivers):
            return start
        if max_bytes is not None and end > reached:
            end = self._end_of_bytes(reached, end, max_bytes)
        found = begin.next(Position(end, self._term(end)), self._options.min_partitions)
        return found.with_snapshot() if delivers else found

    def _begin(self, start: StreamOffset) -> tuple[StreamOffset, bool]:
        """Where the next batch begins, and whether with a snapshot."""
        info = self._info
        if info is None or start.until.index >= info.first_index - 1:
            return start, False
        policy = self._options.policy
        if policy is SnapshotPolicy.REFUSE:
            raise outrun(start.until.index, info)
        return StreamOffset.at(
            Position(info.first_index - 1)
        ), policy is SnapshotPolicy.DELIVER and info.snapshot_bytes > 0

    def _end_of_bytes(self, after: int, end: int, max_bytes: int) -> int:
        """The last entry of as many as ``max_bytes`` hold; at least one."""
        left = max_bytes
        with self._open().entries(after, end - after, snapshot=SnapshotPolicy.SKIP) as stream:
            for entry in stream:
                left -= entry.size if isinstance(entry, LogEntry) else 0
                if left < 0 and isinstance(entry, LogEntry):
                    return max(after + 1, entry.index - 1)
        return end

    def aim(self) -> None:
        """From now on, go no further than what the log has now: for ``availableNow``."""
        self._target = log_info_from(self._open(), 0).last_applied

    def latest(self) -> int:
        """How far the log goes, for a report of the lag. Asks nobody if it was asked before."""
        return self._info.last_applied if self._info is not None else self._tail(0)

    def close(self) -> None:
        """Disconnect. It may be used again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _tail(self, at_least: int) -> int:
        now = monotonic()
        if self._info is None or now - self._asked_at >= _TAIL_S or self._info.last_applied < at_least:
            self._info = log_info_from(self._open(), at_least)
            self._asked_at = monotonic()
        if self._info.last_applied < at_least:
            raise OutOfDateLogError(f"the log ends at {self._info.last_applied}, and {at_least} was read already")
        return self._info.last_applied

    def _confirm(self, position: Position) -> None:
        """Once: what comes later was read by this process from the log that it has confirmed."""
        if not self._confirmed and position.term:
            confirm(self._open(), position)
        self._confirmed = True

    def _term(self, index: int) -> int:
        """The term of an entry; 0, which nobody checks, when it was compacted in this moment."""
        with self._open().entries(index - 1, 1, snapshot=SnapshotPolicy.SKIP) as stream:
            batch = stream.next_batch()
        found = batch[0] if isinstance(batch, Sequence) else None
        return found.term if isinstance(found, LogEntry) and found.index == index else 0

    def _open(self) -> RaftClient:
        if self._client is None:
            client = open_client(self._settings)
            client.open()
            self._client = client
        return self._client
