"""Rows a second from Spark into the state store, beside plain Python processes that do the same work.

    python tests/bench/bench_spark.py [--quick] [--rounds 3] [--driver native] [--rows 250000]

``local[2]``; rows with a key of 20 bytes and a value of 100 bytes, written by two tasks, and by two processes with
``set_many``, to one ``statestore serve``. The ratio says what Spark adds to what the connections allow. The server is
the third process on the cores, so the rates are those of the whole system.

Flights are written in twelve micro-batches, each reduced to the latest state per aircraft, under a fencing token. With
the paho driver everything but the driver is the same. A sink that makes the requests and sends none
(``sink_to_nowhere.py``) tells how much of it is Spark's: scheduling twelve jobs, the
way into the Python workers, and the rows' conversion. What a driver needs beyond that is compared as well.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from measure import Options, Report, Sample, in_processes, interleaved, ratio, timed

import statestore_client
from statestore_client import ConnectionSettings, HlcTimestamp, StateStoreClient
from statestore_client.cli.bench import served
from statestore_client.spark import local_session, partition_writer

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from flight_pipeline import SPARK_CONFIG, FlightPipeline
from flights.flights import find_archive, unpack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 250_000
PROCESSES: Final = 2
KEY: Final = "bench/{:014d}"  # 20 bytes
VALUE: Final = "x" * 100
MONTHS: Final = 12
#: With paho, fewer rows: it takes five times as long for each.
PAHO_SHARE: Final = 6


def write_range(settings: ConnectionSettings, start: int, end: int) -> None:
    """One plain process's share."""
    with StateStoreClient(settings) as store:
        store.set_many((KEY.format(i), VALUE) for i in range(start, end))


def with_processes(settings: ConnectionSettings, rows: int) -> Sample:
    share = rows // PROCESSES
    return in_processes(
        share * PROCESSES, write_range, *((settings, i * share, (i + 1) * share) for i in range(PROCESSES))
    )


def with_sink(frame: DataFrame, settings: ConnectionSettings, rows: int) -> Sample:
    sink = frame.write.format("statestore_client").mode("append")
    with timed(rows) as timer:
        sink.options(**{"url": settings.url, "mqtt.driver": settings.driver}).save()
    return timer.sample


def with_partitions(frame: DataFrame, settings: ConnectionSettings, rows: int) -> Sample:
    with timed(rows) as timer:
        frame.foreachPartition(partition_writer(settings))
    return timer.sample


def frame_of(spark: SparkSession, rows: int) -> DataFrame:
    key = "concat('bench/', lpad(cast(id as string), 14, '0')) key"
    return spark.range(0, rows, 1, PROCESSES).selectExpr(key, f"'{VALUE}' value")


def sink_beside_processes(report: Report, spark: SparkSession, url: str, options: Options) -> None:
    wanted = options.scaled(options.number("rows"))
    works: dict[str, Callable[[], Sample]] = {}
    for driver in options.drivers:
        settings = ConnectionSettings.from_url(url, driver=driver)
        rows = wanted if driver != "paho" else max(2, wanted // PAHO_SHARE)
        frame = frame_of(spark, rows)
        works[f"{driver} processes with set_many"] = partial(with_processes, settings, rows)
        works[f"{driver} Spark sink"] = partial(with_sink, frame, settings, rows)
        works[f"{driver} foreachPartition"] = partial(with_partitions, frame, settings, rows)
        with_sink(frame_of(spark, 1000), settings, 1000)  # the JVM's compiler and the workers' imports
    samples = interleaved(works, options.rounds)
    report.rates(samples, " rows/s", cpu=False)
    for driver in options.drivers:
        plain = samples[f"{driver} processes with set_many"]
        rows = plain[0].operations
        for way in ("Spark sink", "foreachPartition"):
            name = f"{driver} {way}, {rows:,} rows / processes"
            report.bar(name, ratio(samples[f"{driver} {way}"], plain), 0.8, driver=driver)


class DemoWriting:
    """The demo's micro-batches, without the demo."""

    def __init__(self, spark: SparkSession, csv_file: Path, url: str) -> None:
        self._url = url
        pipeline = FlightPipeline(spark, csv_file, MONTHS, ConnectionSettings.from_url(url))
        pipeline.events_by_month()  # reads the file
        self._batches = [pipeline.states(month) for month in range(1, MONTHS + 1)]
        self._aircraft = sum(batch.count() for batch in self._batches)
        self._reduced = [batch.localCheckpoint() for batch in self._batches]

    def whole(self, driver: str) -> Sample:
        """All months, reduced by Spark and written in one go. Operations are aircraft states."""
        return self._written(self._batches, driver)

    def nowhere(self) -> Sample:
        """All months, reduced before, given to a sink that sends nothing."""
        return self._written(self._reduced, "native", "nowhere")

    def reduced(self, driver: str) -> Sample:
        """All months, as the demo times its writing: reduced before; Spark's way to the sink and the sink count."""
        return self._written(self._reduced, driver)

    def spark_alone(self) -> Sample:
        """All months, reduced by Spark and thrown away."""
        with timed(self._aircraft) as timer:
            for batch in self._batches:
                batch.write.format("noop").mode("overwrite").save()
        return timer.sample

    def _written(self, batches: list[DataFrame], driver: str, sink: str = "statestore_client") -> Sample:
        with timed(self._aircraft) as timer:
            for batch in batches:
                token = HlcTimestamp(time.time_ns() // 1_000_000, 0, "bench")
                batch.write.format(sink).mode("append").options(
                    **{"url": self._url, "mqtt.driver": driver, "fencingToken": str(token)}
                ).save()
        return timer.sample


def driver_share(samples: Mapping[str, Sequence[Sample]], driver: str) -> list[float]:
    """Seconds of each round beyond what the sink to nowhere took."""
    nowhere = samples["a sink to nowhere"]
    return [o.seconds - n.seconds for o, n in zip(samples[f"{driver} demo's writing phase"], nowhere, strict=True)]


def demo_writing(report: Report, spark: SparkSession, url: str, options: Options) -> None:
    from sink_to_nowhere import SinkToNowhere  # imports PySpark, which the plain processes need not

    archive = find_archive()
    if archive is None:
        print("the demo's data is not installed: pip install -r examples/flights/requirements.txt")
        return
    with tempfile.TemporaryDirectory() as folder:
        writing = DemoWriting(spark, unpack(archive, Path(folder)), url)
        spark.dataSource.register(SinkToNowhere)
        works: dict[str, Callable[[], Sample]] = {
            "Spark's own share of the demo": writing.spark_alone,
            "a sink to nowhere": writing.nowhere,
        }
        for driver in options.drivers:
            works[f"{driver} demo's writing phase"] = partial(writing.reduced, driver)
            works[f"{driver} demo, reducing too"] = partial(writing.whole, driver)
        for run in works.values():
            run()  # compilers and imports
        samples = interleaved(works, options.rounds)
    report.rates(samples, " states/s", cpu=False)
    for name, own in samples.items():
        print(f"{name}: {statistics.median(s.seconds for s in own):.1f} s")
    if {"native", "paho"} <= set(options.drivers):
        quicker = ratio(samples["native demo's writing phase"], samples["paho demo's writing phase"])
        report.bar("demo's writing phase, native / paho", quicker, 3.0)
        quicker = ratio(samples["native demo, reducing too"], samples["paho demo, reducing too"])
        print(f"the same, with what Spark needs to reduce the events: {quicker:.2f} ×")
        ours, theirs = driver_share(samples, "native"), driver_share(samples, "paho")
        quicker = statistics.median(their / our for our, their in zip(ours, theirs, strict=True))
        print(
            f"the same, without what the sink to nowhere takes: {quicker:.2f} × "
            f"({statistics.median(ours):.2f} and {statistics.median(theirs):.2f} s)"
        )


def main() -> int:
    options = Options.parse(__doc__, rows=(int, ROWS, "of one work and round"))
    report = Report(options)
    roots = (Path(statestore_client.__file__).parent.parent, Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, roots))
    multiprocessing.set_start_method("spawn")
    with local_session("bench", cores=PROCESSES, config=SPARK_CONFIG, log_level="OFF") as spark:
        with served() as url:
            demo_writing(report, spark, url, options)
        with served() as url:  # a fresh one: the rows of before are gone
            sink_beside_processes(report, spark, url, options)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
