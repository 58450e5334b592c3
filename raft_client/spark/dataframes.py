"""The log as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import attrs

from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.settings import RaftSettings
from raft_client.spark.options import ReadOptions, connection, to_options
from raft_client.wire.log_entry import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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

    ``after`` is an index, or the position of the last entry of an earlier read: ``Position(index, term)`` of its row.

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
