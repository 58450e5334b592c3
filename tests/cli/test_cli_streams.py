"""Standard streams that are closed, full, or not for UTF-8: an exit code of its own and one line, never a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.ports import reserved_port
from support.scripted_peers import ScriptedCluster
from support.sites import SiteThread

from raft_client._common import standard_streams as streams
from statestore_client import StateStoreClient
from statestore_client.server import EmbeddedServer

COMMAND = [sys.executable, "-m", "statestore_client.cli"]
WORDS = (
    ("get", "k"),
    ("get", "k", "--raw"),
    ("get", "missing", "--json"),
    ("set", "k", "v"),
    ("scan",),
    ("watch", "k", "--initial"),
    ("--help",),
)
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


def run(url: str, redirection: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """``statestore ARGUMENTS`` with a redirection of the shell's."""
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *COMMAND, *arguments]
    variables = os.environ | {"STATESTORE_URL": url} | environment
    return subprocess.run(command, capture_output=True, env=variables, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "redirection", "why"),
    [
        *((words, ">/dev/full", b"No space left on device") for words in WORDS),
        *((words, ">&-", b"closed") for words in (("get", "k"), ("watch", "k", "--initial"), ("--version",))),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else each if isinstance(each, str) else "",
)
@pytest.mark.ci
def test_output_that_cannot_be_written_is_exit_code_7(
    statestore_server: EmbeddedServer,
    statestore_sync_client: StateStoreClient,
    arguments: tuple[str, ...],
    redirection: str,
    why: bytes,
) -> None:
    """Output that cannot be written gives one line and exit code 7, and not 1, which would mean a missing key."""
    statestore_sync_client.set("k", "v")
    done = run(statestore_server.url, redirection, *arguments)
    assert done.returncode == 7, done.stderr
    assert done.stderr.startswith(b"statestore: standard output ")
    assert why in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.ci
def test_who_prints_nothing_needs_no_standard_output(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """A command that prints nothing works without a standard output."""
    statestore_sync_client.set("k", "v")
    for redirection in (">/dev/full", ">&-"):
        done = run(statestore_server.url, redirection, "get", "missing")
        assert (done.returncode, done.stderr) == (1, b"")
    done = run(statestore_server.url, ">&-", "del", "k")
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", ">&- 2>&-"])
def test_what_cannot_be_told_changes_no_exit_code(statestore_server: EmbeddedServer, redirection: str) -> None:
    """A closed standard error changes no exit code."""
    url = statestore_server.url
    assert run("mqtt://127.0.0.1:1", redirection, "get", "k").returncode == 4
    assert run(url, redirection, "get", "k", "--no-such-option").returncode == 2
    assert run(url, redirection, "get", "k").returncode == 1


@pytest.mark.ci
def test_a_closed_standard_input_is_a_usage_error(statestore_server: EmbeddedServer, tmp_path: Path) -> None:
    """A standard input that is closed or cannot be read is a usage error."""
    for redirection, why in (("<&-", b"is closed"), (f"0>{tmp_path}/written", b"cannot be read: Bad file")):
        done = run(statestore_server.url, redirection, "set", "k", "--value-file", "-")
        assert done.returncode == 2
        assert b"standard input " + why in done.stderr
    done = run(statestore_server.url, "<&-", "passwd", str(tmp_path / "users"), "pump", "--stdin")
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)


@pytest.mark.ci
def test_json_is_utf_8_in_every_locale(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """JSON is UTF-8 also in a locale that can print ASCII only, and keys and values stay bytes."""
    statestore_sync_client.set("kä", "vö")
    done = run(statestore_server.url, "", "get", "kä", "--json", **ASCII)
    found = json.loads(done.stdout.decode())
    assert (done.returncode, found["key"], found["value"]) == (0, "kä", "vö")
    assert run(statestore_server.url, "", "scan", **ASCII).stdout == "kä\n".encode()
    assert run(statestore_server.url, "", "get", "kä", **ASCII).stdout == "vö\n".encode()
    done = run(
        statestore_server.url, "", "bench", "--operations", "100", "--rounds", "1", "--driver", "native", **ASCII
    )
    assert done.returncode == 0, done.stderr
    assert b"SET/s" in done.stdout


@pytest.mark.ci
def test_a_server_whose_output_nobody_reads_serves() -> None:
    """A server with a closed standard output serves, and its exit code is that of its own end."""
    port = reserved_port()
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "serve", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            with StateStoreClient(f"mqtt://127.0.0.1:{port}", retry_first_connect=True, request_timeout=30) as store:
                assert store.set("k", "v").applied
            process.terminate()
            assert process.wait(20) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b""
        finally:
            process.kill()


# -- a reader that has gone --------------------------------------------------------------------------------------------


@contextmanager
def output_to(descriptor: int) -> Iterator[None]:
    """Standard output goes there meanwhile."""
    before = sys.stdout
    with os.fdopen(descriptor, "w", closefd=False) as sys.stdout:
        try:
            yield
        finally:
            sys.stdout = before


def test_a_wait_ends_when_the_reader_of_the_output_goes() -> None:
    """What waits in the main thread is interrupted when the reader has gone, and only then."""
    reader, writer = os.pipe()
    with output_to(writer):
        with streams.ends_with_reader():
            signal.raise_signal(signal.SIGPIPE)  # as of any connection that has broken
        threading.Timer(0.05, lambda: os.close(reader)).start()
        with pytest.raises(streams.ReaderGoneError), streams.ends_with_reader():
            assert not threading.Event().wait(30)
        with suppress(streams.ReaderGoneError), streams.ends_with_reader():
            with suppress(streams.ReaderGoneError):
                threading.Event().wait(30)
            threading.Event().wait(30)
            pytest.fail("what was swallowed once is not raised again")
    os.close(writer)
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
    assert "reader of standard output" not in [thread.name for thread in threading.enumerate()]


STATESTORE = [sys.executable, "-m", "statestore_client.cli"]
ZMQRAFT = [sys.executable, "-m", "raft_client.cli"]


@pytest.mark.ci
@pytest.mark.parametrize(
    "command",
    [
        [*STATESTORE, "watch", "k"],
        [*STATESTORE, "watch", "k", "l"],
        [*STATESTORE, "watch", "--prefix", "k"],
        [*STATESTORE, "elect", "leader", "--listen"],
        [*STATESTORE, "kv", "snoop"],
        [*STATESTORE, "kv", "peers", "--follow"],
        [*ZMQRAFT, "tail", "-f"],
        [*ZMQRAFT, "watch"],
    ],
    ids=lambda command: " ".join(command[2:]),
)
def test_what_follows_ends_when_its_reader_has_gone(
    statestore_server: EmbeddedServer, peers: ScriptedCluster, command: list[str]
) -> None:
    """A command that follows something ends with 0 when the reader of its output has gone, though nothing happens."""
    with SiteThread() as site, StateStoreClient(statestore_server.url) as store:
        election = store.election("leader")
        election.campaign()
        url = ["--url", site.url] if "kv" in command else []
        variables = os.environ | {"STATESTORE_URL": statestore_server.url, "ZMQRAFT_SEEDS": peers.seeds}
        with subprocess.Popen(
            [*command, *url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables
        ) as process:
            try:
                assert process.stdout is not None
                if "elect" in command:
                    assert process.stdout.readline()
                process.stdout.close()
                process.stdout = None
                assert process.wait(30) == 0
                assert process.stderr is not None
                assert process.stderr.read() == b""
            finally:
                process.kill()


# -- what both tools have in common ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tool", "variable"), [("statestore_client", "_STATESTORE"), ("raft_client", "_ZMQRAFT")])
@pytest.mark.ci
def test_shells_complete_commands_and_options(tool: str, variable: str) -> None:
    """Both tools print a completion script for bash that completes commands and options."""
    name = variable[1:].lower()

    def asked(**more: str) -> bytes:
        command = [sys.executable, "-m", f"{tool}.cli"]
        done = subprocess.run(command, capture_output=True, env=os.environ | more, timeout=60)
        return done.stdout

    for words, expected in ((f"{name} wa", b"plain,watch"), (f"{name} get --ti", b"plain,--timeout")):
        more = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert asked(**{f"{variable}_COMPLETE": "bash_complete"}, **more).split() == [expected]
    assert b"complete -o nosort" in asked(**{f"{variable}_COMPLETE": "bash_source"})
