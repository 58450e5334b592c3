"""``statestore top`` and ``statestore monitor``: the monitor of a server in a terminal, recorded, and shown again."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from rich.console import Console
from support.keys import Certificates
from support.ports import reserved_port
from support.waiting import eventually

from raft_client.server import BroadcastStateMachine, EmbeddedCluster
from statestore_client import FencingTokenTooOldError, StateStoreClient
from statestore_client.cli.top import MonitorSummary, rendered
from statestore_client.server import AccessRules, EmbeddedServer, ReplicaSettings, ServerTls

STATESTORE = [sys.executable, "-m", "statestore_client.cli"]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*STATESTORE, *arguments], capture_output=True, timeout=120)


@contextmanager
def play(server: EmbeddedServer) -> Iterator[None]:
    """A lock that has changed hands, and a refused write. The client holds the lock meanwhile."""
    with StateStoreClient(server.url, client_id="app") as store:
        first = store.lock("jobs/[red]", holder="first").acquire()
        store.guarded(first).set("state", "1")
        first.release()
        with store.lock("jobs/[red]", holder="second") as second:
            store.guarded(second).set("state", "2")
            with pytest.raises(FencingTokenTooOldError):
                store.set("state", "late", fencing_token=first.fencing_token)
            yield


@pytest.mark.ci
def test_top_once_prints_one_json_object() -> None:
    """For scripts: figures, rates, locks with holder and token, and refused writes, in one line."""
    with EmbeddedServer(monitor_port=0) as server, play(server):
        done = run("top", server.monitor_url, "--once", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)
    ((lock),) = found["locks"]
    assert (lock["key"], lock["holder"], lock["client"], lock["is_held"]) == ("jobs/[red]", "second", "app", True)
    assert (found["clients"], found["keys"]) == (1, 2)
    assert set(found["per_second"]) == {"requests", "refused", "received", "sent"}
    assert [each["holding"][1] for each in found["refusals"]] == ["first"]


@pytest.mark.ci
def test_top_once_prints_a_table() -> None:
    """For people: the same as a table. What peers have sent is text: no markup of the terminal's."""
    with EmbeddedServer(monitor_port=0) as server, play(server):
        done = run("top", server.monitor_url.removeprefix("http://"), "--once")
    text = done.stdout.decode()
    assert done.returncode == 0
    for part in ("jobs/[red]", "second", "older token of first, behind second", "requests"):
        assert part in text, text


@pytest.mark.ci
def test_top_of_a_standby_says_which_server_is_active() -> None:
    """It has no clients of its own, and looks like an empty server otherwise."""
    with (
        EmbeddedCluster(1, machine=BroadcastStateMachine) as cluster,
        EmbeddedServer(log=ReplicaSettings(log=cluster.seeds, id="a")) as first,
    ):
        eventually(lambda: first.is_active, "the first server is active")
        with EmbeddedServer(monitor_port=0, log=ReplicaSettings(log=cluster.seeds, id="b")) as second:
            found = json.loads(run("top", str(second.monitor_url), "--once", "--json").stdout)
            text = run("top", str(second.monitor_url), "--once").stdout.decode()
    assert found["log"] == {"role": "standby", "active": "a", "epoch": 1, "leaderless_s": 0.0}
    assert "standby in epoch 1; active: a\n" in text


@pytest.mark.ci
def test_top_as_a_user(tmp_path: Path) -> None:
    """A user with an admin line may look. A wrong password ends with exit code 9, a user without the line with 3."""
    rules = AccessRules.parse("user admin\nadmin\n")
    (tmp_path / "right").write_text("secret\n")
    (tmp_path / "wrong").write_text("guess\n")
    with EmbeddedServer(monitor_port=0, passwords={"admin": "secret", "pump": "secret"}, acl=rules) as server:
        options = ("top", server.monitor_url, "--once", "--username", "admin", "--password-file")
        assert run(*options, tmp_path / "right").returncode == 0
        done = run(*options, tmp_path / "wrong")
        assert (done.returncode, b"wrong user name or password" in done.stderr) == (9, True)
        done = run("top", server.monitor_url, "--once", "--username", "pump", "--password-file", tmp_path / "right")
        assert (done.returncode, b"no 'admin' line for the user 'pump'" in done.stderr) == (3, True)


@pytest.mark.parametrize("command", [("top", "--json"), ("monitor", "--record", "recording")], ids=lambda c: c[0])
@pytest.mark.ci
def test_a_password_that_was_changed_ends_it(tmp_path: Path, command: tuple[str, ...]) -> None:
    """A viewer that looks all the time, and is not known any more after a restart of the server, is told so."""
    (tmp_path / "password").write_text("secret\n")
    port = reserved_port()
    login = ("--username", "admin", "--password-file", "password")
    arguments = [*STATESTORE, *command, f"http://127.0.0.1:{port}", *login]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": tmp_path}
    with EmbeddedServer(monitor_port=port, passwords={"admin": "secret"}):
        process = subprocess.Popen(arguments, **pipes)
        if command[0] == "top":
            assert process.stdout.readline()
        else:
            eventually(lambda: lines_of(tmp_path / "recording"), "it records")
    with EmbeddedServer(monitor_port=port, passwords={"admin": "another"}):
        _, said = process.communicate(timeout=60)
    assert (process.returncode, b"wrong user name or password" in said) == (9, True), said


@pytest.mark.ci
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_machine_that_is_silent_costs_seconds(scheme: str) -> None:
    """It takes the connection, as one that stands still does, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        done = run("top", f"{scheme}://127.0.0.1:{silent.getsockname()[1]}", "--once")
        took_s = time.monotonic() - began
    assert b"no monitor at" in done.stderr
    assert took_s < 8.0  # three, or one in a handshake, and the start of the command; it was ten


@pytest.mark.ci
def test_a_port_of_another_kind_is_told(tmp_path: Path) -> None:
    """With and without TLS: what is wrong with the scheme, the port, or the certificate, and what to do."""
    certificates = Certificates(tmp_path)
    tls = ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file)
    with EmbeddedServer(monitor_port=0) as plain, EmbeddedServer(tls=tls) as secured:
        for url, code, advice in (
            (plain.monitor_url.replace("http://", "https://"), 4, b"is that port one with TLS, or is it http://?"),
            (plain.url.replace("mqtt://", "http://"), 4, b"is it the port of a monitor, or is it https://?"),
            (secured.url.replace("mqtts://", "http://"), 4, b"is it the port of a monitor, or is it https://?"),
            (secured.url.replace("mqtts://", "https://"), 9, b"certificate verify failed"),
        ):
            done = run("top", url, "--once")
            assert (done.returncode, advice in done.stderr) == (code, True), (url, done.stderr)
        done = run("top", secured.url.replace("mqtts://", "https://"), "--once", "--tls-ca-file", certificates.ca_file)
        assert (done.returncode, b"is it the port of a monitor?" in done.stderr) == (4, True), done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("top",), 2, "give the URL"),
        (("top", "mqtt://127.0.0.1:1"), 2, "is not the address of a monitor: MQTT clients connect there. A monitor"),
        (("top", "tcp://127.0.0.1:1"), 2, "is not the address of a monitor: it begins with tcp://. A monitor"),
        (("top", "http://127.0.0.1"), 2, "is not the address of a monitor: it lacks a host or a port. A monitor"),
        (("top", "http://127.0.0.1:1", "--once"), 4, "no monitor at http://127.0.0.1:1"),
        (("top", "http://127.0.0.1:99999"), 2, "out of range"),
        (("monitor",), 2, "--record FILE, or --replay FILE"),
        (("monitor", "http://127.0.0.1:1"), 2, "--record FILE, or --replay FILE"),
        (("monitor", "http://127.0.0.1:1", "--record", "recording"), 4, "no monitor at"),
        (("monitor", "--replay", __file__), 2, "line 1 cannot be read"),
        (("serve", "--monitor-host", "127.0.0.1"), 2, "--monitor-host needs --monitor-port"),
        (("serve", "--monitor-actions"), 2, "--monitor-actions needs --monitor-port"),
        (("serve", "--port", "0", "--monitor-port", "0", "--monitor-host", "0.0.0.0"), 2, "--password-file"),
    ],
)
def test_mistakes_are_answered(
    here: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    text: str,
) -> None:
    """Each mistake has its exit code and a line that says what to do, and leaves no file behind."""
    monkeypatch.chdir(tmp_path)
    found, _, told = here(*arguments)
    assert (found, text in " ".join(told.split())) == (code, True), told
    assert list(tmp_path.iterdir()) == []


def test_a_metrics_page_is_not_a_monitor() -> None:
    """A port that answers with something else is refused as a usage error."""
    with EmbeddedServer(metrics_port=0) as server:
        done = run("top", server.urls["http"].removesuffix("/metrics"), "--once")
    assert (done.returncode, b"is not the monitor of a server" in done.stderr) == (2, True)


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Those that have an end: the last one may be being written."""
    return [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]] if file.exists() else []


@pytest.mark.ci
def test_a_recording_outlives_the_server_and_can_be_shown(tmp_path: Path) -> None:
    """What the monitor shows goes into a file, over a restart of the server; the same page shows it again."""
    file = tmp_path / "incident"
    with EmbeddedServer(monitor_port=0) as server:
        port = int(server.monitor_url.rpartition(":")[2])
        recorder = subprocess.Popen(
            [*STATESTORE, "monitor", server.monitor_url, "--record", file], stderr=subprocess.PIPE
        )
        eventually(lambda: len(lines_of(file)) >= 2, "it records")
        with play(server):
            eventually(lambda: any(line["message"]["refusals"] for line in lines_of(file)), "the refusal is recorded")
    with EmbeddedServer(monitor_port=port):
        eventually(lambda: sum(line["kind"] == "hello" for line in lines_of(file)) == 2, "it has connected again")
        recorder.send_signal(signal.SIGINT)
        _, said = recorder.communicate(timeout=60)
    assert (recorder.returncode, b"trying again" in said) == (0, True), said
    assert run("monitor", f"http://127.0.0.1:{port}", "--record", file).returncode == 2  # nothing is overwritten

    with file.open("ab") as cut:
        cut.write(b'{"kind": "tick", "mess')  # the recorder was killed while it wrote
    shown = subprocess.Popen([*STATESTORE, "monitor", "--replay", file], stdout=subprocess.PIPE)
    try:
        assert shown.stdout is not None
        url = shown.stdout.readline().decode().removeprefix("replay at ").strip()
        connection = HTTPConnection(urlsplit(url).netloc, timeout=20)
        connection.request("GET", "/recording")
        messages = json.load(connection.getresponse())
        connection.close()
    finally:
        shown.send_signal(signal.SIGTERM)
        assert shown.wait(60) == 0
        shown.stdout.close()
    assert messages == lines_of(file)


@pytest.mark.ci
def test_a_recording_ends_after_its_duration(tmp_path: Path) -> None:
    """With --duration a recording ends by itself."""
    with EmbeddedServer(monitor_port=0) as server:
        done = run("monitor", server.monitor_url, "--record", tmp_path / "r", "--duration", "0.5")
    assert done.returncode == 0
    assert lines_of(tmp_path / "r")[0]["kind"] == "hello"


def test_a_summary_counts_per_second_and_begins_anew_with_a_greeting() -> None:
    """Rates are differences over the time between two messages; after a restart nothing of before is left. What a
    greeting tells was counted before it.
    """
    summary = MonitorSummary()
    empty = {"latency": None, "locks": [], "refusals": [], "events": []}
    name = 'statestore_store_requests_total{command="set"}'
    summary.take("hello", {"server": {}, "now": 1_000, "figures": {name: 10.0}, **empty})
    summary.take("tick", {"now": 3_000, "figures": {name: 50.0}, **empty})
    assert summary.encoded()["per_second"]["requests"] == 20.0
    summary.take("hello", {"server": {}, "now": 9_000, "figures": {}, **empty})
    assert summary.encoded()["per_second"]["requests"] == 0.0
    summary.take("tick", {"now": 10_000, "figures": {name: 5.0}, "gone": ["x"], **empty})
    assert summary.encoded()["per_second"]["requests"] == 5.0
    history = [{"at": 19_500}, {"at": 20_500}]
    summary.take("hello", {"server": {}, "now": 21_000, "figures": {name: 9.0}, "history": history, **empty})
    summary.take("tick", {"now": 21_500, "figures": {name: 14.0}, **empty})
    assert summary.encoded()["per_second"]["requests"] == 5.0
    console = Console(record=True, width=100)
    console.print(rendered(summary))
    assert "requests 5/s" in console.export_text()


@pytest.mark.ci
def test_top_fills_a_terminal() -> None:
    """Without options, top draws tables on the terminal, again and again, and no JSON."""
    ours, theirs = pty.openpty()
    with EmbeddedServer(monitor_port=0) as server, play(server):
        command = [*STATESTORE, "top", server.monitor_url]
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
            os.close(theirs)
            seen = b""
            try:
                while seen.count(b"Fencing token") < 2:
                    seen += os.read(ours, 4096)
            finally:
                process.send_signal(signal.SIGINT)
                with suppress(OSError):  # it has hung up
                    while os.read(ours, 4096):
                        pass
                os.close(ours)
            assert process.wait(30) == 130
    assert b"jobs/[red]" in seen
    assert b"per_second" not in seen
