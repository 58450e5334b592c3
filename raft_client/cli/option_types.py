"""What several commands want of the values of their options, beyond what click looks at."""

from __future__ import annotations

import math
from typing import Any

import click

from raft_client.errors import InvalidArgumentError
from raft_client.wire.log_entry import Position


class Index(click.IntRange):
    """The index of an entry."""

    name = "index"

    def __init__(self) -> None:
        super().__init__(min=1)


class Seconds(click.FloatRange):
    """A finite time: comparisons with "not a number" are false, and nothing can wait for an infinite time."""

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


def to_position(_context: click.Context, _option: click.Parameter, value: str | None) -> Position | None:
    """For options: ``INDEX``, or ``INDEX@TERM``, of which the term is checked."""
    try:
        return None if value is None else Position.parse(value)
    except InvalidArgumentError as error:
        raise click.BadParameter(error.message) from None
