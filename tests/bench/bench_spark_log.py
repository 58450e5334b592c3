"""Entries a second from a log into Spark and from Spark into a log, beside plain Python processes that do the same.

    python tests/bench/bench_spark_log.py [--quick] [--rounds 3] [--rows 200000]

``local[2]``; entries of 100 bytes, read and appended by two tasks, and by two processes with ``RaftClient.entries`` and
``append_many``, from and to one embedded peer that does not wait for its disk. The ratio says what Spark adds to what
the peer allows; the start of a stream is not in it. The time from an append to the row is that of a stream without a
trigger, whose batches begin at once.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from measure import Options, Report, Sample, in_processes, interleaved, percentile, ratio, timed

import raft_client
from raft_client import RaftClient
from raft_client.server import EmbeddedCluster
from raft_client.server.runtime.storage.disk_log import Fsync
from raft_client.spark import register
from statestore_client.spark import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: Final = 200_000
PROCESSES: Final = 2
DATA: Final = b"x" * 100
APPENDS: Final = 40


def read_range(url: str, after: int, count: int) -> None:
    """One plain process's share of a read."""
    with RaftClient(url) as client, client.entries(after, count) as stream:
        found = 0
        while (batch := stream.next_batch()) is not None:
            found += len(batch)
        assert found == count


def append_range(url: str, count: int) -> None:
    """One plain process's share of the appends."""
    with RaftClient(url) as client:
        client.append_many((DATA for _ in range(count)), in_flight=client.settings.max_in_flight)


def plain_read(url: str, rows: int) -> Sample:
    share = rows // PROCESSES
    return in_processes(rows, read_range, *((url, n * share, share) for n in range(PROCESSES)))


def plain_append(url: str, rows: int) -> Sample:
    return in_processes(rows, append_range, *((url, rows // PROCESSES) for _ in range(PROCESSES)))


def stream_read(spark: SparkSession, url: str, rows: int) -> Sample:
    """In the batches of a stream: it starts once, which takes about two seconds, and runs for days."""
    options = {"seeds": url, "endingIndex": rows, "minPartitions": PROCESSES}
    with tempfile.TemporaryDirectory() as folder, timed(rows) as timer:
        stream = spark.readStream.format("zmqraft").options(**options).load()
        writer = stream.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    batches = [each["durationMs"]["triggerExecution"] / 1000 for each in query.recentProgress]
    print(f"  a stream of {len(batches)} batches: {timer.sample.seconds - sum(batches):.1f} s until it had started")
    return Sample(rows, sum(batches), timer.sample.cpu_s)


def batch_read(spark: SparkSession, url: str, rows: int) -> Sample:
    with timed(rows) as timer:
        table = spark.read.format("zmqraft").options(seeds=url, until=rows, partitions=PROCESSES).load()
        table.write.format("noop").mode("overwrite").save()
    return timer.sample


def batch_append(spark: SparkSession, url: str, rows: int) -> Sample:
    frame = spark.range(0, rows, 1, PROCESSES).selectExpr("id", f"'{DATA.decode()}' data")
    with timed(rows) as timer:
        frame.write.format("zmqraft").mode("append").options(seeds=url, indexColumn="id").save()
    return timer.sample


def append_to_row(spark: SparkSession, url: str) -> list[float]:
    """Seconds from the call of an append to the function that has its row."""
    arrived: dict[bytes, float] = {}

    def note(frame: Any, _batch: int) -> None:
        rows = frame.where("type = 'state'").select("data").collect()
        now = time.monotonic()
        arrived.update({bytes(row.data): now for row in rows})

    waits = []
    with tempfile.TemporaryDirectory() as folder, RaftClient(url) as client:
        stream = spark.readStream.format("zmqraft").options(seeds=url, startingIndex="latest").load()
        query = stream.writeStream.foreachBatch(note).option("checkpointLocation", folder).start()
        while not arrived:  # the stream begins after the end of the log, once it has begun
            client.append(b"begin")
            query.awaitTermination(1)
        for n in range(APPENDS + 3):
            data, started = b"latency %d" % n, time.monotonic()
            client.append(data)
            while data not in arrived and query.isActive:
                time.sleep(0.002)
            waits.append(arrived[data] - started)
        query.stop()
    return waits[3:]  # the first ones wait for compilers and imports


def compare(report: Report, spark: SparkSession, url: str, options: Options) -> None:
    rows = options.scaled(options.number("rows")) // PROCESSES * PROCESSES
    plain_append(url, rows)
    works: dict[str, Callable[[], Sample]] = {
        "processes with entries": partial(plain_read, url, rows),
        "Spark batch source": partial(batch_read, spark, url, rows),
        "Spark stream source": partial(stream_read, spark, url, rows),
        "processes with append_many": partial(plain_append, url, rows),
        "Spark sink": partial(batch_append, spark, url, rows),
    }
    batch_append(spark, url, 1000)  # compilers and imports
    stream_read(spark, url, 1000)
    samples = interleaved(works, options.rounds)
    report.rates(samples, " entries/s", cpu=False)
    for ours, peer in (
        ("Spark stream source", "processes with entries"),
        ("Spark batch source", "processes with entries"),
        ("Spark sink", "processes with append_many"),
    ):
        report.bar(f"{ours}, {rows:,} entries / processes", ratio(samples[ours], samples[peer]), 0.8)
    waits = append_to_row(spark, url)
    print(f"append to row: p50 {percentile(waits, 50):.3f} s, p90 {percentile(waits, 90):.3f} s of {len(waits)}")
    report.bar("0.4 s / append to row, p50", 0.4 / percentile(waits, 50), 1.0)


def main() -> int:
    options = Options.parse(__doc__, rows=(int, ROWS, "of one work and round"))
    report = Report(options)
    roots = (Path(raft_client.__file__).parent.parent, Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, roots))
    multiprocessing.set_start_method("spawn")
    with (
        EmbeddedCluster(1, fsync=Fsync.OFF) as cluster,
        local_session("bench", cores=PROCESSES, log_level="OFF") as spark,
    ):
        register(spark)
        compare(report, spark, cluster.url, options)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
