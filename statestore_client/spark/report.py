"""What became of the rows of a write."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import attrs

from statestore_client.errors import StateStoreError, StoreReplacedError

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

    from statestore_client.spark.options import WriteOptions

logger: Final = logging.getLogger("statestore_client.spark")


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
    #: The first error that ended a task's write, and fails the job.
    error: StateStoreError | None = None
    #: Why the first of the rejected rows was, with ``errorMode=continue``.
    rejection: StateStoreError | None = None
    #: The stores that have the rows, where servers say which they are. With more than one, rows are missing: a server
    #: began anew without its data in the middle of the write, and the sum is an error.
    stores: frozenset[str] = attrs.field(default=frozenset(), eq=False)

    @property
    def rows(self) -> int:
        """All rows that have an outcome."""
        return self.written + self.not_applied + self.rejected

    def __add__(self, other: WriteReport) -> WriteReport:
        stores = self.stores | other.stores
        error = self.error or other.error
        if error is None and len(stores) > 1:
            error = StoreReplacedError(
                "the server began anew with an empty store in the middle of the write: rows written before are "
                "missing. Write all rows again; a server with --data or --cluster keeps its store"
            )
        return WriteReport(
            self.written + other.written,
            self.not_applied + other.not_applied,
            self.rejected + other.rejected,
            self.resent + other.resent,
            error,
            self.rejection or other.rejection,
            stores,
        )

    def raise_for_error(self) -> WriteReport:
        """Raise the first error that fails the job, if there was any; otherwise the report itself."""
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

    def first_rejection(self) -> dict[str, str]:
        """Why the first of the rejected rows was, for JSON beside the counts; empty if none was."""
        if self.rejection is None:
            return {}
        return {"first_rejection": f"{type(self.rejection).__name__}: {self.rejection}"}

    def log(self, target: str, options: WriteOptions) -> None:
        """Log the counts at INFO, and what may surprise at WARNING."""
        logger.info("wrote to %s: %s", target, self.counts())
        if reason := self.first_rejection().get("first_rejection"):
            text = "%d of %d rows were rejected and are not in the state store at %s; the first: %s"
            logger.warning(text, self.rejected, self.rows, target, reason)
        if options.version_column is not None and self.not_applied and not self.written:
            logger.warning(
                "none of %d rows changed the state store at %s: it has newer versions in %r of all their keys",
                self.not_applied,
                target,
                options.version_column,
            )


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
