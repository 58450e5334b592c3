"""The frame of both commands: subcommands imported when used, errors, options, bytes in and out, commands of users.

An error becomes one line on standard error and an exit code. It names the option that is at fault: users who typed
``--client-id`` do not know the argument ``client_id``.
"""

from __future__ import annotations

import base64
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from raft_client._common import exits
from raft_client._common.standard_streams import run_guarded, shown

if TYPE_CHECKING:
    import subprocess

    from rich.progress import Progress

_E = TypeVar("_E", bound=Exception)
_F = TypeVar("_F", bound=Callable[..., Any])

# -- subcommands -------------------------------------------------------------------------------------------------------


class LazyGroup(click.Group):
    """Imports a command when it is used: a client does not wait for the server's imports."""

    def __init__(
        self,
        *args: Any,
        room: str,
        places: Mapping[str, str],
        errors: type[Exception],
        reword: Callable[[Any, click.Command], object],
        **options: Any,
    ) -> None:
        """``places`` has the module and the object of each command: ``"keys:get_key"`` of the package ``room``, or with
        the whole name of the module what both programs have.

        ``errors`` are those of the package; ``reword`` makes one name the options of the command, not the arguments of
        the API.
        """
        super().__init__(*args, **options)
        self._room = room
        self._places = places
        self._errors = errors
        self._reword = reword

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        place = self._places.get(cmd_name)
        if place is None:
            return None
        module, name = place.split(":")
        command: click.Command = getattr(import_module(module if "." in module else f"{self._room}.{module}"), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except self._errors as error:
            if (command := self.get_command(ctx, ctx.invoked_subcommand or "")) is not None:
                self._reword(error, command)
            raise

    def advise(self, error: click.NoSuchOption, context: click.Context) -> click.ClickException | None:
        """What else to say of an option that a command does not have; None for the usual."""
        del error, context
        return None


def run_command_line(
    program: str,
    group: LazyGroup,
    errors: type[_E],
    exit_code: Callable[[_E], int],
    advice: Callable[[_E], str] = lambda _: "",
) -> NoReturn:
    """Run the command line and end the process. Its ``errors`` become one line, with ``advice`` at its end."""

    def run() -> int:
        try:
            code = group(prog_name=program, standalone_mode=False)
        except OneLineError as error:
            click.echo(f"{program}: {error.message}", err=True)
            return error.exit_code
        except click.ClickException as error:
            _advised(error, group).show()
            return error.exit_code
        except (click.Abort, KeyboardInterrupt):
            return exits.INTERRUPTED
        except errors as error:
            click.echo(f"{program}: {error}{advice(error)}", err=True)
            return exit_code(error)
        return code if isinstance(code, int) else exits.DONE

    run_guarded(program, run)


def _advised(error: click.ClickException, group: LazyGroup) -> click.ClickException:
    """click's error about an unknown command or option, with what was probably meant."""
    if isinstance(error, click.UsageError) and error.message.startswith("No such command") and error.ctx is not None:
        there = error.ctx.command
        names = ", ".join(there.list_commands(error.ctx)) if isinstance(there, click.Group) else ""
        return click.UsageError(f"{error.message.removesuffix('.')}; there are {names}", error.ctx)
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error
    if error.ctx.parent is None:  # statestore --json get k
        return _belongs_after(error.option_name, group, error.ctx) or error
    if (advised := group.advise(error, error.ctx)) is not None:
        return advised
    command = error.ctx.command
    if error.possibilities or not any(isinstance(each, click.Argument) for each in command.params):
        return error
    is_between = isinstance(command, CommandBehindDashes) and not command.needs_words  # watch -k
    where = "a value that begins with - between two --" if is_between else "-- before a value that begins with -"
    return click.UsageError(f"{error.format_message().removesuffix('.')}; put {where}", error.ctx)  # set celsius -5


def _belongs_after(option: str, group: LazyGroup, context: click.Context) -> click.ClickException | None:
    """The error about an option that some command has, and the group has not."""
    commands = [group.get_command(context, name) for name in group.list_commands(context)]
    if any(option in parameter.opts for command in commands if command is not None for parameter in command.params):
        return click.UsageError(f"{option} belongs after the command: {context.info_name} COMMAND {option}", context)
    return None


# -- errors ------------------------------------------------------------------------------------------------------------


class OneLineError(click.ClickException):
    """Shown as the errors of the package are: it is no mistake of the command line, so nothing is said of how that is
    used.
    """


class AddressError(OneLineError):
    """A server cannot listen."""

    exit_code = exits.ADDRESS


def warn(message: str) -> None:
    """Print a line on standard error, as errors are. In the thread of the command."""
    click.echo(f"{click.get_current_context().find_root().info_name}: {message}", err=True)


def name_options(error: Any, command: click.Command, others: Mapping[str, str]) -> None:
    """Let an error name the options of ``command`` in place of the arguments of the API that its message names.

    ``error`` has ``arguments`` and a ``message``; ``others`` are arguments whose options have other names.
    """
    commands = command.commands.values() if isinstance(command, click.Group) else (command,)
    given = [parameter for each in commands for parameter in each.params if isinstance(parameter, click.Option)]
    options = {option.name or "": max(option.opts, key=len) for option in given}
    options |= {name: option for name, option in others.items() if option in options.values()}
    text = error.message
    for name in error.arguments:
        text = text.replace(name, options.get(name, name), 1)  # what follows may be the caller's own
    if error.arguments:
        error.args = (text, *error.args[1:])


# -- options -----------------------------------------------------------------------------------------------------------


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


def option_group(*several: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Several options of click as one decorator; the help has them in this order."""

    def declare(command: _F) -> _F:
        for option in reversed(several):
            command = option(command)
        return command

    return declare


# -- bytes in and out --------------------------------------------------------------------------------------------------


def argument_bytes(argument: str) -> bytes:
    """The bytes that were typed, valid text or not."""
    return os.fsencode(argument)


def as_json(name: str, data: bytes | None) -> dict[str, Any]:
    """``{name: text}``, or ``{name_base64: …}`` for bytes that are not UTF-8 text."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def json_line(value: dict[str, Any]) -> bytes:
    """One JSON object on one line, always UTF-8 whatever the locale."""
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def print_json(*parts: dict[str, Any]) -> None:
    """One JSON object of all ``parts`` on one line of standard output."""
    write(shown(json_line({name: value for part in parts for name, value in part.items()})))


def print_line(*words: bytes | str) -> None:
    """Words with blanks between them, and a line feed."""
    write(shown(b" ".join(w if isinstance(w, bytes) else w.encode() for w in words) + b"\n"))


def write(data: bytes) -> None:
    """Exactly these bytes on standard output; flushed, because pipes are read while we run."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def print_table(rows: Sequence[Sequence[str]], *, left: int) -> None:
    """Columns with two blanks between them; the first ``left`` are flush left. Never cut: they are copied and piped."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print_line("  ".join(cells).rstrip())


def stdout_is_terminal() -> bool:
    """Whether what we print and a progress bar would get into each other's way."""
    return sys.stdout.isatty()


def progress_bar(*, has_count: bool = True, shown: bool = True) -> Progress:
    """On standard error, and only for people who look at it. ``shown=False``: they look at something else."""
    from rich.console import Console  # most commands do without
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        *((MofNCompleteColumn(),) if has_count else ()),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))


# -- commands of users -------------------------------------------------------------------------------------------------


class CommandBehindDashes(click.Command):
    """``KEY... [-- COMMAND [ARGUMENT]...]``, where the words before the first -- may be left out, or have to be there.

    Where none stands before a first --, words with a dash in front may stand between it and another one:
    ``-- -x -- COMMAND``. The function gets ``command`` beside its parameters, empty without one.
    """

    @property
    def needs_words(self) -> bool:
        """Whether a word has to stand before COMMAND. A first -- without one stands before words then."""
        return any(isinstance(each, click.Argument) and each.required for each in self.params)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take COMMAND off."""
        ours, command = _cut(args)
        options = [parameter for parameter in self.params if isinstance(parameter, click.Option)]
        may_have_words = bool(command) if self.needs_words else "--" in command
        if may_have_words and not click.Command(self.name, params=[*options]).make_parser(ctx).parse_args([*ours])[1]:
            words, command = _cut(command)
            ours += ["--", *words]
        rest = super().parse_args(ctx, ours)
        ctx.params["command"] = tuple(command)
        return rest


def _cut(args: list[str]) -> tuple[list[str], list[str]]:
    """What stands before the first --, and after it."""
    place = args.index("--") if "--" in args else len(args)
    return args[:place], args[place + 1 :]


class CannotRunError(OneLineError):
    """A command that does not exist, or is not an executable program; with the exit code that shells have."""

    def __init__(self, command: str, error: OSError | ValueError) -> None:
        super().__init__(f"cannot run {command}: {getattr(error, 'strerror', None) or error}")
        self._is_missing = isinstance(error, FileNotFoundError)

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # a class variable of click's, and here it depends
        """127 or 126."""
        return exits.NOT_FOUND if self._is_missing else exits.NOT_EXECUTABLE


def start_command(
    command: Sequence[str], environment: Mapping[str, str], *, stdin: int | None = None, own_group: bool = False
) -> subprocess.Popen[bytes]:
    """The process of the user's command, in a process group of its own if wanted. Raises CannotRunError."""
    import subprocess  # most commands do without

    group = 0 if own_group else None
    try:
        return subprocess.Popen(command, env=environment, stdin=stdin, process_group=group)  # noqa: S603 - running it is what the user asked for
    except (OSError, ValueError) as error:
        raise CannotRunError(command[0], error) from error


def run_command(command: Sequence[str], environment: Mapping[str, str], data: bytes) -> None:
    """Run the command to its end with ``data`` on its standard input, and report a failure. Raises CannotRunError."""
    import subprocess

    process = start_command(command, environment, stdin=subprocess.PIPE)
    process.communicate(data)
    if process.returncode:
        warn(f"{command[0]} ended with {process.returncode}")


def key_variable(name: str, key: bytes) -> dict[str, str]:
    """The key as a variable of an environment; in Base64 and under another name if it cannot be in one."""
    if b"\0" in key:
        return {f"{name}_BASE64": base64.b64encode(key).decode()}
    return {name: os.fsdecode(key)}
