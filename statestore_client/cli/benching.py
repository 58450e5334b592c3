"""``statestore bench``."""

from __future__ import annotations

import attrs
import click
from rich.console import Console
from rich.table import Column, Table

from statestore_client.cli import exits
from statestore_client.cli.connection import optional_connection
from statestore_client.cli.output import print_json
from statestore_client.cli.workloads import DRIVERS, BenchPlan, Client, DriverName, Measurement, measure, served
from statestore_client.settings import ConnectionSettings

__all__ = ["bench"]


@click.command("bench")
@click.option("--operations", type=click.IntRange(min=100), default=2000, show_default=True, help="One at a time.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Medians count.")
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
            *map(_decimals, (result.p50_ms, result.p90_ms, result.p99_ms)),
        )
        in_flight = result.in_flight
    return table


def _decimals(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
