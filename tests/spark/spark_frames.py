"""What the tests of Spark jobs write, how they write it to the sink, and two tokens of a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statestore_client import HlcTimestamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from recording_server import RecordingServer

__all__ = ["NEW", "OLD", "frame", "save"]

OLD, NEW = HlcTimestamp(1000, 0, "lock"), HlcTimestamp(2000, 0, "lock")


def frame(spark: SparkSession, rows: int = 10) -> DataFrame:
    """``k0`` to ``k9`` with ``v0`` to ``v9``, in two partitions."""
    return spark.range(0, rows, 1, 2).selectExpr("concat('k', id) key", "concat('v', id) value")


def save(df: DataFrame, server: RecordingServer, **options: Any) -> None:
    df.write.format("statestore_client").mode("append").options(url=server.url, **options).save()
