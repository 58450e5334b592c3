"""The format ``zmqraft``: what PySpark calls. ``spark.read`` and ``df.write`` are here, and streams that are written.

Reading: ranges of log indexes as partitions, Arrow batches as rows. ``reader()`` and ``partitions()`` run in processes
of their own on the driver, ``read()`` in the workers. What the options get wrong, and a log that does not have what was
asked for, is found on the driver, before any task starts.

Writing: an error that repeating the task cannot cure travels in the commit message, and ``commit()`` raises it: that
fails the job once. Raised in ``write()``, Spark would repeat the task first. A cluster that stays away is raised in
``write()``, where another attempt may succeed.

Spark makes the writer of a stream twice for each micro-batch, in processes of their own on the driver: for the tasks,
and for the commit. So it asks nobody anything; the tasks do.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from raft_client.errors import PipelineError, SettingsError
from raft_client.settings import RaftSettings
from raft_client.spark.appending import Batch, Written, append_rows, commit_batch
from raft_client.spark.options import (
    ReadOptions,
    StreamOptions,
    WriteOptions,
    check_columns,
    own_options,
    parse_options,
    refuse_useless,
)
from raft_client.spark.reading import COLUMNS, ENTRY_SCHEMA, plan_read, read_part

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

logger: logging.Logger = logging.getLogger("raft_client.spark")

#: Of a batch write that has a name: there is one batch, and no checkpoint that could be lost.
_BATCH_WRITE = "batch write"


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

    def writer(self, schema: StructType, overwrite: bool) -> LogWriter:
        """Raises what :func:`batch_writer` raises."""
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamWriter:  # noqa: N802 - Spark's
        """Raises what :func:`stream_writer` raises."""
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


# -- writing ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class TaskCommit(WriterCommitMessage):
    """What a task tells the driver."""

    written: Written


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> LogWriter:
    """Raises :class:`SettingsError` for everything that can be checked before the job starts."""
    settings, own = _checked(options, schema)
    if overwrite:
        raise SettingsError('use .mode("append"): a log is not overwritten')
    return LogWriter(settings, own)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> LogStreamWriter:
    """Raises :class:`SettingsError`, as :func:`batch_writer` does, and without a ``pipelineId``."""
    settings, own = _checked(own_options(options), schema)
    if overwrite:
        raise SettingsError('use .outputMode("append"), the only one of this sink: a log is not overwritten')
    if own.pipeline_id is None:
        raise SettingsError("a stream needs the option pipelineId: a name of its own, which it keeps over restarts")
    return LogStreamWriter(settings, own)


def _checked(options: Mapping[str, str], schema: StructType) -> tuple[RaftSettings, WriteOptions]:
    settings, own = parse_options(options, kind=WriteOptions)
    check_columns(schema, own)
    return settings, own


class _Writer:
    """Pickled to each task. Its repr shows no secret."""

    def __init__(self, settings: RaftSettings, options: WriteOptions) -> None:
        self._settings = settings
        self._options = options
        self._now_s = int(time.time())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings!r}, {self._options!r})"

    def _append(self, batch: Batch, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        return TaskCommit(append_rows(self._settings, self._options, batch, iterator))

    def _commit(self, messages: Sequence[Any]) -> bool:
        """All tasks ended: raise what went wrong for good, or mark the batch as one that is in the log. False if it
        was.
        """
        done = [message.written for message in messages if isinstance(message, TaskCommit)]
        is_new = commit_batch(self._settings, done)
        batch = done[0].batch
        logger.info("appended %d rows as the batch %d of %s", sum(w.rows for w in done), batch.number, batch.pipeline)
        return is_new


class LogWriter(_Writer, DataSourceArrowWriter):
    """Of ``df.write``. Without a ``pipelineId``, another run of the job appends all rows again."""

    def __init__(self, settings: RaftSettings, options: WriteOptions) -> None:
        super().__init__(settings, options)
        named = options.pipeline_id is not None
        name = options.pipeline_id or f"job/{secrets.token_hex(16)}"
        self._batch = Batch(name, _BATCH_WRITE if named else None, options.first_batch, self._now_s)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Append a partition, in a worker process."""
        return self._append(self._batch, iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        """Raise what went wrong for good, or mark the write as done. A name that was used before is worth a warning:
        people give the same to each run of a job.
        """
        if not self._commit(messages):
            logger.warning(
                "nothing was appended: the log has the write %r already; rows of another write need a pipelineId of "
                "their own",
                self._batch.pipeline,
            )

    def abort(self, messages: Sequence[Any]) -> None:
        """The job failed. What was appended stays; another run under the same ``pipelineId`` completes it."""


class LogStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Of ``writeStream``."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Append a partition of a micro-batch, in a worker process."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        number = context and context.getLocalProperty("streaming.sql.batchId")
        if not query or not number:
            raise PipelineError("Spark does not say which query and batch this is: is this sink used with writeStream?")
        return self._append(Batch(str(self._options.pipeline_id), query, int(number), self._now_s), iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's signature
        """Raise what went wrong for good, or mark the batch as one that is in the log."""
        self._commit(messages)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's signature
        """The batch failed. What was appended stays; the next run of the query completes it."""
