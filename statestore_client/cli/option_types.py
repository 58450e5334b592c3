"""What several commands require of the values of their options, beyond what click checks.

The functions are callbacks of click: they return the value, or raise click's BadParameter.
"""

from __future__ import annotations

import math
from typing import Any, Final

import click

__all__ = ["Seconds", "fencing_token_option", "nonempty_path"]

#: Of the commands that write.
fencing_token_option: Final = click.option(
    "--fencing-token", help="Write under this token, which lock and elect give to COMMAND in STATESTORE_FENCING_TOKEN."
)


class Seconds(click.FloatRange):
    """A finite time: a comparison with "not a number" is always false, and no wait can be endless."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, within the range."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return float(super().convert(seconds, param, ctx))


def nonempty_path(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """An empty one, mostly a variable that is not set, would be the current directory."""
    del context, parameter
    if value == "":
        raise click.BadParameter("it is empty")
    return value
