"""``zmqraft watch -- COMMAND``: a command of the user's is run for each change."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import Any

import msgpack
import pytest
from support.scripted_peers import ScriptedCluster, compact

pytestmark = pytest.mark.ci  # each test starts processes, as the quick run does for other commands

Run = Any  # conftest.py has it

#: Prints what it is told; the value last.
SHOW = 'printf "%s|%s|%s|%s|" "$ZMQRAFT_EVENT" "$ZMQRAFT_INDEX" "$ZMQRAFT_KEY" "$ZMQRAFT_POSITION"; cat; echo'


#: The request id in a position.
ID = re.compile(rb"@[0-9a-f]{24}")


def started(peers: ScriptedCluster, *arguments: str | bytes) -> subprocess.Popen[bytes]:
    """``zmqraft watch`` in a process of its own, from the beginning of the log."""
    command = [sys.executable, "-m", "raft_client.cli", "watch", "--after", "0", *arguments]
    environment = os.environ | {"ZMQRAFT_SEEDS": peers.seeds}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True
    )


def watched(peers: ScriptedCluster, *arguments: str | bytes) -> tuple[int, bytes, bytes]:
    """Exit code and what was said."""
    with started(peers, *arguments) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, ID.sub(b"@ID", out), err


@pytest.fixture
def keys(run: Run) -> None:
    """A few changes."""
    for arguments in (("set", "a/1", "one\ntwo"), ("set", "b", "y"), ("del", "a/1")):
        assert run(*arguments).code == 0


@pytest.mark.usefixtures("keys")
def test_a_command_is_run_for_each_change(peers: ScriptedCluster) -> None:
    """The command of each change gets the value on standard input and the rest in its environment, and keeps its own
    options."""
    told = b"set|1|a/1|1@1@ID|one\ntwo\nset|2|b|2@1@ID|y\ndelete|3|a/1|3@1@ID|\n"
    assert watched(peers, "--count", "3", "--", "sh", "-c", SHOW, "--count") == (0, told, b"")
    assert watched(peers, "a/", "--count", "2", "--", "sh", "-c", SHOW, "--", "-x") == (
        0, b"set|1|a/1|1@1@ID|one\ntwo\ndelete|3|a/1|3@1@ID|\n", b"",
    )  # fmt: skip


def test_prefixes_behind_dashes_and_keys_that_are_no_text(peers: ScriptedCluster, run: Run) -> None:
    """A first -- stands before the prefixes, a second one before the command, and keys may be any bytes."""
    for key in ("-k", "other"):
        assert run("set", "--", key, "v").code == 0
    assert watched(peers, "--count", "1", "--", "-k", "--", "sh", "-c", SHOW)[:2] == (0, b"set|1|-k|1@1@ID|v\n")
    assert watched(peers, "--count", "1", "--", "-k", "--")[:2] == (0, b"set 1 -k v\n")
    data = msgpack.packb(["kv", [1, b"\xff", b"x"], [1, b"a\0", b"y"]])
    peers.log.append((1).to_bytes(12, "big") + b"\x00\x01" + bytes(6) + data)
    script = SHOW.replace("$ZMQRAFT_KEY", "$ZMQRAFT_KEY$ZMQRAFT_KEY_BASE64")
    assert watched(peers, "--count", "4", "--", "sh", "-c", script)[1].splitlines()[2:] == [
        b"set|3|\xff||x", b"set|3|YQA=|3@1@ID|y",
    ]  # fmt: skip


def test_a_snapshot_is_told_as_it_is_printed(peers: ScriptedCluster, run: Run) -> None:
    """The command is run for a snapshot's beginning, its keys, and its end."""
    for arguments in (("set", "a", "old"), ("set", "a", "x"), ("set", "c", "z")):
        run(*arguments)
    compact(peers, 2, msgpack.packb(["kv", [1, b"a", b"x"]]))
    told = b"snapshot|2|||\nset|2|a||x\ncomplete|2||2@1|\nset|3|c|3@1@ID|z\n"
    assert watched(peers, "--relist", "--count", "2", "--", "sh", "-c", SHOW)[:2] == (0, told)


def test_a_command_that_fails_is_told(peers: ScriptedCluster, run: Run) -> None:
    """After a command that fails, or does not read its standard input, the next change is still handled."""
    for value in ("v" * 1_000_000, "w"):
        assert run("set", "k", value).code == 0
    assert watched(peers, "--count", "2", "--", "sh", "-c", "echo ran; exit 3") == (
        0, b"ran\nran\n", b"zmqraft: sh ended with 3\n" * 2,
    )  # fmt: skip


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(("command", "code"), [("/no/such/command", 127), ("/", 126)])
def test_commands_that_cannot_be_run(peers: ScriptedCluster, command: str, code: int) -> None:
    """Commands that cannot be run give the exit codes of shells, as with ``statestore watch``."""
    done, out, complaint = watched(peers, "--", command)
    assert (done, out) == (code, b"")
    assert complaint.startswith(f"zmqraft: cannot run {command}: ".encode())


def test_it_is_interrupted_with_its_command(peers: ScriptedCluster, run: Run) -> None:
    """Ctrl-C ends ``watch`` and its command with exit code 130."""
    assert run("set", "k", "v").code == 0
    with started(peers, "--", "sh", "-c", "echo here; exec sleep 60") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.wait(20) == 130
        process.stdout.close()


def test_what_a_watch_cannot_do(run: Run) -> None:
    """Options that do not go together are usage errors before anything is watched; a prefix that begins with a dash
    stands between two --, because one would begin the command."""
    for arguments in (("--json", "--", "true"), ("--count", "0", "--", "true")):
        assert run("watch", *arguments).code == 2
    done = run("watch", "-k")
    assert (done.code, "put a value that begins with - between two --" in done.err) == (2, True)


def test_a_prefix_that_looks_like_a_pattern_gets_a_hint(peers: ScriptedCluster, run: Run) -> None:
    """A prefix that looks like a pattern gives a one-line hint, and is watched literally; brackets are common in
    keys."""
    for name in ("a/1", "ab", "a/*", "a?", "a[1]"):
        assert run("set", name, "another" if name in ("a/1", "ab") else "itself").code == 0
    taken = "zmqraft: '{}' is taken as a {} with these very characters\n"
    for key, options, told in (
        ("a/*", ("--json",), taken.format("a/*", "prefix")),
        ("a?", ("--tree",), taken.format("a?", "path")),
        ("a[", (), ""),
    ):
        code, out, hint = watched(peers, key, "--count", "1", *options)
        assert (code, hint.decode(), out.count(b"\n"), b"itself" in out) == (0, told, 1, True)
