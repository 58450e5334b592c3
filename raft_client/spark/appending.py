"""What a task of the sink does: append the rows of its partition, each under an id that a repetition makes again.
And what the driver does when all tasks ended.

An error that repeating the task cannot cure is returned, not raised: the driver raises it, once. See the sink.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from raft_client.core.arguments import AppendItem
from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.errors import (
    BatchError,
    InvalidDataError,
    PipelineError,
    RaftError,
    RequestExpiredError,
    TransportError,
)
from raft_client.settings import RaftSettings
from raft_client.spark.options import WriteOptions
from raft_client.spark.pipeline import Attempt, Begin, Commit, Marker, PipelineState, marker_in
from raft_client.spark.reading import open_client
from raft_client.wire.log_entry import MAX_ENTRY_DATA_BYTES, LogEntry
from raft_client.wire.request_id import RequestId

if TYPE_CHECKING:
    import pyarrow as pa

    from raft_client.sync.client import RaftClient

# -- ids of rows -------------------------------------------------------------------------------------------------------
# A batch is the name of the pipeline and a number. Neither the partition nor the task, the attempt or the query is in
# an id, so a row has the same one however often, and by whomever, its batch is written.
#
# * ``indexColumn``: the batch's start + the index. Two rows of one batch never have the same.
# * ``idColumn``: hash of the batch and the value. Two are equal as random numbers of 64 bits are, once in 37 million
#   batches of a million rows.
# * ``contentIds``: hash of the batch and the data. Equal rows of a batch are one entry.


TAIL_BYTES: Final = 8
_MODULUS: Final = 2**64
_PERSON: Final = b"zmqraft row id"


def indexed_tails(batch: str, indexes: Sequence[int]) -> list[bytes]:
    """Of rows that have an index of their own, from 0."""
    start = int.from_bytes(RequestId.derive(f"index/{batch}", 0, seconds=0).raw[-TAIL_BYTES:], "big")
    return [((start + index) % _MODULUS).to_bytes(TAIL_BYTES, "big") for index in indexes]


def hashed_tails(batch: str, values: Sequence[Any]) -> list[bytes]:
    """Of rows that are told apart by a value: bytes, text or an integer."""
    # The batch first, hashed to a fixed length: no batch and value look like another batch and value.
    state = hashlib.blake2b(hashlib.sha256(batch.encode()).digest(), digest_size=TAIL_BYTES, person=_PERSON)
    return [_hashed(state, value) for value in values]


def _hashed(state: Any, value: bytes | str | int) -> bytes:
    hasher = state.copy()
    if isinstance(value, bytes):
        hasher.update(value)
    else:
        hasher.update(str(value).encode())
    tail: bytes = hasher.digest()
    return tail


def tail_of(request_id: bytes) -> bytes:
    """What of an id is made of the row."""
    return request_id[-TAIL_BYTES:]


# -- attempts ----------------------------------------------------------------------------------------------------------
# Each task does this by itself. All of one batch come to the same seconds, because the log is the judge: see
# :mod:`raft_client.spark.pipeline`.


#: The last marker of a pipeline that runs is near the end of the log. Each further look back is four times as long.
_FIRST_LOOK: Final = 64


def find_state(client: RaftClient, pipeline: str) -> PipelineState:
    """What the log says of a pipeline, from the last COMMIT on. Reads backwards; all of the log if there is none."""
    info = client.log_info()
    oldest, end, look = info.first_index - 1, info.last_applied, _FIRST_LOOK
    found: list[tuple[int, Marker]] = []
    while end > oldest and not any(isinstance(marker, Commit) for _, marker in found):
        start = max(oldest, end - look)
        found = [*_markers(client, pipeline, start, end), *found]
        end, look = start, look * 4
    return PipelineState(pipeline, since=info.first_index).fold(found, info.last_applied)


def begin_batch(client: RaftClient, state: PipelineState, query: str, batch: int, now_s: int) -> PipelineState:
    """The state after the BEGIN of the batch, whoever wrote it: its ``attempt`` has the seconds that count.

    The caller looks whether the batch fits, before and after: others may have come further meanwhile.
    """
    if state.attempt is not None:
        return state
    return _append(client, state, Begin(state.pipeline, query, batch, now_s))


def begin_again(client: RaftClient, state: PipelineState, now_s: int) -> PipelineState:
    """As :func:`begin_batch`, when the cluster has refused an id of the seconds that counted.

    From that refusal on, no row can come under those seconds, so what is there before this BEGIN is all of them.
    """
    if state.query is None or state.attempt is None:
        return state
    again = Begin(state.pipeline, state.query, state.attempt.batch, now_s, state.attempt.seconds)
    return _append(client, state, again)


def appended_before(client: RaftClient, state: PipelineState, attempt: Attempt) -> frozenset[bytes]:
    """The rows, by their tails, that the log has under seconds of the batch that have expired.

    Raises PipelineError when the log was trimmed meanwhile.
    """
    if not attempt.earlier:
        return frozenset()
    if attempt.index < state.since:
        raise PipelineError(
            f"the batch {attempt.batch} of pipeline {state.pipeline!r} is older than the log: nobody can tell which "
            "rows it has appended. Begin a new pipeline: choose another pipelineId"
        )
    earlier = {seconds.to_bytes(4, "big") for seconds in attempt.earlier}
    entries = _entries(client, attempt.index, state.upto)
    return frozenset(tail_of(entry.frame[:12]) for entry in entries if entry.frame[:4] in earlier)


def _append(client: RaftClient, state: PipelineState, begin: Begin) -> PipelineState:
    """The state up to this BEGIN, or that of old if it was there before."""
    index = client.append(begin.encode(), begin.request_id)
    if index <= state.upto:
        return state
    return state.fold(_markers(client, state.pipeline, state.upto, index), index)


def _markers(client: RaftClient, pipeline: str, after: int, until: int) -> list[tuple[int, Marker]]:
    found = ((entry.index, marker_in(entry, pipeline)) for entry in _entries(client, after, until))
    return [(index, marker) for index, marker in found if marker is not None]


def _entries(client: RaftClient, after: int, until: int) -> Iterator[LogEntry]:
    """All entries of a range. Raises HistoryOutrunError when it was compacted meanwhile."""
    while after < until:
        with client.entries(after, until - after, snapshot=SnapshotPolicy.REFUSE) as stream:
            for entry in stream:
                if isinstance(entry, LogEntry):
                    after = entry.index
                    yield entry


# -- appending ---------------------------------------------------------------------------------------------------------


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
