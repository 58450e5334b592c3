"""The same behaviours against our server and Debian's mosquitto; differences are listed, and told in the docs."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.ports import reserved_port
from two_brokers import BEHAVIOURS

from statestore_client.server import EmbeddedServer

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "mqtt.md"

#: What our server does.
OURS = {
    "CONNACK": "20 09 00 00 06",
    "CONNECT of MQTT 3.1": "20 02 00 00",
    "SUBACK before retained messages": "SUBACK, PUBLISH",
    "PUBACK, when the publisher is a subscriber too": "PUBACK, PUBLISH",
    "a message that nobody gets": "40 03 00 09 10 / 50 02 00 09",
    "overlapping subscriptions": "1 at QoS [1]",
    "shared subscription": "1",
    "topics with a dollar": "PUBLISH",
    "redelivery on resumption": "session present 1, DUP 1, same True",
    "take-over": "DISCONNECT 0x8e",
    "receive maximum exceeded": "DISCONNECT 0x93",
    "topic aliases to the client": "[11, 0] bytes of topic",
    "retained messages": "[b'2'], RETAIN 1, then SUBACK",
    "retain handling": "1 1 1 0 0 0",
    "no local and retain as published": "0 own, RETAIN 1",
    "QoS 2 with a repetition": "PUBREC, PUBREC, PUBCOMP / 1 copy",
    "receive maximum of a client": "2",
    "a message too large for its receiver": "[b'x15']",
    "properties of a message": "True",
    "subscription identifiers": "02 0b 07 78",
    "will after a broken link": "PUBLISH",
    "will after DISCONNECT": "nothing",
    "will after DISCONNECT 0x04": "PUBLISH",
    "UNSUBACK": "b0 05 00 02 00 00 11",
    "an assigned client identifier": "0x00, property 0x12",
    "a session that ends with its connection": "session present 0",
    "a reserved flag": "DISCONNECT 0x81",
    "a packet of servers": "DISCONNECT 0x82",
    "SUBSCRIBE without a filter": "DISCONNECT 0x81",
    "a wildcard in a topic": "DISCONNECT 0x81",
    "an unknown topic alias": "DISCONNECT 0x82",
    "no UTF-8 in a topic": "DISCONNECT 0x81",
}

#: Where mosquitto 2.0.11 does something else.
THEIRS = {
    "PUBACK, when the publisher is a subscriber too": "PUBLISH, PUBACK",
    "overlapping subscriptions": "2 at QoS [1, 0]",
    "take-over": "a close",
    "receive maximum exceeded": "PUBREC 0x97",
    "topic aliases to the client": "[11, 11] bytes of topic",
    "a reserved flag": "nothing",
    "a packet of servers": "nothing",
    "a wildcard in a topic": "DISCONNECT 0x82",
}


@pytest.fixture(scope="module")
def ours() -> Iterator[int]:
    with EmbeddedServer() as server:
        yield server.port


@pytest.fixture(scope="module")
def theirs() -> Iterator[Callable[[str], int]]:
    """The port of a mosquitto, started when somebody first asks for it by the path of the program."""
    running: list[tuple[subprocess.Popen[bytes], int]] = []

    def start(program: str) -> int:
        if not running:
            port = reserved_port()
            running.append((subprocess.Popen([program, "-p", str(port)], stderr=subprocess.DEVNULL), port))
            _wait_for(port)
        return running[0][1]

    yield start
    for process, _ in running:
        process.terminate()
        process.wait(10)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "mosquitto did not start"
            time.sleep(0.01)
        else:
            return


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_ours(ours: int, name: str) -> None:
    """Our server shows each behaviour on the wire."""
    assert BEHAVIOURS[name](ours) == OURS[name]


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_mosquitto(theirs: Callable[[str], int], require_tool: Callable[[str], str], name: str) -> None:
    """Debian's mosquitto shows each behaviour too, but for the differences that are listed."""
    assert BEHAVIOURS[name](theirs(require_tool("mosquitto"))) == THEIRS.get(name, OURS[name])


def test_the_differences_are_explained() -> None:
    """The page about MQTT has a row for each difference and for no other."""
    rows = [line.split("|")[1].strip() for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    assert set(rows) - {"what", "---"} == set(THEIRS)
