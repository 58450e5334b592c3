"""The command group, and what every command does with errors.

Exit codes, the same for all commands:

====  ==========================================================================================
0     done
1     a negative answer: no such key, condition not met, value differs, lock held by another all the time
2     the command line cannot be used
3     the state store refused (fencing token, quota, clock skew, not authorized, ...), or broke the protocol
4     no connection, or no answer in time: later it may be there
5     the lease of ``lock``, ``elect``, ``semaphore`` or ``members`` was lost, or taken away, while the command ran
6     the data directory of a server, or a file of ``export``, cannot be used or is damaged, or a server's disk failed
7     standard output is closed or cannot be written; what was asked for may be done
8     done in part: some lines (``load``), keys (``import``, ``del --prefix``, ``unlock --fence``) or records (``check
      --salvage``) are left out
9     the broker does not admit this client (user, password, token, certificate, client id), or it is not trusted
10    a server cannot listen: its address is taken, or not of this machine
130   interrupted (Ctrl-C), which is also how ``watch`` is ended
====  ==========================================================================================

``statestore lock`` otherwise ends with the exit code of the command that it ran; 127 when there is no such command, and
126 when it cannot be executed.
"""

from __future__ import annotations

from typing import Final, NoReturn

import click

from raft_client._common import exits
from raft_client._common.command_line import CommandBehindDashes, LazyGroup, run_command_line
from statestore_client.cli.options import for_any_command, reword
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
    "barrier": "recipes:barrier",
    "bench": "bench:bench",
    "check": "data:check_data",
    "counter": "recipes:counter",
    "del": "keys:delete_key",
    "elect": "lock:elect",
    "export": "transfer:export_keys",
    "get": "keys:get_key",
    "ha": "ha:ha",
    "import": "transfer:import_keys",
    "info": "info:info",
    "keys": "raft_client._common.keys_command:keys",
    "kv": "kv:kv",
    "load": "load:load",
    "lock": "lock:hold_lock",
    "members": "recipes:members",
    "monitor": "monitor:monitor",
    "passwd": "passwd:passwd",
    "ping": "ping:ping",
    "retained": "data:retained",
    "scan": "keys:scan_keys",
    "semaphore": "recipes:semaphore",
    "serve": "serve:serve",
    "sessions": "data:sessions",
    "set": "keys:set_key",
    "top": "top:top",
    "unlock": "lock_holder:unlock",
    "vdel": "keys:vdelete_key",
    "watch": "watch:watch_key",
}


class _Commands(LazyGroup):
    def advise(self, error: click.NoSuchOption, context: click.Context) -> click.ClickException | None:
        """How ``statestore lock NAME -c '…'`` is written here, for those who know flock."""
        from statestore_client.cli.lock import CommandLast  # most commands do without

        kinds = {CommandLast: "NAME", CommandBehindDashes: "KEY"}
        if error.option_name not in ("-c", "--command") or (name := kinds.get(type(context.command))) is None:
            return None
        usage = f"{context.command_path} {name} -- sh -c '…'"
        return click.UsageError(f"no such option {error.option_name!r}; a command for the shell is {usage}", context)


@click.group(
    cls=_Commands,
    room="statestore_client.cli",
    places=_COMMANDS,
    errors=StateStoreError,
    reword=reword,
    epilog="Exit codes: 0 done, 1 negative answer, 2 usage, 3 refused by the state store, 4 no connection, 5 the lease "
    "of lock was lost, 6 a data directory, a replicated log or a file cannot be used, 7 no standard output, 8 done in "
    "part, 9 not admitted by the broker, 10 an address is taken, 130 interrupted.",
)
@click.version_option(package_name="statestore-client")
@for_any_command
def cli() -> None:
    """Read, write, watch and lock keys of an MQTT state store, or serve one.

    Try it: `statestore serve` in one terminal; in another one

    
      export STATESTORE_URL=mqtt://127.0.0.1:1883
      statestore set line1/speed 42
      statestore get line1/speed"""


def main() -> NoReturn:
    """Run the command line; errors become one line on standard error and an exit code."""
    run_command_line("statestore", cli, StateStoreError, _exit_code)


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
