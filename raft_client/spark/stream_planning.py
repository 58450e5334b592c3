"""What the driver of a stream asks of the log: how far it goes, and where the next micro-batch ends.

Spark asks 88 times a second while nothing happens, so an answer of the leader counts for a moment. The client stays
open as long as the process that Spark runs the reader in; nobody tells that process when to stop, it is killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from raft_client.clocks import monotonic
from raft_client.core.calls import LogInfo
from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.errors import InvalidArgumentError, OutOfDateLogError, SettingsError
from raft_client.settings import RaftSettings
from raft_client.spark.options import LATEST, StreamOptions
from raft_client.spark.reading import (
    Part,
    SnapshotPart,
    confirm,
    default_partitions,
    log_info_from,
    open_client,
    outrun,
    split,
)
from raft_client.wire.log_entry import LogEntry, Position
from raft_client.wire.request_id import DEFAULT_TTL_S

if TYPE_CHECKING:
    from raft_client.sync.client import RaftClient

# -- offsets -----------------------------------------------------------------------------------------------------------
# ::
#
#     {"format": 1, "after": "400@3", "until": "1400@3", "tasks": 2}
#
#     after ... until   positions, INDEX@TERM@ID: the batch has the entries after the first one, up to the last one
#     tasks             into how many ranges of equal length the batch is cut
#     snapshot          true: before the entries, the batch has the snapshot at ``after`` as a row
#
# Spark writes the end offset of a batch before it runs it, and gives it back when it runs it again. So nothing that a
# replay needs may be taken from options, or from the present state of the log.
#
# Invariant: an offset that a stream goes on from is handed out again as it is when there is nothing new: Spark compares
# the texts.


#: Raise it when a batch would be read otherwise than by what an earlier version has written.
FORMAT: Final = 1


@attrs.frozen
class StreamOffset:
    """The batch of the entries after ``after`` up to ``until``. One that begins a stream is empty."""

    after: Position
    until: Position
    tasks: int
    #: The batch begins with the snapshot at ``after``.
    snapshot: bool = False

    @classmethod
    def at(cls, position: Position) -> Self:
        """Where a stream begins."""
        return cls(position, position, 1)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read what :meth:`to_json` gave. Raises SettingsError for what another source, or a later version, wrote."""
        try:
            if value["format"] != FORMAT:
                raise SettingsError(
                    f"the checkpoint has an offset of the format {value['format']!r}, and this version of the package "
                    f"reads {FORMAT}: run the query with the version that wrote it, or a later one"
                )
            tasks = value["tasks"]
            after, until = Position.parse(value["after"]), Position.parse(value["until"])
            if isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < 1 or until.index < after.index:
                raise _foreign(value)
        except (TypeError, KeyError, InvalidArgumentError) as error:
            if isinstance(error, SettingsError):
                raise
            raise _foreign(value) from None
        return cls(after, until, tasks, bool(value.get("snapshot")))

    def to_json(self) -> dict[str, Any]:
        """For Spark's checkpoint."""
        fields = {"format": FORMAT, "after": str(self.after), "until": str(self.until), "tasks": self.tasks}
        return fields | ({"snapshot": True} if self.snapshot else {})

    def next(self, until: Position, min_partitions: int | None) -> StreamOffset:
        """The batch that follows, up to ``until``."""
        length = until.index - self.until.index
        return StreamOffset(self.until, until, max(1, min(min_partitions or default_partitions(length), length)))

    def with_snapshot(self) -> StreamOffset:
        """The same batch, and before it the snapshot that its entries follow."""
        return attrs.evolve(self, snapshot=True)

    def parts(self, *, skip: bool = False) -> list[Part]:
        """What the tasks of the batch read, without gap or overlap. The first range checks the term before the batch.

        With ``skip``, entries that were compacted since the batch was planned are left out.
        """
        parts: list[Part] = [SnapshotPart(self.after.index)] if self.snapshot else []
        if self.after.index < self.until.index:
            parts += split(self.after, self.until.index, self.tasks, skip=skip)
        return parts


def _foreign(value: Mapping[str, Any]) -> SettingsError:
    return SettingsError(f"the checkpoint belongs to another source, or was changed: {value!r} is no offset of zmqraft")


# -- where a time is in the log ----------------------------------------------------------------------------------------
# Entries have no time of their own. Their request ids begin with a second, by the clock of whoever made the id: a
# leader takes an id that is up to 7 h 45 min old, or up to 15 min in the future. So times go up and down along the log,
# and the answer is exact in this sense: *the first entry whose id was made at that time or later*. Entries before it
# are older.
#
# Halving finds a place that is early enough, and from there on it is read::
#
#     seconds(j) < time - 8 h   =>   j was appended before time - 15 min   =>   all entries before j are older than time


#: Ranges as short as this are read rather than halved.
_SHORT: Final = 1000
#: Of these one has an id, unless a cluster does nothing but change its leader.
_LOOK: Final = 16


def index_before(client: RaftClient, after: int, last: int, time_s: int) -> int:
    """The index before the first entry after ``after`` whose id was made at ``time_s`` (since 1970) or later.

    ``last`` if there is none up to there. Reads the entries of the 8 hours before, or of the cluster's window if that
    is shorter; a longer window makes it inexact.
    """
    low, high = after, last
    while high - low > _SHORT:
        middle = (low + high) // 2
        seconds = _first_seconds(client, middle)
        if seconds is not None and seconds < time_s - DEFAULT_TTL_S:
            low = middle
        else:
            high = middle
    with client.entries(low, last - low, snapshot=SnapshotPolicy.SKIP) as stream:
        for entry in stream:
            if isinstance(entry, LogEntry) and _seconds(entry) >= time_s:
                return entry.index - 1
    return last


def _first_seconds(client: RaftClient, after: int) -> int | None:
    with client.entries(after, _LOOK, snapshot=SnapshotPolicy.SKIP) as stream:
        entries = [entry for entry in stream if isinstance(entry, LogEntry)]
    return next((seconds for seconds in map(_seconds, entries) if seconds), None)


def _seconds(entry: LogEntry) -> int:
    """0 of entries that no client appended."""
    return int.from_bytes(entry.frame[:4], "big")


# -- planning ----------------------------------------------------------------------------------------------------------


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
        found = begin.next(self._place(end), self._options.min_partitions)
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

    def _place(self, index: int) -> Position:
        """Return the position of an entry; if that was compacted meanwhile, its index alone, which is not checked."""
        with self._open().entries(index - 1, 1, snapshot=SnapshotPolicy.SKIP) as stream:
            batch = stream.next_batch()
        found = batch[0] if isinstance(batch, Sequence) else None
        if not isinstance(found, LogEntry) or found.index != index:
            return Position(index)
        if found.entry_id or index == 1:
            return found.position
        return attrs.evolve(found.position, entry_id=self._place(index - 1).entry_id)

    def _open(self) -> RaftClient:
        if self._client is None:
            client = open_client(self._settings)
            client.open()
            self._client = client
        return self._client
