"""Running the user's commands: how they stand on the line, and how they begin."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Any

import click

from statestore_client.cli import exits

__all__ = ["CannotRunError", "CommandBehindDashes", "CommandLast", "started"]


class CommandLast(click.Command):
    """``NAME COMMAND [ARGUMENT]...``: options stand before COMMAND; all from it on is the user's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Sort the arguments: our options, --, NAME, COMMAND and what belongs to it."""
        options, rest = self._split(ctx, args)
        if options[-1:] == ["--"]:
            del options[-1]
        else:
            more, command = self._split(ctx, rest[1:])
            options += more[:-1] if more[-1:] == ["--"] else more
            rest = rest[:1] + command
        return super().parse_args(ctx, [*options, "--", *rest])

    def _split(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str]]:
        """What stands before the first word that is not an option, and from it on."""
        options = [parameter for parameter in self.params if isinstance(parameter, click.Option)]
        parser = click.Command(self.name, params=[*options]).make_parser(ctx)
        parser.allow_interspersed_args = False
        _, rest, _ = parser.parse_args([*args])
        return args[: len(args) - len(rest)], rest


class CommandBehindDashes(click.Command):
    """``KEY... [-- COMMAND [ARGUMENT]...]``. A first -- without a KEY before it stands before keys, as everywhere.

    The function gets ``command`` beside its parameters, empty without one.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split COMMAND off."""
        ours, command = _cut(args)
        options = [parameter for parameter in self.params if isinstance(parameter, click.Option)]
        if command and not click.Command(self.name, params=[*options]).make_parser(ctx).parse_args([*ours])[1]:
            keys, command = _cut(command)
            ours += ["--", *keys]
        rest = super().parse_args(ctx, ours)
        ctx.params["command"] = tuple(command)
        return rest


def _cut(args: list[str]) -> tuple[list[str], list[str]]:
    """What stands before the first --, and after it."""
    place = args.index("--") if "--" in args else len(args)
    return args[:place], args[place + 1 :]


class CannotRunError(click.ClickException):
    """A command that does not exist or cannot be executed; with the exit code that shells have."""

    def __init__(self, command: str, error: OSError | ValueError) -> None:
        super().__init__(f"cannot run {command}: {getattr(error, 'strerror', None) or error}")
        self.is_missing: bool = isinstance(error, FileNotFoundError)

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # a class variable of click's, and here it depends
        """127 or 126."""
        return exits.NOT_FOUND if self.is_missing else exits.NOT_EXECUTABLE

    def show(self, file: IO[Any] | None = None) -> None:
        """Shown as all our errors are."""
        click.echo(f"statestore: {self.message}", file=file, err=file is None)


def started(
    command: Sequence[str], environment: Mapping[str, str], *, stdin: int | None = None, own_group: bool = False
) -> subprocess.Popen[bytes]:
    """The process of the user's command, in a process group of its own if wanted. Raises CannotRunError."""
    group = 0 if own_group else None
    try:
        return subprocess.Popen(command, env=environment, stdin=stdin, process_group=group)  # noqa: S603 - running it is what the user asked for
    except (OSError, ValueError) as error:
        raise CannotRunError(command[0], error) from error
