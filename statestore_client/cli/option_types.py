"""What several commands want of the values of their options, beyond what click looks at.

The functions are callbacks of click: they return the value, or raise click's BadParameter.
"""

from __future__ import annotations

import math

import click

__all__ = ["finite", "nonempty_path"]


def finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """What is compared with "not a number" is always wrong."""
    del context, parameter
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number of seconds")
    return value


def nonempty_path(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """An empty one, mostly a variable that is not set, would be the current directory."""
    del context, parameter
    if value == "":
        raise click.BadParameter("it is empty")
    return value
