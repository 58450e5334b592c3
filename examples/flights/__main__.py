"""``python -m flights``, in the folder ``examples``."""

from __future__ import annotations

import sys

import click

from .run import run_demo


@click.command("flights")
@click.option("--months", type=click.IntRange(1, 12), help="Only the first months of the year; a quicker demo.")
def main(*, months: int | None) -> None:
    """Keep the latest state of each aircraft in New York's 336,776 departures of 2013, with Spark, and check it.

    Exit code 1 when a state differs or a stale write got through, 2 when something is not installed, 4 when the server
    or its connection is lost.
    """
    sys.exit(run_demo(months=months))


if __name__ == "__main__":
    main()
