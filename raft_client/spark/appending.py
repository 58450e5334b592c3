"""What a task of the sink does: append the rows of its partition, each under an id that a repetition makes again.
And what the driver does when all tasks ended.

An error that repeating the task cannot cure is returned, not raised: the driver raises it, once. See the sink.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from raft_client.core.arguments import AppendItem
from raft_client.errors import BatchError, InvalidDataError, RaftError, RequestExpiredError, TransportError
from raft_client.settings import RaftSettings
from raft_client.spark.batch_attempts import appended_before, begin_again, begin_batch, find_state
from raft_client.spark.markers import Commit
from raft_client.spark.pipeline import PipelineState
from raft_client.spark.reading import open_client
from raft_client.spark.row_ids import hashed_tails, indexed_tails
from raft_client.spark.write_options import WriteOptions
from raft_client.wire.log_entry import MAX_ENTRY_DATA_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

    from raft_client.sync.client import RaftClient

#: Another attempt, perhaps on another machine or in a moment, may do better.
_CURABLE: Final = (TransportError,)


@attrs.frozen
class Batch:
    """Which batch of which pipeline it is. Without ``query``, nothing is marked: ids are of this one job alone."""

    pipeline: str
    #: Of a stream: the id in its checkpoint.
    query: str | None
    number: int
    #: What the seconds of ids are if the batch is new.
    now_s: int

    @property
    def name(self) -> str:
        """What ids of rows are made of."""
        return f"{self.pipeline}/{self.number}"


@attrs.frozen
class Written:
    """What one task did. Tasks of a batch that was committed before have no ``seconds``: they wrote nothing."""

    batch: Batch
    seconds: int | None
    rows: int = 0
    source_index: int | None = None
    error: RaftError | None = None


def append_rows(
    settings: RaftSettings, options: WriteOptions, batch: Batch, batches: Iterable[pa.RecordBatch]
) -> Written:
    """Append a partition. Raises TransportError when the cluster was not there for longer than its settings allow."""
    try:
        with open_client(settings) as client:
            attempt = _Attempt(client, options, batch)
            if attempt.is_wanted():
                all(attempt.append(rows) for rows in batches)
            return attempt.written()
    except _CURABLE:
        raise
    except RaftError as error:
        return Written(batch, None, error=error)


def commit_batch(settings: RaftSettings, done: Sequence[Written]) -> bool:
    """All tasks ended: raise what went wrong for good, or mark the batch as one that is in the log. False if it was.

    Raises TransportError when the cluster was not there: the batch is then written again, and finds all its rows.
    """
    for written in done:
        if written.error is not None:
            raise written.error
    batch = done[0].batch
    seconds = {written.seconds for written in done}
    if batch.query is None:
        return True
    if None in seconds:  # the log has the COMMIT already
        return False
    indexes = [written.source_index for written in done if written.source_index is not None]
    with open_client(settings) as client:
        try:
            _commit(client, batch, max(filter(None, seconds)), max(indexes, default=None))
        except RequestExpiredError:
            _commit_late(client, batch, max(indexes, default=None))
    return True


def _commit(client: RaftClient, batch: Batch, seconds: int, source_index: int | None) -> None:
    commit = Commit(batch.pipeline, str(batch.query), batch.number, seconds, source_index)
    client.append(commit.encode(), commit.request_id)


def _commit_late(client: RaftClient, batch: Batch, source_index: int | None) -> None:
    """All rows are there, and all of their ids have expired: that is committed under seconds of now."""
    state = find_state(client, batch.pipeline)
    if state.wants(str(batch.query), batch.number):
        state = begin_again(client, state, int(time.time()))
        if state.attempt is not None:
            _commit(client, batch, state.attempt.seconds, source_index)


class _Attempt:
    """One attempt of one task."""

    def __init__(self, client: RaftClient, options: WriteOptions, batch: Batch) -> None:
        self._client, self._options, self._batch = client, options, batch
        self._state = PipelineState(batch.pipeline)
        self._seconds: int | None = None
        self._done: frozenset[bytes] = frozenset()
        self._rows = 0
        self._source_index: int | None = None

    def is_wanted(self) -> bool:
        """Whether the batch has to be written; then it has begun."""
        batch = self._batch
        if batch.query is None:
            self._seconds = batch.now_s
            return True
        self._state = find_state(self._client, batch.pipeline)
        if not self._state.wants(batch.query, batch.number, self._options.first_batch):
            return False
        return self._join(begin_batch(self._client, self._state, batch.query, batch.number, batch.now_s))

    def _join(self, state: PipelineState) -> bool:
        """Write under the seconds that count; False when others have committed the batch meanwhile."""
        batch, self._state = self._batch, state
        wanted = state.wants(str(batch.query), batch.number, self._options.first_batch)
        if not wanted or state.attempt is None:
            self._seconds = None
            return False
        self._done = appended_before(self._client, state, state.attempt)
        self._seconds = state.attempt.seconds
        return True

    def append(self, rows: pa.RecordBatch) -> bool:
        """Append some rows, many at a time; False when others have committed the batch meanwhile.

        Raises what is wrong with the first row that fails.
        """
        data = _data_of(rows, self._options.data_column)
        tails = self._tails(rows, data)
        try:
            self._append_all(data, tails)
        except RequestExpiredError:
            if self._state.attempt is None or self._seconds != self._state.attempt.seconds:
                raise
            if not self._join(begin_again(self._client, self._state, int(time.time()))):
                return False
            self._append_all(data, tails)
        self._rows += len(data)
        return True

    def _append_all(self, data: Sequence[bytes], tails: Sequence[bytes]) -> None:
        assert self._seconds is not None  # noqa: S101 - nothing is appended before the batch has begun
        prefix, done = self._seconds.to_bytes(4, "big"), self._done
        items = [AppendItem(item, prefix + tail) for item, tail in zip(data, tails, strict=True) if tail not in done]
        try:
            self._client.append_many(items, in_flight=self._client.settings.max_in_flight)
        except BatchError as error:
            raise _worst(error) from None

    def _tails(self, rows: pa.RecordBatch, data: Sequence[bytes]) -> list[bytes]:
        options, name = self._options, self._batch.name
        if options.content_ids:
            return hashed_tails(name, data)
        column = options.index_column or str(options.id_column)
        values = _values_of(rows, column)
        if len(set(values)) < len(values):
            raise InvalidDataError(f"two rows of a batch have the same value in {column!r}: only one would be appended")
        if options.index_column is None:
            return hashed_tails(name, values)
        if values and min(values) < 0:
            raise InvalidDataError(f"the index column {column!r} has negative values")
        self._source_index = max([*values, -1 if self._source_index is None else self._source_index])
        return indexed_tails(name, values)

    def written(self) -> Written:
        """What was done. Where there were no rows, the source is as far as it was."""
        index = self._state.source_index if self._source_index is None else self._source_index
        return Written(self._batch, self._seconds, self._rows, index)


def _data_of(rows: pa.RecordBatch, column: str) -> list[bytes]:
    values = _values_of(rows, column)
    data = [value.encode() if isinstance(value, str) else value for value in values]
    for item in data:
        if not 1 <= len(item) <= MAX_ENTRY_DATA_BYTES:
            raise InvalidDataError(
                f"an entry has from 1 to {MAX_ENTRY_DATA_BYTES} bytes; a row has {len(item)} in {column!r}"
            )
    return data


def _values_of(rows: pa.RecordBatch, column: str) -> list[Any]:
    found = rows.column(rows.schema.get_field_index(column))
    if found.null_count:
        raise InvalidDataError(f"the column {column!r} has nulls")
    return list(found.to_pylist())


def _worst(error: BatchError) -> Exception:
    """One failure that no repetition cures if there is one, otherwise the first one."""
    failures = list(error.failures.values())
    return next((each for each in failures if not isinstance(each, _CURABLE)), failures[0])
