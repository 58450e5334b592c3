"""The format ``zmqraft``. ``spark.read`` is here: ranges of log indexes as partitions, Arrow batches as rows.

``reader()`` and ``partitions()`` run in processes of their own on the driver, ``read()`` in the workers. What the
options get wrong, and a log that does not have what was asked for, is found on the driver, before any task starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from raft_client.errors import SettingsError
from raft_client.settings import RaftSettings
from raft_client.spark.options import ReadOptions, StreamOptions, parse_options, refuse_useless
from raft_client.spark.reading import COLUMNS, ENTRY_SCHEMA, plan_read, read_part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter


class ZmqRaftDataSource(DataSource):
    """The source ``zmqraft``; its options are in :mod:`raft_client.spark.options`."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "zmqraft"

    def schema(self) -> str:
        """The columns of :mod:`raft_client.spark.reading`. Raises :class:`SettingsError` for options that never work.

        Spark asks for them at ``load()``. What is raised later, when a stream starts, it buries under an error of its
        own; and the line with the mistake is not in the traceback.
        """
        refuse_useless(self.options, (StreamOptions, ReadOptions))
        return COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Raises :class:`SettingsError` as :meth:`reader` does, and with PySpark 4.1, whose streams know no limits."""
        try:
            from raft_client.spark.stream_source import LogStreamReader
        except ImportError:
            raise SettingsError(
                "readStream.format('zmqraft') needs PySpark 4.2 or later. With 4.1, read what is new from time to time "
                "with raft_client.spark.read_entries(after=...)"
            ) from None
        _check_columns(schema)
        return LogStreamReader(*parse_options(self.options, kind=StreamOptions))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Raises what :func:`raft_client.spark.sink.batch_writer` raises."""
        from raft_client.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's
        """Raises what :func:`raft_client.spark.sink.stream_writer` raises."""
        from raft_client.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)

    def reader(self, schema: StructType) -> LogReader:
        """Raises :class:`SettingsError` for unusable options, and for a schema that is not that of entries."""
        _check_columns(schema)
        return LogReader(*parse_options(self.options, kind=ReadOptions))


def _check_columns(schema: StructType) -> None:
    if schema.names != ENTRY_SCHEMA.names:
        raise SettingsError(f"the columns of zmqraft are fixed, leave out .schema(...); they are: {COLUMNS}")


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
        return read_part(self._settings, partition.value, markers=self._options.markers)
