"""How long a write goes on trying to reach a broker, and what it says when it gives up."""

from __future__ import annotations

import contextlib
import pickle
import re
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.ports import reserved_port

from statestore_client import ConnectionSettings, ConnectRefusedError, SettingsError, StateStoreClient, TransportError
from statestore_client.server import EmbeddedServer
from statestore_client.spark import get_value, write_rows
from statestore_client.spark.options import WriteOptions
from statestore_client.spark.pool import ClientPool, PoolKey
from statestore_client.spark.report import WriteReport
from statestore_client.spark.rows import Rows
from statestore_client.spark.writing import Delivery, report_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

#: As ``retry_timeout``; how much longer a loaded machine may take; and as time-outs that must not matter.
PATIENCE_S, SLACK_S, LONG_S = 1.0, 25.0, 60.0


@pytest.fixture
def refusing_url() -> str:
    """Nobody listens there."""
    return f"mqtt://127.0.0.1:{reserved_port()}"


@pytest.fixture
def silent_url() -> Iterator[str]:
    """Somebody takes connections there, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"mqtt://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(params=["refusing", "silent"])
def unreachable_url(request: pytest.FixtureRequest) -> str:
    """One of the two."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


class Clock:
    """Time passes when somebody sleeps, and when an attempt takes its time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def giving_up(url: str, clock: Clock, retry_timeout_s: float, attempts: list[float]) -> Delivery:
    """A delivery whose every attempt to connect takes all the time that it is given, ten seconds at most."""

    def connect(key: PoolKey, timeout_s: float | None) -> StateStoreClient:
        assert timeout_s is not None
        attempts.append(timeout_s)
        clock.now += min(timeout_s, 10.0)
        return StateStoreClient(key.settings).open(timeout_s)

    key = PoolKey(ConnectionSettings.from_url(url))
    return Delivery(
        key,
        retry_timeout_s=retry_timeout_s,
        what="rows",
        pool=ClientPool(connect=connect),
        clock=clock,
        sleep=clock.sleep,
    )


@pytest.mark.parametrize("retry_timeout_s", [2.0, 15.0])
def test_no_attempt_outlasts_the_time_to_try(refusing_url: str, retry_timeout_s: float) -> None:
    """An attempt gets what is left of the retry time, so that the last one ends in time."""
    clock, attempts = Clock(), list[float]()
    delivery = giving_up(refusing_url, clock, retry_timeout_s, attempts)
    with pytest.raises(TransportError, match=rf"^gave up after {retry_timeout_s:.1f} s and \d+ attempts? to send rows"):
        delivery.deliver([("k", "v")], lambda client, pairs, timeout: client.set_many(pairs, timeout=timeout))
    assert clock.now == pytest.approx(retry_timeout_s, abs=0.1)
    assert attempts[0] == retry_timeout_s
    assert len(attempts) == (1 if retry_timeout_s < 10 else 2)


def test_no_time_to_try_is_one_attempt(refusing_url: str) -> None:
    """A retry time of zero is one attempt with the time-outs of the settings."""
    clock, attempts = Clock(), list[float]()
    with pytest.raises(TransportError, match=r"^gave up after 10\.0 s and 1 attempt to send rows to mqtt://"):
        giving_up(refusing_url, clock, 0.0, attempts).deliver([("k", "v")], lambda *_: [])
    assert attempts == [20.0]


def test_a_silent_server_costs_no_more_than_the_time_to_try() -> None:
    """At a server that accepts the connection and never answers, requests end with the retry time and not their own
    time-out."""
    with EmbeddedServer(faults=True) as server:
        server.faults.withhold("PUBLISH", times=None)
        key = PoolKey(ConnectionSettings.from_url(server.url, request_timeout=LONG_S))
        pool = ClientPool()
        started = time.monotonic()
        with pytest.raises(TransportError, match=r"^gave up after \d+\.\d s") as gave_up:
            Delivery(key, retry_timeout_s=PATIENCE_S, pool=pool).deliver(
                [("k", "v")], lambda client, pairs, timeout: client.set_many(pairs, timeout=timeout)
            )
        pool.clear()
    assert time.monotonic() - started < PATIENCE_S + SLACK_S
    assert gave_up.value.may_have_been_applied


def test_a_refusal_is_not_hidden_by_the_last_time_out() -> None:
    """If a busy broker then goes silent, the error has its refusal, keeps its class, and can be pickled."""
    attempts: list[int] = []

    def connect(key: PoolKey, timeout_s: float | None) -> StateStoreClient:
        attempts.append(1)
        if len(attempts) == 3:
            server.faults.withhold("CONNECT", times=None)
        return StateStoreClient(key.settings).open(timeout_s)

    with EmbeddedServer(faults=True) as server:
        server.faults.refuse("CONNECT", 0x89, times=2)
        delivery = Delivery(
            PoolKey(ConnectionSettings.from_url(server.url)),
            retry_timeout_s=PATIENCE_S,
            pool=ClientPool(connect=connect),
        )
        with pytest.raises(ConnectRefusedError) as refused:
            delivery.deliver([("k", "v")], lambda *_: [])
    copy = pickle.loads(pickle.dumps(refused.value))  # noqa: S301 - pickled in this line
    assert (type(copy), copy.reason_code, str(copy)) == (ConnectRefusedError, 0x89, str(refused.value))
    assert re.match(r"gave up after \d+\.\d s and \d+ attempts to send requests to mqtt://.*: .*busy", str(copy))


def test_get_value_gives_up_in_time(unreachable_url: str) -> None:
    """get_value() in a UDF also ends with the retry time."""
    settings = ConnectionSettings.from_url(unreachable_url, connect_timeout=LONG_S, request_timeout=LONG_S)
    started = time.monotonic()
    with pytest.raises(TransportError, match=r"gave up after \d+\.\d s and \d+ attempts? to send look-ups to mqtt:"):
        get_value(settings, "k", retry_timeout=PATIENCE_S)
    assert time.monotonic() - started < PATIENCE_S + SLACK_S


def rows_once() -> Iterable[Rows]:
    yield Rows(["k"], ["v"], None, None)


def test_later_tasks_of_a_write_that_was_given_up_do_not_try_again(refusing_url: str) -> None:
    """After one task gave up, a job's other tasks fail at once, so a hundred take as long as one; another job tries
    again."""
    settings = ConnectionSettings.from_url(refusing_url)
    options = WriteOptions(retry_timeout=PATIENCE_S)
    first = report_partition(rows_once(), settings, options, None, "write 1")
    started = time.monotonic()
    later = [report_partition(rows_once(), settings, options, None, "write 1") for _ in range(100)]
    assert time.monotonic() - started < SLACK_S  # a quarter of what they would take
    assert {report.error for report in later} == {first.error}
    with EmbeddedServer() as server:
        settings = ConnectionSettings.from_url(server.url)
        assert report_partition(rows_once(), settings, options, None, "write 2") == WriteReport(written=1)


@pytest.mark.spark
def test_write_rows_raises_the_clients_error(spark: SparkSession, refusing_url: str) -> None:
    """write_rows() raises the client's error for an unreachable broker, with what was tried."""
    df = spark.range(0, 40, 1, 20).selectExpr("concat('k', id) key", "'v' value")
    message = r"^gave up after \d+\.\d s and \d+ attempts? to send rows of partition \d to mqtt://127\.0\.0\.1:\d+: "
    with pytest.raises(TransportError, match=message):
        write_rows(df, refusing_url, retry_timeout=1.0, duplicate_keys="last")


@pytest.mark.spark
def test_the_partitions_of_a_write_do_not_wait_one_after_the_other(spark: SparkSession) -> None:
    """Two processes that write twenty partitions try once each, and no task is repeated."""
    df = spark.range(0, 40, 1, 20).selectExpr("concat('k', id) key", "'v' value")
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        url = f"mqtt://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TransportError, match=r"^gave up after"):
            write_rows(df, url, retry_timeout=2.0, duplicate_keys="last")
        listener.setblocking(False)
        connections = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                listener.accept()[0].close()
                connections += 1
    assert 1 <= connections < 10


@pytest.mark.spark
def test_a_file_that_the_workers_lack_is_named(spark: SparkSession, server: Any) -> None:
    """The error about a missing file of the connection names it and the machine, because files are read where tasks
    run."""
    settings = ConnectionSettings.from_url(server.url, username="u", password_file="/no/such/password")
    df = spark.sql("select 'k' key, 'v' value")
    message = rf"/no/such/password.*\(on the worker {re.escape(socket.gethostname())}: it is read there"
    with pytest.raises(SettingsError, match=message):
        write_rows(df, settings)
