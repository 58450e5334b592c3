"""``python -m failover``, in the folder ``examples``."""

from __future__ import annotations

import sys

import click

from .machines import enter_own_network
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
    """Kill the active one of three servers under load, let the next one hand over, pull the cable of the one after that
    where this system makes network namespaces, and check what was acknowledged.

    Exit code 1 when something is lost, 4 when no server answers.
    """
    has_own_network = enter_own_network(sys.executable, "-m", "failover", *sys.argv[1:])
    sys.exit(run_demo(seconds, has_own_network=has_own_network))


if __name__ == "__main__":
    main()
