"""Positions on the command line."""

from __future__ import annotations

import click

from raft_client.errors import InvalidArgumentError
from raft_client.wire.positions import Position

__all__ = ["to_position"]


def to_position(_context: click.Context, _option: click.Parameter, value: str | None) -> Position | None:
    """For options: ``INDEX``, or ``INDEX@TERM``, of which the term is checked."""
    try:
        return None if value is None else Position.parse(value)
    except InvalidArgumentError as error:
        raise click.BadParameter(error.message) from None
