"""``statestore sessions`` and ``statestore retained`` on a running server."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.server_clients import Wire
from support.waiting import eventually

from statestore_client.mqtt.packets import (
    MQTT_5_0,
    Connack,
    Connect,
    ConnectProperties,
    Packet,
    PacketDecoder,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    encode,
)
from statestore_client.server import EmbeddedServer
from statestore_client.server.runtime.security.passwords import set_password

pytestmark = pytest.mark.ci  # each test starts processes, as the quick run does for other commands

COMMAND = [sys.executable, "-m", "statestore_client.cli"]
_DAY = 86_400


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """``statestore ARGUMENTS`` in a process of its own."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | environment)


def output(*arguments: str | Path) -> str:
    """What it prints; it succeeds."""
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@contextmanager
def connected(server: EmbeddedServer, name: str, expiry_s: int) -> Iterator[Wire]:
    """A client, which goes without a word."""
    with Wire(server) as wire:
        assert isinstance(wire.connect(name, properties=ConnectProperties(session_expiry=expiry_s)), Connack)
        yield wire


def ask(wire: Wire, packet: Packet) -> None:
    """Send it, and wait for an answer."""
    wire.send(packet)
    wire.receive()


def fill(server: EmbeddedServer) -> None:
    """Sessions of clients that left, with messages, and retained messages."""
    for name in ("meter/1", "meter/2"):
        with connected(server, name, _DAY) as wire:
            ask(wire, Subscribe(1, (Subscription("set/#", 1), Subscription("$share/g/x", 2))))
        eventually(lambda name=name: not server.sessions[name].is_connected, "it has left")
    with connected(server, "sender", _DAY) as sender:
        for number, topic in enumerate(("set/1", "set-up", "state/\N{SNOWMAN}", "$own/x"), 1):
            ask(sender, Publish(topic, b"\xff" * number, 1, True, False, number))
    eventually(lambda: not server.sessions["sender"].is_connected, "it has left")


@pytest.mark.ci
def test_the_same_is_printed_as_of_a_stopped_server(tmp_path: Path) -> None:
    """A running server's lists have the lines, fields, order and times of its directory after it has stopped."""
    commands = (
        ("sessions", "list"),
        ("sessions", "show", "meter/1"),
        ("sessions", "show", "meter/1", "--json"),
        ("retained", "list"),
        ("retained", "list", "set/#", "--json"),
    )
    with EmbeddedServer(data=tmp_path) as server:
        fill(server)
        running = [output(*command, "--url", server.url) for command in commands]
    assert all(running)
    stopped = [output(*command, "--data", tmp_path) for command in commands]
    assert list(map(_rounded, running)) == list(map(_rounded, stopped))


def _rounded(text: str) -> str:
    """Without the last digit of seconds: a clock is read twice."""
    return re.sub(r"(T\d\d:\d\d):\d\d", r"\1", text)


def test_exit_codes_and_complaints(tmp_path: Path) -> None:
    """As with a directory, what is not there is named and gives exit code 1, and the others are handled."""
    with EmbeddedServer() as server:
        fill(server)
        where = ("--url", server.url)
        done = run("sessions", "show", "nobody", *where)
        assert (done.returncode, done.stderr) == (1, f"statestore: no session 'nobody' at {server.url}\n")
        done = run("sessions", "remove", "meter/1", "nobody", *where)
        assert (done.returncode, done.stderr) == (1, f"statestore: no session 'nobody' at {server.url}\n")
        assert set(server.sessions) >= {"meter/2", "sender"}
        assert "meter/1" not in server.sessions
        done = run("retained", "remove", "set/1", "none/+", *where)
        expected = f"statestore: no retained message that matches 'none/+' at {server.url}\n"
        assert (done.returncode, done.stderr) == (0, expected)
        assert run("retained", "remove", "set/1", *where).returncode == 1
        assert output("retained", "list", *where).split()[::5] == ["$own/x", "set-up", "state/\N{SNOWMAN}"]
        assert output("sessions", "prune", *where) == ""
        assert output("sessions", "prune", "--away", "0", "--json", *where).splitlines() == [
            '{"client_id": "meter/2"}', '{"client_id": "sender"}',
        ]  # fmt: skip
        assert output("sessions", "list", *where) == ""


def test_connected_clients() -> None:
    """Connected clients are listed, stay when sessions are pruned, and are disconnected and removed with --force
    only."""
    with EmbeddedServer() as server, connected(server, "here", 60) as wire:
        where = ("--url", server.url)
        assert output("sessions", "list", *where) == "here 0 messages, connected, ends 60 s after its connection\n"
        (found,) = map(json.loads, output("sessions", "list", "--json", *where).splitlines())
        assert (found["was_connected"], found["left_at"], found["ends_at"]) == (True, None, None)
        assert output("sessions", "prune", "--away", "0", *where) == ""
        done = run("sessions", "remove", "here", *where)
        complaint = f"statestore: 'here' is connected at {server.url}; --force ends its connection\n"
        assert (done.returncode, done.stderr) == (1, complaint)
        assert output("sessions", "remove", "--force", "here", *where) == ""
        assert wire.receive().reason_code == 0x98  # type: ignore[union-attr]  # DISCONNECT
        assert "here" not in server.sessions


def test_large_payloads() -> None:
    """The JSON of a message has all of its payload, however large."""
    payload = bytes(range(256)) * 2000
    with EmbeddedServer() as server, connected(server, "c", 0) as wire:
        ask(wire, Publish("t", payload, 1, True, False, 1))
        found = json.loads(output("retained", "list", "--json", "--url", server.url))
        assert output("retained", "list", "--url", server.url) == "t 512000 bytes, QoS 1\n"
    assert len(found["payload_base64"]) > len(payload)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("sessions", "list"), "no broker is named: give --url"),
        (("sessions", "list", "--data", "x", "--url", "mqtt://h"), "--url is for a server that runs"),
        (("--url", "mqtt://h", "retained", "list", "--data", "x"), "--url is for a server that runs"),
        (("sessions", "list", "--data", "x", "--username", "u"), "--username is for a server that runs"),
        (("sessions", "remove", "c", "--force", "--data", "x"), "--force is for a server that runs"),
        (("retained", "remove", "", "--url", "mqtt://h"), "is not a topic filter"),
    ],
)
def test_options_that_do_not_go_together(
    here: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], complaint: str
) -> None:
    """Options that do not go together give exit code 2 before anything is done."""
    code, _, told = here(*arguments)
    assert code == 2
    assert complaint in told


def test_the_server_of_the_environment() -> None:
    """The server comes from the environment or from an option before the command, as for every client command."""
    with EmbeddedServer() as server, connected(server, "here", 60):
        assert run("sessions", "list", STATESTORE_URL=server.url).stdout.startswith("here ")
        assert output("--url", server.url, "sessions", "list").startswith("here ")


@contextmanager
def other_broker(*answers: Packet) -> Iterator[str]:
    """One that greets, and answers a PUBLISH with that."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            with suppress(OSError):
                peer, _ = door.accept()
                decoder = PacketDecoder(version=MQTT_5_0, max_packet_size=100_000)
                with peer:
                    while data := peer.recv(65536):
                        for packet in decoder.feed(data):
                            if isinstance(packet, Connect):
                                peer.sendall(encode(Connack()))
                            if isinstance(packet, Publish):
                                peer.sendall(b"".join(encode(each, MQTT_5_0) for each in answers))

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"mqtt://127.0.0.1:{door.getsockname()[1]}"
        door.close()
        thread.join(10)


@pytest.mark.parametrize(
    ("answers", "code", "complaint"),
    [
        ((Puback(1, 0x10),), 3, "cannot be administered: only statestore serve"),
        ((Puback(1, 0x87),), 3, "does not let this client publish to $CONTROL/broker/v1"),
        ((Puback(1, 0x97),), 3, "0x97"),
        ((Puback(1),), 4, "no answer within 0.5 s; only statestore serve"),
    ],
)
def test_other_brokers(answers: tuple[Packet, ...], code: int, complaint: str) -> None:
    """A broker that is not this server is recognised and named as such."""
    with other_broker(*answers) as url:
        done = run("sessions", "list", "--url", url, "--timeout", "0.5")
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert complaint in done.stderr


@contextmanager
def serving(*arguments: str | Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``statestore serve`` on a free port: its URL and its process."""
    command = [*COMMAND, "serve", "--port", "0", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip().removeprefix("listening on "), process
        finally:
            process.kill()


@pytest.fixture
def secured(tmp_path: Path) -> tuple[list[str | Path], dict[str, list[str]]]:
    """Options of ``serve``, and those that make somebody of the users."""
    options: dict[str, list[str]] = {}
    for user in ("ann", "bob"):
        set_password(tmp_path / "users", user, b"secret")
        (tmp_path / "password").write_text("secret\n")
        options[user] = ["--username", user, "--password-file", str(tmp_path / "password")]
    (tmp_path / "rules").write_text("everybody\n  publish #\n  subscribe #\nuser ann\n  admin\n")
    return ["--password-file", tmp_path / "users", "--acl-file", tmp_path / "rules"], options


@pytest.mark.ci
def test_users_without_the_right(secured: tuple[list[str | Path], dict[str, list[str]]], tmp_path: Path) -> None:
    """A user without the right gets exit code 3 and advice; rules that change while the server runs count at once."""
    options, users = secured
    with serving(*options) as (url, process):
        for command in (("sessions", "list"), ("sessions", "prune"), ("retained", "remove", "#")):
            done = run(*command, "--url", url, *users["bob"])
            assert done.returncode == 3
            assert "the server's access rules have no 'admin' line for the user 'bob'" in done.stderr
        assert output("sessions", "list", "--url", url, *users["ann"]) == ""
        (tmp_path / "rules").write_text("user bob\n  admin\n")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: not run("sessions", "list", "--url", url, *users["bob"]).returncode, "bob may")
        assert run("sessions", "list", "--url", url, *users["ann"]).returncode == 3


def many(url: str, names: list[str]) -> None:
    """Make sessions, a hundred clients at a time, that subscribe and leave."""
    address = url.rpartition("/")[2].split(":")
    for first in range(0, len(names), 100):
        sockets: list[tuple[socket.socket, PacketDecoder]] = []
        for name in names[first : first + 100]:
            sock = socket.create_connection((address[0], int(address[1])), 60)
            properties = ConnectProperties(session_expiry=_DAY)
            connect = Connect(name, username="bob", password=b"secret", properties=properties)
            subscribe = Subscribe(1, (Subscription(f"to/{name}", 1),))
            sock.sendall(encode(connect, MQTT_5_0) + encode(subscribe, MQTT_5_0))
            sockets.append((sock, PacketDecoder(version=MQTT_5_0, max_packet_size=10_000)))
        for sock, decoder in sockets:
            packets: list[Any] = []
            while not any(isinstance(packet, Suback) for packet in packets):
                data = sock.recv(10_000)
                assert data
                packets += decoder.feed(data)
            sock.close()


@pytest.mark.ci
def test_thousands_of_sessions_and_a_kill(
    secured: tuple[list[str | Path], dict[str, list[str]]], tmp_path: Path
) -> None:
    """2,000 sessions are listed page by page, and what was removed is gone after the server was killed right away."""
    options, users = secured
    names = [f"c{number:04}" for number in range(2000)]
    with serving(*options, "--data", tmp_path / "data") as (url, process):
        many(url, names[:1])  # from then on, the server knows the password without computing a hash
        many(url, names[1:])
        admin = ("--url", url, *users["ann"])
        eventually(lambda: "connected" not in output("sessions", "list", *admin), "all have left")
        listed = [json.loads(line) for line in output("sessions", "list", "--json", *admin).splitlines()]
        assert [session["client_id"] for session in listed] == names
        assert all(each["subscriptions"] == [{"filter": f"to/{each['client_id']}", "qos": 1}] for each in listed)
        assert output("sessions", "remove", *names[:500], *admin) == ""
        process.kill()
        process.wait(10)
    stored = output("sessions", "list", "--data", tmp_path / "data").splitlines()
    assert [line.split()[0] for line in stored] == names[500:]
    with serving(*options, "--data", tmp_path / "data") as (url, process):
        admin = ("--url", url, *users["ann"])
        assert [line.split()[0] for line in output("sessions", "list", *admin).splitlines()] == names[500:]
        assert output("sessions", "prune", "--away", "0", *admin).split() == names[500:]
        process.kill()
        process.wait(10)
    assert output("sessions", "list", "--data", tmp_path / "data") == ""


@pytest.mark.ci
def test_retained_messages_stay_removed(tmp_path: Path) -> None:
    """Retained messages that were removed right before a kill do not come back."""
    with serving("--data", tmp_path) as (url, process):
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 60) as sock:
            decoder, packets = PacketDecoder(version=MQTT_5_0, max_packet_size=10_000), []
            sock.sendall(encode(Connect("c"), MQTT_5_0))
            for number in range(1, 301):
                sock.sendall(encode(Publish(f"t/{number}", b"x", 1, True, False, number), MQTT_5_0))
            while len(packets) < 301:
                packets += decoder.feed(sock.recv(65536))
        assert len(output("retained", "list", "--url", url).splitlines()) == 300
        assert output("retained", "remove", "t/+", "--url", url) == ""
        process.kill()
        process.wait(10)
    assert output("retained", "list", "--data", tmp_path) == ""
