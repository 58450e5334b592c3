"""One client per process, closed while idle, thrown away after an error."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from support.interruptions import interrupted_at_line

import statestore_client.spark
from statestore_client import ConnectionSettings, ConnectionState, TransportError
from statestore_client.spark.pool import ClientPool, Loan, PoolKey

if TYPE_CHECKING:
    from recording_server import RecordingServer


@pytest.fixture
def key(server: RecordingServer) -> PoolKey:
    return PoolKey(ConnectionSettings.from_url(server.url))


class Clock:
    """Time that stands still until it is told to move on."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_client_is_kept_for_the_next_task(key: PoolKey) -> None:
    """Two tasks one after the other share a client."""
    pool = ClientPool()
    with pool.borrow(key) as first:
        first.client.set("a", "1")
    with pool.borrow(key) as second:
        assert second.client is first.client
    pool.clear()
    assert first.client.state is ConnectionState.CLOSED


def test_threads_share_one_client(key: PoolKey) -> None:
    """Threads that ask at the same time share one client."""
    pool = ClientPool()
    barrier = threading.Barrier(8)
    seen = set()

    def task() -> None:
        barrier.wait()
        with pool.borrow(key) as loan:
            seen.add(loan.client.client_id)

    threads = [threading.Thread(target=task) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1
    pool.clear()


def test_other_settings_have_another_client(key: PoolKey) -> None:
    """Other settings, credentials and windows included, have another client."""
    pool = ClientPool()
    other = PoolKey(key.settings.evolve(max_in_flight=3))
    with pool.borrow(key) as one, pool.borrow(other) as two:
        assert one.client is not two.client
    assert len(pool) == 2
    pool.clear()


def test_idle_client_is_closed_in_time(key: PoolKey) -> None:
    """An idle client is closed after the idle time, and not before."""
    clock = Clock()
    pool = ClientPool(idle_ttl_s=25.0, clock=clock)
    with pool.borrow(key) as loan:
        clock.now = 100.0
        assert pool.reap() is None  # in use is not idle
    clock.now = 124.0
    assert pool.reap() == pytest.approx(1.0)
    assert loan.client.state is ConnectionState.CONNECTED
    clock.now = 125.0
    assert pool.reap() is None
    assert loan.client.state is ConnectionState.CLOSED
    assert len(pool) == 0


def test_client_is_thrown_away_after_an_error(key: PoolKey) -> None:
    """A client is not kept for the next task after an exception or a reported failure."""
    pool = ClientPool()
    with pytest.raises(RuntimeError), pool.borrow(key) as failed:
        raise RuntimeError("the task failed")
    with pool.borrow(key) as spoiled:
        spoiled.spoil()
    assert failed.client is not spoiled.client
    assert {failed.client.state, spoiled.client.state} == {ConnectionState.CLOSED}
    assert len(pool) == 0


def test_shared_client_is_closed_by_its_last_user(key: PoolKey) -> None:
    """A client that failed in one task is closed when the last task has stopped using it."""
    pool = ClientPool()
    with pool.borrow(key) as steady:
        with pool.borrow(key) as failed:
            failed.spoil()
        assert steady.client.state is ConnectionState.CONNECTED
    assert steady.client.state is ConnectionState.CLOSED


def test_a_borrower_that_is_interrupted_is_not_counted(key: PoolKey) -> None:
    """An exception of a signal handler at any line before the task has its client leaves a pool that can be emptied."""
    pool = ClientPool(idle_ttl_s=0)
    borrowed: list[Loan] = []

    def borrow() -> None:
        with pool.borrow(key) as loan:
            borrowed.append(loan)

    for line in itertools.count():
        interrupted_at_line(line, borrow, statestore_client.spark)
        if borrowed:
            break
        pool.reap()
        assert len(pool) == 0
    assert line > 10
    pool.clear()


def test_drop_lets_the_next_attempt_connect_anew(key: PoolKey) -> None:
    """After drop() the next attempt makes a new connection."""
    pool = ClientPool()
    with pool.borrow(key) as first:
        pass
    pool.drop(key)
    with pool.borrow(key) as second:
        assert second.client is not first.client
    pool.clear()


def test_unreachable_broker_leaves_nothing_behind() -> None:
    """A failed connect leaves nothing in the pool."""
    pool = ClientPool()
    with (
        pytest.raises(TransportError, match="connection refused"),
        pool.borrow(PoolKey(ConnectionSettings(host="127.0.0.1", port=1))),
    ):
        pass
    assert len(pool) == 0


_FORK = """
import os, sys
from statestore_client import ConnectionSettings
from statestore_client.spark.pool import POOL, PoolKey
key = PoolKey(ConnectionSettings.from_url(sys.argv[1]))
with POOL.borrow(key) as loan:
    mine = loan.client.client_id
    loan.client.set("who", "parent")
child = os.fork()
if child == 0:
    with POOL.borrow(key) as loan:
        loan.client.set("child", loan.client.client_id)
    POOL.clear()
    os._exit(0)
os.waitpid(child, 0)
with POOL.borrow(key) as loan:
    assert loan.client.client_id == mine
    assert loan.client.get("child").value.decode() != mine
    print(loan.client.get("who").value.decode(), loan.client.stats.requests)
"""


def test_forked_child_connects_for_itself(server: RecordingServer) -> None:
    """A forked child has an empty pool, and the parent's connection is unharmed."""
    done = subprocess.run(
        [sys.executable, "-c", _FORK, server.url], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.returncode) == ("parent 3\n", 0), done.stderr


def test_importing_the_room_loads_neither_spark_nor_arrow() -> None:
    """Importing the folder imports neither pyspark nor pyarrow."""
    code = (
        "import sys, statestore_client.spark, statestore_client.spark.pool;"
        "print({'pyspark', 'pyarrow', 'paho'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "set()"
