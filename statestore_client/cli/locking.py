"""``statestore lock``: run a command while holding a lock."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Final

import click

from statestore_client.cli import exits
from statestore_client.cli.connection import connection_options, open_client
from statestore_client.cli.output import argument_bytes
from statestore_client.errors import StateStoreError
from statestore_client.settings import ConnectionSettings
from statestore_client.sync.lock import Lease, Lock

__all__ = ["hold_lock"]

#: The command finds its fencing token here.
_TOKEN_VARIABLE: Final = "STATESTORE_FENCING_TOKEN"  # noqa: S105 - the name of a variable
_LOCK_VARIABLE: Final = "STATESTORE_LOCK"
#: How often (seconds) to look at the command while watching the lease.
_LOOK_S: Final = 0.1
#: How long (seconds) the end may wait for a server that is away.
_RELEASE_S: Final = 2.0


@click.command("lock", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--lease", type=float, default=10.0, show_default=True, help="Seconds; renewed while the command runs.")
@click.option(
    "--wait",
    type=float,
    default=None,
    help="Give up after so many seconds: exit code 1 if the lock is held, 4 if the server cannot be reached. "
    "Default: never.",
)
@click.option("--grace", type=float, default=5.0, show_default=True, help="Seconds between SIGTERM and SIGKILL.")
@connection_options
def hold_lock(
    name: str,
    command: tuple[str, ...],
    *,
    lease: float,
    wait: float | None,
    grace: float,
    settings: ConnectionSettings,
) -> int:
    """Run COMMAND while holding the lock NAME: statestore lock jobs/compact -- ./compact.sh

    COMMAND finds its fencing token in STATESTORE_FENCING_TOKEN and should pass it with every write. When the lease is
    lost, COMMAND is terminated and the exit code is 5; otherwise it is the exit code of COMMAND, also when the lock
    cannot be released for want of a connection: it is free when its lease ends, and a warning says when that is.
    """
    with open_client(settings) as store:
        lock = store.lock(argument_bytes(name), lease=lease)
        held = lock.acquire(timeout=wait)
        try:
            return _run(command, name, held, grace)
        finally:
            if held.valid:
                _release(lock, name, lease)


def _run(command: tuple[str, ...], name: str, lease: Lease, grace: float) -> int:
    environment = os.environ | {_TOKEN_VARIABLE: str(lease.fencing_token), _LOCK_VARIABLE: name}
    try:
        process = subprocess.Popen(command, env=environment)  # noqa: S603 - running it is what the user asked for
    except OSError as error:
        raise click.UsageError(f"cannot run {command[0]}: {error.strerror}") from error
    with _forwarded_signals(process):
        while True:
            try:
                code = process.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                if lease.valid:
                    continue
                _terminate(process, grace)
                click.echo(f"statestore: the lease on {name} was lost; {command[0]} was terminated", err=True)
                return exits.LEASE_LOST
            return code if code >= 0 else 128 - code  # as shells report a death by signal


def _release(lock: Lock, name: str, lease: float) -> None:
    """Not at any price: COMMAND has ended, its exit code matters more, and the lease ends by itself."""
    ends = datetime.now(tz=UTC).astimezone() + timedelta(seconds=lease)  # what was renewed last, was before now
    try:
        lock.release(timeout=_RELEASE_S)
    except StateStoreError as error:
        free = f"it is free when its lease ends, at {ends:%H:%M:%S} at the latest"
        click.echo(f"statestore: the lock {name} was not released; {free} ({error})", err=True)


def _terminate(process: subprocess.Popen[bytes], grace: float) -> None:
    process.terminate()
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _forwarded_signals(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand SIGTERM and SIGINT to the command; the lock is released when it has ended."""

    def forward(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
