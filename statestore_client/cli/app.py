"""The command group, and what every command does with errors.

Exit codes, the same for all commands:

====  ==========================================================================================
0     done
1     a negative answer: no such key, condition not met, value differs, lock held by another all the time
2     the command line cannot be used
3     the state store refused (fencing token, quota, clock skew, not authorized, ...), or broke the protocol
4     no connection, or no answer in time: later it may be there
5     the lease of ``statestore lock`` or ``elect`` was lost while the command ran
6     the data directory of a server cannot be used or is damaged, or its disk failed
7     standard output is closed or cannot be written; what was asked for may be done
8     some lines of ``statestore load`` cannot be used; the others are stored
9     the broker does not admit this client (user, password, token, certificate, client id), or it is not trusted
10    a server cannot listen: its address is taken, or not of this machine
130   interrupted (Ctrl-C), which is also how ``watch`` is ended
====  ==========================================================================================

``statestore lock`` otherwise ends with the exit code of the command that it ran; 127 when there is no such command, and
126 when it cannot be executed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NoReturn

import click

from raft_client._common.standard_streams import run_guarded
from statestore_client.cli import exits
from statestore_client.cli.connection import for_any_command
from statestore_client.cli.io import name_options
from statestore_client.errors import (
    ClosedError,
    DataDirectoryError,
    InvalidArgumentError,
    LockNotAcquiredError,
    ReplicatedLogError,
    StateStoreError,
    TransportError,
)

#: Module and object of each command.
_COMMANDS: Final = {
    "bench": "bench:bench",
    "check": "check:check_data",
    "del": "keys:delete_key",
    "elect": "lock:elect",
    "get": "keys:get_key",
    "ha": "ha:ha",
    "kv": "kv:kv",
    "load": "load:load",
    "lock": "lock:hold_lock",
    "monitor": "monitor:monitor",
    "passwd": "passwd:passwd",
    "ping": "ping:ping",
    "retained": "data:retained",
    "scan": "keys:scan_keys",
    "serve": "serve:serve",
    "sessions": "data:sessions",
    "set": "keys:set_key",
    "top": "top:top",
    "vdel": "keys:vdelete_key",
    "watch": "watch:watch_key",
}


class _Commands(click.Group):
    """Imports a command when it is used: a client does not wait for the server's imports, nor the server for paho's."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, name = place.split(":")
        command: click.Command = getattr(import_module(f"statestore_client.cli.{module}"), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Its errors name its options, not the arguments of the API."""
        try:
            return super().invoke(ctx)
        except StateStoreError as error:
            if (command := self.get_command(ctx, ctx.invoked_subcommand or "")) is not None:
                name_options(error, command)
            raise


@click.group(
    cls=_Commands,
    epilog="Exit codes: 0 done, 1 negative answer, 2 usage, 3 refused by the state store, 4 no connection, 5 the lease "
    "of lock was lost, 6 a data directory or a replicated log cannot be used, 7 no standard output, 8 some lines were "
    "not loaded, 9 not admitted by the broker, 10 an address is taken, 130 interrupted.",
)
@click.version_option(package_name="statestore-client")
@for_any_command
def cli() -> None:
    """Read, write, watch and lock keys of an MQTT state store, or serve one."""


def main() -> NoReturn:
    """Run the command line; errors become one line on standard error and an exit code."""
    run_guarded("statestore", _run)


def _run() -> int:
    try:
        code = cli(prog_name="statestore", standalone_mode=False)
    except click.ClickException as error:
        _advised(error).show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return exits.INTERRUPTED
    except StateStoreError as error:
        click.echo(f"statestore: {error}", err=True)
        return _exit_code(error)
    return code if isinstance(code, int) else exits.DONE


def _advised(error: click.ClickException) -> click.ClickException:
    """click's error about an unknown command or option, with what was probably meant."""
    if isinstance(error, click.UsageError) and error.message.startswith("No such command") and error.ctx is not None:
        group = error.ctx.command
        names = ", ".join(group.list_commands(error.ctx)) if isinstance(group, click.Group) else ""
        return click.UsageError(f"{error.message.removesuffix('.')}; there are {names}", error.ctx)
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error
    if error.ctx.parent is None:  # statestore --json get k
        return _belongs_after(error.option_name, error.ctx) or error
    if error.option_name in ("-c", "--command") and (usage := _behind_dashes(error.ctx)) is not None:
        return click.UsageError(f"no such option {error.option_name!r}; a command for the shell is {usage}", error.ctx)
    if error.possibilities:
        return error
    text = error.format_message().removesuffix(".")
    if not any(isinstance(each, click.Argument) for each in error.ctx.command.params):
        return error
    return click.UsageError(f"{text}; put -- before a value that begins with -", error.ctx)  # set celsius -5


def _behind_dashes(context: click.Context) -> str | None:
    """How ``statestore lock NAME -c '…'`` is written here, for those who know flock. None if it runs no commands."""
    from statestore_client.cli.user_commands import CommandBehindDashes, CommandLast  # most commands do without

    name = {CommandLast: "NAME", CommandBehindDashes: "KEY"}.get(type(context.command))
    return None if name is None else f"{context.command_path} {name} -- sh -c '…'"


def _belongs_after(option: str, context: click.Context) -> click.ClickException | None:
    """The error about an option that some command has, and the group has not."""
    commands = [cli.get_command(context, name) for name in cli.list_commands(context)]
    if any(option in parameter.opts for command in commands if command is not None for parameter in command.params):
        return click.UsageError(f"{option} belongs after the command: statestore COMMAND {option}", context)
    return None


def _exit_code(error: StateStoreError) -> int:
    if isinstance(error, LockNotAcquiredError):
        return exits.NEGATIVE
    if isinstance(error, InvalidArgumentError):
        return exits.USAGE
    if isinstance(error, DataDirectoryError | ReplicatedLogError):
        return exits.DATA
    if isinstance(error, ClosedError) and isinstance(error.__cause__, StateStoreError):
        return _exit_code(error.__cause__)  # why the client has ended
    if isinstance(error, TransportError):
        return exits.NOT_ADMITTED if error.fatal else exits.NO_CONNECTION
    return exits.REFUSED
