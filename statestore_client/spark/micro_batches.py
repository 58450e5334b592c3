"""One micro-batch of a pipeline as one job of Spark: each key's newest row that is above the marker.

Log partitions are ranges of indexes, so the rows of one key reach several tasks. They are reduced by key first: one
row per key is written, by one task, and no two writes of a batch are about one key. The same aggregation counts the
rows and finds their lowest and highest index.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import attrs

from statestore_client import ConnectionSettings, HlcTimestamp
from statestore_client.errors import InvalidArgumentError
from statestore_client.spark.dataframes import key_identity
from statestore_client.spark.marker import Written
from statestore_client.spark.options import WriteOptions
from statestore_client.spark.report import WriteReport
from statestore_client.spark.rows import Rows, arrow_rows, check_column, check_columns
from statestore_client.spark.writing import report_partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["NewestWriter"]

#: What is known of all rows of a key, beside the newest one. Nobody's columns are called so.
_ROWS, _FIRST, _LAST, _NULLS = (f"__statestore_{name}" for name in ("rows", "first", "last", "nulls"))
_RESULT: Final = "report binary"


@attrs.frozen
class NewestWriter:
    """Writes the rows of micro-batches."""

    settings: ConnectionSettings
    options: WriteOptions
    index_column: str
    application: str | None

    def checked(self, schema: StructType) -> NewestWriter:
        """With the columns' exact names. Raises :class:`SettingsError` for a missing or wrongly typed one."""
        index = check_column(schema, self.index_column, "index_column", "index_column")
        return attrs.evolve(self, options=check_columns(schema, self.options), index_column=index)

    def write(self, batch: DataFrame, after: int, token: HlcTimestamp) -> tuple[Written, WriteReport]:
        """Write each key's newest row above ``after``. The report may have an error, whatever was written by then.

        Raises :class:`InvalidArgumentError` for indexes that are null or negative; rows may have been written.
        """
        seen, report = self._carry_out(batch, after, self._task(after, token))
        if seen.nulls or (seen.first is not None and seen.first < 0):
            raise InvalidArgumentError(
                f"the column {self.index_column!r} has nulls or negative numbers; it must tell each row's place in the "
                "source, from 0 on"
            )
        return Written(seen.rows, seen.first, seen.last), report

    def rehearse(self, batch: DataFrame, after: int) -> None:
        """The same job, but nothing is written, and nothing about the rows is refused."""
        self._carry_out(batch, after, _read_all)

    def _carry_out(self, batch: DataFrame, after: int, task: Any) -> tuple[_Seen, WriteReport]:
        results = self._newest(batch, after).mapInArrow(task, _RESULT).collect()
        return reduce(_together, (_unpickle(row["report"]) for row in results), _NOTHING)

    def _newest(self, batch: DataFrame, after: int) -> DataFrame:
        """A row for each key, with what :class:`_Seen` needs. Null is a key here: it is refused then, and not lost."""
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        index = F.col(self.index_column)
        used = dict.fromkeys(filter(None, (self.options.key_column, self.options.value_name)))
        return (
            batch.groupBy(key_identity(batch, self.options.key_column))
            .agg(
                F.max_by(F.struct(*used), index).alias("newest"),
                F.count_if(index > after).alias(_ROWS),
                F.min(index).cast("long").alias(_FIRST),
                F.max(index).cast("long").alias(_LAST),
                F.count_if(index.isNull()).alias(_NULLS),
            )
            .select("newest.*", _ROWS, _FIRST, _LAST, _NULLS)
        )

    def _task(self, after: int, token: HlcTimestamp) -> Any:
        """What each task does with its keys: a closure that travels to processes which know nothing of this one."""
        settings, application, write_id = self.settings, self.application, uuid4().hex
        options = attrs.evolve(self.options, fencing_token=token)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            parts: list[_Seen] = []
            report = report_partition(_rows(batches, after, options, parts), settings, options, application, write_id)
            parts.extend(map(_see, batches))  # Spark ends a process that leaves rows unread
            yield _result(reduce(_add, parts, _Seen()), report)

        return write


@attrs.frozen
class _Seen:
    """What a batch had, or a part of it."""

    rows: int = 0
    first: int | None = None
    last: int | None = None
    nulls: int = 0


_NOTHING: Final = (_Seen(), WriteReport())


def _read_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task that only reads."""
    for _ in batches:
        pass
    yield _result(*_NOTHING)


def _result(seen: _Seen, report: WriteReport) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps((seen, report))])], ["report"])


def _rows(batches: Iterator[pa.RecordBatch], after: int, options: WriteOptions, parts: list[_Seen]) -> Iterator[Rows]:
    """The rows to write; notes in ``parts`` what was there."""
    import pyarrow.compute as pc

    for batch in batches:
        parts.append(_see(batch))
        yield arrow_rows(batch.filter(pc.greater(batch.column(_LAST), after)), options)


def _see(batch: pa.RecordBatch) -> _Seen:
    import pyarrow.compute as pc

    return _Seen(
        pc.sum(batch.column(_ROWS)).as_py() or 0,
        pc.min(batch.column(_FIRST)).as_py(),
        pc.max(batch.column(_LAST)).as_py(),
        pc.sum(batch.column(_NULLS)).as_py() or 0,
    )


def _add(one: _Seen, other: _Seen) -> _Seen:
    return _Seen(
        one.rows + other.rows,
        min((n for n in (one.first, other.first) if n is not None), default=None),
        max((n for n in (one.last, other.last) if n is not None), default=None),
        one.nulls + other.nulls,
    )


def _together(one: tuple[_Seen, WriteReport], other: tuple[_Seen, WriteReport]) -> tuple[_Seen, WriteReport]:
    return _add(one[0], other[0]), one[1] + other[1]


def _unpickle(data: bytes | bytearray) -> tuple[_Seen, WriteReport]:
    result: tuple[_Seen, WriteReport] = pickle.loads(bytes(data))  # noqa: S301 - pickled by our own tasks
    return result
