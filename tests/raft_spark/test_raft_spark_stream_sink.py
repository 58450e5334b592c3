"""Streams from one log into another, in a real Spark session: replays, other checkpoints, two drivers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from written_rows import markers_of, numbers, rows_of

pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams need PySpark 4.2")

from raft_client import RaftClient
from raft_client.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.classic]


class Pipeline:
    """A stream from the log ``source`` into ``target``."""

    def __init__(self, spark: SparkSession, folder: Path, source: RaftClient, target: RaftClient) -> None:
        self.spark, self.checkpoint = spark, folder / "checkpoint"
        self.seeds, self.into = (",".join(client.settings.seeds) for client in (source, target))
        register(spark)

    def start(self, source: dict[str, Any] | None = None, **sink: Any) -> StreamingQuery:
        stream = self.spark.readStream.format("zmqraft").options(seeds=self.seeds, **(source or {})).load()
        options = {"pipelineId": "copy", "indexColumn": "index", "checkpointLocation": str(self.checkpoint)} | sink
        writer = stream.where("type = 'state'").writeStream.format("zmqraft").options(seeds=self.into, **options)
        return writer.trigger(availableNow=True).start()

    def run(self, source: dict[str, Any] | None = None, **sink: Any) -> None:
        self.start(source, **sink).awaitTermination()

    def complaint(self, source: dict[str, Any] | None = None, **sink: Any) -> str:
        from pyspark.errors import StreamingQueryException

        query = self.start(source, **sink)
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination()
        return str(caught.value)

    def forget_last_commit(self) -> None:
        """As if the driver had been lost after the sink's commit and before Spark's own."""
        commits = self.checkpoint / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path, log: RaftClient, target: RaftClient) -> Pipeline:
    return Pipeline(spark, tmp_path, log, target)


def test_a_stream_is_written_once(pipeline: Pipeline, log: RaftClient, target: RaftClient) -> None:
    """A log is copied in marked batches, over restarts, and without the last entry of Spark's commit log."""
    log.append_many(numbers(1000))
    pipeline.run({"maxEntriesPerTrigger": 400})
    assert rows_of(target) == numbers(1000)
    batches = [(kind, batch) for batch in range(3) for kind in ("begin", "commit")]
    assert markers_of(target) == batches
    pipeline.forget_last_commit()
    log.append_many(numbers(1000, 1300))
    pipeline.run({"minPartitions": 3})
    assert rows_of(target)[:1000] == numbers(1000)
    assert sorted(rows_of(target), key=int) == numbers(1300)
    assert markers_of(target) == [*batches, ("begin", 3), ("commit", 3)]


def test_a_batch_without_rows_counts(pipeline: Pipeline, log: RaftClient, target: RaftClient) -> None:
    """A batch of which no row is left is marked like any other, so that the next one follows it."""
    log.config()
    pipeline.run()
    log.append_many(numbers(10))
    pipeline.run()
    assert rows_of(target) == numbers(10)
    kinds = [kind for kind, _ in markers_of(target)]
    assert kinds == ["begin", "commit"] * (len(kinds) // 2)


def test_a_lost_checkpoint_is_refused_with_advice(pipeline: Pipeline, log: RaftClient, target: RaftClient) -> None:
    """A pipeline with another checkpoint is refused, and the advice in the error leads to each row once."""
    last = log.append_many(numbers(100))[-1]
    pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    log.append_many(numbers(100, 150))
    text = pipeline.complaint()
    assert "PipelineError: pipeline 'copy' belongs to the query" in text
    assert f"choose another pipelineId, with startingIndex={last + 1} at the source" in text
    assert rows_of(target) == numbers(100)
    shutil.rmtree(pipeline.checkpoint)
    pipeline.run({"startingIndex": last + 1}, pipelineId="copy/2")
    assert rows_of(target) == numbers(150)


def test_a_log_that_knows_nothing_is_refused(pipeline: Pipeline, log: RaftClient, target: RaftClient) -> None:
    """A checkpoint that is not at its start is refused by a log without markers, until the user insists."""
    log.append_many(numbers(10))
    pipeline.run()
    log.append_many(numbers(10, 20))
    text = pipeline.complaint(pipelineId="another")
    assert "PipelineError: the log knows no pipeline 'another'" in text
    assert "firstBatch=1" in text
    pipeline.run(pipelineId="another", firstBatch=1)
    assert rows_of(target) == numbers(20)


def test_a_stream_needs_a_name(pipeline: Pipeline, log: RaftClient) -> None:
    """A stream without a name is refused before it reads anything."""
    log.append_many(numbers(3))
    stream = pipeline.spark.readStream.format("zmqraft").options(seeds=pipeline.seeds).load()
    writer = stream.writeStream.format("zmqraft").options(
        seeds=pipeline.into, indexColumn="index", checkpointLocation=str(pipeline.checkpoint)
    )
    with pytest.raises(Exception, match="a stream needs the option pipelineId"):
        writer.trigger(availableNow=True).start().awaitTermination()
