"""``spark.read.format("zmqraft")``: ranges of log indexes as partitions, Arrow batches as rows.

``reader()`` and ``partitions()`` run in processes of their own on the driver, ``read()`` in the workers. What the
options get wrong, and a log that does not have what was asked for, is found on the driver, before any task starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from raft_client.errors import SettingsError
from raft_client.settings import RaftSettings
from raft_client.spark.batches import COLUMNS, ENTRY_SCHEMA
from raft_client.spark.options import ReadOptions, parse_options
from raft_client.spark.reading import plan_read, read_part

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LogReader", "ZmqRaftDataSource"]


class ZmqRaftDataSource(DataSource):
    """The source ``zmqraft``; its options are in :mod:`raft_client.spark.options`."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "zmqraft"

    def schema(self) -> str:
        """The columns of :mod:`raft_client.spark.batches`. Raises :class:`SettingsError` for unusable options."""
        parse_options(self.options)
        return COLUMNS

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: ARG002, N802 - Spark's signature
        """Not a source for streams; raises :class:`SettingsError`."""
        raise SettingsError(
            "readStream.format('zmqraft') does not exist: read what is new from time to time with "
            "raft_client.spark.read_entries(after=...), or follow the log with raft_client.RaftClient.subscribe"
        )

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002 - Spark's signature
        """Not a sink; raises :class:`SettingsError`."""
        raise _not_a_sink()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002, N802 - Spark's signature
        """Not a sink; raises :class:`SettingsError`."""
        raise _not_a_sink()

    def reader(self, schema: StructType) -> LogReader:
        """Raises :class:`SettingsError` for unusable options, and for a schema that is not that of entries."""
        if schema.names != ENTRY_SCHEMA.names:
            raise SettingsError(f"the columns of zmqraft are fixed, leave out .schema(...); they are: {COLUMNS}")
        return LogReader(*parse_options(self.options))


def _not_a_sink() -> SettingsError:
    return SettingsError(
        "format('zmqraft') reads the log and does not write it: append rows with raft_client.RaftClient.append_many, "
        "in df.foreachPartition or writeStream.foreachBatch, with ids of RequestId.derive, so that a repeated task "
        'appends them once: docs/how-to/raft-spark.md, "Append rows"'
    )


class LogReader(DataSourceReader):
    """Pickled to each task. Its repr shows no secret."""

    def __init__(self, settings: RaftSettings, options: ReadOptions) -> None:
        self._settings = settings
        self._options = options

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings!r}, {self._options!r})"

    def partitions(self) -> list[InputPartition]:
        """Ask the leader; raises what :func:`raft_client.spark.reading.plan_read` raises."""
        return [InputPartition(part) for part in plan_read(self._settings, self._options)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, in a worker process."""
        return read_part(self._settings, partition.value)
