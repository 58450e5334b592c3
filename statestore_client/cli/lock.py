"""``statestore lock | elect``: run a command while holding a lock, or while leading."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any, Final

import attrs
import click

from raft_client._common.standard_streams import ends_with_reader
from statestore_client.cli import exits
from statestore_client.cli.connection import connection_options, open_client
from statestore_client.cli.io import Seconds, argument_bytes, as_json, print_json, print_line
from statestore_client.cli.user_commands import CommandLast, caught_signals, run_group, started
from statestore_client.errors import LockNotAcquiredError, StateStoreError
from statestore_client.settings import ConnectionSettings
from statestore_client.sync.client import StateStoreClient
from statestore_client.sync.leases import Lease

#: The command finds its fencing token here.
_TOKEN_VARIABLE: Final = "STATESTORE_FENCING_TOKEN"  # noqa: S105 - the name of a variable
_LOCK_VARIABLE: Final = "STATESTORE_LOCK"
_ELECTION_VARIABLE: Final = "STATESTORE_ELECTION"
#: How long (seconds) the end may wait for a server that is away.
_RELEASE_S: Final = 2.0


@attrs.frozen
class _Patience:
    """How long to wait for the lease, what to end with if somebody else has it, and how to end the command."""

    wait: float | None
    no_wait: bool
    conflict_exit_code: int
    grace: float
    foreground: bool

    def __attrs_post_init__(self) -> None:
        if self.no_wait and self.wait:
            raise click.UsageError(f"--no-wait and --wait {self.wait:g} contradict each other")

    @property
    def timeout(self) -> float | None:
        """Seconds, 0 for one attempt, None for ever."""
        return 0.0 if self.no_wait else self.wait


_GRACE_HELP: Final = "Between SIGTERM and SIGKILL at a loss, and for what COMMAND leaves behind."
_FOREGROUND_HELP: Final = (
    "Leave COMMAND in this process group, as a shell does. Only COMMAND itself is signalled and waited for then."
)
_WAIT_HELP: Final = (
    "Give up after this time: exit code 1 if somebody else has it, 4 if the server cannot be reached. 0 tries once. "
    "Default: never."
)
_LEASE: Final = Seconds(0.01, 86_400)
_persist = click.option("--persist", is_flag=True, help="Mark its key as one that must be on the broker's disk.")


def _patience_options(function: Callable[..., int]) -> Callable[..., int]:
    for option in (
        click.option("--foreground", is_flag=True, help=_FOREGROUND_HELP),
        click.option("--grace", type=Seconds(min=0), default=5.0, show_default=True, help=_GRACE_HELP),
        click.option(
            "-E",
            "--conflict-exit-code",
            type=click.IntRange(0, 255),
            default=exits.NEGATIVE,
            show_default=True,
            help="The exit code when somebody else has it.",
        ),
        click.option("-n", "--no-wait", is_flag=True, help="Try once, as --wait 0."),
        click.option("-w", "--wait", type=Seconds(min=0), help=_WAIT_HELP),
    ):
        function = option(function)
    return function


@click.command("lock", cls=CommandLast)
@click.argument("name")
@click.argument("command", metavar="[--] COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--lease", type=_LEASE, default=10.0, show_default=True, help="How long it lasts; renewed while the command runs."
)
@_persist
@_patience_options
@connection_options
def hold_lock(
    name: str,
    command: tuple[str, ...],
    *,
    lease: float,
    persist: bool,
    settings: ConnectionSettings,
    **patience: Any,
) -> int:
    """Run COMMAND while holding the lock NAME: statestore lock jobs/compact -- ./compact.sh

    COMMAND finds its fencing token in STATESTORE_FENCING_TOKEN and should pass it with every write. When the lease is
    lost, COMMAND is terminated and the exit code is 5; otherwise it is the exit code of COMMAND, also when the lock
    cannot be released for want of a connection: it is free when its lease ends, and a warning says when that is.
    127 says that there is no COMMAND, 126 that it cannot be executed.
    """
    how = _Patience(**patience)
    with open_client(settings) as store:
        lock = store.lock(argument_bytes(name), lease=lease, persist=persist)
        holding = _Holding(f"the lock {name}", lease, {_LOCK_VARIABLE: name})
        return holding.run(command, how, lock.acquire)


@click.command("elect", cls=CommandLast)
@click.argument("name")
@click.argument("command", metavar="[--] [COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--candidate", help="This candidate's name, which must differ between all. Default: a unique one.")
@click.option(
    "--term", type=_LEASE, default=10.0, show_default=True, help="How long after a leader's death another can win."
)
@click.option("--listen", is_flag=True, help="Do not campaign: print the leader, and each change.")
@click.option("--count", type=click.IntRange(min=1), help="Of --listen: end after this many lines.")
@click.option("--json", "json_output", is_flag=True, help="Of --listen: one JSON object per line.")
@_persist
@_patience_options
@connection_options
def elect(
    name: str,
    command: tuple[str, ...],
    *,
    candidate: str | None,
    term: float,
    listen: bool,
    count: int | None,
    json_output: bool,
    persist: bool,
    settings: ConnectionSettings,
    **patience: Any,
) -> int:
    """Campaign in the election NAME, and run COMMAND while leading: statestore elect line1/active -- ./serve.sh

    COMMAND finds its fencing token in STATESTORE_FENCING_TOKEN and should pass it with every write. When the leadership
    is lost, COMMAND is terminated and the exit code is 5; otherwise it is the exit code of COMMAND, and the next
    candidate may lead. With --listen there is no COMMAND: the leaders' names are printed, and - when nobody leads.
    """
    if listen == bool(command):
        raise click.UsageError("give either a COMMAND to run while leading, or --listen")
    if not listen and (count is not None or json_output):
        raise click.UsageError("--count and --json are for --listen")
    how = _Patience(**patience)
    with open_client(settings) as store:
        if listen:
            return _listen(store, argument_bytes(name), count, json_output)
        own = None if candidate is None else argument_bytes(candidate)
        election = store.election(argument_bytes(name), candidate=own, term=term, persist=persist)
        holding = _Holding(f"the election {name}", term, {_ELECTION_VARIABLE: name})
        return holding.run(command, how, election.campaign)


def _listen(store: StateStoreClient, name: bytes, count: int | None, json_output: bool) -> int:
    with store.election(name).observe() as leaders, ends_with_reader():
        for seen, state in enumerate(leaders, 1):
            if json_output:
                print_json(as_json("leader", state.holder))
            else:
                print_line(state.holder or "-")
            if seen == count:
                break
    return exits.DONE


@attrs.frozen
class _Holding:
    """A lease and the command that runs under it. ``what`` is held, for ``lease`` seconds unless it is renewed."""

    what: str
    lease: float
    variables: dict[str, str]

    def run(
        self,
        command: tuple[str, ...],
        how: _Patience,
        acquire: Callable[[float | None], Lease],
    ) -> int:
        """The exit code of the command, or why it did not run to its end."""
        try:
            held = acquire(how.timeout)
        except LockNotAcquiredError as error:
            click.echo(f"statestore: {error}", err=True)
            return how.conflict_exit_code
        with caught_signals() as arrived:  # none ends this process while COMMAND runs, or before the lease is released
            try:
                return self._run(command, held, how, arrived)
            finally:
                if held.valid:
                    self._release(held)

    def _run(self, command: tuple[str, ...], held: Lease, how: _Patience, arrived: SimpleQueue[int]) -> int:
        environment = os.environ | {_TOKEN_VARIABLE: str(held.fencing_token)} | self.variables
        process = started(command, environment, own_group=not how.foreground)
        code = run_group(lambda: held.valid, process, how.grace, arrived, foreground=how.foreground)
        if code is None:
            click.echo(f"statestore: the lease on {held.name} was lost; {command[0]} was terminated", err=True)
            return exits.LEASE_LOST
        return code

    def _release(self, held: Lease) -> None:
        """Try for a short time only: COMMAND has ended, its exit code matters more, and the lease ends by itself."""
        ends = datetime.now(tz=UTC).astimezone() + timedelta(
            seconds=self.lease
        )  # what was renewed last, was before now
        try:
            held.release(timeout=_RELEASE_S)
        except StateStoreError as error:
            free = f"it is free when its lease ends, at {ends:%H:%M:%S} at the latest"
            click.echo(f"statestore: {self.what} was not released; {free} ({error})", err=True)
