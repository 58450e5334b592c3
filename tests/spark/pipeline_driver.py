"""``python pipeline_driver.py URL PEERS NAME [CONFIG [PATIENCE]]``: a driver of the tests' pipeline.

It tells what it does, in JSON. CONFIG is of Spark, in JSON, too. PATIENCE is for how many seconds a write is tried.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import TYPE_CHECKING

from raft_client.spark import register
from statestore_client import ConnectionSettings
from statestore_client.spark import ActiveStandby, PipelineEvent, local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TERM_S = 3.0
#: A task may fail twice, as a process of Spark's that is killed makes it do.
CORES = "1,3"
CONFIG = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}


def tell(kind: str, index: int | None = None, keys: int = 0) -> None:
    sys.stdout.write(json.dumps({"kind": kind, "index": index, "keys": keys}) + "\n")
    sys.stdout.flush()


def main(url: str, peers: str, name: str, config: str = "{}", patience: str = "5") -> None:
    stop = threading.Event()

    def source(spark: SparkSession, after: int) -> DataFrame:
        stream = spark.readStream.format("zmqraft").option("seeds", peers).option("maxEntriesPerTrigger", 300)
        log = stream.option("startingIndex", max(after + 1, 1)).option("minPartitions", 2).load()
        words = "split(cast(data as string), ' ')"
        return log.where("type = 'state'").selectExpr(
            "index", f"{words}[0] key", f"case when {words}[1] != 'deleted' then {words}[1] end value"
        )

    def listen(event: PipelineEvent) -> None:
        tell(event.kind, None if event.marker is None else event.marker.index, event.keys)

    with local_session(name, cores=CORES, config={**CONFIG, **json.loads(config)}, log_level="OFF") as spark:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        register(spark)
        settings = ConnectionSettings.from_url(url, request_timeout=0.6 * float(patience))
        driver = ActiveStandby(
            spark,
            settings,
            "faults",
            source,
            term=TERM_S,
            listener=listen,
            null_value="delete",
            retry_timeout=float(patience),
            client_id_prefix=name,
        )
        tell("ready")
        driver.run(stop)


if __name__ == "__main__":
    main(*sys.argv[1:])
