"""``python -m failover``, in the folder ``examples``."""

from __future__ import annotations

import sys

import click

from .run import run_demo


@click.command("failover")
@click.option(
    "--seconds",
    type=click.FloatRange(0.2, 60.0),
    default=2.0,
    show_default=True,
    help="Of load before and after each event.",
)
def main(*, seconds: float) -> None:
    """Kill the active one of three servers under load, let the next one hand over, and check what was acknowledged.

    Exit code 1 when something is lost, 4 when no server answers.
    """
    sys.exit(run_demo(seconds))


if __name__ == "__main__":
    main()
