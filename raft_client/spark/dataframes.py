"""The log as a DataFrame, and how far a query on it is behind."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import attrs

from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.settings import RaftSettings
from raft_client.spark.options import ReadOptions, connection, to_options
from raft_client.wire.log_entry import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import SourceProgress, StreamingQueryProgress

#: Spark logs a warning when a source is registered twice.
_REGISTERED: Final[WeakSet[SparkSession]] = WeakSet()


def register(spark: SparkSession) -> None:
    """Make ``format("zmqraft")`` known to a session.

    Spark finds it by itself when the package is installed as usual; it does not in editable installations.
    """
    from raft_client.spark.source import ZmqRaftDataSource

    if spark not in _REGISTERED:
        spark.dataSource.register(ZmqRaftDataSource)
        _REGISTERED.add(spark)


def read_entries(
    spark: SparkSession,
    settings: RaftSettings | str | Iterable[str],
    *,
    after: Position | int = 0,
    until: int | None = None,
    partitions: int | None = None,
    snapshot: SnapshotPolicy | str = SnapshotPolicy.REFUSE,
    markers: bool = False,
) -> DataFrame:
    """The entries after ``after``, up to ``until`` or the present end of the log, as a DataFrame.

    Columns: ``index``, ``term``, ``type`` (``state``, ``config``, ``checkpoint``), ``request_id``, ``time`` (of the
    request id, in whole seconds), ``data``. The range is fixed by this call: whatever is appended later, every action
    on the DataFrame reads the same entries. ``partitions`` tasks read it, each with a client of its own.

    ``snapshot`` says what to do when the log was compacted beyond ``after``: ``"refuse"`` raises
    :class:`~raft_client.HistoryOutrunError`, ``"skip"`` begins after the snapshot, ``"deliver"`` has it, as one row of
    the type ``snapshot``, before the entries. A log that is compacted between this call and an action fails the action.

    Entries with which Spark's pipelines mark their batches in the log are left out, unless ``markers`` is true.

    ``after`` is an index, or the position of the last entry of an earlier read: ``Position(index, term,
    request_id)`` of its row.

    It asks the leader at once, and raises :class:`~raft_client.SettingsError` for unusable arguments,
    :class:`~raft_client.OutOfDateLogError` when the log ends before the range does,
    :class:`~raft_client.TermMismatchError` when the position is of another log, and
    :class:`~raft_client.NoLeaderError`.
    """
    from raft_client.spark.reading import plan_read

    target = connection(settings)
    options = ReadOptions(after=after, until=until, partitions=partitions, snapshot=snapshot, markers=markers)
    fixed = attrs.evolve(options, until=plan_read(target, options)[-1].until)
    register(spark)
    return spark.read.format("zmqraft").options(**to_options(target, fixed)).load()


# -- how far a query is behind -----------------------------------------------------------------------------------------


def entries_behind(progress: StreamingQueryProgress | None) -> int | None:
    """How many entries of the log a streaming query has not read yet, as of its last micro-batch.

    ``progress`` is ``query.lastProgress``, or ``event.progress`` of a ``StreamingQueryListener``. Entries that no
    client appended count, too; of several logs, all, and of one that is read twice, both. None before the first
    micro-batch, after one that was repeated when the query was started again, and for a query that reads no log. A
    query that stands still reports nothing new: watch the age of ``progress.timestamp`` as well.
    """
    behind = [_behind(source) for source in progress.sources] if progress is not None else []
    known = [entries for entries in behind if entries is not None]
    return sum(known) if known else None


def _behind(source: SourceProgress) -> int | None:
    read, end = _until(source.endOffset), _until(source.latestOffset)
    return None if read is None or end is None else max(0, end - read)


def _until(text: str | None) -> int | None:
    """The index in a ``StreamOffset``, given as JSON; None for one of another source."""
    try:
        offset: Any = json.loads(text or "null")
    except ValueError:
        return None
    if not isinstance(offset, dict) or not {"format", "until"} <= offset.keys():
        return None
    return Position.parse(str(offset["until"])).index
