"""``df.write.format("statestore_client")``, and ``writeStream``, where each row has a version.

An error that repeating the task cannot cure (a rejected fencing token, a null key) travels in the commit message, and
``commit()`` raises it: that fails the job once. Raised in ``write()``, Spark would repeat the task first. A connection
that stays lost is raised in ``write()``, where another attempt, perhaps on another machine, may succeed.

``writer()`` and ``commit()`` run in processes of their own on the driver, not in the user's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from statestore_client import SetResult
from statestore_client.errors import SettingsError, StateStoreError
from statestore_client.spark.options import WriteOptions, parse_options
from statestore_client.spark.pool import POOL, PoolKey
from statestore_client.spark.report import WriteReport
from statestore_client.spark.rows import arrow_rows, check_columns
from statestore_client.spark.writing import Delivery, begin_task, is_reused, write_partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from statestore_client.settings import ConnectionSettings

#: Options that Spark passes on though they are its own.
_OF_THE_QUERY: Final = ("checkpointlocation", "queryname")

logger: logging.Logger = logging.getLogger("statestore_client.spark")


@attrs.frozen
class PartitionCommit(WriterCommitMessage):
    """What a task tells the driver."""

    report: WriteReport


class StateStoreDataSource(DataSource):
    """The sink ``statestore_client``; its options are in :mod:`statestore_client.spark.options`."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``. ``statestore`` is taken: Spark calls the state of its own streaming queries so."""
        return "statestore_client"

    def schema(self) -> NoReturn:
        """There is no table to read; raises :class:`SettingsError`."""
        raise SettingsError(
            "the state store cannot be read as a table; use statestore_client.spark.lookup with a DataFrame of keys. "
            "To write in SQL, name the columns in CREATE TABLE or CREATE TEMPORARY VIEW"
        )

    def reader(self, schema: StructType) -> NoReturn:  # noqa: ARG002 - Spark's signature
        """The same for a table of the catalog, whose columns are known."""
        self.schema()

    def streamWriter(self, schema: StructType, overwrite: bool) -> StateStoreStreamWriter:  # noqa: N802 - Spark's name
        """The sink of a streaming query, which needs a version in each row. Raises :class:`SettingsError`."""
        rest = {name: text for name, text in self.options.items() if name.lower() not in _OF_THE_QUERY}
        settings, options = parse_options(rest)
        _check_stream(options, overwrite=overwrite)
        if options.gc_freeze:
            begin_task()
        return StateStoreStreamWriter(StateStoreWriter(settings, check_columns(schema, options)))

    def writer(self, schema: StructType, overwrite: bool) -> StateStoreWriter:
        """Check everything that can be checked before the job starts. Raises :class:`SettingsError`."""
        settings, options = parse_options(self.options)
        if options.gc_freeze:
            begin_task()
        if overwrite:
            raise SettingsError('use .mode("append"): there is no table to overwrite; each row sets its own key')
        return StateStoreWriter(settings, check_columns(schema, options))


class StateStoreWriter(DataSourceArrowWriter):
    """Pickled to each task and to the commit. Its repr shows no secret."""

    def __init__(self, settings: ConnectionSettings, options: WriteOptions) -> None:
        self._settings = settings
        self._options = options

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings!r}, {self._options!r})"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionCommit:
        """Write a partition, in a worker process."""
        rows = (arrow_rows(batch, self._options) for batch in iterator)
        return PartitionCommit(write_partition(rows, self._settings, self._options))

    def commit(self, messages: Sequence[Any]) -> None:
        """All tasks ended: raise what went wrong for good, or log and store the counts."""
        if self._options.gc_freeze:
            begin_task()
        report = _total(messages).raise_for_error()
        report.log(self._settings.url, self._options)
        if self._options.report_key is not None:
            self._store_report(self._options.report_key, report)

    def abort(self, messages: Sequence[Any]) -> None:
        """The job failed. What was written stays: a key-value store has nothing to roll back to."""
        logger.info("aborted a write to %s: %s", self._settings.url, _total(messages).counts())

    def _store_report(self, report_key: str, report: WriteReport) -> None:
        key = PoolKey(self._settings, self._options.client_id_prefix or "spark")
        delivery = Delivery(key, retry_timeout_s=self._options.retry_timeout, what="reports")
        counts = (report_key, json.dumps(report.counts() | report.first_rejection()))
        token = self._options.fencing_token
        (outcome,) = delivery.deliver(
            [counts], lambda client, pairs, timeout: client.set_many(pairs, fencing_token=token, timeout=timeout)
        )
        if not is_reused():
            POOL.clear()  # this process is about to end; otherwise it commits the next micro-batch, too
        if isinstance(outcome, StateStoreError):
            raise outcome
        if isinstance(outcome, SetResult) and outcome.store_id is not None:
            (report + WriteReport(stores=frozenset((outcome.store_id,)))).raise_for_error()


class StateStoreStreamWriter(DataSourceStreamArrowWriter):
    """Each micro-batch is a write like any other. Made anew for each, and for its commit."""

    def __init__(self, writer: StateStoreWriter) -> None:
        self._writer = writer

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._writer!r})"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionCommit:
        """Write a partition of a micro-batch, in a worker process."""
        return self._writer.write(iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's signature
        """All tasks ended. An error for good ends the query; the micro-batch is repeated when it is started again."""
        self._writer.commit(messages)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's signature
        """The micro-batch failed. What was written stays; the repetition finds its own versions there."""
        self._writer.abort(messages)


def _check_stream(options: WriteOptions, *, overwrite: bool) -> None:
    """A micro-batch is repeated, and tasks of an earlier one may still write: only versions keep that in order."""
    if options.fencing_token is not None:
        raise SettingsError(
            "use statestore_client.spark.ActiveStandby, or statestore_client.spark.BatchWriter in foreachBatch: they "
            "take a new token of a lock for each micro-batch, and fencingToken would give all of them the same. Where "
            "no other writer has to be kept out, a versionColumn is enough"
        )
    if overwrite:
        raise SettingsError(
            "use the output mode append, the only one of this sink, for rows that are written once. An aggregation "
            "has the output mode update or complete and is written with statestore_client.spark.BatchWriter in "
            "foreachBatch; the checkpoint may stay"
        )
    if options.version_column is None:
        raise SettingsError(
            "a streaming query needs the option versionColumn: Spark repeats micro-batches, and the version of a row "
            "keeps older ones out. Without one, write under a lock with statestore_client.spark.ActiveStandby, or with "
            "statestore_client.spark.BatchWriter in foreachBatch"
        )


def _total(messages: Sequence[Any]) -> WriteReport:
    """Tasks that did not finish have no message."""
    return reduce(add, (m.report for m in messages if isinstance(m, PartitionCommit)), WriteReport())
