"""What makes a driver that stands by quick: one micro-batch of the query, of which nothing is written.

The first batch of a Spark application takes many times longer than the second one: Java loads the classes of a
streaming query, and Python's workers start and import. A driver that does this before it is elected takes over in about
the time of a batch.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from statestore_client.clocks import monotonic
from statestore_client.thread_locks import Flag

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery  # type: ignore[attr-defined]  # documented there

    from statestore_client.spark.micro_batches import NewestWriter

__all__ = ["rehearse"]

logger: Final[logging.Logger] = logging.getLogger("statestore_client.spark")

#: How often a query is looked at, and for how long at most (seconds).
_LOOK_S: Final = 0.05
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
                while not (done.wait(_LOOK_S) or is_stopped() or _waits(query) or monotonic() > began + _LONGEST_S):
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
