"""``python aggregate_query.py URL FOLDER``: a driver of the tests' aggregation, in a process of its own.

FOLDER/in has the events, a file for each micro-batch; FOLDER/checkpoint is the query's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statestore_client import ConnectionSettings
from statestore_client.spark import BatchWriter, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TERM_S = 2.0


def aggregate(spark: SparkSession, url: str, folder: Path, mode: str = "update", **options: Any) -> None:
    """Sum up what there is by key, and end. Each batch writes the sums of the keys that it has."""
    events = spark.readStream.schema("key string, n long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    group = "key"
    if mode == "append":  # a group is written when it can change no more: n is its time, too
        events = events.selectExpr("concat(key, '@', n) key", "n", "timestamp_seconds(n) at").withWatermark(
            "at", "0 seconds"
        )
        group = "key, at"
    sums = events.groupBy(*group.split(", ")).agg({"n": "sum"}).selectExpr("key", "cast(`sum(n)` as string) value")
    settings = ConnectionSettings.from_url(url, max_in_flight=4)  # a driver that is killed has most rows unsent
    with BatchWriter(settings, "sums", **{"term": TERM_S, **options}) as write:
        query = sums.writeStream.outputMode(mode).foreachBatch(write)
        query = query.option("checkpointLocation", str(folder / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    with local_session(cores=1, config={"spark.sql.shuffle.partitions": "2"}, log_level="OFF") as session:
        aggregate(session, sys.argv[1], Path(sys.argv[2]))
