"""What a task does: read its part of the log with a client of its own, batch by batch.

A client takes a few milliseconds to connect and nothing while it is not called, and a task reads for seconds. So each
partition opens one and closes it; nothing outlives the task in a worker that Spark may keep, or kill without a word.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from raft_client.core.calls import LogInfo
from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.errors import HistoryOutrunError, OutOfDateLogError
from raft_client.settings import RaftSettings
from raft_client.spark.options import ReadOptions
from raft_client.spark.pipeline import MARKER_PREFIX
from raft_client.wire.log_entry import ENTRY_HEADER_BYTES, EntryKind, LogEntry, Position, SnapshotChunk
from raft_client.wire.request_id import REQUEST_ID_BYTES, ZERO_REQUEST_ID

if TYPE_CHECKING:
    from raft_client.sync.client import RaftClient
    from raft_client.sync.readers import Entries

# -- what a job reads, and in which parts ------------------------------------------------------------------------------
# ::
#
#     log:        [ snapshot up to 4 ] 5 6 7 8 9 10 11        last applied: 11
#     after=6, partitions=2            -> (6, 9] (9, 11]
#     after=0, snapshot="deliver"      -> snapshot at 4, (4, 11]
#     after=0, snapshot="refuse"       -> HistoryOutrunError(snapshot_index=4)
#
# Invariant: the parts of a plan follow each other without gap or overlap; a snapshot can only be the first one.


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


# -- rows --------------------------------------------------------------------------------------------------------------
# ==============  =============  ====================================================================================
# column          type           content
# ==============  =============  ====================================================================================
# ``index``       bigint         the place in the log, from 1; of a snapshot: that of the last entry in it
# ``term``        bigint         the term of the leader that appended it
# ``type``        string         ``state``, ``config`` or ``checkpoint``; ``snapshot`` for a snapshot
# ``request_id``  binary         the 12 bytes of the append's id; null when no client appended it
# ``time``        timestamp      when the id was made, in whole seconds, by the clock of whoever made it; or null
# ``data``        binary         what was appended
# ==============  =============  ====================================================================================


#: The same for Spark.
COLUMNS: Final = "index bigint, term bigint, type string, request_id binary, time timestamp, data binary"
#: As Spark expects it of a data source, to the letter: times are microseconds of UTC.
ENTRY_SCHEMA: Final = pa.schema(
    [
        ("index", pa.int64()),
        ("term", pa.int64()),
        ("type", pa.string()),
        ("request_id", pa.binary()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("data", pa.binary()),
    ]
)
SNAPSHOT_TYPE: Final = "snapshot"

_TYPES: Final = pa.array([kind.name.lower() for kind in EntryKind])
_NOBODY: Final = pa.scalar(ZERO_REQUEST_ID.raw)
_SECONDS_BYTES: Final = 4
_US_PER_S: Final = 1_000_000
_KIND_BITS: Final = 8


def entry_batch(entries: Sequence[LogEntry], *, markers: bool = True) -> pa.RecordBatch:
    """One row for each entry; without ``markers``, none for those of pipelines (:mod:`raft_client.spark.pipeline`).

    Arrow takes the frames apart, four times as fast as Python.
    """
    frames = pa.array([entry.frame for entry in entries], pa.binary())
    longest = max((len(entry.frame) for entry in entries), default=ENTRY_HEADER_BYTES)
    ids = pc.binary_slice(frames, 0, REQUEST_ID_BYTES)
    # Big endian in the frame; Arrow counts from the lowest byte.
    seconds = _numbers(pc.binary_reverse(pc.binary_slice(frames, 0, _SECONDS_BYTES)), pa.uint32())
    kinds_and_terms = _numbers(pc.binary_slice(frames, REQUEST_ID_BYTES, ENTRY_HEADER_BYTES), pa.uint64())
    times = pc.multiply(seconds.cast(pa.int64()), _US_PER_S)
    by_client = pc.not_equal(ids, _NOBODY)
    columns = (
        [entry.index for entry in entries],
        pc.shift_right(kinds_and_terms, _KIND_BITS).cast(pa.int64()),
        _TYPES.take(pc.bit_wise_and(kinds_and_terms, pa.scalar((1 << _KIND_BITS) - 1, pa.uint64()))),
        pc.if_else(by_client, ids, None),
        pc.if_else(by_client, times, None).cast(ENTRY_SCHEMA.field("time").type),
        pc.binary_slice(frames, ENTRY_HEADER_BYTES, longest),
    )
    batch = _record_batch(columns)
    return batch if markers else _without_markers(batch)


def _without_markers(batch: pa.RecordBatch) -> pa.RecordBatch:
    marks = pc.starts_with(batch.column("data"), MARKER_PREFIX)
    return batch.filter(pc.invert(marks)) if pc.any(marks).as_py() else batch


def _numbers(raw: Any, kind: pa.DataType) -> Any:
    """Values of the width of the kind, one after the other, as numbers."""
    return pa.Array.from_buffers(kind, len(raw), [None, raw.buffers()[2]])


def snapshot_batch(index: int, term: int, data: bytes) -> pa.RecordBatch:
    """The one row of a snapshot."""
    return _record_batch(([index], [term], [SNAPSHOT_TYPE], [None], [None], [data]))


def _record_batch(columns: Sequence[Any]) -> pa.RecordBatch:
    arrays = [
        values if isinstance(values, pa.Array) else pa.array(values, field.type)
        for values, field in zip(columns, ENTRY_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)


# -- reading -----------------------------------------------------------------------------------------------------------


#: Arrow batches of about 10,000 rows are the fastest for Spark; large entries make them smaller.
_BATCH_ROWS: Final = 10_000
_BATCH_BYTES: Final = 8 * 1024 * 1024
#: A new leader learns within one round of heartbeats what is committed. A log that lags for longer lost something.
_MAX_LAGS: Final = 10


def plan_read(settings: RaftSettings, options: ReadOptions) -> list[Part]:
    """Ask the leader how far its log reaches, and share the range out. Raises what :func:`plan` and clients raise.

    :class:`TermMismatchError` when ``after`` is a position in another log.
    """
    with open_client(settings) as client:
        info = log_info_from(client, max(options.after.index, options.until or 0))
        parts = plan(info, options)
        if options.after.term:
            confirm(client, options.after)
    return parts


def confirm(client: RaftClient, position: Position) -> None:
    """Raises TermMismatchError unless the log is the one that the position is of, as far as it can still be told."""
    with client.entries(position, 1, snapshot=SnapshotPolicy.SKIP) as stream:
        stream.next_batch()


def read_part(settings: RaftSettings, part: Part, *, markers: bool = False) -> Generator[pa.RecordBatch]:
    """The rows of one part; with ``markers``, those of pipelines, too.

    Raises :class:`HistoryOutrunError` when the log was compacted since the plan was made.
    """
    with open_client(settings) as client:
        if isinstance(part, SnapshotPart):
            yield _read_snapshot(client, part)
        else:
            # No name for the entries: they must be closed before the client, which then tells the peer to stop.
            yield from map(partial(entry_batch, markers=markers), _merge(_read_range(client, part)))


def open_client(settings: RaftSettings) -> RaftClient:
    """A client; what it needs is imported only now."""
    from raft_client.sync.client import RaftClient

    return RaftClient(settings)


def log_info_from(client: RaftClient, at_least: int) -> LogInfo:
    """The leader's log, when it has applied what was asked for or had the time to.

    A new leader lags for about an election's time, and nobody tells when it has caught up: hence the pauses.
    """
    for _ in range(_MAX_LAGS):
        info = client.log_info()
        if info.last_applied >= at_least:
            return info
        time.sleep(client.settings.election_grace)
    return client.log_info()


def _read_range(client: RaftClient, part: EntryRange) -> Iterator[Sequence[LogEntry]]:
    """Entries as they come. Streams that end early, at a leader that lags, are taken up again."""
    position, lags = part.after, 0
    policy = SnapshotPolicy.SKIP if part.skip else SnapshotPolicy.REFUSE
    while position.index < part.until:
        with client.entries(position, part.until - position.index, snapshot=policy) as stream:
            yield from _until(stream, part.until)
        lags = 0 if stream.position.index > position.index else lags + 1
        position = stream.position
        if lags > _MAX_LAGS:
            raise OutOfDateLogError(f"the log ends at {position.index}, before {part.until}")
        if lags:
            time.sleep(client.settings.election_grace)


def _until(stream: Entries, last: int) -> Iterator[Sequence[LogEntry]]:
    """The batches of a stream up to an index: after a snapshot that was skipped, its count goes beyond."""
    while (batch := stream.next_batch()) is not None:
        if isinstance(batch, SnapshotChunk):
            continue  # neither policy lets one through
        if batch[-1].index > last:
            yield [entry for entry in batch if entry.index <= last]
            return
        yield batch


def _merge(batches: Iterator[Sequence[LogEntry]]) -> Iterator[list[LogEntry]]:
    """Messages of 64 KiB are too small for Spark."""
    merged: list[LogEntry] = []
    size = 0
    for entries in batches:
        merged += entries
        size += sum([len(entry.frame) for entry in entries])
        if len(merged) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield merged
            merged, size = [], 0
    if merged:
        yield merged


def _read_snapshot(client: RaftClient, part: SnapshotPart) -> pa.RecordBatch:
    """All of it at once: it is one value."""
    pieces: list[bytes] = []
    with client.entries(0, 0) as chunks:
        for chunk in chunks:
            if not isinstance(chunk, SnapshotChunk):
                continue
            if chunk.index != part.until:
                raise HistoryOutrunError(
                    f"the log was compacted again meanwhile: its snapshot is now at {chunk.index}, not at {part.until}",
                    snapshot_index=chunk.index,
                )
            if chunk.is_first:
                pieces.clear()
            pieces.append(chunk.data)
            if chunk.is_last:
                return snapshot_batch(chunk.index, chunk.term, b"".join(pieces))
    raise OutOfDateLogError(f"the snapshot at {part.until} is gone")
