"""``python -m flights``, in the folder ``examples``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .run import EVENTS, RATE, run_demo


@click.command("flights")
@click.option(
    "--events", type=click.IntRange(2000, 27_004), default=EVENTS, show_default=True, help="How many are appended."
)
@click.option("--rate", type=click.IntRange(50, 20_000), default=RATE, show_default=True, help="So many a second.")
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    default=Path("flights"),
    show_default=True,
    help="Where the picture goes: .png and .svg are added.",
)
def main(*, events: int, rate: int, picture: Path) -> None:
    """Departures go through a replicated log and Spark into a state store; one driver is killed, another one frozen.

    Exit code 1 when something was lost, doubled or is wrong, 2 when something is not installed, 4 when a server, a
    driver or a connection is lost.
    """
    sys.exit(run_demo(events=events, rate=rate, picture=picture))


if __name__ == "__main__":
    main()
