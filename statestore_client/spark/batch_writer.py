"""The writer for ``foreachBatch`` of a query that keeps its checkpoint, such as an aggregation.

Spark runs a micro-batch again when its driver was lost before it had noted the end of the batch: the same rows, under
the same number. The marker in the store (:mod:`statestore_client.spark.marker`) has that number of the last batch that
is stored, and the id of the query, which is that of its checkpoint.

Invariant: a batch is written only if the marker says that the one before it is stored, and is of this very query.
Invariant: each attempt at a batch has a newer token than all before. So a row that is left over from one, of this
driver or of one that was killed, is refused: a later attempt has written its key, as each attempt at a batch has the
same rows.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, Unpack

import attrs

from statestore_client import ConnectionSettings, Lease, StateStoreClient
from statestore_client.clocks import monotonic
from statestore_client.errors import (
    BusyError,
    FencingTokenTooOldError,
    LeaseLostError,
    LockNotAcquiredError,
    PickleRefusedError,
    SettingsError,
    TransportError,
)
from statestore_client.spark.active_standby import PipelineOptions, keys_of, write_options
from statestore_client.spark.dataframes import write_frame
from statestore_client.spark.marker import (
    Marker,
    MarkerGoneError,
    OtherSourceError,
    WriteRows,
    Written,
    take_over,
    write_batch,
)
from statestore_client.spark.options import connection
from statestore_client.spark.pipeline import carry_out, foreign, pause_before_retry
from statestore_client.spark.pool import PoolKey, application_id, worker_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger: Final[logging.Logger] = logging.getLogger("statestore_client.spark")

_ANEW: Final = "begin anew with another pipeline_id and an empty checkpoint"


class BatchOptions(PipelineOptions, total=False):
    """What :class:`BatchWriter` takes of the options of a write."""

    ttl_column: str | None


class BatchWriter:
    """Writes the micro-batches of a streaming query, each of them exactly once; a function for ``foreachBatch``.

    It is a context manager: inside, this program holds the lock ``pipelines/<pipeline_id>/leader``. Entering waits for
    that, and for the store. Start one query in it, and keep its checkpoint where the next driver finds it. Each row
    sets its key, so an aggregation has the output mode ``update`` or ``complete``, and a key for each group.

    The marker ``pipelines/<pipeline_id>/marker`` has the number of the last batch that is in the store. A batch that
    was stored before is left out. A batch of another checkpoint, or one that is not the next, raises
    :class:`SettingsError`, and so does a store that has lost the marker: values would be missing. ``first_batch`` is
    the batch with which a query begins that had another sink before.

    A driver that died is replaced after ``term`` seconds. While the store cannot be reached, a batch waits for
    ``retry_timeout`` seconds. Then it raises the connection's error; any error ends the query, and the batch is written
    when the query is started again. ``order_by``, ``duplicate_keys`` and the other ``options`` are those of
    :func:`write_rows`; with ``null_value="delete"``, a deleted key stays as a tombstone for a day unless
    ``tombstone_ttl`` says otherwise. A key that has expired (``ttl_column``) keeps nothing out.
    """

    def __init__(
        self,
        settings: ConnectionSettings | str,
        pipeline_id: str,
        *,
        term: float = 10.0,
        first_batch: int = 0,
        order_by: str | Sequence[str] | None = None,
        duplicate_keys: Literal["error", "last"] | None = None,
        **options: Unpack[BatchOptions],
    ) -> None:
        leader_key, marker_key = keys_of(pipeline_id)
        #: The key of the lock: it holds the name of the driver that has it.
        self.leader_key: str = leader_key
        #: The key of the marker, in JSON: ``index`` is the last batch, and ``rows`` counts all rows that were stored.
        self.marker_key: str = marker_key
        if isinstance(first_batch, bool) or not isinstance(first_batch, int) or first_batch < 0:
            raise SettingsError(f"first_batch must be the number of a batch, from 0 on, not {first_batch!r}")
        self._target = connection(settings)
        self._options = write_options(options, BatchOptions)
        self._first = first_batch
        self._write_rows = partial(self._write_frame, order_by, duplicate_keys)
        key = PoolKey(self._target, self._options.client_id_prefix or "pipeline", application_id())
        self._store = StateStoreClient(worker_settings(key), retry_first_connect=True)
        self._election = self._store.election(self.leader_key, term=term, persist=self._options.persist)
        self._lease: Lease | None = None
        self._marker: Marker | None = None  # what the store holds, if this is known

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._store)
            self._lease = self._election.campaign()
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._lease is not None:
                self._lease.__exit__(kind, error, trace)
        finally:
            self._store.close()

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError(
            "a BatchWriter holds a lock and a connection and cannot be pickled: the driver holds them, and with Spark "
            "Connect it is elsewhere; give each row a version_column there, and use write_rows"
        )

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write a micro-batch; called by Spark. See the class for what it raises."""
        if self._lease is None:
            raise BusyError("the lock is not held: use the writer in a with statement, and start the query inside")
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise SettingsError("give the writer to foreachBatch: the batch must be one of a streaming query")
        until = monotonic() + self._options.retry_timeout
        while True:
            try:
                return self._write(batch, batch_id, f"query {query}", until)
            except (LeaseLostError, TransportError) as error:
                self._marker = None
                if (isinstance(error, TransportError) and error.fatal) or monotonic() > until:
                    raise
                logger.warning("%s: tries batch %d again: %s", self.marker_key, batch_id, error)
                pause_before_retry(lambda: monotonic() > until)

    def _write(self, batch: DataFrame, batch_id: int, query: str, until: float) -> None:
        lease = self._held(until)
        carry = partial(
            carry_out,
            store=self._store,
            key=self.marker_key,
            persist=self._options.persist,
            next_token=lease.next_token,
        )
        try:
            marker, self._marker = self._marker, None
            if marker is None or marker.source != query:
                marker = carry(take_over(self.marker_key, query))
            if marker.index == batch_id:
                logger.info("%s: batch %d was stored before", self.marker_key, batch_id)
                # Spark's own state of an aggregation moves on only by a batch that is computed.
                batch.write.format("noop").mode("overwrite").save()
            else:
                self._check(marker, batch_id)
                marker = carry(write_batch(marker), write=partial(self._write_rows, batch, batch_id))
            self._marker = marker
        except OtherSourceError as error:
            raise OtherSourceError(
                f"{self.marker_key} is of another query, or the checkpoint was lost: restore it, or {_ANEW} ({error})"
            ) from None
        except MarkerGoneError as error:
            raise SettingsError(
                f"the store has lost {self.marker_key}, and values with it, or somebody has changed it: {_ANEW}"
            ) from error
        except FencingTokenTooOldError as error:
            lease.next_token()  # raises if another driver leads, which is why
            raise foreign(error) from error

    def _held(self, until: float) -> Lease:
        """The lock, taken once more if it was lost: what the marker says decides whether this driver may go on."""
        if self._lease is None or not self._lease.valid:
            try:
                self._lease = self._election.campaign(max(0.0, until - monotonic()))
            except LockNotAcquiredError as error:
                raise LeaseLostError(f"another driver has {self.leader_key}: {error}") from error
        return self._lease

    def _check(self, marker: Marker, batch_id: int) -> None:
        """Raises for a batch that is not the next."""
        expected = marker.index + 1 if marker.index >= 0 else self._first
        if batch_id == expected:
            return
        if marker.index < 0:
            raise SettingsError(
                f"the store knows no batch of {self.marker_key}, and the checkpoint comes to batch {batch_id}: if the "
                f"store has lost its data, {_ANEW}; if all before was written in another way, give "
                f"first_batch={batch_id}"
            )
        raise SettingsError(
            f"{self.marker_key} comes to batch {expected} next, and the checkpoint to {batch_id}: the store or the "
            f"checkpoint was put back to an older state. Restore the later one, or {_ANEW}"
        )

    def _write_frame(
        self, order_by: Any, duplicate_keys: Any, batch: DataFrame, batch_id: int, step: WriteRows
    ) -> Written:
        options = attrs.evolve(self._options, fencing_token=step.token)
        report = write_frame(batch, self._target, options, order_by, duplicate_keys)
        return Written(report.rows, batch_id, batch_id)
