"""What several commands require of the values of their options, beyond what click checks.

The functions are callbacks of click: they return the value, or raise click's BadParameter.
"""

from __future__ import annotations

import math
from typing import Any

import click

__all__ = ["Seconds", "nonempty_path"]


class Seconds(click.FloatRange):
    """A finite time: a comparison with "not a number" is always false, and no wait can be endless."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, within the range."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{seconds} is not a number of seconds", param, ctx)
        return seconds


def nonempty_path(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """An empty one, mostly a variable that is not set, would be the current directory."""
    del context, parameter
    if value == "":
        raise click.BadParameter("it is empty")
    return value
