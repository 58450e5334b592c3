"""``statestore check --broker``: what a broker lacks for a state store."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.ports import reserved_port
from support.waiting import eventually

from statestore_client import ConnectionLostError, ConnectRefusedError
from statestore_client.cli import broker_check
from statestore_client.cli.app import cli
from statestore_client.server import EmbeddedServer

NEEDED = ["MQTT 5", "QoS 1", "response topic", "correlation data", "user properties", "wildcard subscriptions"]


def check(url: str, *options: str) -> tuple[int, str]:
    """Exit code and output."""
    result = CliRunner().invoke(cli, ["check", "--broker", url, *options], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), result.output


def found(url: str) -> dict[str, Any]:
    """The JSON object, with its checks by name."""
    _, output = check(url, "--json")
    answer: dict[str, Any] = json.loads(output)
    answer["checks"] = {each["name"]: each for each in answer["checks"]}
    return answer


@contextmanager
def mosquitto(program: str, folder: Path, *lines: str) -> Iterator[str]:
    """One mosquitto with these lines in its configuration."""
    port, config = reserved_port(), folder / "mosquitto.conf"
    user = [f"user {os.environ.get('USER', 'root')}"] if os.geteuid() == 0 else []
    config.write_text("\n".join([f"listener {port} 127.0.0.1", "allow_anonymous true", *user, *lines, ""]))
    process = subprocess.Popen([program, "-c", config], stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: _listens(port), "mosquitto has started", every_s=0.02)
        yield f"mqtt://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _listens(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


@contextmanager
def answering(connack: bytes) -> Iterator[str]:
    """A server that says one thing and hangs up."""

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with closing(connection):
                connection.recv(1000)
                connection.sendall(connack)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"mqtt://127.0.0.1:{listener.getsockname()[1]}"
    thread.join()


@pytest.mark.interop
def test_mosquitto_has_what_is_needed(require_tool: Callable[[str], str], tmp_path: Path) -> None:
    """All of it, with its Receive Maximum of 20; and nothing is left on the broker."""
    with mosquitto(require_tool("mosquitto"), tmp_path) as url:
        code, text = check(url)
        assert code == 0
        verdict, *lines = text.splitlines()
        assert verdict == f"{url} has what a state store needs"
        assert all("  yes" in line for line in lines)
        assert any(line.startswith("Receive Maximum ") and "20 messages" in line for line in lines)
        answer = found(url)
        assert (answer["suffices"], answer["lacking"]) == (True, [])
        assert [name for name, each in answer["checks"].items() if each["needed"]] == NEEDED
        assert answer["checks"]["retained messages"]["state"] == "yes"


@pytest.mark.interop
@pytest.mark.parametrize(
    ("line", "name", "state"),
    [
        ("retain_available false", "retained messages", "no"),
        ("max_packet_size 5000", "Maximum Packet Size", "yes"),
        ("max_topic_alias 0", "topic aliases", "no"),
    ],
)
def test_what_mosquitto_was_told_to_leave_out(
    require_tool: Callable[[str], str], tmp_path: Path, line: str, name: str, state: str
) -> None:
    """It lacks nothing that is needed, and the line says what it has."""
    with mosquitto(require_tool("mosquitto"), tmp_path, line) as url:
        answer = found(url)
        assert answer["checks"][name]["state"] == state
        assert answer["suffices"]


@pytest.mark.interop
def test_access_rules_that_forbid_the_topics(
    require_tool: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mosquitto takes messages that nobody may read: they do not come, and the broker is not said to be fit."""
    monkeypatch.setattr(broker_check, "_PATIENCE_S", 0.2)
    rules = tmp_path / "rules"
    rules.write_text("topic write statestore/check/#\n")
    with mosquitto(require_tool("mosquitto"), tmp_path, f"acl_file {rules}") as url:
        code, text = check(url)
    assert code == 1
    assert "lacks for a state store: QoS 1" in text
    assert "a subscription to statestore/check/" in text or "no message came within" in text


def test_our_own_server_has_what_is_needed() -> None:
    """A store may be hosted on another store's broker, whatever for."""
    with EmbeddedServer() as server:
        code, text = check(server.url)
    assert code == 0
    assert "has what a state store needs" in text


@pytest.mark.parametrize(
    "connack",
    [
        pytest.param(b"\x20\x02\x00\x01", id="as 3.1.1 says it"),
        pytest.param(b"\x20\x03\x00\x84\x00", id="as 5.0 says it"),
    ],
)
def test_a_broker_of_an_older_version(connack: bytes) -> None:
    """It lacks MQTT 5, and nothing else can be tried."""
    with answering(connack) as url:
        code, text = check(url)
    assert code == 1
    assert text.splitlines()[0] == f"{url} lacks for a state store: MQTT 5"


def test_a_broker_that_does_not_admit_the_check() -> None:
    """That is no answer about the broker."""
    with answering(b"\x20\x03\x00\x87\x00") as url, pytest.raises(ConnectRefusedError):
        check(url)


def test_nobody_listens() -> None:
    """Neither is that."""
    with pytest.raises(ConnectionLostError):
        check(f"mqtt://127.0.0.1:{reserved_port()}")


@pytest.mark.parametrize("arguments", [["check"], ["check", "dir", "--broker", "mqtt://localhost"]])
def test_a_directory_or_a_broker(arguments: list[str]) -> None:
    """One of the two."""
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "give either a data directory or --broker" in result.output
