"""Runs the user's commands: how they stand on the line, how they begin, and how they run in a group of their own.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import click

from statestore_client.cli import exits


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


#: How often (seconds) to look whether the command may go on.
_LOOK_S: Final = 0.1
#: What cannot be caught, and faults of this very process. Python ignores SIGPIPE and SIGXFSZ.
_NOT_CAUGHT: Final = {"SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"}
#: What a job is stopped with, by the keyboard or because it is in the background; and all that the keyboard sends.
_STOPS: Final = {getattr(signal, name, None) for name in ("SIGTSTP", "SIGTTIN", "SIGTTOU")}
_OF_TERMINAL: Final = _STOPS | {getattr(signal, name, None) for name in ("SIGINT", "SIGQUIT")}
_CHILD: Final = getattr(signal, "SIGCHLD", None)
_CONTINUE: Final = getattr(signal, "SIGCONT", None)
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

    def has_ended(self) -> bool:
        """Whether no process is left; sets the exit code of the command, and sees to one that was stopped."""
        if not _HAS_GROUPS:
            return self._process.poll() is not None
        if self._process.returncode is None:
            pid, status = os.waitpid(self._process.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                self._has_stopped(os.WSTOPSIG(status))
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
