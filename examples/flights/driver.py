"""``python -m flights.driver URL PEERS NAME``: one of the drivers. Tells on standard output what it does, in JSON.

This is the whole of what an application writes: where the events come from, and what of them is the key and the value.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final

from raft_client.spark import register
from statestore_client import ConnectionSettings
from statestore_client.spark import ActiveStandby, PipelineEvent, local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["KEY_PREFIX", "LEADER_KEY", "MARKER_KEY", "TERM_S"]

PIPELINE: Final = "flights"
KEY_PREFIX: Final = "aircraft/"
LEADER_KEY: Final = f"pipelines/{PIPELINE}/leader"
MARKER_KEY: Final = f"pipelines/{PIPELINE}/marker"
#: After it, a driver that died is replaced.
TERM_S: Final = 3.0

_STATE: Final = ("scheduled", "carrier", "flight", "origin", "dest", "dep_delay", "cancelled")
_EVENT: Final = (
    "tailnum string, scheduled string, carrier string, flight int, origin string, dest string, dep_delay int, "
    "cancelled boolean"
)
#: A small Java process: there are two or three on this machine.
_SPARK: Final = {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.metricsEnabled": "false",
}


class _Flights:
    """The log as rows of aircraft and states."""

    def __init__(self, peers: str) -> None:
        self._peers = peers

    def __call__(self, spark: SparkSession, after: int) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        stream = spark.readStream.format("zmqraft").option("seeds", self._peers).option("maxEntriesPerTrigger", 2000)
        log = stream.option("startingIndex", max(after + 1, 1)).load().where("type = 'state'")
        flight = F.from_json(F.col("data").cast("string"), _EVENT).alias("flight")
        state = F.to_json(F.struct(*(f"flight.{name}" for name in _STATE)), {"ignoreNullFields": "false"})
        return (
            log.select("index", flight)
            .where("flight.tailnum is not null")
            .select("index", F.concat(F.lit(KEY_PREFIX), "flight.tailnum").alias("key"), state.alias("value"))
        )


def _tell(kind: str, index: int | None = None, keys: int = 0) -> None:
    print(json.dumps({"kind": kind, "index": index, "keys": keys}), flush=True)  # noqa: T201 - this is its output


def _listen(event: PipelineEvent) -> None:
    _tell(event.kind, None if event.marker is None else event.marker.index, event.keys)


def main(url: str, peers: str, name: str) -> None:
    """Until SIGTERM."""
    stop = threading.Event()
    with local_session(name, cores=1, config=_SPARK, log_level="OFF") as spark:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        register(spark)
        # Few requests at a time: a batch takes long enough to be struck in its middle.
        settings = ConnectionSettings.from_url(url, max_in_flight=2)
        driver = ActiveStandby(
            spark,
            settings,
            PIPELINE,
            _Flights(peers),
            term=TERM_S,
            trigger={"processingTime": "1 second"},
            listener=_listen,
            client_id_prefix=name,
        )
        _tell("ready")
        driver.run(stop)


if __name__ == "__main__":
    main(*sys.argv[1:])
