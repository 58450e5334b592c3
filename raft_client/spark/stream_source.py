"""``spark.readStream.format("zmqraft")``: PySpark's side of it. It needs PySpark 4.2.

One reader lives in a process of its own on the driver for as long as the query runs; ``read()`` runs in the workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.settings import RaftSettings
from raft_client.spark.options import StreamOptions
from raft_client.spark.reading import read_part
from raft_client.spark.stream_planning import FORMAT, StreamOffset, StreamPlanner

if TYPE_CHECKING:
    import pyarrow as pa


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Its repr shows no secret."""

    def __init__(self, settings: RaftSettings, options: StreamOptions) -> None:
        self._settings = settings
        self._options = options
        self._planner: StreamPlanner | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings!r}, {self._options!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Pickled to each task, without the driver's client."""
        return self.__dict__ | {"_planner": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint begins."""
        return self._plan().first().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What the options say of the size of a micro-batch. Spark knows one limit; the other one comes with it."""
        rows, size = self._options.max_entries_per_trigger, self._options.max_bytes_per_trigger
        if rows is not None:
            return ReadMaxRows(rows)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next micro-batch; ``start`` itself when there is nothing new."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = None if isinstance(limit, ReadAllAvailable) else self._options.max_bytes_per_trigger
        offset = StreamOffset.from_json(start)
        found = self._plan().next(offset, rows, size)
        return start if found == offset else found.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """The run ends at what the log has now."""
        self._plan().aim()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """How far the log goes, for ``sources[].latestOffset`` of a progress report."""
        return {"format": FORMAT, "until": str(self._plan().latest())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002 - see below
        """The end says where the batch begins, too: see :mod:`raft_client.spark.stream_planning`."""
        skip = self._options.policy is not SnapshotPolicy.REFUSE
        return [InputPartition(part) for part in StreamOffset.from_json(end).parts(skip=skip)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, in a worker process."""
        return read_part(self._settings, partition.value, markers=self._options.markers)

    def stop(self) -> None:
        """Disconnect. Spark kills the process of a query that ends otherwise than by an error of this reader."""
        if self._planner is not None:
            self._planner.close()

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = StreamPlanner(self._settings, self._options)
        return self._planner
