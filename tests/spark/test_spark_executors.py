"""Executors under a pipeline that writes the state: stopped, killed, and taken away by Spark.

The server sees each request before it answers, and knows from the client's id which worker has sent it. So a process is
stopped or killed in the middle of a batch: when the first row of a task has come, and before the others.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams need PySpark 4.2")

from flights.drivers import Driver
from recording_server import RecordingServer, process_of
from support.spark import IMPATIENT, executor_of, executors_of, has_ended, kill_all, require_java, signal_all
from support.waiting import eventually

import statestore_client
from raft_client import RaftClient
from raft_client.server import EmbeddedCluster, Fsync
from statestore_client import Item, StateStoreClient
from statestore_client.wire.commands import Set

pytestmark = [
    pytest.mark.spark,
    pytest.mark.classic,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="executors are found in /proc"),
]

PROGRAM = Path(__file__).with_name("pipeline_driver.py")
MARKER = "pipelines/faults/marker"
KEYS = 40
#: Far more than anything takes, also on a busy machine.
DEADLINE_S = 240.0
#: For how long a write is tried again: a worker that stood still goes on as if nothing had been.
PATIENCE_S = "300"


class Pipeline:
    """A driver with two executors, and what it reads and writes."""

    def __init__(self, server: RecordingServer, log: RaftClient, store: StateStoreClient, driver: Driver) -> None:
        self._server, self._log, self.store, self._driver = server, log, store, driver
        self._pid = driver.family()[0]
        self.events = 0
        #: Workers that were struck, the last one last.
        self.victims: list[int] = []
        self.expected: dict[str, bytes] = {}

    def append(self, keys: range) -> int:
        """Two events for each key. The index of the last one."""
        values = [(f"k{key}", str(self.events + number)) for number, key in enumerate((*keys, *keys))]
        self.events += len(values)
        self.expected |= {key: value.encode() for key, value in values}
        return self._log.append_many(f"{key} {value}" for key, value in values)[-1]

    def until(self, condition: Callable[[], object], what: str) -> None:
        eventually(condition, what, timeout_s=DEADLINE_S, every_s=0.1, meanwhile=self._driver.check)

    def until_leading(self) -> None:
        self.until(lambda: self._driver.has_told("leading"), "the driver leads")

    def until_written(self, index: int) -> None:
        self.until(lambda: self.marker()["index"] == index, f"all up to {index} is written")

    def marker(self) -> dict[str, int]:
        item = self.store.get(MARKER)
        assert item is not None
        return dict(json.loads(item.value))

    def state(self) -> list[Item]:
        """Of all keys; none is missing."""
        found = self.store.get_many(self.expected)
        assert None not in found
        return [item for item in found if item is not None]

    def executors(self) -> list[int]:
        return executors_of(self._pid)

    def troubles(self) -> set[str]:
        """What the user hears of."""
        return {told.kind for told in self._driver.told} & {"failed", "refused", "lost"}

    # -- what happens to the worker that writes the next row -----------------------------------------------------------

    def strike_next(self, blow: Callable[[int], None]) -> None:
        """The first worker that writes a row from now on gets the blow, before its row is answered."""

        def look(count: int) -> None:
            client, command = self._server.requests[count - 1]
            if isinstance(command, Set) and command.key.startswith(b"k"):
                self._server.on_request = lambda _count: None
                worker = process_of(client)
                blow(worker)
                self.victims.append(worker)

        self._server.on_request = look

    def victim(self, number: int) -> int:
        """The worker that got it."""
        self.until(lambda: len(self.victims) > number, "somebody writes")
        return self.victims[number]

    def keys_written_by(self, worker: int) -> list[bytes]:
        """Of all rows that it sent, whether they were taken or refused."""
        sets = [(client, command.key) for client, command in self._server.requests if isinstance(command, Set)]
        return [key for client, key in sets if key.startswith(b"k") and process_of(client) == worker]


def stop_with_executor(worker: int) -> None:
    signal_all((executor_of(worker), worker), signal.SIGSTOP)


def kill_executor(worker: int) -> None:
    os.kill(executor_of(worker), signal.SIGKILL)


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    require_java()
    homes = (Path(statestore_client.__file__).parents[1], PROGRAM.parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, homes)))
    with ExitStack() as stack:
        cluster = stack.enter_context(EmbeddedCluster(1, fsync=Fsync.OFF))
        log = stack.enter_context(RaftClient(cluster.url))
        server = stack.enter_context(RecordingServer())
        store = stack.enter_context(StateStoreClient(server.url, client_id="test-0-0"))
        driver = Driver(
            "d0", [str(PROGRAM), server.url, cluster.url, "d0", json.dumps(IMPATIENT), PATIENCE_S], tmp_path
        )
        pid = driver.family()[0]
        stack.callback(driver.close)
        stack.callback(kill_all, pid)
        running = Pipeline(server, log, store, driver)
        stack.callback(lambda: signal_all(running.victims, signal.SIGKILL))
        yield running


@pytest.mark.long
def test_executors_that_are_stopped_killed_and_taken_away(pipeline: Pipeline, figures: Callable[[str], None]) -> None:
    """An executor that was stopped in a batch writes on after its replacement, and after the next batch: it is refused
    where a key has a newer row, and elsewhere its row is the one that is there. One that is killed, and one that Spark
    takes away because it has nothing to do, change nothing. The marker has counted each event once.
    """
    pipeline.until_leading()
    pipeline.strike_next(stop_with_executor)
    index = pipeline.append(range(KEYS))
    zombie = pipeline.victim(0)
    executor = executor_of(zombie)
    pipeline.until_written(index)
    pipeline.until_written(pipeline.append(range(KEYS // 2)))
    before = pipeline.state()
    assert len(pipeline.keys_written_by(zombie)) == 1
    os.kill(zombie, signal.SIGCONT)
    pipeline.until(lambda: len(pipeline.keys_written_by(zombie)) > 1, "the zombie writes")
    signal_all([executor], signal.SIGKILL)  # if Spark has not killed it: the worker would wait for it
    pipeline.until(lambda: has_ended(zombie), "the zombie ends")
    late = {key.decode() for key in pipeline.keys_written_by(zombie)[1:]}
    renewed = {f"k{key}" for key in range(KEYS // 2)}
    assert late & renewed
    assert late - renewed
    for key, earlier, now in zip(pipeline.expected, before, pipeline.state(), strict=True):
        assert now.value == earlier.value
        assert now.version == earlier.version or key not in renewed

    pipeline.strike_next(kill_executor)
    index = pipeline.append(range(KEYS))
    pipeline.victim(1)
    pipeline.until_written(index)
    pipeline.until(lambda: len(pipeline.executors()) == 1, "Spark takes the other executor away")
    pipeline.until_written(pipeline.append(range(KEYS)))
    assert [item.value for item in pipeline.state()] == list(pipeline.expected.values())
    assert pipeline.marker()["rows"] == pipeline.events
    assert not pipeline.troubles()
    figures(f"{len(late & renewed)} of {len(late)} late rows refused, the others the same: 0 lost, 0 doubled")
