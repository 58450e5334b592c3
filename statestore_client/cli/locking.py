"""``statestore lock``: run a command while holding a lock."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from statestore_client.cli import exits
from statestore_client.cli.connection import connection_options, open_client
from statestore_client.cli.option_types import Seconds
from statestore_client.cli.output import argument_bytes
from statestore_client.cli.running import CommandLast, run_while, started
from statestore_client.errors import LockNotAcquiredError, StateStoreError
from statestore_client.settings import ConnectionSettings
from statestore_client.sync.lock import Lease, Lock

__all__ = ["hold_lock"]

#: The command finds its fencing token here.
_TOKEN_VARIABLE: Final = "STATESTORE_FENCING_TOKEN"  # noqa: S105 - the name of a variable
_LOCK_VARIABLE: Final = "STATESTORE_LOCK"
#: How long (seconds) the end may wait for a server that is away.
_RELEASE_S: Final = 2.0


@click.command("lock", cls=CommandLast)
@click.argument("name")
@click.argument("command", metavar="[--] COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--lease",
    type=Seconds(0.01, 86_400),
    default=10.0,
    show_default=True,
    help="How long it lasts; renewed while the command runs.",
)
@click.option(
    "-w",
    "--wait",
    type=Seconds(min=0),
    help="Give up after so long: exit code 1 if the lock is held, 4 if the server cannot be reached. 0 tries once. "
    "Default: never.",
)
@click.option("-n", "--no-wait", is_flag=True, help="Try once, as --wait 0.")
@click.option(
    "-E",
    "--conflict-exit-code",
    type=click.IntRange(0, 255),
    default=exits.NEGATIVE,
    show_default=True,
    help="The exit code when somebody else holds the lock.",
)
@click.option(
    "--grace", type=Seconds(min=0), default=5.0, show_default=True, help="Between SIGTERM and SIGKILL at a loss."
)
@connection_options
def hold_lock(
    name: str,
    command: tuple[str, ...],
    *,
    lease: float,
    wait: float | None,
    no_wait: bool,
    conflict_exit_code: int,
    grace: float,
    settings: ConnectionSettings,
) -> int:
    """Run COMMAND while holding the lock NAME: statestore lock jobs/compact -- ./compact.sh

    COMMAND finds its fencing token in STATESTORE_FENCING_TOKEN and should pass it with every write. When the lease is
    lost, COMMAND is terminated and the exit code is 5; otherwise it is the exit code of COMMAND, also when the lock
    cannot be released for want of a connection: it is free when its lease ends, and a warning says when that is.
    127 says that there is no COMMAND, 126 that it cannot be executed.
    """
    if no_wait and wait:
        raise click.UsageError(f"--no-wait and --wait {wait:g} contradict each other")
    with open_client(settings) as store:
        lock = store.lock(argument_bytes(name), lease=lease)
        try:
            held = _acquire(lock, 0.0 if no_wait else wait)
        except LockNotAcquiredError as error:
            click.echo(f"statestore: {error}", err=True)
            return conflict_exit_code
        try:
            return _run(command, name, held, grace)
        finally:
            if held.valid:
                _release(lock, name, lease)


def _acquire(lock: Lock, wait: float | None) -> Lease:
    if wait != 0:
        return lock.acquire(timeout=wait)
    if (lease := lock.try_acquire()) is None:
        raise LockNotAcquiredError(f"the lock {lock.name} is held by somebody else")
    return lease


def _run(command: tuple[str, ...], name: str, lease: Lease, grace: float) -> int:
    environment = os.environ | {_TOKEN_VARIABLE: str(lease.fencing_token), _LOCK_VARIABLE: name}
    code = run_while(lambda: lease.valid, started(command, environment), grace)
    if code is None:
        click.echo(f"statestore: the lease on {name} was lost; {command[0]} was terminated", err=True)
        return exits.LEASE_LOST
    return code


def _release(lock: Lock, name: str, lease: float) -> None:
    """Not at any price: COMMAND has ended, its exit code matters more, and the lease ends by itself."""
    ends = datetime.now(tz=UTC).astimezone() + timedelta(seconds=lease)  # what was renewed last, was before now
    try:
        lock.release(timeout=_RELEASE_S)
    except StateStoreError as error:
        free = f"it is free when its lease ends, at {ends:%H:%M:%S} at the latest"
        click.echo(f"statestore: the lock {name} was not released; {free} ({error})", err=True)
