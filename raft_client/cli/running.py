"""Running the user's command: how it stands on the line, and what becomes of it when it cannot be run."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Any

import click

from raft_client.cli import exits
from raft_client.cli.output import warn


class CommandBehindDashes(click.Command):
    """``[PREFIX]... [-- COMMAND [ARGUMENT]...]``.

    Where nothing but options stands before the first of two --, words with a dash in front may stand between them:
    ``-- -x -- COMMAND``. The function gets ``command`` beside its parameters, empty without one.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take COMMAND off."""
        ours, command = _cut(args)
        options = [parameter for parameter in self.params if isinstance(parameter, click.Option)]
        if "--" in command and not click.Command(self.name, params=[*options]).make_parser(ctx).parse_args([*ours])[1]:
            words, command = _cut(command)
            ours += ["--", *words]
        rest = super().parse_args(ctx, ours)
        ctx.params["command"] = tuple(command)
        return rest


def _cut(args: list[str]) -> tuple[list[str], list[str]]:
    """What stands before the first --, and after it."""
    place = args.index("--") if "--" in args else len(args)
    return args[:place], args[place + 1 :]


class CannotRunError(click.ClickException):
    """A command that does not exist, or is not an executable program; with the exit code that shells have."""

    def __init__(self, command: str, error: OSError | ValueError) -> None:
        super().__init__(f"cannot run {command}: {getattr(error, 'strerror', None) or error}")
        self.is_missing: bool = isinstance(error, FileNotFoundError)

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # a class variable of click's, and here it depends
        """127 or 126."""
        return exits.NOT_FOUND if self.is_missing else exits.NOT_EXECUTABLE

    def show(self, file: IO[Any] | None = None) -> None:
        """As all our errors are shown."""
        click.echo(f"zmqraft: {self.message}", file=file, err=file is None)


def run_command(command: Sequence[str], environment: Mapping[str, str], data: bytes) -> None:
    """Run it to its end with ``data`` on its standard input. One that fails is told. Raises CannotRunError."""
    try:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)  # noqa: S603 - what the user asked for
    except (OSError, ValueError) as error:
        raise CannotRunError(command[0], error) from error
    process.communicate(data)
    if process.returncode:
        warn(f"{command[0]} ended with {process.returncode}")
