"""``statestore lock | elect``: run a command in a process group of its own while holding a lock, or while leading.

Invariant: :func:`run_group` returns when no process of the group is left, so that what it guards can be given back.
Invariant: no signal that can be handed on ends this process while a command runs.

The group stands in the background of the terminal, so that its signals come to this process alone, which hands them on
and can be certain that the group ends. A group that wants the terminal is stopped by the kernel (SIGTTIN, SIGTTOU): it
is given the terminal then, and goes on. So a command may be interactive, and one that is not leaves the terminal to the
other commands of its pipeline.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Self, TypeVar

import attrs
import click

from raft_client._common import exits
from raft_client._common.command_line import (
    Seconds,
    argument_bytes,
    as_json,
    option_group,
    print_json,
    print_line,
    start_command,
)
from raft_client._common.standard_streams import ends_with_reader
from statestore_client.cli.lock_holder import own_name, show_lock
from statestore_client.cli.options import connection_options, open_client
from statestore_client.errors import LockNotAcquiredError, StateStoreError
from statestore_client.settings import ConnectionSettings
from statestore_client.sync.client import StateStoreClient
from statestore_client.sync.leases import Lease
from statestore_client.sync.locks import LockObservation

_F = TypeVar("_F", bound=Callable[..., object])

#: The command finds its fencing token here.
_TOKEN_VARIABLE: Final = "STATESTORE_FENCING_TOKEN"  # noqa: S105 - the name of a variable
LOCK_VARIABLE: Final = "STATESTORE_LOCK"
_ELECTION_VARIABLE: Final = "STATESTORE_ELECTION"
#: How long (seconds) the end may wait for a server that is away.
_RELEASE_S: Final = 2.0


@attrs.frozen
class Patience:
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
LEASE: Final = Seconds(0.01, 86_400)
_persist = click.option("--persist", is_flag=True, help="Mark its key as one that must be on the broker's disk.")


def patience_options(*no_wait: str) -> Callable[[_F], _F]:
    """The options of a command that waits for a lease, and the names of the one that says not to wait."""
    return option_group(
        click.option("-w", "--wait", type=Seconds(min=0), help=_WAIT_HELP),
        click.option(*no_wait, "no_wait", is_flag=True, help="Try once, as --wait 0."),
        click.option(
            "-E",
            "--conflict-exit-code",
            type=click.IntRange(0, 255),
            default=exits.NEGATIVE,
            show_default=True,
            help="The exit code when another holder has it.",
        ),
        click.option("--grace", type=Seconds(min=0), default=5.0, show_default=True, help=_GRACE_HELP),
        click.option("--foreground", is_flag=True, help=_FOREGROUND_HELP),
    )


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


@click.command("lock", cls=CommandLast)
@click.argument("name")
@click.argument("command", metavar="[--] [COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--lease", type=LEASE, default=10.0, show_default=True, help="How long it lasts; renewed while the command runs."
)
@click.option(
    "--holder", help="This holder's name, which must differ between all. Default: host, process, something unique."
)
@click.option("--show", is_flag=True, help="Run nothing: print who holds the lock.")
@click.option("--json", "json_output", is_flag=True, help="Of --show: one JSON object.")
@_persist
@patience_options("-n", "--no-wait")
@connection_options
def hold_lock(
    name: str,
    command: tuple[str, ...],
    *,
    lease: float,
    holder: str | None,
    show: bool,
    json_output: bool,
    persist: bool,
    settings: ConnectionSettings,
    **patience: Any,
) -> int:
    """Run COMMAND while holding the lock NAME. Example: statestore lock jobs/compact -- ./compact.sh

    COMMAND finds its fencing token in STATESTORE_FENCING_TOKEN and should pass it with every write. When the lease is
    lost, or the lock taken away (unlock --force, or del of its key), COMMAND is terminated and the exit code is 5;
    otherwise it is the exit code of COMMAND, also when the lock cannot be released for want of a connection: it is free
    when its lease ends, and a warning says when that is. 127 says that there is no COMMAND, 126 that it cannot be
    executed.

    With --show there is no COMMAND: who holds the lock is printed, as far as that can be known. Exit code 1 if nobody
    does.
    """
    if show == bool(command):
        raise click.UsageError("give either a COMMAND to run while holding the lock, or --show")
    if json_output and not show:
        raise click.UsageError("--json is for --show")
    how = Patience(**patience)
    with open_client(settings) as store:
        if show:
            return show_lock(store, name, json_output=json_output)
        own = own_name() if holder is None else argument_bytes(holder)
        lock = store.lock(argument_bytes(name), lease=lease, holder=own, persist=persist)
        variables = {LOCK_VARIABLE: name}
        held = Holding(f"the lock {name}", lease, lock.acquire, lambda _: lock.observe(), lambda _: variables)
        return held.run(command, how)


@click.command("elect", cls=CommandLast)
@click.argument("name")
@click.argument("command", metavar="[--] [COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--candidate", help="This candidate's name, which must differ between all. Default: a unique one.")
@click.option(
    "--term", type=LEASE, default=10.0, show_default=True, help="How long after a leader's death another can win."
)
@click.option("--listen", is_flag=True, help="Do not campaign: print the leader, and each change.")
@click.option("--count", type=click.IntRange(min=1), help="Of --listen: end after this many lines.")
@click.option("--json", "json_output", is_flag=True, help="Of --listen: one JSON object per line.")
@_persist
@patience_options("-n", "--no-wait")
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
    """Run COMMAND while leading in the election NAME. Example: statestore elect line1/active -- ./serve.sh

    COMMAND finds its fencing token in STATESTORE_FENCING_TOKEN and should pass it with every write. When the leadership
    is lost, COMMAND is terminated and the exit code is 5; otherwise it is the exit code of COMMAND, and the next
    candidate may lead. With --listen there is no COMMAND: the leaders' names are printed, and - when nobody leads.
    """
    if listen == bool(command):
        raise click.UsageError("give either a COMMAND to run while leading, or --listen")
    if not listen and (count is not None or json_output):
        raise click.UsageError("--count and --json are for --listen")
    how = Patience(**patience)
    with open_client(settings) as store:
        if listen:
            return _listen(store, argument_bytes(name), count, json_output)
        own = None if candidate is None else argument_bytes(candidate)
        election = store.election(argument_bytes(name), candidate=own, term=term, persist=persist)
        variables = {_ELECTION_VARIABLE: name}
        held = Holding(
            f"the election {name}", term, election.campaign, lambda _: election.observe(), lambda _: variables
        )
        return held.run(command, how)


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
class Holding:
    """A lease and the command that runs under it. ``what`` is held, for ``lease`` seconds unless it is renewed."""

    what: str
    lease: float
    #: Waits for so many seconds, or for ever.
    acquire: Callable[[float | None], Lease]
    #: What tells who has the key of the lease.
    observe: Callable[[Lease], LockObservation]
    #: What the command finds in its environment, beside the fencing token.
    variables: Callable[[Lease], dict[str, str]]

    def run(self, command: tuple[str, ...], how: Patience) -> int:
        """The exit code of the command, or why it did not run to its end."""
        try:
            held = self.acquire(how.timeout)
        except LockNotAcquiredError as error:
            click.echo(f"statestore: {error}", err=True)
            return how.conflict_exit_code
        with caught_signals() as arrived:  # none ends this process while COMMAND runs, or before the lease is released
            try:
                with _Watched(held, self.observe(held)) as watched:
                    return self._run(command, watched, how, arrived)
            finally:
                if held.valid:
                    self._release(held)

    def _run(self, command: tuple[str, ...], watched: _Watched, how: Patience, arrived: SimpleQueue[int]) -> int:
        held = watched.lease
        environment = os.environ | {_TOKEN_VARIABLE: str(held.fencing_token)} | self.variables(held)
        process = start_command(command, environment, own_group=not how.foreground)
        code = run_group(watched.is_good, process, how.grace, arrived, foreground=how.foreground)
        if code is None and watched.is_taken:
            click.echo(f"statestore: {self.what} was taken away; {command[0]} was terminated", err=True)
        elif code is None:
            click.echo(f"statestore: the lease on {held.name} was lost; {command[0]} was terminated", err=True)
        return exits.LEASE_LOST if code is None else code

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


class _Watched:
    """A lease whose key is watched: a renewal takes a lock again whose key was deleted, and nobody could tell that
    another contender may have had it in between. Where the key cannot be watched, renewals must do.
    """

    def __init__(self, lease: Lease, observation: LockObservation) -> None:
        self.lease = lease
        self.is_taken = False
        self._observation: LockObservation | None = observation

    def __enter__(self) -> Self:
        try:
            assert self._observation is not None  # noqa: S101 - entered once
            self._observation.start()
        except StateStoreError:  # not permitted, or the connection is down: the lease tells how that ends
            self._observation = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._observation is not None:
            self._observation.close()

    def is_good(self) -> bool:
        """Whether the lease is valid, and was its holder's all the time, as far as the watch has told."""
        if not self.lease.valid:
            return False
        while self._observation is not None and (state := self._observation.get(timeout=0)) is not None:
            self.is_taken = self.is_taken or state.holder != self.lease.holder
        return not self.is_taken


# -- the command and its processes -------------------------------------------------------------------------------------


#: How often (seconds) to look whether the command may go on.
_LOOK_S: Final = 0.1
#: What cannot be caught, and faults of this very process. Python ignores SIGPIPE and SIGXFSZ.
_NOT_CAUGHT: Final = {"SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"}
#: What a job is stopped with, by the keyboard or because it is in the background; and all that the keyboard sends.
_STOPS: Final = {getattr(signal, name, None) for name in ("SIGTSTP", "SIGTTIN", "SIGTTOU")}
_OF_TERMINAL: Final = _STOPS | {getattr(signal, name, None) for name in ("SIGINT", "SIGQUIT")}
_CHILD: Final = getattr(signal, "SIGCHLD", None)
_CONTINUE: Final = getattr(signal, "SIGCONT", None)
_STOP: Final = getattr(signal, "SIGTSTP", None)
_HAS_GROUPS: Final = hasattr(os, "killpg")  # Windows has none


@contextmanager
def caught_signals() -> Iterator[queue.SimpleQueue[int]]:
    """Collect the signals that come, in place of what they do otherwise. What is ignored stays so (``nohup``), but for
    SIGCHLD: where that is ignored, the system forgets the exit code of the command before anybody has asked for it.
    """
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()  # its put() may interrupt its get()
    spared = {getattr(signal, name, None) for name in _NOT_CAUGHT}
    caught = [
        number
        for number in signal.valid_signals()
        if number not in spared and (number == _CHILD or signal.getsignal(number) not in {signal.SIG_IGN, None})
    ]
    before = {number: signal.signal(number, lambda number, _frame: arrived.put(number)) for number in caught}
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_group(
    may_go_on: Callable[[], bool],
    process: subprocess.Popen[bytes],
    grace: float,
    arrived: queue.SimpleQueue[int],
    *,
    foreground: bool = False,
) -> int | None:
    """Wait for the end of the command and of its group; returns its exit code, as shells have it.

    None when it was ended because it may not go on any longer: with SIGTERM, and ``grace`` seconds later with SIGKILL.
    What a command leaves behind in its group is ended in the same way. ``arrived`` is handed on. With ``foreground``
    the command is in the group of this process, and all this holds for the command alone.
    """
    group = _Group(process, may_go_on, foreground=foreground or not _HAS_GROUPS)
    kill_at = math.inf
    was_lost = False
    try:
        while not group.has_ended():
            if kill_at == math.inf and (process.returncode is not None or not may_go_on()):
                was_lost = process.returncode is None
                group.end()
                kill_at = time.monotonic() + grace
            elif time.monotonic() >= kill_at:
                group.kill()
            with suppress(queue.Empty):
                group.hand_on(arrived.get(timeout=max(0.0, min(_LOOK_S, kill_at - time.monotonic())) or _LOOK_S))
    finally:
        group.take_terminal_back()
    code = process.returncode
    return None if was_lost else code if code >= 0 else 128 - code  # of a death by signal


class _Group:
    """The processes of one command."""

    def __init__(self, process: subprocess.Popen[bytes], may_go_on: Callable[[], bool], *, foreground: bool) -> None:
        self._process = process
        self._may_go_on = may_go_on
        self._is_alone = foreground  # there is no group
        self._is_beyond_us = False  # it runs as another user, and that was said
        self._has_sent_stop = False  # Ctrl-Z was handed on just now

    def has_ended(self) -> bool:
        """Whether no process is left; sets the exit code of the command, and sees to one that was stopped."""
        if not _HAS_GROUPS:
            return self._process.poll() is not None
        if self._process.returncode is None:
            was_sent, self._has_sent_stop = self._has_sent_stop, False
            pid, status = os.waitpid(self._process.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                # One that waited for the terminal by then would be continued, and Ctrl-Z be lost with that.
                self._has_stopped(signal.SIGTSTP if was_sent else os.WSTOPSIG(status))
            elif pid:
                self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._process.returncode is None:
            return False
        return self._is_alone or not self._is_there()

    def hand_on(self, number: int) -> None:
        """Hand a signal on. The command's own end or stop is seen by :meth:`has_ended`."""
        if self._is_alone and number in _OF_TERMINAL and _terminal_is_with(os.getpgrp()):
            return  # Ctrl-C has reached the command by itself
        if number == _CHILD or (number == _CONTINUE and not self._may_go_on()):
            return
        self._send(number)
        self._has_sent_stop = number == _STOP

    def end(self) -> None:
        """Ask for its end, also of one that is stopped."""
        self._send(signal.SIGTERM)
        if _HAS_GROUPS:
            self._send(signal.SIGCONT)

    def kill(self) -> None:
        """Nothing can refuse this."""
        self._send(signal.SIGKILL if _HAS_GROUPS else signal.SIGTERM)  # which is the same on Windows

    def take_terminal_back(self) -> None:
        """If it has it."""
        if not self._is_alone and _terminal_is_with(self._process.pid):
            _give_terminal_to(os.getpgrp())

    def _send(self, number: int) -> None:
        try:
            if self._is_alone:
                self._process.send_signal(number)
            else:
                os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError as error:
            if not self._is_beyond_us:
                self._is_beyond_us = True
                click.echo(f"statestore: the command cannot be signalled, only waited for: {error.strerror}", err=True)

    def _is_there(self) -> bool:
        """Whether a process of the group lives. Zombies do not; those that were left to this process are collected."""
        with suppress(ChildProcessError):
            while os.waitpid(-self._process.pid, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        states = list(_states(self._process.pid))
        return not states or any(state not in {b"Z", b"X"} for state in states)

    def _has_stopped(self, number: int) -> None:
        """See to a command that wants the terminal, or that Ctrl-Z has stopped. It goes on, unless its time is over."""
        if number not in _STOPS:
            return
        if number != signal.SIGTSTP and not self._is_alone and _terminal_is_with(os.getpgrp()):
            _give_terminal_to(self._process.pid)
        else:
            self._stop_as_well(number)
        if self._may_go_on():
            self._send(signal.SIGCONT)

    def _stop_as_well(self, number: int) -> None:
        """Stop, so that the shell can go on, until the shell continues this job.

        The whole job, where the kernel would have stopped it, were the command a part of it.
        """
        is_for_all = not self._is_alone and (number != signal.SIGTSTP or _terminal_is_with(self._process.pid))
        self.take_terminal_back()
        handler = signal.signal(number, signal.SIG_DFL)
        os.kill(0 if is_for_all else os.getpid(), number)
        signal.signal(number, handler)
        # Pause, since the stop has no effect where no shell watches this group, and the caller would try again at once.
        time.sleep(_LOOK_S)


def _states(group: int) -> Iterator[bytes]:
    """The states of its processes, where the system has files that tell them (Linux)."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _parent, number = path.read_bytes().rpartition(b")")[2].split()[:3]
            if int(number) == group:
                yield state


@contextmanager
def _terminal() -> Iterator[int]:
    """The terminal of this session. Raises OSError if it has none."""
    descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _terminal_is_with(group: int) -> bool:
    try:
        with _terminal() as descriptor:
            return os.tcgetpgrp(descriptor) == group
    except OSError:
        return False


def _give_terminal_to(group: int) -> None:
    """From the background, that would stop this process (SIGTTOU)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        with suppress(OSError), _terminal() as descriptor:  # hung up
            os.tcsetpgrp(descriptor, group)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
