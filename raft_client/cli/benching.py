"""``zmqraft bench``."""

from __future__ import annotations

import sys

import attrs
import click
from rich.console import Console

from raft_client.cli import exits
from raft_client.cli.connection import connection_options
from raft_client.cli.output import print_json, print_table
from raft_client.cli.workloads import BenchPlan, Measurement, appended, measure
from raft_client.settings import RaftSettings


@click.command("bench")
@click.option("--appends", type=click.IntRange(min=1), default=500, show_default=True, help="One at a time.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Medians count.")
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
        rows.append([result.work, result.client, f"{result.operations_per_s:,.0f}", *map(_decimals, numbers)])
    return rows


def _decimals(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
