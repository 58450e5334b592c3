"""``statestore sessions`` and ``statestore retained`` on a data directory."""

from __future__ import annotations

import json
import re
import socket
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from support.waiting import eventually

from statestore_client.cli.app import cli
from statestore_client.errors import DataDirectoryError, DataInUseError
from statestore_client.mqtt.packets import (
    MQTT_5_0,
    Connect,
    ConnectProperties,
    Packet,
    PacketDecoder,
    Publish,
    Subscribe,
    Subscription,
    encode,
)
from statestore_client.server import EmbeddedServer
from statestore_client.server.broker import BrokerLimits
from statestore_client.server.broker.limits import NEVER_EXPIRES


class _Client:
    def __init__(self, server: EmbeddedServer, name: str, expiry_s: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.port), 10)
        self.decoder = PacketDecoder(version=MQTT_5_0, max_packet_size=100_000)
        self.ask(Connect(name, properties=ConnectProperties(session_expiry=expiry_s)))

    def ask(self, packet: Packet) -> None:
        """Send one packet, and wait for an answer."""
        self.sock.sendall(encode(packet, MQTT_5_0))
        while not self.decoder.feed(self.sock.recv(65536)):
            pass


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three sessions, two of them with messages, and retained messages."""
    with EmbeddedServer(data=tmp_path) as server:
        for name, expiry_s in (("meter/1", 86_400), ("meter/2", 3600), ("short", 1)):
            client = _Client(server, name, expiry_s)
            client.ask(Subscribe(1, (Subscription("set/#", 1), Subscription("$share/g/x", 2))))
            client.sock.close()
        sender = _Client(server, "sender", 86_400)
        for number in range(3):
            sender.ask(Publish(f"set/{number}", b"%d" % number, 1, True, False, number + 1))
        sender.ask(Publish("state/\N{SNOWMAN}", b"\xff", 1, True, False, 9))
        sender.sock.close()
    return tmp_path


def _run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.output


def test_sessions_are_listed(data: Path) -> None:
    """Sessions are listed as a table and as JSON."""
    code, output = _run("sessions", "list", "--data", str(data))
    assert code == 0
    lines = output.splitlines()
    assert [line.split()[0] for line in lines] == ["meter/1", "meter/2", "sender", "short"]
    assert re.fullmatch(r"meter/1 3 messages, away since 20\S+, ends 20\S+", lines[0])
    _, output = _run("sessions", "list", "--json", "--data", str(data))
    found = [json.loads(line) for line in output.splitlines()]
    assert [each["queued"] for each in found] == [3, 3, 0, 3]
    assert found[0]["subscriptions"] == [{"filter": "$share/g/x", "qos": 2}, {"filter": "set/#", "qos": 1}]


def test_one_session_is_shown(data: Path) -> None:
    """One session is shown in full, and a missing one is named with exit code 1."""
    code, output = _run("sessions", "show", "meter/2", "--data", str(data))
    assert code == 0
    assert "expiry_s: 3600\n" in output
    assert "subscription: set/# (QoS 1)\n" in output
    missing = f"statestore: no session 'nobody' in {data}\n"
    assert _run("sessions", "show", "nobody", "--data", str(data)) == (1, missing)


def test_sessions_are_removed(data: Path) -> None:
    """A removed session takes its waiting messages along; those of others stay, and a server starts with the rest."""
    assert _run("sessions", "remove", "meter/1", "short", "--data", str(data))[0] == 0
    gone = f"statestore: no session 'meter/1' in {data}\n"
    assert _run("sessions", "remove", "meter/1", "--data", str(data)) == (1, gone)
    with EmbeddedServer(data=data) as server:
        client = socket.create_connection(("127.0.0.1", server.port), 10)
        wanted = ConnectProperties(session_expiry=3600)
        client.sendall(encode(Connect("meter/2", clean_start=False, properties=wanted), MQTT_5_0))
        decoder, packets = PacketDecoder(version=MQTT_5_0, max_packet_size=100_000), []
        while len(packets) < 4:
            packets += decoder.feed(client.recv(65536))
        client.close()
    assert [packet.payload for packet in packets[1:] if isinstance(packet, Publish)] == [b"0", b"1", b"2"]
    _run("sessions", "remove", "meter/2", "sender", "--data", str(data))
    assert _run("sessions", "list", "--data", str(data)) == (0, "")


def test_sessions_that_are_over_are_pruned(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pruning removes sessions that have expired, and on demand those whose clients left long ago."""
    now = time.time()
    monkeypatch.setattr("statestore_client.server.runtime.storage.inspection.time.time", lambda: now + 10)
    assert _run("sessions", "prune", "--data", str(data)) == (0, "short\n")
    assert _run("sessions", "prune", "--data", str(data)) == (0, "")
    code, output = _run("sessions", "prune", "--away", "5", "--json", "--data", str(data))
    assert code == 0
    assert {json.loads(line)["client_id"] for line in output.splitlines()} <= {"meter/1", "meter/2", "sender"}
    assert '"meter/1"' in output


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """Two sessions that never end: of a client that left, and of one that was connected when the server ended."""
    limits = BrokerLimits(session_expiry_s=NEVER_EXPIRES)
    with EmbeddedServer(data=tmp_path, broker_limits=limits) as server:
        away = _Client(server, "away", NEVER_EXPIRES)
        away.ask(Subscribe(1, (Subscription("t", 1),)))
        away.sock.close()
        eventually(lambda: not server.sessions["away"].is_connected, "the client is gone")
        here = _Client(server, "here", NEVER_EXPIRES)
        here.ask(Subscribe(1, (Subscription("t", 1),)))
    here.sock.close()
    return tmp_path


def test_sessions_that_never_end(endless: Path) -> None:
    """A session that never expires is listed as such, with the time when its client left."""
    code, output = _run("sessions", "list", "--data", str(endless))
    assert code == 0
    away, here = output.splitlines()
    assert re.fullmatch(r"away 0 messages, away since \d{4}-\d\d-\d\dT[\d:]+\+00:00, never ends", away)
    assert here.endswith("never ends")
    _, output = _run("sessions", "show", "away", "--data", str(endless))
    assert "expiry_s: never\n" in output
    for line in _run("sessions", "list", "--json", "--data", str(endless))[1].splitlines():
        session = json.loads(line)
        assert (session["expiry_s"], session["ends_at"]) == (None, None)
        assert session["left_at"] is not None
    assert "4294967295" not in output


def test_sessions_that_never_end_are_pruned(endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that never expire, as any of MQTT 3.1.1 may, are pruned by the time since their clients left."""
    assert _run("sessions", "prune", "--data", str(endless)) == (0, "")
    assert _run("sessions", "prune", "--away", "1000", "--data", str(endless)) == (0, "")
    now = time.time()
    monkeypatch.setattr("statestore_client.server.runtime.storage.inspection.time.time", lambda: now + 1010)
    assert _run("sessions", "prune", "--away", "1000", "--data", str(endless)) == (0, "away\nhere\n")
    assert _run("sessions", "list", "--data", str(endless)) == (0, "")


@pytest.mark.parametrize("away", ["nan", "inf", "-1"])
def test_times_that_are_none(data: Path, away: str) -> None:
    """A time that is not a number is refused, because nothing can be compared with it."""
    result = CliRunner().invoke(cli, ["sessions", "prune", "--data", str(data), "--away", away])
    assert result.exit_code == 2
    assert "Invalid value for '--away'" in result.output


def test_retained_messages_are_listed_and_removed(data: Path) -> None:
    """Retained messages are listed and removed by filter, as a subscription matches."""
    code, output = _run("retained", "list", "--data", str(data))
    assert (code, len(output.splitlines())) == (0, 4)
    assert output.splitlines()[0] == "set/0 1 bytes, QoS 1"
    _, output = _run("retained", "list", "state/+", "--json", "--data", str(data))
    found = json.loads(output)
    assert (found["topic"], found["payload_base64"], found["publisher"]) == ("state/\N{SNOWMAN}", "/w==", "sender")
    assert _run("retained", "remove", "set/1", "state/#", "set/+/1", "--data", str(data)) == (
        0, f"statestore: no retained message that matches 'set/+/1' in {data}\n"
    )  # fmt: skip
    assert _run("retained", "remove", "set/1", "--data", str(data))[0] == 1
    _, output = _run("retained", "list", "--data", str(data))
    assert [line.split()[0] for line in output.splitlines()] == ["set/0", "set/2"]


@pytest.mark.parametrize("topic_filter", ["", "#/set", "set+"])
def test_what_is_no_filter_removes_nothing(data: Path, topic_filter: str) -> None:
    """An invalid filter removes nothing, above all an empty one, as of an unset variable."""
    with pytest.raises(click.BadParameter, match="is not a topic filter"):
        _run("retained", "remove", topic_filter, "--data", str(data))
    assert len(_run("retained", "list", "--data", str(data))[1].splitlines()) == 4


def test_an_empty_directory_name() -> None:
    """An empty directory name is refused and does not mean the current directory."""
    with pytest.raises(click.BadParameter, match="it is empty"):
        _run("sessions", "list", "--data", "")


@pytest.mark.ci
def test_directories_that_cannot_be_looked_at(tmp_path: Path) -> None:
    """A directory without data, and one that a server has open, are refused."""
    with pytest.raises(DataDirectoryError, match="is not a data directory"):
        _run("sessions", "list", "--data", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with EmbeddedServer(data=tmp_path), pytest.raises(DataInUseError, match="Stop that one"):
        _run("retained", "list", "--data", str(tmp_path))
