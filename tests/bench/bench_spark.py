"""Rows per second into the state store: Spark's ways beside plain Python processes doing the same work.

Run it by hand: ``python tests/bench/bench_spark.py [ROWS]``. All ways write the same rows to the same server, a process
of its own, with as many connections; the ratio says what Spark adds to what the connections allow.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import statestore_client
from statestore_client import StateStoreClient
from statestore_client.cli.demo.server import serving
from statestore_client.spark import local_session, partition_writer, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 40_000
ROUNDS: Final = 3
VALUE: Final = "x" * 100


def write_range(url: str, start: int, end: int) -> None:
    """One plain process's share."""
    with StateStoreClient(url) as store:
        store.set_many((f"bench/{i}", VALUE) for i in range(start, end))


def with_processes(url: str, rows: int, processes: int) -> None:
    share = rows // processes
    started = [
        multiprocessing.Process(target=write_range, args=(url, i * share, (i + 1) * share)) for i in range(processes)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()


def frame(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    return spark.range(0, rows, 1, partitions).selectExpr("concat('bench/', id) key", f"'{VALUE}' value")


def best_rate(rows: int, work: Callable[[], object]) -> float:
    """Rows per second of the best round; the first one pays for connections and compilers."""
    best = 0.0
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        best = max(best, rows / (time.perf_counter() - started))
    return best


def main(rows: int) -> None:
    """Print a line for each way and number of connections."""
    os.environ["PYTHONPATH"] = str(Path(statestore_client.__file__).parent.parent)
    multiprocessing.set_start_method("spawn")
    with serving() as server, local_session("bench", cores=2, log_level="OFF") as spark:
        for connections in (1, 2):
            df = frame(spark, rows, connections)
            sink = df.write.format("statestore_client").mode("append").option("url", server.url)
            writer = partition_writer(server.url)
            ways: dict[str, Callable[[], object]] = {
                "processes, set_many": lambda n=connections: with_processes(server.url, rows, n),
                'format("statestore_client")': lambda sink=sink: sink.save(),
                "write_rows": lambda df=df: write_rows(df, server.url),
                "foreachPartition": lambda df=df, writer=writer: df.foreachPartition(writer),
            }
            rates = {name: best_rate(rows, way) for name, way in ways.items()}
            for name, rate in rates.items():
                ratio = rate / rates["processes, set_many"]
                sys.stdout.write(f"{connections} connection(s)  {name:28} {rate:8,.0f} rows/s  {ratio:5.2f}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
