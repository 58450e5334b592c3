"""The command line, run as users run it: a process, its output bytes and its exit code."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.ports import reserved_port
from support.terminals import read_to_end

from statestore_client import StateStoreClient
from statestore_client.server import AccessRules, EmbeddedServer
from statestore_client.wire.commands import decode_command
from statestore_client.wire.protocol import PERSISTED

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]

Here = Callable[..., tuple[int, str, str]]

COMMAND = [sys.executable, "-m", "statestore_client.cli"]


@pytest.fixture
def run(statestore_server: EmbeddedServer) -> Run:
    """Run ``statestore`` against the embedded server, found through the environment."""
    environment = os.environ | {
        "AIO_BROKER_HOSTNAME": statestore_server.host,
        "AIO_BROKER_TCP_PORT": str(statestore_server.port),
        "AIO_MQTT_USE_TLS": "false",
    }

    def run(*arguments: str | bytes, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, env=environment, timeout=60)

    return run


def test_a_value_is_set_and_read_back(run: Run) -> None:
    """SET prints the version; GET prints the value and a line feed."""
    written = run("set", "line1/setpoint", "21.5")
    assert written.returncode == 0
    assert re.fullmatch(rb"\d{15}:\d{5}:StateStore\n", written.stdout)
    read = run("get", "line1/setpoint")
    assert (read.returncode, read.stdout) == (0, b"21.5\n")


def test_a_missing_key_is_exit_code_1(run: Run) -> None:
    """A key that does not exist gives exit code 1 and no output, because it is a negative answer and not an error."""
    read = run("get", "nothing")
    assert (read.returncode, read.stdout, read.stderr) == (1, b"", b"")


def test_keys_and_values_are_bytes(run: Run) -> None:
    """A key and a value that are not UTF-8 text come back unharmed."""
    assert run("set", b"\xff\xfe", b"\x80\n\x81").returncode == 0
    assert run("get", b"\xff\xfe", "--raw").stdout == b"\x80\n\x81"
    assert json.loads(run("get", b"\xff\xfe", "--json").stdout)["key_base64"] == "//4="


def test_several_keys_are_read_and_deleted(run: Run) -> None:
    """Several keys are printed or deleted in order; a missing one is named and gives exit code 1, and the others are
    handled."""
    for key in ("a", "b"):
        run("set", key, f"value of {key}")
    done = run("get", "b", "missing", "a")
    assert (done.returncode, done.stdout) == (1, b"value of b\nvalue of a\n")
    assert done.stderr == b"statestore: there is no key missing\n"
    assert run("get", "a", "b", "--raw").stdout == b"value of avalue of b"
    found = [json.loads(line) for line in run("get", "a", "missing", "--json").stdout.splitlines()]
    assert [(item["key"], item["value"]) for item in found] == [("a", "value of a"), ("missing", None)]
    done = run("del", "a", "missing", "b")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"statestore: there is no key missing\n"
    assert run("get", "a", "b").returncode == 1


def test_a_refusal_is_exit_code_3(run: Run) -> None:
    """A write under an outdated fencing token, also among several keys, fails with the server's own words."""
    assert run("set", "k", "new", "--fencing-token", "001696374425001:00000:A").returncode == 0
    for words in (("set", "k", "old"), ("del", "other", "k")):
        done = run(*words, "--fencing-token", "001696374425000:00000:A")
        assert done.returncode == 3
        assert b"the request fencing token is a lower version than the fencing token" in done.stderr


def test_ping_tells_that_a_state_store_answers(run: Run, statestore_server: EmbeddedServer) -> None:
    """Ping prints how long the state store took, and without a state store ends with exit code 4."""
    done = run("ping")
    assert done.returncode == 0
    assert re.fullmatch(rb"mqtt://127\.0\.0\.1:\d+ answered in \d+\.\d\d ms\n", done.stdout)
    found = json.loads(run("ping", "--json").stdout)
    assert found["url"] == statestore_server.url
    assert found["answered_ms"] > 0
    assert run("ping", "--url", "mqtt://127.0.0.1:1").returncode == 4
    done = run("ping", "--url", "mqtt://127.0.0.1:1", "--wait", "0.5")
    assert (done.returncode, done.stdout) == (4, b"")
    assert re.fullmatch(rb"statestore: [^\n]*connection refused[^\n]*\n", done.stderr)


def test_ping_is_answered_whoever_asks() -> None:
    """Ping is answered to a client that may read nothing."""
    with EmbeddedServer(acl=AccessRules.parse("everybody\n  watch *\n")) as server:
        done = subprocess.run([*COMMAND, "ping", "--url", server.url], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_ping_waits_for_a_broker_that_starts() -> None:
    """Ping waits for a broker that starts for as long as it is told."""
    port = reserved_port()
    command = [*COMMAND, "ping", "--wait", "30", "--url", f"mqtt://127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process, EmbeddedServer(port=port):
        assert process.wait(40) == 0


def test_a_value_comes_from_a_file_or_standard_input(run: Run, tmp_path: Path) -> None:
    """``--value-file`` reads every byte of a file, or of standard input for a dash."""
    path = tmp_path / "value"
    path.write_bytes(bytes(range(256)))
    assert run("set", "file", "--value-file", str(path)).returncode == 0
    assert run("get", "file", "--raw").stdout == bytes(range(256))
    assert run("set", "stdin", "--value-file", "-", stdin=b"\x00\r\n").returncode == 0
    assert run("get", "stdin", "--raw").stdout == b"\x00\r\n"


@pytest.mark.ci
def test_conditions(run: Run) -> None:
    """A condition that does not hold gives exit code 1 and changes nothing; VDEL and DEL say whether they deleted."""
    assert run("set", "k", "a", "--nx").returncode == 0
    assert run("set", "k", "b", "--nx").returncode == 1
    assert run("set", "k", "b", "--nex").returncode == 1
    assert run("set", "k", "a", "--nex", "--expiry", "60").returncode == 0
    refused = run("set", "k", "b", "--nex", "--expected", "a")
    assert (refused.returncode, b"does not know NEX with a value" in refused.stderr) == (3, True)
    assert run("get", "k").stdout == b"a\n"
    assert run("scan", "k*").stdout == b"k\n"
    assert run("vdel", "k", "other").returncode == 1
    assert run("vdel", "k", "a").returncode == 0
    assert run("del", "k").returncode == 1
    run("set", "k", "a")
    assert json.loads(run("del", "k", "--json").stdout)["count"] == 1


@pytest.mark.ci
def test_set_marks_what_must_be_on_disk(statestore_server: EmbeddedServer, run: Run) -> None:
    """``--persist`` of set, load, lock and elect marks their SETs, and without it nothing is marked."""
    assert run("set", "a", "1", "--persist").returncode == 0
    assert run("set", "b", "1").returncode == 0
    assert run("load", "--persist", stdin=b'{"key": "c", "value": "1"}\n').returncode == 0
    assert run("lock", "d", "--persist", "--", "true").returncode == 0
    assert run("elect", "e", "--persist", "--", "true").returncode == 0
    marked = [decode_command(m.payload).key for m in statestore_server.messages if PERSISTED in m.user_properties]
    assert marked == [b"a", b"c", b"d", b"e"]


def test_a_client_does_not_wait_for_the_servers_imports() -> None:
    """``statestore get`` imports neither the server nor paho."""
    code = (
        "import click, sys; from statestore_client.cli.app import cli\n"
        "cli.get_command(click.Context(cli), 'get'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = {*done.stdout.split()}
    assert "statestore_client.cli.keys" in loaded
    assert not [name for name in loaded if name.startswith(("statestore_client.server", "paho", "rich"))]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("get", "k", "--raw", "--json"), "give either --raw or --json"),
        (("set", "k", "v", "--value-file", "-"), "--value-file"),
        (("set", "k"), "--value-file"),
        (("set", "k", "--value-file", "/nowhere"), "--value-file"),
        (("set", "k", "a", "--nx", "--nex"), "give one of them"),
        (("set", "k", "b", "--expected", "a"), "--expected is what --nex compares with"),
        (("set", "", "v"), "at least one byte"),
        (("set", "k", "v", "--fencing-token", "yesterday"), "^statestore: --fencing-token: .*yesterday"),
        (("set", "k", "v", "--client-id", "a#b"), "^statestore: --client-id must be a non-empty text"),
        (
            ("set", "k", "v", "--expiry", "1e18"),
            r"^statestore: --expiry must be seconds, .*to 9007199254740, not 1e\+18$",
        ),
        (("set", "k", "v", "--timeout", "1e18"), "^statestore: --timeout must be seconds"),
        (("set", "celsius", "-5"), "put -- before a value that begins with -"),
        (("set", "celsius", "--expirty", "5"), "^((?!put --).)*$"),
        (("serve", "--data-dir"), "^((?!put --).)*$"),
        (("get", "k", "--url", "http://127.0.0.1"), "mqtt://"),
        (("get", "k", "--url", "mqtt://"), "host"),
        (("get", "k", "--url", "mqtt://h?colour=red"), "colour"),
    ],
)
def test_what_cannot_be_used_is_named_as_it_was_typed(
    here: Here,
    monkeypatch: pytest.MonkeyPatch,
    statestore_server: EmbeddedServer,
    arguments: tuple[str, ...],
    complaint: str,
) -> None:
    """What cannot be used gives exit code 2 and a line with the option, not an argument of the API, and nothing is
    sent."""
    monkeypatch.setenv("STATESTORE_URL", statestore_server.url)
    code, out, told = here(*arguments)
    assert (code, out) == (2, "")
    assert re.search(complaint, " ".join(told.split()))
    assert "Traceback" not in told


def test_a_wrong_port_is_exit_code_4(run: Run) -> None:
    """A port where nobody listens gives exit code 4 and one line, at once."""
    done = run("get", "k", "--url", "mqtt://127.0.0.1:1")
    assert done.returncode == 4
    assert done.stderr.count(b"\n") == 1
    assert b"is the port right?" in done.stderr


def test_a_reader_that_goes_away_is_no_failure(statestore_server: EmbeddedServer) -> None:
    """``statestore scan … | head -1`` ends quietly and with success."""
    with StateStoreClient(statestore_server.url) as store:
        store.set_many((f"key-{i:060d}", b"") for i in range(2000))
    command = [*COMMAND, "scan", "key*", "--url", statestore_server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"key-")
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


def test_lock_runs_the_command_with_its_token(run: Run) -> None:
    """``lock`` gives the command the fencing token in its environment and exits with the command's exit code."""
    done = run("lock", "jobs/compact", "--", "sh", "-c", 'echo "$STATESTORE_LOCK $STATESTORE_FENCING_TOKEN"; exit 7')
    assert done.returncode == 7
    assert re.fullmatch(rb"jobs/compact \d{15}:\d{5}:StateStore\n", done.stdout)
    assert run("get", "jobs/compact").returncode == 1  # released


def test_a_lost_lease_terminates_the_command(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """When somebody else takes the lock, the command is terminated and the exit code is 5."""
    command = [*COMMAND, "lock", "jobs/compact", "--lease", "0.5", "--url", statestore_server.url]
    process = subprocess.Popen([*command, "--", "sh", "-c", "echo started; exec sleep 60"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    statestore_sync_client.set("jobs/compact", "thief", expiry=30)
    assert process.wait(20) == 5
    process.stdout.close()


def test_a_value_that_looks_like_an_option(run: Run) -> None:
    """A value that begins with a dash stands behind two dashes."""
    assert run("set", "celsius", "--", "-5").returncode == 0
    assert run("get", "celsius").stdout == b"-5\n"


@pytest.mark.ci
def test_bench_measures_and_ends(run: Run, statestore_server: EmbeddedServer) -> None:
    """A small run of ``bench`` prints one JSON object for each client and way to do the work."""
    done = run("bench", "--url", statestore_server.url, "--operations", "100", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    ways = {(line["shell"], line["driver"], line["in_flight"]) for line in lines}
    assert ways == {(s, d, n) for s in ("aio", "sync") for d in ("native", "paho") for n in (1, 64, 256)}
    assert all(line["operations_per_s"] > 0 and line["cpu_us_per_operation"] > 0 for line in lines)
    assert all(line["p50_ms"] <= line["p90_ms"] <= line["p99_ms"] for line in lines if line["in_flight"] == 1)
    assert all(line["p50_ms"] is None for line in lines if line["in_flight"] > 1)


def test_bench_prints_a_table_of_what_was_asked_for(run: Run, statestore_server: EmbeddedServer) -> None:
    """``bench`` for one driver and one window prints a row for each client, one at a time and pipelined."""
    command = ("bench", "--url", statestore_server.url, "--operations", "100", "--rounds", "1")
    done = run(*command, "--driver", "native", "--in-flight", "8")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.decode().splitlines() if "native" in line]
    assert [row.split("│")[1].strip() for row in rows] == ["1", "", "8", ""]


def test_without_a_broker_the_message_says_how_to_name_one(here: Here) -> None:
    """Without --url and AIO_BROKER_HOSTNAME, the error names both."""
    code, _, told = here("get", "k")
    assert (code, "--url" in told, "AIO_BROKER_HOSTNAME" in told) == (2, True, True)


@pytest.mark.skipif(os.name != "posix", reason="there are no such terminals")
@pytest.mark.attack("commands", "keys and values that move a terminal")
def test_a_terminal_is_not_moved_by_what_others_have_stored(statestore_server: EmbeddedServer) -> None:
    """Escapes stand for controls in keys and values, on a terminal; a pipe gets the bytes. A value keeps its lines."""
    key, value = b"k\x1b[2J\nsecond", b"one\ntwo\x1b]0;title\x07 \xc2\x9b \xff"
    with StateStoreClient(statestore_server.url) as store:
        store.set(key, value)

    def printed(*arguments: str, on_terminal: bool) -> bytes:
        command = [sys.executable, "-m", "statestore_client.cli", *arguments, "--url", statestore_server.url]
        outside, inside = pty.openpty() if on_terminal else os.pipe()
        with subprocess.Popen(command, stdout=inside) as process:
            os.close(inside)
            shown = read_to_end(outside).replace(b"\r\n", b"\n")
            assert process.wait(30) == 0
            return shown

    assert printed("scan", on_terminal=False) == key + b"\n"
    assert printed("scan", on_terminal=True) == b"k\\u001b[2J\\nsecond\n"
    assert printed("get", os.fsdecode(key), on_terminal=False) == value + b"\n"
    shown = printed("get", os.fsdecode(key), on_terminal=True)
    assert shown == b"one\ntwo\\u001b]0;title\\u0007 \\u009b \\xff\n"
    assert b"\\u001b" in printed("scan", "--json", on_terminal=True)
