"""What became of the rows of a write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

import attrs

from statestore_client.errors import StateStoreError

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

__all__ = ["ReportSink", "WriteReport", "report_accumulator"]


@attrs.frozen
class WriteReport:
    """Rows of a write by outcome; reports add up. It pickles, so it travels in commit messages and accumulators."""

    #: The state store holds the row, or no longer holds the key.
    written: int = 0
    #: Nothing to do: a key to delete was not there, a value to delete had changed, or a newer version was stored.
    not_applied: int = 0
    #: Refused by the state store or unusable (a null key, say).
    rejected: int = 0
    #: How many rows were sent again after the connection failed.
    resent: int = 0
    #: The first error; with ``errorMode=fail`` it ended the task's write.
    error: StateStoreError | None = None

    @property
    def rows(self) -> int:
        """All rows that have an outcome."""
        return self.written + self.not_applied + self.rejected

    def __add__(self, other: WriteReport) -> WriteReport:
        return WriteReport(
            self.written + other.written,
            self.not_applied + other.not_applied,
            self.rejected + other.rejected,
            self.resent + other.resent,
            self.error or other.error,
        )

    def raise_for_error(self) -> WriteReport:
        """Raise the first error if there was any; otherwise the report itself."""
        if self.error is not None:
            raise self.error
        return self

    def counts(self) -> dict[str, int]:
        """The numbers alone, for JSON."""
        return {
            "written": self.written,
            "not_applied": self.not_applied,
            "rejected": self.rejected,
            "resent": self.resent,
        }


class ReportSink(Protocol):
    """Where a worker's reports go; Spark's accumulators are one."""

    def add(self, term: WriteReport, /) -> None:
        """Take the report of one partition."""


class _ReportParam:
    """How Spark adds up reports (the duck type of ``pyspark.AccumulatorParam``)."""

    def zero(self, value: WriteReport) -> WriteReport:
        return value

    def addInPlace(self, value1: WriteReport, value2: WriteReport) -> WriteReport:  # noqa: N802 - Spark's name
        return value1 + value2


def report_accumulator(spark: SparkSession) -> Accumulator[WriteReport]:
    """An accumulator for :func:`~statestore_client.spark.partition_writer`. Read its ``value`` after the job.

    A partition whose write failed for good does not fail its task, which Spark would only repeat: call
    ``accumulator.value.raise_for_error()`` after the job. Spark Connect has no accumulators; use ``write_rows`` there.
    """
    return spark.sparkContext.accumulator(WriteReport(), cast("Any", _ReportParam()))
