"""The sink ``zmqraft`` with a gate for each batch, at which the first attempt of its first task waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from support import spark_gates
from support.spark_gates import Gate

from raft_client.spark.source import ZmqRaftDataSource, stream_writer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["GatedDataSource", "register_gated"]


class GatedDataSource(ZmqRaftDataSource):
    """``gates`` is the folder of the gates, ``before`` how many rows are appended before the task waits."""

    @classmethod
    def name(cls) -> str:
        return "gatedraft"

    def streamWriter(self, schema: StructType, overwrite: bool) -> GatedWriter:  # noqa: N802 - Spark's name
        options = dict(self.options)
        folder, before = Path(options.pop("gates")), int(options.pop("before"))
        return GatedWriter(stream_writer(options, schema, overwrite), folder, before)


class GatedWriter(DataSourceStreamArrowWriter):
    """The product's own writer, whose rows come through the gate of their batch."""

    def __init__(self, writer: DataSourceStreamArrowWriter, folder: Path, before: int) -> None:
        self._writer, self._folder, self._before = writer, folder, before

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        gate = Gate(self._folder, str(context.getLocalProperty("streaming.sql.batchId")))
        waits = context.partitionId() == context.attemptNumber() == 0 and not gate.is_open()
        return self._writer.write(gate.through(iterator, self._before) if waits else iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's signature
        self._writer.commit(messages, batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's signature
        self._writer.abort(messages, batchId)


def register_gated(spark: SparkSession) -> None:
    """Make ``format("gatedraft")`` known to a session. Its workers need not find these modules."""
    import gated_log

    register_pickle_by_value(spark_gates)
    register_pickle_by_value(gated_log)
    spark.dataSource.register(GatedDataSource)
