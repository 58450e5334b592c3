"""Orders of faults around a pipeline from one log into another, in one session of Spark and with one cluster.

Each seed has rows and a pipeline of its own. A task of each of its batches waits in the middle of its rows; a fault
happens then, and the task goes on. What takes the death of a Java process is in test_raft_spark_kills.py.
``tests/support/schedules.py`` says how many orders are tried.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import attrs
import pytest
from support.raft_peers import next_leader
from support.schedules import SEED, scaled
from support.spark_gates import Gate
from support.waiting import eventually
from written_rows import markers_of, rows_of

pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams need PySpark 4.2")

from pyspark.errors import StreamingQueryException

from raft_client import RaftClient
from raft_client.server import EmbeddedCluster, Fsync
from raft_client.spark import register

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from raft_client.spark.appending import Written

pytestmark = [pytest.mark.scaled, pytest.mark.spark, pytest.mark.classic, pytest.mark.slow]

SEEDS = scaled(1, 200)
FAULTS = (
    "fail_task",
    "kill_worker",
    "kill_leader",
    "lose_driver_before_commit",
    "lose_driver_after_commit",
    "write_late",
)
#: How many faults each seed has.
FAULTS_OF_A_SEED = len(FAULTS) if SEEDS > 10 else 3
#: So many seeds share the clusters: the longer a log, the longer a new pipeline looks for its markers.
SEEDS_OF_A_WORLD = 20
BATCH = 60
DEADLINE_S = 120.0


@attrs.define
class World:
    """What all seeds share."""

    spark: SparkSession
    source: RaftClient
    cluster: EmbeddedCluster
    target: RaftClient
    pool: ThreadPoolExecutor


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[World]:
    from gated_log import register_gated

    register(spark)
    register_gated(spark)
    with ExitStack() as stack:
        source = stack.enter_context(EmbeddedCluster(1, fsync=Fsync.OFF))
        cluster = stack.enter_context(EmbeddedCluster(3, fsync=Fsync.OFF))
        clients = [stack.enter_context(RaftClient(each.url)) for each in (source, cluster)]
        pool = stack.enter_context(ThreadPoolExecutor())
        yield World(spark, clients[0], cluster, clients[1], pool)
        # Also what was written late, after its seed was over.
        assert set(Counter(rows_of(clients[1])).values()) == {1}


class Pipeline:
    """The rows of one seed, and the query that copies them."""

    def __init__(self, world: World, folder: Path, name: str, random: Random) -> None:
        self._world, self._folder, self.name, self._random = world, folder, name, random
        self._gates = [Gate(folder, str(batch)) for batch in range(FAULTS_OF_A_SEED)]
        self._late: list[Future[Written]] = []
        self._may_be_written = threading.Event()
        self._before = world.target.log_info().last_applied
        self.rows = [f"{name}/{number}".encode() for number in range(BATCH * FAULTS_OF_A_SEED)]
        self._first = world.source.append_many(self.rows)[0]
        self.query: StreamingQuery

    def start(self, **options: int) -> None:
        """Each start cuts batches into other tasks."""
        for gate in self._gates:
            if not gate.is_open():
                gate.shut()
        reading = {
            "startingIndex": self._first,
            "maxEntriesPerTrigger": BATCH,
            "minPartitions": self._random.randint(1, 3),
        }
        stream = self._world.spark.readStream.format("zmqraft").options(
            seeds=",".join(self._world.source.settings.seeds)
        )
        writer = stream.options(**reading).load().writeStream.format("gatedraft")
        writing = {"seeds": self._world.cluster.url, "pipelineId": self.name, "indexColumn": "index"}
        gated = {"gates": str(self._folder), "before": self._random.randrange(BATCH // 3)}
        writer = writer.options(**writing, **gated, checkpointLocation=str(self._folder / "checkpoint"))
        self.query = writer.trigger(availableNow=True).start()

    def run(self, faults: list[str]) -> None:
        """One fault for each batch."""
        for gate in self._gates:
            gate.shut()
        self.start()
        for batch, fault in enumerate(faults):
            self.until(self._gates[batch].worker, f"a task of the batch {batch} waits")
            getattr(self, fault)(batch)
        self.until(lambda: not self.query.isActive, "all is written")

    def until(self, condition: Callable[[], object], what: str) -> None:
        """A query that Spark has given up is started again."""

        def is_true() -> bool:
            return bool(condition()) and self.query.exception() is None

        def revive() -> None:
            if self.query.exception() is not None:
                self.start()

        eventually(is_true, what, timeout_s=DEADLINE_S, every_s=0.02, meanwhile=revive)

    # -- faults, while a task of the batch waits -----------------------------------------------------------------------

    def fail_task(self, batch: int) -> None:
        """After it has appended all."""
        self._gates[batch].open("fail")

    def kill_worker(self, batch: int) -> None:
        worker = self._gates[batch].worker()
        assert worker is not None
        self._gates[batch].open()
        os.kill(worker, signal.SIGKILL)

    def kill_leader(self, batch: int) -> None:
        next_leader(self._world.cluster)
        self._gates[batch].open()

    def lose_driver_before_commit(self, batch: int) -> None:
        """Its task goes on beside those of the next driver, until Spark ends it."""
        self.query.stop()
        self.start()
        self._gates[batch].open()

    def lose_driver_after_commit(self, batch: int) -> None:
        """The sink has committed; Spark has not noted it, nor planned the next batch."""
        self._gates[batch].open()
        self.until(lambda: ("commit", batch) in markers_of(self._world.target, self._before, self.name), "it commits")
        self.query.stop()
        noted = self._folder / "checkpoint"
        for path in (noted / "commits" / str(batch), noted / "offsets" / str(batch + 1)):
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        self.start()

    def write_late(self, batch: int) -> None:
        """Another attempt of the whole batch begins beside this one, and writes when all is over."""
        from raft_client.spark.appending import Batch, append_rows
        from raft_client.spark.options import WriteOptions

        has_begun = threading.Event()
        first = batch * BATCH

        def rows() -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            has_begun.set()
            self._may_be_written.wait()
            data = self.rows[first : first + BATCH]
            yield pa.RecordBatch.from_pydict({"index": [self._first + first + n for n in range(BATCH)], "data": data})

        options = WriteOptions(pipeline_id=self.name, index_column="index")
        attempt = Batch(self.name, str(self.query.id), batch, int(time.time()))
        self._late.append(self._world.pool.submit(append_rows, self._world.target.settings, options, attempt, rows()))
        assert has_begun.wait(DEADLINE_S)
        self._gates[batch].open()

    # -- and in the end ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Late attempts write; each row is there once."""
        self._may_be_written.set()
        for late in self._late:
            written = late.result(DEADLINE_S)
            assert written.error is None
            assert written.rows == BATCH
        found = Counter(rows_of(self._world.target, self._before))
        assert sum(found.values()) - len(found) == 0, "doubled"
        assert found.keys() == set(self.rows), "lost"

    def lose_checkpoint(self) -> None:
        """It is refused, with advice."""
        shutil.rmtree(self._folder / "checkpoint")
        self.start()
        advice = f"choose another pipelineId, with startingIndex={self._first + len(self.rows)} at the source"
        with pytest.raises(StreamingQueryException, match=advice):
            self.query.awaitTermination(int(DEADLINE_S))


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("world", "seed"),
    [(number // SEEDS_OF_A_WORLD, SEED + number) for number in range(SEEDS)],
    indirect=["world"],
    scope="module",
)
def test_no_row_is_lost_or_doubled(seed: int, world: World, tmp_path: Path) -> None:
    """Whatever fails in whatever order, each row is there once; without its checkpoint, no further one is."""
    random = Random(seed)
    pipeline = Pipeline(world, tmp_path, f"seed {seed}", random)
    pipeline.run(random.sample(FAULTS, FAULTS_OF_A_SEED))
    pipeline.check()
    if seed % 4 == 0:
        pipeline.lose_checkpoint()
        pipeline.check()
