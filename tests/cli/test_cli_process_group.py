"""``statestore lock NAME -- COMMAND``, and ``elect``: nothing of COMMAND outlives the lock, also at a terminal."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.waiting import eventually

from raft_client._common.command_line import start_command
from statestore_client import StateStoreClient
from statestore_client.cli import lock
from statestore_client.cli.lock import caught_signals, run_group
from statestore_client.server import EmbeddedServer

#: A child that says who it is and outlives SIGTERM, as a server that is about to shut down does.
STUBBORN = r"trap '' TERM; echo \$\$; while :; do sleep 0.05; done"


def _hear_all() -> None:
    """The tests may run under nohup, or behind an ampersand: then some signals are ignored, and would stay so."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def holding(
    server: EmbeddedServer, script: str, *options: str, command: Sequence[str] = ("lock", "job")
) -> Iterator[subprocess.Popen[str]]:
    """``statestore lock job`` with a shell that runs ``script``; what is left of it is killed."""
    arguments = [*command, "--url", server.url, *options, "--", "sh", "-c", script]
    with subprocess.Popen(
        [sys.executable, "-m", "statestore_client.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # without a terminal
        preexec_fn=_hear_all,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """Its next line."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def lives(pid: int) -> bool:
    """Whether this process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


@pytest.fixture
def kill_later() -> Iterator[list[int]]:
    """Process ids that a failed test leaves behind."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_the_exit_code_is_known_where_the_end_of_children_is_ignored() -> None:
    """A parent that ignores SIGCHLD, as some supervisors do, hands that on to the command line."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with caught_signals() as arrived:
            process = start_command(["sh", "-c", "exit 3"], os.environ, own_group=True)
            assert run_group(lambda: True, process, 1.0, arrived) == 3
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_ctrl_z_stops_a_command_that_waits_for_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped because it wants to read, and nobody has seen that yet: it is not just continued."""
    stopped: list[int] = []
    monkeypatch.setattr(lock._Group, "_stop_as_well", lambda _, number: stopped.append(number))
    monkeypatch.setattr(lock, "_terminal_is_with", lambda group: group == os.getpgrp())
    process = start_command(["sh", "-c", "kill -TTIN $$; sleep 60"], os.environ, own_group=True)
    group = lock._Group(process, lambda: True, foreground=False)
    try:
        stat = Path(f"/proc/{process.pid}/stat")
        eventually(lambda: stat.read_bytes().rpartition(b")")[2].split()[0] == b"T", "it waits for the terminal")
        group.hand_on(signal.SIGTSTP)
        assert not group.has_ended()
        assert stopped == [signal.SIGTSTP]
    finally:
        group.kill()
        process.wait()


@pytest.mark.parametrize("command", [("lock", "job"), ("elect", "job")])
def test_a_lost_lease_ends_all_that_the_command_has_started(
    statestore_server: EmbeddedServer,
    statestore_sync_client: StateStoreClient,
    command: tuple[str, str],
    kill_later: list[int],
) -> None:
    """When the lease is lost, a command that ignores SIGTERM is killed after the grace time, and its children are."""
    lasting = ("--lease" if command[0] == "lock" else "--term", "0.5")
    script = f"trap 'echo asked' TERM; sh -c \"{STUBBORN}\" & while :; do sleep 0.05; done"
    with holding(statestore_server, script, *lasting, "--grace", "0.4", command=command) as process:
        grandchild = int(line(process))
        kill_later.append(grandchild)
        statestore_sync_client.set("job", "thief", expiry=30)
        assert line(process) == "asked"
        asked = time.monotonic()
        assert process.wait(20) == 5
        assert time.monotonic() - asked >= 0.3
        assert not lives(grandchild)


def test_the_lock_is_held_until_no_process_of_the_command_is_left(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient, kill_later: list[int]
) -> None:
    """SIGTERM ends the command and not its child: the lock is given back once that was killed, and not before."""
    with holding(statestore_server, f'sh -c "{STUBBORN}" & echo $$; wait', "--grace", "0.5") as process:
        leader, grandchild = sorted([int(line(process)), int(line(process))])
        kill_later.append(grandchild)
        process.terminate()
        eventually(lambda: not lives(leader), "the command has ended")
        ended = time.monotonic()
        while lives(grandchild):
            assert statestore_sync_client.get("job") is not None or not lives(grandchild)
        assert time.monotonic() - ended >= 0.3
        assert process.wait(20) == 128 + signal.SIGTERM
    assert statestore_sync_client.get("job") is None


def test_what_a_command_leaves_behind_ends_with_it(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient, kill_later: list[int]
) -> None:
    """A child in the background ends when the command has ended by itself; the exit code is the command's."""
    with holding(statestore_server, "sleep 60 >&2 & echo $!; exit 7") as process:
        grandchild = int(line(process))
        kill_later.append(grandchild)
        assert process.wait(20) == 7
        assert not lives(grandchild)
    assert statestore_sync_client.get("job") is None


@pytest.mark.parametrize("command", [("lock", "job"), ("elect", "job")])
def test_signals_reach_the_command_and_end_nothing_else(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient, command: tuple[str, str]
) -> None:
    """Each signal that can be caught reaches the command, which decides; the lock is held until it ends."""
    names = ["HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "ABRT", "WINCH", "PROF", "VTALRM", "IO"]
    traps = "".join(f"trap 'echo {name}' {name}; " for name in names)
    script = f"{traps} echo ready; while [ -e /proc/$PPID ]; do sleep 0.02; done"
    with holding(statestore_server, script, "--grace", "0.1", command=command) as process:
        assert line(process) == "ready"
        for name in names:
            process.send_signal(signal.Signals[f"SIG{name}"])
            assert line(process) == name
        assert statestore_sync_client.get("job") is not None
        assert process.poll() is None


@pytest.mark.ci
def test_a_signal_that_was_ignored_stays_ignored(statestore_server: EmbeddedServer) -> None:
    """Under nohup, a hang-up reaches nobody."""
    with holding(statestore_server, "trap") as process:
        assert process.wait(20) == 0
    program = f"trap '' HUP; exec {sys.executable} -m statestore_client.cli lock job --url {statestore_server.url} -- "
    with subprocess.Popen(
        ["sh", "-c", program + "sh -c 'echo ready; read line; echo still'"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert line(process) == "ready"
        process.send_signal(signal.SIGHUP)
        assert process.communicate("\n", timeout=20)[0] == "still\n"
        assert process.returncode == 0


class Terminal:
    """An interactive shell in a pseudo-terminal, in which a person types."""

    def __init__(self) -> None:
        self._descriptor, theirs = pty.openpty()
        self._shell = subprocess.Popen(
            ["setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "PS1": "$ ", "TERM": "dumb"},
            preexec_fn=_hear_all,
        )
        os.close(theirs)
        self._seen = ""
        self._is_closed = False

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def expect(self, pattern: str) -> re.Match[str]:
        """Read until the terminal shows this, and forget what stands before its end."""
        os.set_blocking(self._descriptor, False)

        def shown() -> re.Match[str] | None:
            with suppress(BlockingIOError):
                self._seen += os.read(self._descriptor, 4096).decode()
            return re.search(pattern, self._seen)

        try:
            eventually(shown, pattern)
        except AssertionError:
            raise AssertionError(f"{pattern!r} is not in {self._seen!r}") from None
        found = shown()
        assert found is not None
        self._seen = self._seen[found.end() :]
        return found

    def close(self) -> None:
        """Hang up."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._descriptor)
            self._shell.kill()
            self._shell.wait()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


@pytest.fixture
def type_lock(terminal: Terminal, statestore_server: EmbeddedServer) -> Callable[..., None]:
    """Types ``statestore lock`` with a script for a shell, and waits until that says ``ready``."""

    def start(script: str, *options: str, tail: str = "") -> None:
        program = f"{sys.executable} -m statestore_client.cli lock job --url {statestore_server.url}"
        terminal.type(f"({program} {' '.join(options)} -- sh -c '{script}' {tail}; echo code=$?)\n")
        terminal.expect(r"ready\.\s")

    return start


#: What Ctrl-C and Ctrl-Z throw away: a line that was typed and not read yet. Hence the scripts say what they have read.
READY = "printf ready; echo .;"
FIRST = "read line; printf have-; echo $line;"
#: Until its prompt is there, a shell that says so has not set up the terminal again, and may lose what is typed.
STOPPED = r"Stopped[^\r]*\r\n\$ "


@pytest.mark.ci
@pytest.mark.parametrize("options", [(), ("--foreground",)])
def test_a_command_may_read_from_the_terminal(
    terminal: Terminal, type_lock: Callable[..., None], options: tuple[str, ...]
) -> None:
    """A command that reads from the terminal, or sets it, gets it (SIGTTIN, SIGTTOU); its job has it afterwards."""
    script = " read one; stty -echo; read two; stty echo; echo $one-$two"
    type_lock(READY + script, *options, tail="; read three; echo behind-$three")
    terminal.type("left\n")
    terminal.type("right\n")
    terminal.expect("left-right\r\n")
    terminal.type("three\n")
    terminal.expect("behind-three\r\n")


@pytest.mark.ci
@pytest.mark.parametrize("options", [(), ("--foreground",)])
@pytest.mark.parametrize("first", ["", FIRST])
def test_ctrl_c_reaches_the_command_once(
    terminal: Terminal, type_lock: Callable[..., None], options: tuple[str, ...], first: str
) -> None:
    """Ctrl-C reaches the command once, whether it has the terminal already or not, and it decides what follows."""
    times = 'n=0; trap "n=x\\$n; echo hit" INT; '
    type_lock(times + READY + first + " while [ $n = 0 ]; do sleep 0.05; done; sleep 0.3; echo $n; exit 9", *options)
    if first:
        terminal.type("line\n")
        terminal.expect("have-line\r\n")
    terminal.type("\x03")
    terminal.expect("hit\r\n")
    terminal.expect("x0\r\n")
    terminal.expect("code=9")


@pytest.mark.ci
@pytest.mark.parametrize("options", [(), ("--foreground",)])
@pytest.mark.parametrize("first", ["", FIRST])
def test_a_job_that_is_stopped_goes_on_in_the_foreground(
    terminal: Terminal, type_lock: Callable[..., None], options: tuple[str, ...], first: str
) -> None:
    """Ctrl-Z stops the command and gives the shell back; ``fg`` continues it, and it may read from the terminal."""
    type_lock(READY + first + " while read -r line; do echo got $line; done", *options, "--lease 60")
    if first:
        terminal.type("line\n")
        terminal.expect("have-line\r\n")
    terminal.type("\x1a")
    terminal.expect(STOPPED)
    terminal.type("printf 'a%s\\n' shell\n")
    terminal.expect("ashell\r\n")
    terminal.type("fg\n")
    terminal.type("hello\n")
    terminal.expect("got hello\r\n")
    terminal.type("\x04")
    terminal.expect("code=|\\$ $")


@pytest.mark.ci
def test_a_stopped_command_does_not_go_on_without_the_lock(
    terminal: Terminal, type_lock: Callable[..., None], statestore_sync_client: StateStoreClient
) -> None:
    """The lease ends while the job is stopped: when it is continued, the command is ended and does nothing more."""
    type_lock(READY + " read line; echo went on", "--lease 0.5", "--grace 0.2")
    terminal.type("\x1a")
    terminal.expect(STOPPED)
    eventually(lambda: statestore_sync_client.get("job") is None, "the lease has ended")
    terminal.type("fg\n")
    terminal.expect("the lease on job was lost; sh was terminated\r\n")
    assert "went on" not in terminal.expect("code=5").string


@pytest.mark.ci
def test_a_pipeline_keeps_the_terminal(terminal: Terminal, type_lock: Callable[..., None]) -> None:
    """A command that does not ask for the terminal leaves it to the rest of its pipeline."""
    # No single "sleep 60": dash starts it with vfork(), and a SIGINT that comes before its exec ends neither of them.
    type_lock(
        "echo a; printf ready >&2; echo . >&2; while :; do sleep 0.05; done",
        tail="| (read a; read b </dev/tty; echo b=$b)",
    )
    terminal.type("typed\n")
    terminal.expect("b=typed\r\n")
    terminal.type("\x03")
    terminal.expect(r"code=|\$ $")


@pytest.mark.ci
def test_a_hang_up_of_the_terminal_ends_the_command(
    terminal: Terminal, type_lock: Callable[..., None], statestore_sync_client: StateStoreClient
) -> None:
    """When the terminal is gone, its command ends, and the lock is given back."""
    type_lock(READY + " sleep 60", "--lease 60")
    terminal.close()
    eventually(lambda: statestore_sync_client.get("job") is None, "the lock was given back")
