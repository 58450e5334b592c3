"""``statestore bench``: both clients with each MQTT driver, in turns, against the same server."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal, TypeAlias

import attrs
import click
from rich.console import Console
from rich.table import Column, Table

from raft_client._common import event_loops, exits
from raft_client._common.command_line import print_json
from raft_client._common.measuring import Sample, decimals, summary, timed
from statestore_client.aio.client import AsyncStateStoreClient
from statestore_client.cli.options import optional_connection
from statestore_client.errors import StateStoreError
from statestore_client.settings import ConnectionSettings
from statestore_client.sync.client import StateStoreClient

DriverName: TypeAlias = Literal["native", "paho"]
DRIVERS: Final[tuple[DriverName, ...]] = ("native", "paho")
#: A pipelined round has this many times the operations of a sequential one: it is that much faster.
_PIPELINE_FACTOR: Final = 4
#: The keys of a benchmark expire.
_EXPIRY_S: Final = 60.0


@attrs.frozen
class BenchPlan:
    """How much to do. ``in_flight`` are the windows to measure with, besides one request at a time."""

    operations: int = 2000
    rounds: int = 3
    value_bytes: int = 100
    in_flight: tuple[int, ...] = (64, 256)
    drivers: tuple[DriverName, ...] = DRIVERS

    def pairs(self, factor: int = 1) -> list[tuple[bytes, bytes]]:
        """Keys repeat, so that the store does not grow from round to round."""
        value = b"v" * self.value_bytes
        return [(b"bench/%04d" % (i % 1000), value) for i in range(self.operations * factor)]


@attrs.frozen
class Client:
    """What does the work."""

    shell: Literal["aio", "sync"]
    driver: DriverName

    def __str__(self) -> str:
        return f"{self.shell}, {self.driver}"


@attrs.frozen
class Measurement:
    """The medians of one way to do the work. Latencies are those of requests one at a time."""

    client: Client
    in_flight: int
    operations_per_s: float
    cpu_us_per_operation: float
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None


_Way: TypeAlias = "tuple[Client, int]"


def measure(settings: ConnectionSettings, plan: BenchPlan, progress: Callable[[str], None]) -> list[Measurement]:
    """Run every workload in turn, round after round, so that a change of the machine's pace meets all of them."""
    workloads = _workloads(settings, plan)
    results: dict[_Way, list[Sample]] = {way: [] for way in workloads}
    for number in range(plan.rounds):
        for (client, in_flight), run in workloads.items():
            progress(f"round {number + 1} of {plan.rounds}: {client}, {in_flight} in flight")
            results[client, in_flight].append(run())
    return [Measurement(way[0], way[1], *summary(rounds)) for way, rounds in results.items()]


@contextmanager
def served(*options: str) -> Iterator[str]:
    """The URL of a ``statestore serve`` of its own process, for the time of the ``with``."""
    command = [sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own command
    try:
        line = process.stdout.readline() if process.stdout else ""
        url = line.strip().removeprefix("listening on ")
        if not url.startswith("mqtt://"):
            raise StateStoreError(f"statestore serve did not start; it said {line!r}")
        yield url
    finally:
        process.terminate()
        process.wait(10)
        if process.stdout:
            process.stdout.close()


# -- workloads --------------------------------------------------------------------------------------------------------


def _workloads(settings: ConnectionSettings, plan: BenchPlan) -> Mapping[_Way, Callable[[], Sample]]:
    """In the order of the table: one at a time, then each window."""
    works: dict[_Way, Callable[[], Sample]] = {}
    for in_flight in (1, *plan.in_flight):
        for driver in plan.drivers:
            window = in_flight if in_flight > 1 else settings.max_in_flight
            ours = settings.evolve(driver=driver, max_in_flight=window)
            works[Client("aio", driver), in_flight] = partial(_aio, ours, plan, in_flight)
            works[Client("sync", driver), in_flight] = partial(_sync, ours, plan, in_flight)
    return works


def _aio(settings: ConnectionSettings, plan: BenchPlan, in_flight: int) -> Sample:
    return event_loops.run(_aio_one_by_one(settings, plan) if in_flight == 1 else _aio_many(settings, plan))


async def _aio_one_by_one(settings: ConnectionSettings, plan: BenchPlan) -> Sample:
    async with AsyncStateStoreClient(settings) as store:
        with timed(plan.operations) as timer:
            for key, value in plan.pairs():
                started = time.perf_counter()
                await store.set(key, value, expiry=_EXPIRY_S)
                timer.latencies_s.append(time.perf_counter() - started)
        return timer.sample


async def _aio_many(settings: ConnectionSettings, plan: BenchPlan) -> Sample:
    pairs = plan.pairs(_PIPELINE_FACTOR)
    async with AsyncStateStoreClient(settings) as store:
        with timed(len(pairs)) as timer:
            await store.set_many(pairs, expiry=_EXPIRY_S)
        return timer.sample


def _sync(settings: ConnectionSettings, plan: BenchPlan, in_flight: int) -> Sample:
    pairs = plan.pairs(1 if in_flight == 1 else _PIPELINE_FACTOR)
    with StateStoreClient(settings) as store:
        with timed(len(pairs)) as timer:
            if in_flight == 1:
                for key, value in pairs:
                    timer.lap(partial(store.set, key, value, expiry=_EXPIRY_S))
            else:
                store.set_many(pairs, expiry=_EXPIRY_S)
        return timer.sample


@click.command("bench")
@click.option("--operations", type=click.IntRange(min=100), default=2000, show_default=True, help="One at a time.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Rounds; their median counts.")
@click.option("--value-size", type=click.IntRange(min=0), default=100, show_default=True, help="Bytes.")
@click.option(
    "--in-flight",
    type=click.IntRange(min=2, max=65_535),
    multiple=True,
    default=(64, 256),
    show_default=True,
    help="Pipelined; may be repeated.",
)
@click.option(
    "--driver", type=click.Choice(DRIVERS), multiple=True, help="Only this MQTT driver; may be repeated. Default: all."
)
@click.option("--json", "json_output", is_flag=True, help="One JSON object per measurement.")
@optional_connection
def bench(
    *,
    operations: int,
    rounds: int,
    value_size: int,
    in_flight: tuple[int, ...],
    driver: tuple[DriverName, ...],
    json_output: bool,
    settings: ConnectionSettings | None,
) -> int:
    """Measure SETs, one at a time and pipelined.

    Without --url it starts a server in a process of its own, whatever the environment names.

    Both clients (aio, sync) with each MQTT driver; all take turns, and the medians of the rounds count.
    """
    plan = BenchPlan(operations, rounds, value_size, in_flight, driver or DRIVERS)
    if settings is not None:
        _bench(settings, plan, json_output)
    else:
        with served() as own_url:
            _bench(ConnectionSettings.from_url(own_url), plan, json_output)
    return exits.DONE


def _bench(settings: ConnectionSettings, plan: BenchPlan, json_output: bool) -> None:
    with Console(stderr=True).status("") as status:
        results = measure(settings, plan, status.update)
    if json_output:
        for result in results:
            print_json(_as_json(result))
    else:
        Console().print(_bench_table(results))


def _as_json(result: Measurement) -> dict[str, object]:
    values = attrs.asdict(result, recurse=False)
    client: Client = values.pop("client")
    work = "sets, one at a time" if result.in_flight == 1 else f"sets, {result.in_flight} in flight"
    return {"work": work, "client": str(client), **attrs.asdict(client), **values}


def _bench_table(results: list[Measurement]) -> Table:
    right = ("SET/s", "CPU µs", "p50 ms", "p90 ms", "p99 ms")
    table = Table("at once", Column("client", no_wrap=True), *(Column(name, justify="right") for name in right))
    in_flight = 0
    for result in results:
        if result.in_flight != in_flight:
            table.add_section()
        table.add_row(
            "" if result.in_flight == in_flight else f"{result.in_flight}",
            str(result.client),
            f"{result.operations_per_s:,.0f}",
            f"{result.cpu_us_per_operation:.0f}",
            *map(decimals, (result.p50_ms, result.p90_ms, result.p99_ms)),
        )
        in_flight = result.in_flight
    return table
