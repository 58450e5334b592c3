"""Drivers, their workers and the state store as real processes that are killed, frozen and full, under load.

Events go into a log of three peers all the time. In the end the state is the fold of the log by index, and the marker
has counted each event once: nothing is lost, nothing doubled. ``tests/support/schedules.py`` says how many orders of
faults are tried.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Self

import pytest
from support.schedules import scaled

pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams need PySpark 4.2")

from flights.drivers import Driver
from support.ports import reserved_port
from support.spark import require_java
from support.waiting import eventually

from raft_client import RaftClient
from raft_client.server import EmbeddedCluster, Fsync
from statestore_client import StateStoreClient
from statestore_client.errors import StateStoreError

pytestmark = [pytest.mark.scaled, pytest.mark.spark, pytest.mark.classic, pytest.mark.slow]

HERE = Path(__file__).parent
SEEDS = scaled(1, 200)
#: For which the server is full (seconds).
FULL_S = 30.0 if SEEDS > 1 else 8.0
MARKER = "pipelines/faults/marker"
KEYS = 40
#: Far more than anything takes, also on a busy machine.
TIMEOUT_S = 180.0


class Server:
    """The state store as a process, on a fixed port, with its data on the disk."""

    def __init__(self, folder: Path) -> None:
        self._arguments = [str(reserved_port()), str(folder / "store")]
        self.url = f"mqtt://127.0.0.1:{self._arguments[0]}"
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE / "pipeline_server.py"), *self._arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def restart(self) -> None:
        self.kill()
        self._process = self._start()


class Feed:
    """Appends events until it is stopped, and remembers the log index of each."""

    def __init__(self, peers: str, random: Random) -> None:
        self._client = RaftClient(peers)
        self._random = random
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.events: dict[int, str] = {}

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            events = [self._event() for _ in range(30)]
            self.events |= dict(zip(self._client.append_many(events), events, strict=True))

    def _event(self) -> str:
        value = "deleted" if self._random.random() < 0.2 else str(self._random.randrange(10**6))
        return f"k{self._random.randrange(KEYS)} {value}"

    def state(self) -> dict[str, bytes]:
        """The fold of all events by index; deleted keys are empty."""
        pairs = (event.split() for _index, event in sorted(self.events.items()))
        return {key: b"" if value == "deleted" else value.encode() for key, value in pairs}

    def __enter__(self) -> Self:
        self._client.open()
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._client.close()


class World:
    """Two drivers; a killed one is replaced."""

    def __init__(self, folder: Path, peers: str, stack: ExitStack) -> None:
        self._folder, self._peers, self._stack = folder, peers, stack
        self.server = Server(folder)
        stack.callback(lambda: self.server.kill())
        self._count = 0
        self.drivers: list[Driver] = []

    def start_driver(self) -> Driver:
        name = f"d{self._count}"
        self._count += 1
        program = [str(HERE / "pipeline_driver.py"), self.server.url, self._peers, name]
        driver = Driver(name, program, self._folder)
        self._stack.callback(driver.close)
        self.drivers.append(driver)
        return driver

    def until(self, condition: Callable[[], object], what: str) -> None:
        eventually(condition, what, timeout_s=TIMEOUT_S, every_s=0.02, meanwhile=self._supervise)

    def _supervise(self) -> None:
        """A driver whose query Spark has given up ends, with an error; whoever looks after it starts it anew."""
        for driver in [driver for driver in self.drivers if driver.has_ended]:
            assert self._count < 10, f"{driver.name} is not the first driver that ends"
            self.drivers.remove(driver)
            self.start_driver()

    def until_all_are_ready(self) -> None:
        self.until(lambda: all(driver.has_told("standing by") for driver in self.drivers), "all drivers are ready")

    def until_written(self) -> None:
        """Until a batch that begins from now on is stored."""
        said = {driver.name: len(driver.told) for driver in self.drivers}
        self.until(
            lambda: any(
                [told.kind for told in driver.told[said.get(driver.name, 0) :]].count("written") > 1
                for driver in self.drivers
            ),
            "somebody writes",
        )

    def leader_that_says(self, kind: str) -> Driver:
        """The driver that leads, at the moment when this is the last that it said."""
        found: list[Driver] = []

        def look() -> bool:
            found[:] = [driver for driver in self.drivers if driver.told and driver.told[-1].kind == kind]
            return bool(found)

        self.until(look, f"somebody is {kind}")
        return found[0]

    # -- faults --------------------------------------------------------------------------------------------------------

    def kill_before_commit(self) -> None:
        self._kill("writing")

    def kill_after_commit(self) -> None:
        self._kill("written")

    def _kill(self, kind: str) -> None:
        self.until_all_are_ready()
        driver = self.leader_that_says(kind)
        driver.kill()
        self.drivers.remove(driver)
        self.start_driver()

    def freeze(self) -> None:
        """The leader stands still in a batch, longer than its term; it wakes up when another one has written."""
        self.until_all_are_ready()
        driver = self.leader_that_says("writing")
        driver.freeze(driver.family())
        others = [other for other in self.drivers if other is not driver]
        said = [len(other.told) for other in others]
        self.until(
            lambda: any(o.has_told("written", n) for o, n in zip(others, said, strict=True)), "another one has written"
        )
        said_by_zombie = len(driver.told)
        driver.wake()
        self.until(lambda: driver.has_told("lost", said_by_zombie), "the zombie knows")

    def kill_worker(self) -> None:
        """Spark's processes for Python are killed in a batch: their tasks are repeated, or the driver ends."""
        driver = self.leader_that_says("writing")
        for pid in driver.family()[3:]:  # after the driver, Java and the process that starts the workers
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def restart_server(self) -> None:
        self.leader_that_says("writing")
        self.server.restart()

    def full_server(self) -> None:
        self.leader_that_says("writing")
        self.server.tell("full")
        deadline = time.monotonic() + FULL_S
        self.until(lambda: time.monotonic() > deadline, "the time is over")
        self.server.tell("ok")


FAULTS = ("kill_before_commit", "kill_after_commit", "freeze", "kill_worker", "restart_server", "full_server")


@pytest.fixture
def peers() -> Iterator[str]:
    """Three peers of the log."""
    with EmbeddedCluster(3, fsync=Fsync.OFF) as cluster:
        yield cluster.url


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.long
def test_no_event_is_lost_or_doubled(seed: int, peers: str, tmp_path: Path) -> None:
    """Whatever dies, stops or is full, in any order: each event counts once, and the state is the fold of the log."""
    require_java()
    random = Random(seed)
    with ExitStack() as stack:
        world = World(tmp_path, peers, stack)
        world.start_driver(), world.start_driver()
        world.until_all_are_ready()
        feed = stack.enter_context(Feed(peers, random))
        world.until_written()
        for fault in random.sample(FAULTS, len(FAULTS)):
            getattr(world, fault)()
            world.until_written()
        feed.stop()
        store = stack.enter_context(StateStoreClient(world.server.url, retry_first_connect=True))
        world.until(lambda: marker(store)["index"] == max(feed.events), "all events are written")
        assert marker(store)["rows"] == len(feed.events)
        expected = feed.state()
        items = zip(expected, store.get_many(expected), strict=True)
        assert {key: item and item.value for key, item in items} == expected


def marker(store: StateStoreClient) -> dict[str, int]:
    try:
        item = store.get(MARKER)
    except StateStoreError:
        item = None
    return {"index": -1, "rows": 0} if item is None else json.loads(item.value)
