"""``zmqraft bench``: appends and reads, by both clients, and how many a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal, TypeAlias, get_args

import attrs
import click
from rich.console import Console

from raft_client._common import event_loops, exits
from raft_client._common.command_line import print_json, print_table
from raft_client._common.measuring import Sample, decimals, summary, timed
from raft_client.aio.client import AsyncRaftClient
from raft_client.cli.options import connection_options
from raft_client.settings import RaftSettings
from raft_client.sync.client import RaftClient

# -- the workloads -----------------------------------------------------------------------------------------------------


#: A pipelined round has this many times the appends of a sequential one: it is that much faster.
_PIPELINE_FACTOR: Final = 8

ClientName: TypeAlias = Literal["sync", "aio"]
#: What is done, and who does it.
_Way: TypeAlias = "tuple[str, ClientName]"


@attrs.frozen
class BenchPlan:
    """How much to do. ``in_flight`` are the windows to measure with, besides one append at a time."""

    appends: int = 500
    rounds: int = 3
    data_bytes: int = 100
    in_flight: tuple[int, ...] = (64,)

    @property
    def data(self) -> bytes:
        """What all entries hold; says where it comes from to those who find it in their log."""
        return (b"zmqraft bench " + b"." * self.data_bytes)[: self.data_bytes]


def appended(plan: BenchPlan) -> int:
    """How many entries a run leaves in the log."""
    return plan.appends * plan.rounds * len(get_args(ClientName)) * (1 + _PIPELINE_FACTOR * len(plan.in_flight))


@attrs.frozen
class Measurement:
    """The medians of one way to do the work. Latencies are those of appends one at a time."""

    work: str
    client: ClientName
    operations_per_s: float
    cpu_us_per_operation: float
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None


def measure(settings: RaftSettings, plan: BenchPlan, progress: Callable[[str], None]) -> list[Measurement]:
    """Run every workload in turn, round after round, so that a change of the machine's pace meets all of them."""
    with RaftClient(settings) as client:
        start = client.log_info().last_applied
        works = _workloads(client, plan, start)
        results: dict[_Way, list[Sample]] = {way: [] for way in works}
        for number in range(plan.rounds):
            for way, run in works.items():
                progress(f"round {number + 1} of {plan.rounds}: {way[0]}, {way[1]}")
                results[way].append(run())
    return [Measurement(way[0], way[1], *summary(rounds)) for way, rounds in results.items()]


# -- workloads --------------------------------------------------------------------------------------------------------


def _workloads(client: RaftClient, plan: BenchPlan, start: int) -> Mapping[_Way, Callable[[], Sample]]:
    """In the order of the table: one at a time, each window, and then reading what was appended since ``start``."""
    works: dict[_Way, Callable[[], Sample]] = {}
    for in_flight in (1, *plan.in_flight):
        work = "append, one at a time" if in_flight == 1 else f"append, {in_flight} in flight"
        works[work, "sync"] = partial(_sync, client, plan, in_flight)
        works[work, "aio"] = partial(_aio, client.settings, plan, in_flight)
    works["read", "sync"] = partial(_read_sync, client, start)
    works["read", "aio"] = partial(_read_aio, client.settings, start)
    return works


def _sync(client: RaftClient, plan: BenchPlan, in_flight: int) -> Sample:
    data = plan.data
    with timed(plan.appends if in_flight == 1 else plan.appends * _PIPELINE_FACTOR) as timer:
        if in_flight == 1:
            for _ in range(plan.appends):
                timer.lap(lambda: client.append(data))
        else:
            client.append_many((data for _ in range(timer.operations)), in_flight=in_flight)
    return timer.sample


def _aio(settings: RaftSettings, plan: BenchPlan, in_flight: int) -> Sample:
    async def run() -> Sample:
        data = plan.data
        async with AsyncRaftClient(settings) as client:
            if in_flight == 1:
                with timed(plan.appends) as timer:
                    for _ in range(plan.appends):
                        started = time.perf_counter()
                        await client.append(data)
                        timer.latencies_s.append(time.perf_counter() - started)
                return timer.sample
            count = plan.appends * _PIPELINE_FACTOR
            with timed(count) as timer:
                await client.append_many((data for _ in range(count)), in_flight=in_flight)
            return timer.sample

    return event_loops.run(run())


def _read_sync(client: RaftClient, after: int) -> Sample:
    with timed() as timer:
        timer.operations = sum(1 for _ in client.entries(after))
    return timer.sample


def _read_aio(settings: RaftSettings, after: int) -> Sample:
    async def run() -> Sample:
        async with AsyncRaftClient(settings) as client:
            with timed() as timer:
                async for _ in client.entries(after):
                    timer.operations += 1
            return timer.sample

    return event_loops.run(run())


# -- the command -------------------------------------------------------------------------------------------------------


@click.command("bench")
@click.option("--appends", type=click.IntRange(min=1), default=500, show_default=True, help="One at a time.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Rounds; their median counts.")
@click.option("--size", type=click.IntRange(1, 10 * 1024 * 1024), default=100, show_default=True, help="Bytes.")
@click.option(
    "--in-flight",
    type=click.IntRange(2, 65_535),
    multiple=True,
    default=(64,),
    show_default=True,
    help="Pipelined; may be repeated.",
)
@click.option("--yes", is_flag=True, help="Do not ask: append to this log.")
@click.option("--json", "json_output", is_flag=True, help="One JSON object per measurement.")
@connection_options
def bench(
    *,
    appends: int,
    rounds: int,
    size: int,
    in_flight: tuple[int, ...],
    yes: bool,
    json_output: bool,
    settings: RaftSettings,
) -> int:
    """Measure appends and reads.

    It appends thousands of entries to the log of the cluster, and a log cannot be undone: use a cluster for tests. Both
    clients (sync, aio) take turns, and the medians of the rounds count.
    """
    plan = BenchPlan(appends, rounds, size, in_flight)
    _ask(plan, settings, yes)
    with Console(stderr=True).status("") as status:
        results = measure(settings.evolve(max_in_flight=max(settings.max_in_flight, *in_flight)), plan, status.update)
    if json_output:
        for result in results:
            print_json(attrs.asdict(result))
    else:
        print_table(_rows(results), left=2)
    return exits.DONE


def _ask(plan: BenchPlan, settings: RaftSettings, yes: bool) -> None:
    if yes:
        return
    what = f"append {appended(plan):,} entries to the log at {', '.join(settings.seeds)}"
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would {what}; give --yes if that is what you want")
    click.confirm(f"This will {what}. Go on?", abort=True, err=True)


def _rows(results: list[Measurement]) -> list[list[str]]:
    rows = [["work", "client", "a second", "CPU µs", "p50 ms", "p90 ms", "p99 ms"]]
    for result in results:
        numbers = (result.cpu_us_per_operation, result.p50_ms, result.p90_ms, result.p99_ms)
        rows.append([result.work, result.client, f"{result.operations_per_s:,.0f}", *map(decimals, numbers)])
    return rows
