"""Flights through Spark as batches: the latest state of each aircraft, month by month."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flights.flights import FlightState

from statestore_client import ConnectionSettings, HlcTimestamp
from statestore_client.spark import WriteReport, latest_by_key, lookup, partition_writer, report_accumulator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["KEY_PREFIX", "REPORT_KEY", "SPARK_CONFIG", "FlightPipeline"]

KEY_PREFIX: Final = "aircraft/"
#: Where the sink leaves its counts after each micro-batch.
REPORT_KEY: Final = "pipelines/flights/report"

SPARK_CONFIG: Final = {
    # A batch is small; merged into one partition it would be written through one connection.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # Between Java and its Python workers: 4 ms less for each hand-over than a TCP connection and its secret. A worker
    # that Spark ends because it was idle then leaves a traceback (BrokenPipeError) in standard error, here in the log.
    "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),
}
#: A dead server fails the demo soon.
_RETRY_TIMEOUT_S: Final = 3
_REQUEST_TIMEOUT_S: Final = 3

_COLUMNS: Final = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour string"
)
_STATE: Final = ("scheduled", "carrier", "flight", "origin", "dest", "dep_delay", "cancelled")
#: Total: no two flights of an aircraft agree in all of these.
_ORDER: Final = ["scheduled", "carrier", "flight", "origin", "dest"]


class FlightPipeline:
    """The events of the first ``months`` months, held in memory by Spark."""

    def __init__(self, spark: SparkSession, csv_file: Path, months: int, settings: ConnectionSettings) -> None:
        self._settings = settings.evolve(request_timeout=float(_REQUEST_TIMEOUT_S))
        spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
        self._events = _read(spark, csv_file).where(f"month <= {months}").cache()

    def events_by_month(self) -> dict[int, int]:
        """How many events each month has. The first call reads the file."""
        counts = self._events.groupBy("month").count().collect()
        return {row["month"]: row["count"] for row in sorted(counts, key=lambda row: int(row["month"]))}

    def states(self, month: int) -> DataFrame:
        """The latest state of each aircraft in one month: columns ``key`` and ``value``, one row per key."""
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        newest = latest_by_key(self._events.where(F.col("month") == month), key="tailnum", order_by=_ORDER)
        value = F.to_json(F.struct(*_STATE), {"ignoreNullFields": "false"})
        return newest.select(F.concat(F.lit(KEY_PREFIX), "tailnum").alias("key"), value.alias("value"))

    def reduce(self, month: int) -> DataFrame:
        """The states of one month, computed and held by Spark; the caller unpersists them."""
        states = self.states(month).cache()
        states.count()
        return states

    def write(self, states: DataFrame, fencing_token: HlcTimestamp) -> None:
        """Write one micro-batch with the sink, every SET under the token."""
        states.write.format("statestore_client").mode("append").options(
            url=self._settings.url,
            fencingToken=str(fencing_token),
            reportKey=REPORT_KEY,
            requestTimeout=_REQUEST_TIMEOUT_S,
            retryTimeout=_RETRY_TIMEOUT_S,
            clientIdPrefix="flights",
        ).save()

    def write_stale(self, month: int, fencing_token: HlcTimestamp) -> WriteReport:
        """The same write by a writer whose token is out of date: each of its tasks ends with the first refusal."""
        states = self.states(month)
        report = report_accumulator(states.sparkSession)
        writer = partition_writer(
            self._settings,
            report=report,
            fencing_token=fencing_token,
            retry_timeout=_RETRY_TIMEOUT_S,
            client_id_prefix="stale",
        )
        states.foreachPartition(writer)
        return report.value

    def read_back(self) -> dict[str, FlightState | None]:
        """By tail number: what the state store has for every aircraft of the input, None where it has nothing."""
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        aircraft = self._events.select("tailnum").distinct().where("tailnum is not null")
        keyed = aircraft.withColumn("key", F.concat(F.lit(KEY_PREFIX), "tailnum"))
        rows = lookup(keyed, self._settings, key="key", retry_timeout=_RETRY_TIMEOUT_S).collect()
        return {row["tailnum"]: None if row["value"] is None else json.loads(bytes(row["value"])) for row in rows}


def _read(spark: SparkSession, csv_file: Path) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    flights = spark.read.csv(str(csv_file), schema=_COLUMNS, header=True, nullValue="NA")
    scheduled = F.format_string(
        "%04d-%02d-%02d %02d:%02d",
        "year",
        "month",
        "day",
        F.floor(F.col("sched_dep_time") / 100),
        F.col("sched_dep_time") % 100,
    )
    return flights.select(
        "month",
        "tailnum",
        scheduled.alias("scheduled"),
        "carrier",
        "flight",
        "origin",
        "dest",
        "dep_delay",
        F.col("dep_time").isNull().alias("cancelled"),
    )
