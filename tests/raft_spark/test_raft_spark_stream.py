"""Streams of a real Spark session out of the log of embedded peers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams need PySpark 4.2")

from raft_client import RaftClient
from raft_client.spark import entries_behind, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from raft_client.server import EmbeddedCluster

pytestmark = [pytest.mark.spark, pytest.mark.classic]


class Sink:
    """Parquet files: Spark's own exactly-once sink, so that what is lost or doubled is the source's doing."""

    def __init__(self, spark: SparkSession, folder: Path, seeds: str) -> None:
        self.spark, self.folder, self.seeds = spark, folder, seeds
        register(spark)

    def source(self, **options: Any) -> DataFrame:
        return self.spark.readStream.format("zmqraft").options(seeds=self.seeds, **options).load()

    def start(self, **options: Any) -> StreamingQuery:
        return (
            self.source(**options)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.folder / "rows"))
        )

    def run(self, **options: Any) -> list[dict[str, Any]]:
        """Take all that there is; returns what each micro-batch said of the source."""
        query = self.start(**options)
        query.awaitTermination()
        return [progress["sources"][0] for progress in map(as_dict, query.recentProgress)]

    def rows(self) -> list[bytes]:
        """The data of all entries of clients, in the order of the log; all rows, if one is there twice."""
        table = self.spark.read.parquet(str(self.folder / "rows")).where("type = 'state'")
        return [bytes(row.data) for row in table.orderBy("index").select("data").collect()]


def as_dict(progress: Any) -> Any:
    return json.loads(progress.json)


@pytest.fixture
def sink(spark: SparkSession, tmp_path: Path, cluster: EmbeddedCluster) -> Sink:
    return Sink(spark, tmp_path, cluster.url)


def numbers(*of: int) -> list[bytes]:
    return [b"%d" % n for n in range(*of)]


def test_a_stream_has_each_entry_once(sink: Sink, log: RaftClient) -> None:
    """A stream has each entry once in batches of the wanted size, over a restart, and ends at what there was."""
    log.append_many(numbers(1000))
    batches = sink.run(maxEntriesPerTrigger=400, minPartitions=3)
    assert sink.rows() == numbers(1000)
    assert [batch["numInputRows"] for batch in batches if batch["numInputRows"]] == [400, 400, log_end(log) - 800]
    log.append_many(numbers(1000, 1500))
    sink.run(maxOffsetsPerTrigger=5000)
    assert sink.rows() == numbers(1500)
    assert sink.run() == [] or sink.rows() == numbers(1500)


def log_end(log: RaftClient) -> int:
    return log.log_info().last_applied


def test_a_stream_goes_on_at_the_next_leader(sink: Sink, cluster: EmbeddedCluster, log: RaftClient) -> None:
    """A stream never goes back and loses nothing when the leader is killed between its batches, and in them."""
    log.append_many(numbers(3000))
    query = sink.start(maxEntriesPerTrigger=200)
    while not query.recentProgress and query.isActive:
        query.awaitTermination(1)
    cluster.kill(cluster.leader())
    query.awaitTermination()
    assert sink.rows() == numbers(3000)
    ends = [int(p["sources"][0]["endOffset"]["until"].split("@")[0]) for p in map(as_dict, query.recentProgress)]
    assert ends == sorted(ends)


def test_a_stream_tells_how_far_the_log_is(sink: Sink, log: RaftClient) -> None:
    """A progress report has the end of the log beside that of the batch, and batches end at their bytes."""
    log.append_many([bytes(1000)] * 100)
    batches = sink.run(maxBytesPerTrigger=50_000, startingIndex=3, endingIndex=90)
    end = log_end(log)
    assert {batch["latestOffset"]["until"] for batch in batches if batch["numInputRows"]} == {str(end)}
    assert all(batch["numInputRows"] <= 49 for batch in batches)
    assert sum(batch["numInputRows"] for batch in batches) == 88
    assert batches[-1]["endOffset"]["until"].startswith("90@")


def test_a_program_is_told_how_far_a_stream_is_behind(sink: Sink, log: RaftClient) -> None:
    """The lag of a query is what the log has beyond the end of its micro-batch, and 0 when all was read."""
    log.append_many(numbers(100))
    query = sink.start(maxEntriesPerTrigger=40)
    query.awaitTermination()
    assert entries_behind(query.recentProgress[0]) == log_end(log) - 40
    assert entries_behind(query.lastProgress) == 0


def test_wrong_options_are_refused_when_a_stream_is_loaded(sink: Sink) -> None:
    """A name of Kafka's source fails at ``load()``, where it is given, with what it is called here."""
    with pytest.raises(Exception, match=r"did you mean startingIndex\?") as caught:
        sink.source(startingOffsets="earliest")
    assert "unknown option startingoffsets; did you mean after?" in str(caught.value), "it may be a read of a range"
    assert "UnboundLocalError" not in str(caught.value)


def test_a_checkpoint_of_another_log_is_refused(
    sink: Sink, log: RaftClient, target: RaftClient, spark: SparkSession
) -> None:
    """A query with the checkpoint of another log ends with the reason, and takes none of its entries."""
    from pyspark.errors import StreamingQueryException

    log.append_many(numbers(20))
    sink.run()
    sink.seeds = ",".join(target.settings.seeds)
    target.append(b"of another log")
    with pytest.raises(StreamingQueryException, match="OutOfDateLogError"):
        sink.run()
    assert sink.rows() == numbers(20)
