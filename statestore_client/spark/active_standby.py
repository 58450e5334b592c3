"""A streaming query that one of several drivers runs, and the next one takes over.

:mod:`statestore_client.spark.marker` has the order of steps that makes it safe, and
docs/decisions/spark-into-the-store.md says why.

A driver that stands by rehearses: it runs one micro-batch of the query, of which nothing is written. The first batch of
a Spark application takes many times longer than the second one: Java loads the classes of a streaming query, and
Python's workers start and import. A driver that does this before it is elected takes over in about the time of a batch.
"""

from __future__ import annotations

import logging
import re
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

from statestore_client import ConnectionSettings, HlcTimestamp, StateStoreClient
from statestore_client.clocks import monotonic
from statestore_client.errors import LeaseLostError, LockNotAcquiredError, SettingsError, TransportError
from statestore_client.spark.marker import Marker
from statestore_client.spark.options import WriteOptions, connection
from statestore_client.spark.pipeline import Leadership, NewestWriter, Pipeline, PipelineEvent, pause_before_retry
from statestore_client.spark.pool import PoolKey, application_id, worker_settings
from statestore_client.thread_locks import Flag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery  # type: ignore[attr-defined]  # documented there

logger: Final[logging.Logger] = logging.getLogger("statestore_client.spark")

#: How often a query is looked at, and for how long at most (seconds).
_REHEARSAL_LOOK_S: Final = 0.05
_LONGEST_S: Final = 60.0


def rehearse(frame: DataFrame, writer: NewestWriter, after: int, is_stopped: Callable[[], bool]) -> None:
    """Read one micro-batch of a streaming DataFrame, as :meth:`NewestWriter.write` does, and write nothing.

    Without rows that wait, an empty frame stands for them. What Spark cannot do now is told by the log alone: it may be
    possible when this driver is elected. Raises what the writer says of the columns.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    writer = writer.checked(frame.schema)
    done = Flag()

    def take(batch: DataFrame, _batch_id: int) -> None:
        if not done.is_set():
            try:
                writer.rehearse(batch, after)
            finally:
                done.set()

    began = monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="statestore-checkpoint-", ignore_cleanup_errors=True) as folder:
            query = frame.writeStream.foreachBatch(take).option("checkpointLocation", Path(folder).as_uri()).start()
            try:
                while not (
                    done.wait(_REHEARSAL_LOOK_S) or is_stopped() or _waits(query) or monotonic() > began + _LONGEST_S
                ):
                    pass
            finally:
                query.stop()
        if not done.is_set() and not is_stopped():
            writer.rehearse(frame.sparkSession.createDataFrame([], frame.schema), after)
    except (PySparkException, Py4JError) as error:
        logger.info("a rehearsal of the query failed: %s", error)
    logger.debug("rehearsed the query in %.1f s", monotonic() - began)


def _waits(query: StreamingQuery) -> bool:
    """Whether it has ended, or has found that there is nothing to read."""
    return not query.isActive or query.status["message"].startswith("Waiting for data")


#: How often a driver that stands by looks whether it is to stop (seconds).
_LOOK_S: Final = 1.0
#: How long a deleted key stays as a tombstone, unless told (seconds).
_TOMBSTONE_S: Final = 86_400.0
#: Stands for the token that each batch gets.
_EACH_BATCH: Final = HlcTimestamp(0, 0, "pipeline")


class PipelineOptions(TypedDict, total=False):
    """What :class:`ActiveStandby` takes of the options of a write, and :class:`BatchWriter` among others."""

    key_column: str
    value_column: str | None
    null_value: Literal["error", "delete"]
    tombstone_ttl: float | None
    persist: bool
    retry_timeout: float
    client_id_prefix: str | None
    gc_freeze: bool


class ActiveStandby:
    """One of the drivers of a pipeline; each makes its own, with the same ``pipeline_id``, and calls :meth:`run`.

    ``source`` is called whenever this driver is elected, and once before: a first micro-batch is read then and thrown
    away, so that a driver that takes over has loaded what Spark needs. It gets the Spark session and the index after
    which to begin (-1 for the beginning), and returns a streaming DataFrame. Beside the columns for keys and values,
    that has a column of whole numbers, ``index_column``: each row's place in the source. A later micro-batch has
    greater ones, and no two rows of a key have the same. Rows at or below the marker are skipped, so a source that
    cannot begin in the middle may begin at its start.

    ``pipelines/<pipeline_id>/leader`` is the key of the election, ``pipelines/<pipeline_id>/marker`` says how far the
    pipeline has got. ``source_id`` names what the indexes count, so that they are never taken for those of another log.
    After ``term`` seconds, a driver that died is replaced. ``trigger`` has the arguments of Spark's ``trigger()``.
    ``listener`` is called with each :class:`PipelineEvent`, in the thread where it happens.

    The other ``options`` are those of :func:`write_rows`. With ``null_value="delete"``, a deleted key stays as a
    tombstone for ``tombstone_ttl`` seconds, a day unless told. Raises :class:`SettingsError` for what cannot work.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: ConnectionSettings | str,
        pipeline_id: str,
        source: Callable[[SparkSession, int], DataFrame],
        *,
        index_column: str = "index",
        source_id: str | None = None,
        term: float = 10.0,
        trigger: Mapping[str, Any] | None = None,
        listener: Callable[[PipelineEvent], object] = lambda _event: None,
        **options: Unpack[PipelineOptions],
    ) -> None:
        _check(spark, source)
        leader_key, marker_key = keys_of(pipeline_id)
        #: The key of the election: it holds the name of the driver that leads.
        self.leader_key: str = leader_key
        #: The key of the marker, in JSON: the last ``index``, and how many ``rows`` of the source are stored.
        self.marker_key: str = marker_key
        checked = write_options(options, PipelineOptions)
        target, application = connection(settings), application_id()
        self._term = term
        self._settings = worker_settings(PoolKey(target, checked.client_id_prefix or "pipeline", application))
        writer = NewestWriter(target, checked, index_column, application)
        self._pipeline = Pipeline(spark, source, source_id, self.marker_key, writer, dict(trigger or {}), listener)

    def run(self, stop: threading.Event | None = None) -> None:  # noqa: TID251 - it is never waited for
        """Stand by, lead, and stand by again, until ``stop`` is set or the query has ended by itself.

        A driver that has lost the election stands by. While the store cannot be reached, does not let this driver in or
        is full, it is tried again. All else is raised: Spark's errors, what ``source`` raises, and refusals that would
        come again. The election is given back first, so that another driver can try; let a supervisor start this one
        anew.
        """
        is_stopped = stop.is_set if stop is not None else lambda: False
        persist = self._pipeline.writer.options.persist
        with StateStoreClient(self._settings).open(wait=False) as store:  # so that stop counts meanwhile
            election = store.election(self.leader_key, term=self._term, persist=persist)
            self._rehearse(store, is_stopped)
            while not is_stopped():
                try:
                    with election.campaign(_LOOK_S) as lease:
                        Leadership(self._pipeline, store, lease, is_stopped).lead()
                        return
                except LockNotAcquiredError:
                    pass  # another driver leads
                except LeaseLostError as error:
                    self._pipeline.emit(PipelineEvent("lost", error=error))
                except TransportError as error:
                    if error.fatal:
                        raise
                    self._pipeline.emit(PipelineEvent("failed", error=error))
                    pause_before_retry(is_stopped)

    def _rehearse(self, store: StateStoreClient, is_stopped: Callable[[], bool]) -> None:
        """If the store can be reached: it knows where the source would begin."""
        marker = None
        try:
            item = store.get(self.marker_key)
            marker = Marker() if item is None else Marker.decode(item.value, self.marker_key)
            rehearse(self._pipeline.frame(marker.index), self._pipeline.writer, marker.index, is_stopped)
        except TransportError as error:
            if error.fatal:
                raise
        self._pipeline.emit(PipelineEvent("standing by", marker))


def keys_of(pipeline_id: object) -> tuple[str, str]:
    """The keys of a pipeline: of its election, and of its marker."""
    if not isinstance(pipeline_id, str) or not re.fullmatch(r"[^\s/*?\[\]]+", pipeline_id):
        raise SettingsError(f"pipeline_id must be a text without spaces, slashes and wildcards, not {pipeline_id!r}")
    return f"pipelines/{pipeline_id}/leader", f"pipelines/{pipeline_id}/marker"


def _check(spark: object, source: object) -> None:
    if not hasattr(spark, "_jsparkSession"):
        raise SettingsError(
            f"spark must be a SparkSession of this process, not {type(spark).__module__}.{type(spark).__name__}: the "
            "driver holds the lock, and with Spark Connect it is elsewhere"
        )
    if not callable(source):
        raise SettingsError(
            "source must be a function (spark, after) that returns a streaming DataFrame of the rows above the index "
            f"after, not {type(source).__name__}"
        )


def write_options(options: Mapping[str, Any], known: type) -> WriteOptions:
    """The options of a pipeline, of which ``known`` is a TypedDict; each batch has a token of its own.

    Deletes leave tombstones here: a late row must find the token of the delete. Raises :class:`SettingsError`.
    """
    if unknown := set(options) - known.__annotations__.keys():
        names = ", ".join(sorted(known.__annotations__))
        raise SettingsError(f"unknown option {min(unknown)}; known options of a pipeline: {names}")
    if options.get("null_value") == "delete" and options.get("tombstone_ttl") is None:
        options = {**options, "tombstone_ttl": _TOMBSTONE_S}
    return WriteOptions.from_names(fencing_token=_EACH_BATCH, **options)
