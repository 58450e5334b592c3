"""``statestore lock``: exit codes as flock and shells have them, and a server that goes away."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from support.waiting import eventually

from statestore_client import StateStoreClient
from statestore_client.server import EmbeddedServer

LOCK = [sys.executable, "-m", "statestore_client.cli", "lock", "jobs/compact"]
COMMAND = ["--", "sh", "-c", "echo started; read line; exit 7"]


@pytest.mark.parametrize("words", [["lock", "job"], ["elect", "job"], ["watch", "key"]])
def test_a_command_line_in_one_word(here: Callable[..., tuple[int, str, str]], words: list[str]) -> None:
    """A command line given as one word gets the advice how to run a command of the shell."""
    for option in ("-c", "--command"):
        code, _, told = here(*words, option, "echo; exit 3")
        assert code == 2
        text = " ".join(told.split())
        assert f"statestore {words[0]} {'KEY' if words[1] == 'key' else 'NAME'} -- sh -c '…'" in text
        assert "a value that begins with -" not in text


@pytest.mark.ci
def test_the_commands_exit_code_survives_a_server_that_is_away() -> None:
    """The command's exit code comes at once although the server is away, and a line says until when the lock is not
    released."""
    with EmbeddedServer() as server:
        process = subprocess.Popen(
            [*LOCK, "--lease", "600", "--url", server.url, *COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
    began = datetime.now().astimezone()
    _, complaint = process.communicate(b"\n", timeout=60)
    assert process.returncode == 7
    *logged, last = complaint.splitlines()
    assert all(b": suspended: " in line for line in logged), complaint
    told = re.fullmatch(
        rb"statestore: the lock jobs/compact was not released; "
        rb"it is free when its lease ends, at (\d\d:\d\d:\d\d) at the latest \(.*\)",
        last,
    )
    assert told is not None, complaint
    hours, minutes, seconds = (int(part) for part in told[1].split(b":"))
    lasted = (datetime.now().astimezone() - began).total_seconds()
    soonest = began + timedelta(seconds=600)  # when it would end had the command ended at once
    late = (hours - soonest.hour) * 3600 + (minutes - soonest.minute) * 60 + seconds - soonest.second
    assert -1 <= (late + 43_200) % 86_400 - 43_200 <= lasted + 1


@pytest.mark.ci
def test_release_waits_a_short_time_for_a_server_that_does_not_answer() -> None:
    """Releasing waits two seconds for a server that does not answer, not the ten of a request."""
    with EmbeddedServer(faults=True) as server:
        process = subprocess.Popen(
            [*LOCK, "--lease", "600", "--url", server.url, *COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        server.faults.withhold("PUBLISH", times=None)
        began = time.monotonic()
        _, complaint = process.communicate(b"\n", timeout=60)
        assert process.returncode == 7
        assert b"no answer within 2 s" in complaint
        assert time.monotonic() - began >= 1.5


@pytest.mark.ci
def test_waiting_for_a_server_that_is_away_is_exit_code_4() -> None:
    """If the server is away at the end of the wait, the exit code is 4, and the command never runs."""
    with EmbeddedServer() as server:
        with StateStoreClient(server.url) as store:
            store.set("jobs/compact", "somebody", expiry=600)
        process = subprocess.Popen(
            [*LOCK, "--wait", "4", "--url", server.url, *COMMAND], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        eventually(lambda: sum(b"NEX" in m.payload for m in server.messages) >= 2, "it has asked, and watches")
    output, complaint = process.communicate(timeout=60)
    assert (process.returncode, output) == (4, b"")
    assert b"the lock jobs/compact was not acquired within 4 s, and whether it is free is not known" in complaint


def lock(server: EmbeddedServer, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    """``statestore lock jobs/compact ARGUMENTS`` with a server."""
    return subprocess.run([*LOCK, "--url", server.url, *arguments], capture_output=True, timeout=60)


def test_a_command_that_cannot_be_run_has_the_exit_code_of_shells(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient, tmp_path: Path
) -> None:
    """As in shells, a missing command gives 127 and one that is not a program 126, with one line; the lock is free."""
    text = tmp_path / "text"
    text.write_text("no program")
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x00\x01")
    garbage.chmod(0o755)
    for command, code in (("/no/such/command", 127), ("no-such-command", 127), (text, 126), (garbage, 126)):
        done = lock(statestore_server, "--", command)
        assert done.returncode == code
        assert re.fullmatch(rb"statestore: cannot run [^\n]+\n", done.stderr)
        assert str(command).encode() in done.stderr
        assert statestore_sync_client.get("jobs/compact") is None
    assert lock(statestore_server, "--", tmp_path).returncode == 126


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--wait", "0"], 1),
        (["-n"], 1),
        (["-nE", "75"], 75),
        (["--wait", "0.5", "-E", "0"], 0),
    ],
)
def test_a_lock_that_is_held(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient, options: list[str], code: int
) -> None:
    """A held lock gives exit code 1, or the one asked for, after one attempt or some time; a line says why."""
    with statestore_sync_client.lock("jobs/compact", lease=60):
        done = lock(statestore_server, *options, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (code, b"")
    assert done.stderr.startswith(b"statestore: the lock jobs/compact ")


def test_one_attempt_takes_a_lock_that_is_free(statestore_server: EmbeddedServer) -> None:
    """A single attempt takes a free lock, and the command's exit code is passed on."""
    for options in (["--no-wait", "--wait", "0"], ["-nE", "75"]):
        assert lock(statestore_server, *options, "--", "sh", "-c", "exit 7").returncode == 7


def test_options_that_mean_nothing(
    here: Callable[..., tuple[int, str, str]], statestore_server: EmbeddedServer
) -> None:
    """Options without a meaning give exit code 2 and the option's name before anything is locked."""
    for options in (
        *(["--grace", text] for text in ("nan", "inf", "-1")),
        *(["--wait", text] for text in ("nan", "inf", "-1")),
        *(["--lease", text] for text in ("nan", "inf", "0", "1e6")),
        *(["--timeout", text] for text in ("nan", "inf", "0")),
        ["-E", "256"],
        ["--no-wait", "--wait", "3"],
        ["--wiat", "3"],
    ):
        code, out, told = here("lock", "job", "--url", statestore_server.url, *options, "--", "echo", "ran")
        assert (code, out) == (2, ""), options
        assert {"-E": "--conflict-exit-code"}.get(options[0], options[0]) in told


def test_the_options_of_the_command_are_its_own(statestore_server: EmbeddedServer) -> None:
    """From its first word on, the command's options are its own, also without --, and when ours have the same names."""
    url = ("--url", statestore_server.url)
    for arguments in (
        (*url, "jobs/compact", "echo", "-n", "--wait", "nan", "--", "--help"),
        ("jobs/compact", *url, "echo", "-n", "--wait", "nan", "--", "--help"),
        ("jobs/compact", *url, "--", "echo", "-n", "--wait", "nan", "--", "--help"),
        (*url, "--", "jobs/compact", "echo", "-n", "--wait", "nan", "--", "--help"),
    ):
        done = subprocess.run([*LOCK[:-1], *arguments], capture_output=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, b"--wait nan -- --help")
