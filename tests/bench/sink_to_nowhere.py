"""The Spark sink without the state store: what is left of a write when nothing is sent.

In a module of its own: Spark's workers import it, and the plain processes of bench_spark.py need not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from statestore_client.spark.options import parse_options
from statestore_client.spark.report import WriteReport
from statestore_client.spark.rows import arrow_rows, check_columns, requests
from statestore_client.spark.sink import PartitionCommit, StateStoreDataSource, StateStoreWriter
from statestore_client.spark.writing import begin_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["SinkToNowhere"]


class SinkToNowhere(StateStoreDataSource):
    """Takes the options of the real one."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "nowhere"

    def writer(self, schema: StructType, overwrite: bool) -> StateStoreWriter:
        """As the real one."""
        settings, options = parse_options(self.options)
        return _Writer(settings, check_columns(schema, options))


class _Writer(StateStoreWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionCommit:
        """Make the requests of a partition and throw them away."""
        begin_task()
        for batch in iterator:
            deque(requests(arrow_rows(batch, self._options), self._options), maxlen=0)
        return PartitionCommit(WriteReport())
