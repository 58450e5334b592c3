"""``statestore bench | demo``."""

from __future__ import annotations

import json

import attrs
import click
from rich.console import Console
from rich.table import Table

from statestore_client.cli import exits
from statestore_client.cli.benchmark import BenchPlan, measure, served
from statestore_client.cli.connection import connection_settings
from statestore_client.settings import ConnectionSettings

__all__ = ["bench", "demo"]


@click.command("bench")
@click.option("--url", help="A broker with a state store. Default: one of our own, in a process of its own.")
@click.option("--operations", type=click.IntRange(min=100), default=2000, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--value-size", type=click.IntRange(min=0), default=100, show_default=True, help="Bytes.")
@click.option("--in-flight", type=click.IntRange(min=2, max=65_535), default=64, show_default=True)
@click.option("--json", "json_output", is_flag=True, help="One JSON object per measurement.")
def bench(*, url: str | None, operations: int, rounds: int, value_size: int, in_flight: int, json_output: bool) -> int:
    """Measure SETs, one at a time and pipelined, beside the same work with hand-written paho."""
    plan = BenchPlan(operations, rounds, value_size, in_flight)
    if url is not None:
        _bench(connection_settings(url, None, 10.0), plan, json_output)
    else:
        with served() as own_url:
            _bench(ConnectionSettings.from_url(own_url), plan, json_output)
    return exits.DONE


def _bench(settings: ConnectionSettings, plan: BenchPlan, json_output: bool) -> None:
    with Console(stderr=True).status("") as status:
        results = measure(settings, plan, status.update)
    if json_output:
        for result in results:
            click.echo(json.dumps(attrs.asdict(result)))
        return
    table = Table("SET", "per second", "× paho", "p50 ms", "p99 ms", "client CPU µs")
    rates = {r.name: r.operations_per_s for r in results}
    for result in results:
        way = result.name.split(", ", 1)[1]
        table.add_row(
            result.name,
            f"{result.operations_per_s:,.0f}",
            f"{result.operations_per_s / rates[f'hand-written paho, {way}']:.2f}",
            "" if result.p50_ms is None else f"{result.p50_ms:.2f}",
            "" if result.p99_ms is None else f"{result.p99_ms:.2f}",
            f"{result.cpu_us_per_operation:.0f}",
        )
    Console().print(table)


@click.command("demo")
@click.option("--months", type=click.IntRange(1, 12), help="Only the first months of the year; a quicker demo.")
def demo(*, months: int | None) -> int:
    """Keep the latest state of each aircraft in New York's 336,776 departures of 2013, with Spark, and check it.

    Needs the extra: pip install 'statestore-client[demo]'.
    """
    from statestore_client.cli.demo import run_demo

    return run_demo(months=months)
