"""Which part of the log each task reads: the plan of a read, made once on the driver.

::

    log:        [ snapshot up to 4 ] 5 6 7 8 9 10 11        last applied: 11
    after=6, partitions=2            -> (6, 9] (9, 11]
    after=0, snapshot="deliver"      -> snapshot at 4, (4, 11]
    after=0, snapshot="refuse"       -> HistoryOutrunError(snapshot_index=4)

Invariant: the parts of a plan follow each other without gap or overlap; a snapshot can only be the first one.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import attrs

from raft_client.core.calls import LogInfo
from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.errors import HistoryOutrunError, OutOfDateLogError
from raft_client.spark.options import ReadOptions
from raft_client.wire.log_entry import Position

#: A task starts, connects and finds the leader in some 50 ms, in which a peer sends 10,000 entries and more.
_ENTRIES_PER_PARTITION: Final = 100_000
#: One peer, which does its work in one thread, serves them all.
_MOST_PARTITIONS: Final = 8
#: A snapshot is one value of one row. Java's arrays end at 2 GiB, and the worker holds it twice.
MAX_SNAPSHOT_BYTES: Final = 2**30


@attrs.frozen
class EntryRange:
    """The entries after ``after`` up to ``until``. With ``skip``, those that only a snapshot holds may be missing."""

    after: Position
    until: int
    skip: bool = False


@attrs.frozen
class SnapshotPart:
    """The snapshot that stands for the entries up to ``until``."""

    until: int


Part: TypeAlias = EntryRange | SnapshotPart


def plan(info: LogInfo, options: ReadOptions) -> list[Part]:
    """The parts of a read of the leader's log. The last one is a range of entries, if only an empty one.

    Raises :class:`OutOfDateLogError` when the log ends before the range does, and :class:`HistoryOutrunError` when its
    start was compacted away and ``options`` do not say what to do then, or the range ends within the snapshot.
    """
    until = info.last_applied if options.until is None else options.until
    if max(options.after.index, until) > info.last_applied:
        wanted = max(options.after.index, until)
        raise OutOfDateLogError(f"the log ends at {info.last_applied}, before {wanted}")
    snapshot_index = info.first_index - 1
    if options.after.index >= snapshot_index:
        return _split(options.after, until, options)
    if options.snapshot is SnapshotPolicy.SKIP:
        return _split(Position(min(snapshot_index, until)), until, options)
    _check_snapshot(info, until, options)
    # A peer with an empty snapshot answers nothing when it is asked for it; there is nothing in it to read anyway.
    snapshot = [SnapshotPart(snapshot_index)] if info.snapshot_bytes else []
    return [*snapshot, *_split(Position(snapshot_index), until, options)]


def default_partitions(entries: int) -> int:
    """How many tasks read this many entries by default."""
    return max(1, min(-(-entries // _ENTRIES_PER_PARTITION), _MOST_PARTITIONS))


def outrun(after: int, info: LogInfo) -> HistoryOutrunError:
    """The error for a log that no longer has the entry after ``after``."""
    snapshot_index = info.first_index - 1
    return HistoryOutrunError(
        f"the log was compacted: the entries from {after + 1} to {snapshot_index} exist only as a snapshot; "
        "read after it, or choose snapshot=deliver or snapshot=skip",
        snapshot_index=snapshot_index,
        current_index=info.last_applied,
    )


def _check_snapshot(info: LogInfo, until: int, options: ReadOptions) -> None:
    snapshot_index = info.first_index - 1
    if options.snapshot is SnapshotPolicy.REFUSE:
        raise outrun(options.after.index, info)
    if until < snapshot_index:
        raise HistoryOutrunError(
            f"the log was compacted: its snapshot holds the entries up to {snapshot_index}, beyond until={until}",
            snapshot_index=snapshot_index,
            current_index=info.last_applied,
        )
    if info.snapshot_bytes > MAX_SNAPSHOT_BYTES:
        raise HistoryOutrunError(
            f"the log was compacted, and its snapshot of {info.snapshot_bytes} bytes is too large for a row; "
            f"at most {MAX_SNAPSHOT_BYTES}",
            snapshot_index=snapshot_index,
            current_index=info.last_applied,
        )


def _split(after: Position, until: int, options: ReadOptions) -> list[Part]:
    return [*split(after, until, options.partitions, skip=options.snapshot is SnapshotPolicy.SKIP)]


def split(after: Position, until: int, parts: int | None, *, skip: bool = False) -> list[EntryRange]:
    """Ranges whose lengths differ by one at most, at least one. The first one checks the term of ``after``.

    The same arguments give the same ranges in every version: batches of streams are cut again when they are repeated.
    """
    length = until - after.index
    count = max(1, min(parts or default_partitions(length), length))
    edges = [after.index + length * n // count for n in range(count + 1)]
    starts = [after, *map(Position, edges[1:-1])]
    return [EntryRange(start, end, skip) for start, end in zip(starts, edges[1:], strict=True)]
