"""Real drivers and executors that are killed or stopped in the middle of a pipeline from one log into another."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs
import pytest
from support.schedules import scaled
from support.spark import IMPATIENT, executor_of, executors_of, kill_all, signal_all
from support.spark_gates import Gate
from support.waiting import eventually
from written_rows import markers_of, numbers, rows_of

pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams need PySpark 4.2")

import raft_client
from raft_client import RaftClient
from raft_client.server import EmbeddedCluster

pytestmark = [pytest.mark.scaled, pytest.mark.spark, pytest.mark.classic, pytest.mark.slow, pytest.mark.timeout(1200)]

PROGRAM = Path(__file__).with_name("pipeline_program.py")
ROUNDS = scaled(1, 20)
ROWS, BATCH, TASKS = 3000, 1000, 4
DEADLINE_S = 240


@attrs.define
class Driver:
    """One driver process, with its Java process and workers in a group of their own."""

    process: subprocess.Popen[bytes]

    @classmethod
    @contextlib.contextmanager
    def running(
        cls,
        folder: Path,
        source: RaftClient,
        target: RaftClient,
        *,
        configuration: Mapping[str, str] = {},
        gates: Mapping[str, str] = {},
        **options: int,
    ) -> Iterator[Driver]:
        seeds = [",".join(client.settings.seeds) for client in (source, target)]
        texts = map(json.dumps, ({"maxEntriesPerTrigger": BATCH} | options, dict(configuration), dict(gates)))
        homes = os.pathsep.join(map(str, (Path(raft_client.__file__).parents[1], PROGRAM.parents[1])))
        with (folder / "driver.log").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(folder / "checkpoint"), *seeds, *texts],
                stdout=out,
                stderr=out,
                cwd=folder,
                env=os.environ | {"PYTHONPATH": homes},
                start_new_session=True,
            )
        driver = cls(process)
        try:
            yield driver
        finally:
            driver.kill()

    def kill(self) -> None:
        """All of it at once, as a machine that loses its power."""
        kill_all(self.process.pid)
        self.process.wait()

    def finish(self, folder: Path) -> None:
        assert self.process.wait(DEADLINE_S) == 0, (folder / "driver.log").read_text()[-4000:]

    def executors(self) -> list[int]:
        """The process ids of the executors' Java processes of this driver."""
        return executors_of(self.process.pid)


def wait_until(condition: Callable[[], object], driver: Driver, every_s: float = 0.02) -> None:
    """Until the condition holds; fails when the driver ends before, or nothing happens for long."""

    def check() -> None:
        assert driver.process.poll() is None, "it has ended before it could be killed"

    eventually(condition, "anything", timeout_s=DEADLINE_S, every_s=every_s, meanwhile=check)


def entries_in(target: RaftClient) -> int:
    return target.log_info().last_applied


def check(target: RaftClient) -> None:
    found = Counter(rows_of(target))
    assert sum(found.values()) - len(found) == 0, "doubled"
    assert found.keys() == set(numbers(ROWS)), "lost"


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.long
def test_drivers_that_are_killed(
    seed: int, tmp_path: Path, log: RaftClient, target: RaftClient, figures: Callable[[str], None]
) -> None:
    """Drivers are killed in the middle of a batch and between two, each next one cuts its batches into other tasks,
    and the last entries of Spark's commit log are deleted: each row is there once."""
    chance = random.Random(seed)
    log.append_many(numbers(ROWS))
    stops = sorted(chance.sample(range(entries_in(target) + 50, ROWS), 2))
    for tasks, stop in enumerate(stops, 2):
        with Driver.running(tmp_path, log, target, minPartitions=tasks) as driver:
            wait_until(lambda stop=stop: entries_in(target) >= stop, driver)
        forget_last_commit(tmp_path)
    with Driver.running(tmp_path, log, target, minPartitions=1) as driver:
        driver.finish(tmp_path)
    forget_last_commit(tmp_path)
    with Driver.running(tmp_path, log, target) as driver:
        driver.finish(tmp_path)
    check(target)
    figures(f"seed {seed}: drivers killed at {stops} of {ROWS} entries, four commits forgotten: 0 lost, 0 doubled")


def commits(folder: Path) -> list[Path]:
    """Spark's own note of each batch that is done."""
    return [path for path in folder.glob("checkpoint/commits/*") if path.name.isdecimal()]


def forget_last_commit(folder: Path) -> None:
    """As if the driver had been lost after the sink's commit and before Spark's own."""
    if found := commits(folder):
        last = max(found, key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.skipif(sys.platform != "linux", reason="executors are found in /proc")
@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.long
def test_executors_and_a_leader_that_are_lost(
    seed: int, tmp_path: Path, log: RaftClient, figures: Callable[[str], None]
) -> None:
    """A task of each batch waits in the middle of its rows. In the first batch, its executor is stopped, and the task
    appends the rest when its replacement has done so, and the batch is committed. In the second one, its executor is
    killed. In the third one, Spark takes away the executor that has nothing to do, and the leader of the log is killed.
    Each row is there once, and the query has not ended.
    """
    log.append_many(numbers(ROWS))
    before = random.Random(seed).randrange(1, BATCH // TASKS)
    stopped, killed, last = gates = [Gate(tmp_path, batch) for batch in "012"]
    for gate in gates:
        gate.shut()
    sink = {"gates": str(tmp_path), "before": str(before)}
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as target:
        with Driver.running(
            tmp_path,
            log,
            target,
            configuration=IMPATIENT,
            gates=sink,
            minPartitions=TASKS,
        ) as driver:
            zombie = executor_of(worker_at(stopped, driver))
            os.kill(zombie, signal.SIGSTOP)
            wait_until(lambda: ("commit", 0) in markers_of(target), driver, every_s=0.3)
            assert not stopped.has_passed()
            stopped.open()
            wait_until(stopped.has_passed, driver)
            os.kill(executor_of(worker_at(killed, driver)), signal.SIGKILL)
            killed.open()
            holder = executor_of(worker_at(last, driver))
            # The other tasks of the batch need another executor: this one has one core, and waits.
            wait_until(lambda: b"%d" % (ROWS - 10) in rows_of(target), driver, every_s=0.3)
            wait_until(lambda: set(driver.executors()) - {zombie} == {holder}, driver, every_s=0.3)
            cluster.kill(cluster.leader())
            signal_all([zombie], signal.SIGCONT)  # if Spark has not killed it
            last.open()
            driver.finish(tmp_path)
        check(target)
    late = BATCH // TASKS - before
    figures(f"seed {seed}: SIGSTOP, {late} rows after the commit; SIGKILL; leader killed: 0 lost, 0 doubled")


def worker_at(gate: Gate, driver: Driver) -> int:
    """The process that waits there."""
    wait_until(gate.worker, driver)
    pid = gate.worker()
    assert pid is not None
    return pid
