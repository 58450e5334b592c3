"""``zmqraft`` as a process of its own: signals, pipes and a terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from support.scripted_peers import UPDATE, ScriptedCluster
from support.terminals import read_to_end
from support.waiting import eventually

from raft_client import RaftClient

pytestmark = pytest.mark.ci  # each test starts processes, as the quick run does for other commands

COMMAND = [sys.executable, "-m", "raft_client.cli"]


@contextmanager
def zmqraft(peers: ScriptedCluster, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A running command; killed at the end if it is still there."""
    environment = os.environ | {"ZMQRAFT_SEEDS": peers.seeds, "TERM": "xterm"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    with subprocess.Popen([*COMMAND, *arguments], env=environment, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def line(stream: IO[bytes] | None) -> bytes:
    assert stream is not None
    return stream.readline()


@pytest.mark.parametrize("arguments", [("tail", "-f", "-n", "1"), ("watch", "k", "--after", "0")])
def test_following_ends_with_ctrl_c(peers: ScriptedCluster, arguments: list[str]) -> None:
    """Following prints entries as they come, and Ctrl-C ends it with exit code 130 and no message."""
    set_key = bytes.fromhex("92a26b769301c4016bc40176")  # ["kv", [1, "k", "v"]]
    peers.log.append(bytes(20) + set_key)
    with RaftClient(peers.seeds) as client, zmqraft(peers, *arguments) as process:
        assert line(process.stdout)
        for _ in range(2):  # each is read before the next one is made
            client.append(set_key)
            assert line(process.stdout)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20) == (b"", b"\n")  # behind the ^C that terminals print
    assert process.returncode == 130


def test_a_dump_ends_when_its_reader_goes_away(peers: ScriptedCluster) -> None:
    """A dump ends when its reader closes the pipe, although much is still to come."""
    peers.fill(5000)
    with zmqraft(peers, "dump") as process:
        assert line(process.stdout)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert (process.wait(20), process.stderr.read()) == (0, b"")


def test_a_reader_that_goes_away_ends_it(peers: ScriptedCluster) -> None:
    """Behind ``| head -1`` a command ends with exit code 0 and no message."""
    peers.fill(1)
    with zmqraft(peers, "tail", "-f", "-n", "1") as process:
        assert line(process.stdout) == b"1 state 0\n"
        assert process.stdout is not None
        process.stdout.close()
        peers.fill(3)
        assert process.stderr is not None
        assert (process.wait(20), process.stderr.read()) == (0, b"")


def test_lines_are_appended_as_they_arrive(peers: ScriptedCluster) -> None:
    """Behind ``tail -f log |`` each line is appended when it arrives."""
    with zmqraft(peers, "append", "--ids") as process:
        assert process.stdin is not None
        for n in (1, 2, 3):
            process.stdin.write(b"line\n")
            process.stdin.flush()
            assert line(process.stdout).startswith(b"%d " % n)
        assert process.communicate(timeout=20) == (b"", b"")
    assert process.returncode == 0


def test_interrupted_appends_say_what_is_in_doubt(peers: ScriptedCluster) -> None:
    """Interrupted appends say which lines are in the log for certain, and which may be."""
    peers.script("1", UPDATE, lambda _: [])
    with zmqraft(peers, "append", "--timeout", "60") as process:
        assert process.stdin is not None
        process.stdin.write(b"a\nb\nc\n")
        process.stdin.flush()
        eventually(lambda: any(seen[2] == UPDATE for seen in peers.seen))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, b"")
    assert err == (
        b"zmqraft: interrupted: appended nothing; of standard input, line 1 to standard input, line 3, "
        b"any may have been, too\n\n"
    )


def test_appends_are_interrupted_while_they_wait_for_input(peers: ScriptedCluster) -> None:
    """Appends that are interrupted while they wait for input say what is in the log, and that nothing is in doubt."""
    with zmqraft(peers, "append", "--ids") as process:
        assert process.stdin is not None
        process.stdin.write(b"line\n")
        process.stdin.flush()
        assert line(process.stdout)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, b"zmqraft: interrupted: appended 1 entry, index 1 to 1\n\n")


def test_people_see_progress(peers: ScriptedCluster, tmp_path: Path) -> None:
    """On a terminal standard error shows a progress bar, and standard output has nothing of it."""
    (tmp_path / "lines").write_bytes(b"line\n" * 2000)
    terminal, inside = pty.openpty()
    with zmqraft(peers, "append", str(tmp_path / "lines"), stderr=inside) as process:
        os.close(inside)
        shown = read_to_end(terminal)
        out, _ = process.communicate(timeout=20)
    assert out == b"appended 2000 entries, index 1 to 2000\n"
    assert b"appending" in shown


def redirected(peers: ScriptedCluster, redirection: str, *arguments: str, **environment: str) -> Any:
    """``zmqraft ARGUMENTS`` with a redirection of the shell's."""
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *COMMAND, *arguments]
    variables = os.environ | {"ZMQRAFT_SEEDS": peers.seeds} | environment
    return subprocess.run(command, capture_output=True, env=variables, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "redirection", "why"),
    [
        *((words, ">/dev/full", b"No space left on device") for words in (("tail", "--json"), ("dump",), ("info",))),
        *((words, ">&-", b"closed") for words in (("tail",), ("--help",))),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else each if isinstance(each, str) else "",
)
def test_output_that_cannot_be_written_is_exit_code_7(
    peers: ScriptedCluster, arguments: tuple[str, ...], redirection: str, why: bytes
) -> None:
    """Output that cannot be written gives one line and exit code 7, and not 1, which would mean a missing index."""
    peers.fill(3)
    done = redirected(peers, redirection, *arguments)
    assert done.returncode == 7, done.stderr
    assert done.stderr.startswith(b"zmqraft: standard output ")
    assert why in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", ">&- 2>&-"])
@pytest.mark.ci
def test_what_cannot_be_told_changes_no_exit_code(peers: ScriptedCluster, redirection: str) -> None:
    """A closed standard error changes no exit code."""
    assert redirected(peers, redirection, "config", "--timeout", "0").returncode == 2
    assert redirected(peers, redirection, "tail", "--from", "5").returncode == 1


def test_a_standard_input_that_cannot_be_read_is_a_usage_error(peers: ScriptedCluster, tmp_path: Path) -> None:
    """A standard input that cannot be read is a usage error, and nothing is appended."""
    for redirection, why in (("<&-", b"is closed"), (f"0>{tmp_path}/written", b"cannot be read: Bad file")):
        done = redirected(peers, redirection, "append")
        assert done.returncode == 2
        assert b"standard input " + why in done.stderr
    assert peers.log == []


def test_output_in_a_locale_without_utf_8(peers: ScriptedCluster) -> None:
    """In a locale without UTF-8 JSON is UTF-8, and the help is printed."""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    assert redirected(peers, "", "append", "--data", "ö", **ascii_only).returncode == 0
    assert "ö".encode() in redirected(peers, "", "tail", "--json", **ascii_only).stdout
    done = redirected(peers, "", "--help", **ascii_only)
    assert (done.returncode, b"MQ Raft" in done.stdout) == (0, True)
