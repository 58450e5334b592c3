"""Orders of faults around a pipeline from a log into the state store, in one session of Spark, with one store and log.

Each seed has events and a pipeline of its own, and two drivers, which are threads here. A worker is stopped in the
middle of its writes; a fault happens then, and the worker goes on. What takes the death of a Java process is in
test_spark_pipeline_faults.py and test_spark_executors.py. ``tests/support/schedules.py`` says how many orders are
tried.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from random import Random
from typing import TYPE_CHECKING

import attrs
import pytest
from recording_server import RecordingServer, process_of
from support.raft_peers import next_leader
from support.schedules import SEED, scaled
from support.waiting import eventually

pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams need PySpark 4.2")

from raft_client import RaftClient
from raft_client.server import EmbeddedCluster, Fsync
from raft_client.spark import register
from statestore_client import ConnectionSettings, FencingTokenTooOldError, StateStoreClient
from statestore_client.spark import ActiveStandby, Marker, PipelineEvent
from statestore_client.wire.commands import Set

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from statestore_client import HlcTimestamp

pytestmark = [pytest.mark.scaled, pytest.mark.spark, pytest.mark.classic, pytest.mark.slow]

SEEDS = scaled(1, 200)
FAULTS = (
    "kill_worker",
    "lose_leadership",
    "stop_driver",
    "restart_store",
    "fill_store",
    "kill_leader_of_log",
    "write_late",
)
#: How many faults each seed has; each has a micro-batch.
FAULTS_OF_A_SEED = len(FAULTS) if SEEDS > 10 else 3
KEYS, BATCH = 100, 240
TIMEOUT_S = 120.0
DAY_S = 86_400.0


@attrs.define
class World:
    """What all seeds share."""

    spark: SparkSession
    cluster: EmbeddedCluster
    log: RaftClient
    server: RecordingServer
    store: StateStoreClient
    pool: ThreadPoolExecutor


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    register(spark)
    with ExitStack() as stack:
        cluster = stack.enter_context(EmbeddedCluster(3, fsync=Fsync.OFF))
        log = stack.enter_context(RaftClient(cluster.url))
        server = stack.enter_context(RecordingServer(data=tmp_path_factory.mktemp("store"), faults=True))
        store = stack.enter_context(StateStoreClient(server.url, client_id="test-0-0"))
        pool = stack.enter_context(ThreadPoolExecutor())
        yield World(spark, cluster, log, server, store, pool)


class Driver:
    """One of a pipeline's drivers."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.told: list[PipelineEvent] = []
        self.is_replaced = False
        self._stop = threading.Event()
        standby = ActiveStandby(
            pipeline.world.spark,
            ConnectionSettings.from_url(pipeline.world.server.url, max_in_flight=4),
            pipeline.name,
            pipeline.source,
            term=30.0,
            trigger={"availableNow": True},
            listener=self.told.append,
            null_value="delete",
            retry_timeout=20.0,
        )
        self.future: Future[None] = pipeline.world.pool.submit(standby.run, self._stop)

    def leads(self) -> bool:
        last = next((event.kind for event in reversed(self.told) if event.kind in ("leading", "lost")), "lost")
        return last == "leading" and not self.future.done() and not self.is_replaced

    def stop(self) -> None:
        self._stop.set()


class Pipeline:
    """The events of one seed, and the drivers that fold them into keys."""

    def __init__(self, world: World, name: str, random: Random) -> None:
        self.world, self.name, self._random = world, name, random
        self._events = [self._event() for _ in range(BATCH * FAULTS_OF_A_SEED)]
        indexes = world.log.append_many(f"{key} {value or ''}" for key, value in self._events)
        self._first, self._last = indexes[0], indexes[-1]
        #: Workers that were stopped in the middle of their writes.
        self._stopped: SimpleQueue[int] = SimpleQueue()
        self._late: list[tuple[HlcTimestamp, dict[str, str | None]]] = []
        self._left = 0
        #: All that were started; two of them are not replaced.
        self._drivers = [Driver(self), Driver(self)]

    def _event(self) -> tuple[str, str | None]:
        deleted = self._random.random() < 0.2
        return f"{self.name}/k{self._random.randrange(KEYS)}", None if deleted else str(self._random.randrange(10**6))

    def source(self, spark: SparkSession, after: int) -> DataFrame:
        """Each start cuts batches into other tasks."""
        stream = spark.readStream.format("zmqraft").options(
            seeds=self.world.cluster.url,
            startingIndex=min(max(after + 1, self._first), self._last),
            endingIndex=self._last,
            maxEntriesPerTrigger=BATCH,
            minPartitions=self._random.randint(1, 3),
        )
        words = "split(cast(data as string), ' ')"
        rows = stream.load().where("type = 'state'")
        return rows.selectExpr("index", f"{words}[0] key", f"nullif({words}[1], '') value")

    def run(self, faults: list[str]) -> None:
        """One after the other."""
        self._left = len(faults)
        self._stop_next()
        for fault in faults:
            self.until(lambda: not self._stopped.empty(), f"a worker writes, for {fault}")
            getattr(self, fault)(self._stopped.get())
        self.until(lambda: all(driver.future.done() for driver in self._drivers), "all is written")

    def until(self, condition: Callable[[], object], what: str) -> None:
        eventually(condition, what, timeout_s=TIMEOUT_S, every_s=0.01, meanwhile=self._supervise)

    def _supervise(self) -> None:
        """A driver that has ended with an error is started anew."""
        for driver in list(self._drivers):
            if driver.future.done() and (error := driver.future.exception()) is not None and not driver.is_replaced:
                assert len(self._drivers) < 10, f"not the first driver that ends: {error!r}"
                self._replace(driver)

    def _replace(self, driver: Driver) -> None:
        driver.is_replaced = True
        self._drivers.append(Driver(self))

    def _leader(self) -> Driver:
        found: list[Driver] = []

        def look() -> bool:
            found[:] = [driver for driver in self._drivers if driver.leads()]
            return bool(found)

        self.until(look, "a driver leads")
        return found[0]

    # -- a worker in the middle of its writes --------------------------------------------------------------------------

    def _stop_next(self) -> None:
        """The worker that sends some SET from now on is stopped before it hears the answer."""
        left = self._random.randrange(20)

        def look(count: int) -> None:
            nonlocal left
            client, command = server.requests[count - 1]
            if isinstance(command, Set) and command.key.startswith(f"{self.name}/k".encode()):
                left -= 1
                if left < 0:
                    server.on_request = lambda _count: None
                    worker = process_of(client)
                    os.kill(worker, signal.SIGSTOP)
                    self._stopped.put(worker)

        server = self.world.server
        if self._left:
            self._left -= 1
            server.on_request = look

    def _go_on(self, worker: int, number: signal.Signals = signal.SIGCONT) -> None:
        """The next one is chosen before, or all could be written by then."""
        self._stop_next()
        with suppress(ProcessLookupError):  # Spark ends those of queries that have ended
            os.kill(worker, number)

    # -- faults --------------------------------------------------------------------------------------------------------

    def kill_worker(self, worker: int) -> None:
        """Its task is repeated."""
        self._go_on(worker, signal.SIGKILL)

    def lose_leadership(self, worker: int) -> None:
        """The other driver takes over, while this one writes on until it is refused, or has the lock again."""
        self.world.store.delete(f"pipelines/{self.name}/leader")
        self._go_on(worker)

    def stop_driver(self, worker: int) -> None:
        """It gives the election back in the middle of a batch; a new one comes."""
        leader = self._leader()
        leader.stop()
        self._replace(leader)
        self._go_on(worker)

    def restart_store(self, worker: int) -> None:
        self.world.server.restart(keep_state=True)
        self._go_on(worker)

    def fill_store(self, worker: int) -> None:
        """It refuses the next requests, of drivers and workers."""
        self.world.server.faults.refuse("PUBLISH", 0x97, times=40)
        self._go_on(worker)

    def kill_leader_of_log(self, worker: int) -> None:
        next_leader(self.world.cluster)
        self._go_on(worker)

    def write_late(self, worker: int) -> None:
        """Another attempt of all tasks of the batch sends its rows when all is over."""
        told = [event for driver in self._drivers for event in driver.told if event.kind == "writing"]
        token, after = max((event.token, event.marker.index) for event in told if event.token and event.marker)
        begin = max(after + 1 - self._first, 0)
        self._late.append((token, dict(self._events[begin : begin + BATCH])))
        self._go_on(worker)

    # -- and in the end ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Each event was counted once, the state is the fold of the log; late writes change nothing."""
        self._check_state()
        for token, rows in self._late:
            for key, value in rows.items():
                with suppress(FencingTokenTooOldError):
                    expiry = DAY_S if value is None else None
                    self.world.store.set(key, value or "", fencing_token=token, expiry=expiry)
        self._check_state()

    def _check_state(self) -> None:
        marker = self.world.store.get(f"pipelines/{self.name}/marker")
        assert marker is not None
        assert Marker.decode(marker.value, "the marker") == Marker(self._last, len(self._events))
        expected = {key: (value or "").encode() for key, value in self._events}
        found = zip(expected, self.world.store.get_many(expected), strict=True)
        assert {key: item and item.value for key, item in found} == expected

    def close(self) -> None:
        """Whatever happened."""
        self.world.server.on_request = lambda _count: None
        self.world.server.faults.clear()
        while not self._stopped.empty():
            self._go_on(self._stopped.get())
        for driver in self._drivers:
            driver.stop()


@pytest.mark.turns(2)
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
def test_no_event_is_lost_or_doubled(seed: int, world: World) -> None:
    """Whatever fails in whatever order: each event counts once, and the state is the fold of the log."""
    random = Random(seed)
    pipeline = Pipeline(world, f"seed-{seed}", random)
    try:
        pipeline.run(random.sample(FAULTS, FAULTS_OF_A_SEED))
        pipeline.check()
    finally:
        pipeline.close()
