"""``statestore load``: many keys out of files and pipes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.terminals import read_to_end
from support.waiting import eventually

from statestore_client import StateStoreClient
from statestore_client.server import EmbeddedServer
from statestore_client.server.store import StoreLimits

pytestmark = pytest.mark.ci  # each test starts processes, as the quick run does for other commands

LOAD = [sys.executable, "-m", "statestore_client.cli", "load"]


def load(server: EmbeddedServer, *arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """``statestore load ARGUMENTS``."""
    return subprocess.run([*LOAD, "--url", server.url, *arguments], input=stdin, capture_output=True, timeout=120)


def test_files_and_standard_input_are_loaded(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient, tmp_path: Path
) -> None:
    """Each line of files and standard input is a key; other fields that get --json prints, and empty lines, are
    ignored."""
    lines = [{"key": f"k{n}", "value": f"v{n}", "version": "x"} for n in range(3000)]
    (tmp_path / "keys").write_text("\n\n".join(map(json.dumps, lines)))
    binary = b'{"key_base64": "//4=", "value_base64": "gA=="}\n'
    done = load(statestore_server, tmp_path / "keys", "-", stdin=binary)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"stored 3001 keys\n", b"")
    items = statestore_sync_client.get_many([*(f"k{n}" for n in range(3000)), b"\xff\xfe"])
    assert [item and item.value for item in items] == [*(b"v%d" % n for n in range(3000)), b"\x80"]


def test_lines_that_cannot_be_used_are_named(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """Lines that cannot be used are named and give exit code 8, and the others are stored."""
    bad = [
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"key": "k"}',
        b'{"key": 5, "value": "v"}',
        b'{"key": "", "value": "v"}',
        b'{"key": "\\ud800", "value": "v"}',
        b'{"key_base64": "!", "value": "v"}',
        b'{"key": "k", "value": "v", "expiry": "soon"}',
        b'{"key": "k", "value": "v", "expiry": NaN}',
        b"\xff",
    ]
    good = b'{"key": "good", "value": "v"}'
    done = load(statestore_server, "--json", stdin=b"\n".join([*bad, good]))
    assert done.returncode == 8
    assert json.loads(done.stdout) == {"stored": 1, "refused": len(bad)}
    complaints = done.stderr.decode().splitlines()
    assert [line.partition(":")[2].partition(":")[0] for line in complaints] == [
        f" standard input, line {n}" for n in range(1, len(bad) + 1)
    ]
    assert statestore_sync_client.get("k") is None


def test_expiry_and_fencing_tokens(statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient) -> None:
    """A line's own expiry wins over the option, and a token protects what was loaded with it."""
    token = "001696374425001:00000:A"
    lines = b'{"key": "a", "value": "1"}\n{"key": "b", "value": "2", "expiry": 100000}\n'
    done = load(statestore_server, "--expiry", "60", "--fencing-token", token, stdin=lines)
    assert (done.returncode, done.stdout) == (0, b"stored 2 keys\n")
    statestore_server.clock.advance(61)
    assert [item and item.value for item in statestore_sync_client.get_many(["a", "b"])] == [None, b"2"]
    older = load(statestore_server, "--fencing-token", "001696374425000:00000:A", stdin=lines)
    assert (older.returncode, older.stdout) == (3, b"")
    assert b"standard input, line 2: the request fencing token is a lower version" in older.stderr


def test_a_refusal_ends_it(tmp_path: Path) -> None:
    """A refusal ends the loading with its exit code and says how far it came."""
    (tmp_path / "keys").write_text("".join(f'{{"key": "k{n}", "value": "v"}}\n' for n in range(5000)))
    with EmbeddedServer(store_limits=StoreLimits(max_keys=10)) as server:
        done = load(server, tmp_path / "keys")
    assert (done.returncode, done.stdout) == (3, b"")
    assert f"{tmp_path}/keys, line 11: the quota has been exceeded" in done.stderr.decode()
    assert b"stored 10 keys until then" in done.stderr


def test_lines_are_stored_as_they_arrive(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """Each line of a pipe is stored when it arrives, and Ctrl-C gives exit code 130."""
    with subprocess.Popen([*LOAD, "--url", statestore_server.url], stdin=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            for n in range(3):
                process.stdin.write(b'{"key": "k", "value": "%d"}\n' % n)
                process.stdin.flush()
                eventually(lambda n=n: (item := statestore_sync_client.get("k")) and item.value == b"%d" % n, "stored")
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        finally:
            process.kill()


def test_what_cannot_be_read_is_a_usage_error(
    here: Callable[..., tuple[int, str, str]], statestore_server: EmbeddedServer
) -> None:
    """An input that cannot be read is a usage error, and nothing is stored."""
    for words in (("/no/file",), ("/",), ("--expiry", "nan")):
        assert here("load", "--url", statestore_server.url, *words)[0] == 2


@pytest.mark.parametrize("colourless", [False, True])
def test_people_see_progress(statestore_server: EmbeddedServer, tmp_path: Path, colourless: bool) -> None:
    """On a terminal standard error shows a progress bar, without colours under NO_COLOR, and standard output stays
    empty."""
    (tmp_path / "keys").write_text("".join(f'{{"key": "k{n}", "value": "v"}}\n' for n in range(2000)))
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
    if colourless:
        environment["NO_COLOR"] = "1"
    terminal, inside = pty.openpty()
    command = [*LOAD, "--url", statestore_server.url, str(tmp_path / "keys")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=inside, env=environment) as process:
        os.close(inside)
        shown = read_to_end(terminal)
        out, _ = process.communicate(timeout=60)
    assert out == b"stored 2000 keys\n"
    assert b"loading" in shown
    assert (re.search(rb"\x1b\[[0-9;]*3[0-8]", shown) is None) == colourless
