"""The writer for ``df.foreachPartition``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, Unpack

import attrs

from statestore_client import ConnectionSettings, HlcTimestamp
from statestore_client.errors import InvalidArgumentError
from statestore_client.spark.options import PartitionOptions, WriteOptions, connection, refuse_whole_job_options
from statestore_client.spark.pool import application_id
from statestore_client.spark.report import ReportSink, WriteReport
from statestore_client.spark.rows import Rows, row_rows
from statestore_client.spark.writing import write_partition

__all__ = ["PartitionWriter", "partition_writer"]

_ROWS_PER_BATCH: Final = 4096


@attrs.frozen
class PartitionWriter:
    """Writes the rows of a partition; made by :func:`partition_writer`. It pickles, and its repr shows no secret."""

    settings: ConnectionSettings
    options: WriteOptions
    report: ReportSink | None = attrs.field(default=None, repr=False)
    application: str | None = None

    def __call__(self, rows: Iterable[Any]) -> None:
        """Write these rows; called by Spark in a worker process."""
        try:
            report = write_partition(self._batches(rows), self.settings, self.options, self.application)
        except InvalidArgumentError as error:  # a missing column
            report = WriteReport(error=error)
        if self.report is not None:
            self.report.add(report)
        else:
            report.raise_for_error()
        report.log(self.settings.url, self.options)

    def _batches(self, rows: Iterable[Any]) -> Iterator[Rows]:
        source = iter(rows)
        while batch := list(islice(source, _ROWS_PER_BATCH)):
            yield row_rows(batch, self.options)


def partition_writer(
    settings: ConnectionSettings | str,
    *,
    report: ReportSink | None = None,
    fencing_token: HlcTimestamp | str | None = None,
    **options: Unpack[PartitionOptions],
) -> PartitionWriter:
    """A function for ``df.foreachPartition`` that writes the rows of each partition, pipelined.

    ``options`` are those of the sink in Python's spelling: ``key_column``, ``value_column``, ``ttl_column``,
    ``version_column``, ``operation``, ``error_mode``, ``retry_timeout``, ``client_id_prefix``. If a partition has a key
    twice, its last row wins; between partitions chance decides, unless there is a ``version_column``.

    With ``report`` (see :func:`report_accumulator`) an error that a repeated task could not cure, a rejected fencing
    token say, is reported instead of raised: check ``report.value.raise_for_error()`` after the job. Without it the
    error is raised in the task, and Spark repeats the task as often as it is configured to. Raises
    :class:`SettingsError` for unusable options.
    """
    checked = refuse_whole_job_options(WriteOptions.from_names(fencing_token=fencing_token, **options))
    return PartitionWriter(connection(settings), checked, report, application_id())
