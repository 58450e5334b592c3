"""What the elected driver does: take the marker over, run the query from there, and stop it when the election is lost.

A query that ended because the store could not be reached, or had forgotten the marker, starts again where the marker
says. Each start has a new checkpoint in a directory of its own: what Spark writes there is never read again.

One micro-batch is one job of Spark: each key's newest row that is above the marker. Log partitions are ranges of
indexes, so the rows of one key reach several tasks. They are reduced by key first: one row per key is written, by one
task, and no two writes of a batch are about one key. The same aggregation counts the rows and finds their lowest and
highest index.
"""

from __future__ import annotations

import logging
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import uuid4

import attrs

from statestore_client import ConnectionSettings, HlcTimestamp, Lease, StateStoreClient
from statestore_client.clocks import monotonic
from statestore_client.core.arguments import ConditionName
from statestore_client.errors import (
    FencingTokenTooOldError,
    InvalidArgumentError,
    SettingsError,
    StateStoreError,
    TransportError,
)
from statestore_client.spark.dataframes import key_identity
from statestore_client.spark.marker import (
    Marker,
    MarkerGoneError,
    MarkerSteps,
    NextToken,
    ReadMarker,
    WriteMarker,
    WriteRows,
    Written,
    take_over,
    write_batch,
)
from statestore_client.spark.options import WriteOptions
from statestore_client.spark.report import WriteReport
from statestore_client.spark.rows import Rows, arrow_rows, check_column, check_columns
from statestore_client.spark.writing import report_partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery  # type: ignore[attr-defined]  # documented there
    from pyspark.sql.types import StructType

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


logger: Final[logging.Logger] = logging.getLogger("statestore_client.spark")

#: How often a running query is looked at: has it ended, is the election lost, is it to stop (seconds).
_LOOK_S: Final = 0.2
#: Between two attempts after the store could not be reached (seconds).
_RETRY_S: Final = 1.0


@attrs.frozen
class PipelineEvent:
    """What a driver tells about itself.

    ``kind`` is ``standing by``: it is ready to lead, and campaigns; ``leading``: it was elected, and goes on from
    ``marker``; ``writing``: a batch begins after ``marker``, under ``token``; ``written``: its rows are stored, and
    ``marker``; ``refused``: a batch was refused, because its token is out of date; ``lost``: it leads no longer, and
    stands by; ``failed``: it tries again because of ``error``.
    """

    kind: Literal["standing by", "leading", "writing", "written", "refused", "lost", "failed"]
    marker: Marker | None = None
    token: HlcTimestamp | None = None
    #: Keys whose newest row was written, or refused.
    keys: int = 0
    error: StateStoreError | None = None


@attrs.frozen
class Pipeline:
    """What all drivers of a pipeline agree on, and where this one tells what happens."""

    spark: SparkSession
    source: Callable[[SparkSession, int], DataFrame]
    source_id: str | None
    marker_key: str
    writer: NewestWriter
    trigger: Mapping[str, Any]
    listener: Callable[[PipelineEvent], object]

    def frame(self, after: int) -> DataFrame:
        """What the source gives above this index. Raises :class:`SettingsError` for what is not a stream."""
        frame = self.source(self.spark, after)
        if not getattr(frame, "isStreaming", False):
            raise SettingsError("source must return a streaming DataFrame, made with spark.readStream")
        return frame

    def emit(self, event: PipelineEvent) -> None:
        """Log it, and tell the listener."""
        is_news = event.kind in ("standing by", "leading")
        level = logging.WARNING if event.error else logging.INFO if is_news else logging.DEBUG
        logger.log(level, "%s: %s", self.marker_key, event)
        self.listener(event)


def pause_before_retry(is_stopped: Callable[[], bool]) -> None:
    """Let a second pass, or less if it is stopped.

    The application's Event is looked at, and never waited for: its ``set`` in a signal handler would wait for the
    ``wait`` that the handler has interrupted.
    """
    until = monotonic() + _RETRY_S
    while not is_stopped() and monotonic() < until:
        time.sleep(_LOOK_S)


class Leadership:
    """The time from an election to its loss. ``is_stopped`` ends it early."""

    def __init__(
        self, pipeline: Pipeline, store: StateStoreClient, lease: Lease, is_stopped: Callable[[], bool]
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._lease = lease
        self._is_stopped = is_stopped
        self._marker = Marker()
        self._writer = pipeline.writer
        self._token: HlcTimestamp | None = None
        self._error: BaseException | None = None  # of a micro-batch: Spark's own exception has its text alone
        self._has_written = False
        self._report = WriteReport()  # of the last batch

    def lead(self) -> None:
        """Run the query until it ends by itself or is stopped. Raises :class:`LeaseLostError` at the loss."""
        while not self._is_stopped():
            try:
                self._run_once()
                return
            except (MarkerGoneError, TransportError) as error:
                if isinstance(error, TransportError) and error.fatal:
                    raise
                self._lease.check()
                self._pipeline.emit(PipelineEvent("failed", error=error))
                pause_before_retry(self._is_stopped)
            except FencingTokenTooOldError as error:
                self._lease.next_token()  # raises if another driver leads, which is why
                raise foreign(error) from error

    def _run_once(self) -> None:
        self._marker = self._carry_out(take_over(self._pipeline.marker_key, self._pipeline.source_id))
        self._error, self._has_written = None, False
        self._pipeline.emit(PipelineEvent("leading", self._marker, self._token))
        with tempfile.TemporaryDirectory(prefix="statestore-checkpoint-", ignore_cleanup_errors=True) as folder:
            query = self._start(folder)
            try:
                self._watch(query)
            finally:
                query.stop()

    def _start(self, folder: str) -> StreamingQuery:
        frame = self._pipeline.frame(self._marker.index)
        self._writer = self._pipeline.writer.checked(frame.schema)
        stream = frame.writeStream.foreachBatch(self._write).option("checkpointLocation", Path(folder).as_uri())
        return (stream.trigger(**self._pipeline.trigger) if self._pipeline.trigger else stream).start()

    def _watch(self, query: StreamingQuery) -> None:
        """Until it ends. Raises what ended it."""
        from pyspark.errors import StreamingQueryException

        ended = False
        while not ended and not self._is_stopped():
            self._lease.check()
            try:
                ended = bool(query.awaitTermination(_LOOK_S))  # type: ignore[arg-type]  # takes fractions, too
            except StreamingQueryException:
                if self._error is None:
                    raise
                raise self._error from None
            if (progress := query.lastProgress) is not None and progress.stateOperators:
                raise SettingsError(
                    "the query has state (an aggregation, a join or dropDuplicates), which Spark keeps in a checkpoint "
                    "that no other driver can trust: write it with statestore_client.spark.BatchWriter, whose query "
                    "keeps its checkpoint, or compute each row from its own event"
                )

    # -- a micro-batch, in a thread of Spark's -------------------------------------------------------------------------

    def _write(self, batch: DataFrame, _batch_id: int) -> None:
        try:
            marker = self._carry_out(write_batch(self._marker), partial(self._write_rows, batch))
            if marker != self._marker:
                self._marker = marker
                self._pipeline.emit(PipelineEvent("written", marker, self._token, self._report.written))
        except BaseException as error:
            self._error = self._error or error
            if isinstance(error, FencingTokenTooOldError):
                rejected = self._report.rejected
                self._pipeline.emit(PipelineEvent("refused", self._marker, self._token, rejected, error))
            raise

    def _carry_out(self, steps: MarkerSteps, write: Callable[[WriteRows], Written] | None = None) -> Marker:
        key, persist = self._pipeline.marker_key, self._pipeline.writer.options.persist
        return carry_out(steps, self._store, key, persist=persist, next_token=self._next_token, write=write)

    def _next_token(self) -> HlcTimestamp:
        self._token = self._lease.next_token()
        return self._token

    def _write_rows(self, batch: DataFrame, step: WriteRows) -> Written:
        self._report = WriteReport()
        self._pipeline.emit(PipelineEvent("writing", self._marker, step.token))
        written, self._report = self._writer.write(batch, step.after, step.token)
        try:
            self._report.raise_for_error()
        except StateStoreError as error:
            error.add_note(f"in the micro-batch after the index {step.after} ({self._pipeline.marker_key})")
            raise
        if self._has_written and written.first is not None and written.first <= step.after:
            raise InvalidArgumentError(
                f"a micro-batch has a row with the index {written.first}, and all up to {step.after} were written "
                "before: the source must give its rows in the order of their indexes, or some would be lost"
            )
        self._has_written = self._has_written or written.rows > 0
        return written


def carry_out(
    steps: MarkerSteps,
    store: StateStoreClient,
    key: str,
    *,
    persist: bool,
    next_token: Callable[[], HlcTimestamp],
    write: Callable[[WriteRows], Written] | None = None,
) -> Marker:
    """Carry out steps about the marker at ``key``; returns what they come to. Raises what the store says to one."""
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as done:
            marker: Marker = done.value
            return marker
        if isinstance(step, NextToken):
            answer = next_token()
        elif isinstance(step, ReadMarker):
            item = store.get(key)
            answer = None if item is None else item.value
        elif isinstance(step, WriteMarker):
            condition: ConditionName | None = "NEX" if step.if_unchanged else None
            result = store.set(key, step.value, condition=condition, fencing_token=step.token, persist=persist)
            answer = result.applied
        else:
            assert write is not None  # noqa: S101 - only micro-batches have this step
            answer = write(step)


def foreign(error: FencingTokenTooOldError) -> FencingTokenTooOldError:
    """The refusal of a token though no other driver leads."""
    return FencingTokenTooOldError(
        f"{error.message}: this driver leads, so a key of the pipeline has a token or a version that comes from "
        "elsewhere; write it by this pipeline alone, or delete it"
    )
