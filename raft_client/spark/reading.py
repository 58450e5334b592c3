"""What a task does: read its part of the log with a client of its own, batch by batch.

A client takes a few milliseconds to connect and nothing while it is not called, and a task reads for seconds. So each
partition opens one and closes it; nothing outlives the task in a worker that Spark may keep, or kill without a word.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from raft_client.core.calls import LogInfo
from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.errors import HistoryOutrunError, OutOfDateLogError
from raft_client.settings import RaftSettings
from raft_client.spark.batches import entry_batch, snapshot_batch
from raft_client.spark.options import ReadOptions
from raft_client.spark.ranges import EntryRange, Part, SnapshotPart, plan
from raft_client.wire.log_entry import LogEntry, Position, SnapshotChunk

if TYPE_CHECKING:
    import pyarrow as pa

    from raft_client.sync.client import RaftClient
    from raft_client.sync.entries import Entries

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
    for chunk in client.entries(0, 0):
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
