"""Very many clients, and greedy ones, on ``statestore serve``: its memory stays bounded, and others are served.

Small numbers in a quick run; in CI the ones in ``docs/reference/server.md``.
"""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hostile_peer import Peer
from support.schedules import SCALE
from support.websocket_wire import RawWebSocket

from statestore_client.mqtt.packets import (
    Connack,
    ConnectProperties,
    Disconnect,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)

IS_FULL = SCALE >= 1
MIB = 1024 * 1024

pytestmark = [
    pytest.mark.scaled,
    pytest.mark.machine,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="/proc tells how much memory a process has"),
    pytest.mark.timeout(600),
]


class Served:
    """``statestore serve`` in a process of its own."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0", "--ws-port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port, self.ws_port = (int(self.process.stdout.readline().split(":")[2].split("/")[0]) for _ in range(2))

    @property
    def resident(self) -> int:
        """Bytes of memory."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


def enter(port: int, client_id: str, **options: Any) -> Peer:
    """A connected peer. It is patient: large packets take their time."""
    peer = Peer(port, client_id, **options)
    peer.sock.settimeout(30)
    assert isinstance(peer.connack, Connack)
    return peer


class Innocent(threading.Thread):
    """Pings all the time; ``slowest`` is the longest that it waited."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._caller = enter(port, "innocent")
        self._is_over = threading.Event()
        self.slowest = 0.0
        self.pings = 0

    def run(self) -> None:
        while not self._is_over.wait(0.01):
            self.slowest = max(self.slowest, self._ping())
            self.pings += 1

    def _ping(self) -> float:
        """Seconds until the answer."""
        began = time.monotonic()
        assert self._caller.answers()
        return time.monotonic() - began

    def stop(self) -> None:
        self._is_over.set()
        self.join()
        self._caller.sock.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served("--max-queued-bytes", str(16 * MIB))
    yield server
    server.stop()


@pytest.fixture
def innocent(served: Served) -> Iterator[Innocent]:
    """Somebody else, who is served meanwhile; on a busy machine within two seconds."""
    thread = Innocent(served.port)
    thread.start()
    yield thread
    thread.stop()
    assert thread.pings
    assert thread.slowest < 2.0


def many_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"this process may open only {hard} files; the test needs {count}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))


def test_one_after_another(served: Served, innocent: Innocent) -> None:
    """Nothing is left of 10,000 connections by TCP and WebSocket, some of which end in the middle."""
    count = 10_000 if IS_FULL else 300
    before = 0
    for number in range(count):
        if number == count // 10:
            before = served.resident
        if number % 10 == 9:
            RawWebSocket(served.ws_port).sock.close()
        else:
            caller = enter(served.port, f"c{number % 1000}")
            if number % 3:
                caller.send(Disconnect())
            caller.sock.close()
    assert served.resident - before < 8 * MIB


@pytest.mark.attack("MQTT", "crowds of connections, silent ones too")
def test_at_once(served: Served, innocent: Innocent) -> None:
    """1,000 connections each by TCP and WebSocket, and as many with half a CONNECT or handshake, take little memory."""
    count = 1000 if IS_FULL else 100
    many_files(4 * count + 200)
    before = served.resident
    socks: list[socket.socket] = []
    try:
        for number in range(count):
            half = socket.create_connection(("127.0.0.1", served.ws_port if number % 2 else served.port), 30)
            half.sendall(b"GET /mqtt HTTP/1.1\r\nX: " if number % 2 else b"\x10\xff\x01\x00\x04MQ")
            web = RawWebSocket(served.ws_port)
            assert isinstance(web.connect(f"w{number}"), Connack)
            socks += [half, web.sock, enter(served.port, f"t{number}").sock]
        assert (served.resident - before) / len(socks) < 40_000
    finally:
        for sock in socks:
            sock.close()


def test_a_publisher_of_large_packets_and_subscribers_that_never_read(served: Served, innocent: Innocent) -> None:
    """With packets of the largest size, queues of clients that never read fill up and lose messages; the publisher, and
    clients that read, notice nothing."""
    size, count = (16 * MIB - 1000, 20) if IS_FULL else (4 * MIB, 8)
    before = served.resident
    deaf = [enter(served.port, f"deaf{number}", properties=ConnectProperties(receive_maximum=2)) for number in range(5)]
    for caller in deaf:
        caller.send(Subscribe(1, (Subscription("large", 1),)))
        assert isinstance(caller.receive(), Suback)
    publisher = enter(served.port, "publisher")
    codes = []
    for number in range(1, count + 1):
        publisher.send(Publish("large", number.to_bytes(2, "big") + bytes(size), 1, packet_id=number))
        answer = publisher.receive()
        assert isinstance(answer, Puback)
        codes.append(answer.reason_code)
    assert set(codes) == {0}
    # A queue of 16 MiB and one packet, what is in flight; the same messages for all; and copies on their way.
    assert served.resident - before < 16 * MIB + 6 * size
    for caller in (*deaf, publisher):
        caller.sock.close()


def test_subscription_bombs(served: Served, innocent: Innocent) -> None:
    """Filters with a hundred wildcard levels are refused (0x97) when 128 MiB, as counted, are taken by all together."""
    clients, each = (40, 1000) if IS_FULL else (2, 400)
    before = served.resident
    bombers = [enter(served.port, f"bomber{number}") for number in range(clients)]
    refused = 0
    for number, bomber in enumerate(bombers):
        for begin in range(0, each, 50):
            filters = [f"{number}/{begin + i}/" + "/".join("+" * 100) + "/#" for i in range(50)]
            bomber.send(Subscribe(1, tuple(Subscription(name, 0) for name in filters)))
            suback = bomber.receive()
            assert isinstance(suback, Suback)
            refused += sum(code == 0x97 for code in suback.reason_codes)
    assert served.resident - before < 160 * MIB
    assert (refused > 0) is IS_FULL
    publisher = enter(served.port, "publisher2")
    for number in range(20):
        publisher.send(Publish("/".join([str(number), "0", *["x"] * 100]), b"x", 1, packet_id=1))
        assert isinstance(publisher.receive(), Puback)
    for caller in (*bombers, publisher):
        caller.sock.close()


def test_topics_of_as_many_levels_as_fit(served: Served, innocent: Innocent) -> None:
    """A retained topic or a filter of as many levels as MQTT has room for, 65,535, ends the connection."""
    for number in range(1, 200 if IS_FULL else 20):
        caller = enter(served.port, "deep")
        if number % 2:
            caller.send(Publish("/" * 65_535, b"x", 1, retain=True, packet_id=number))
        else:
            caller.send(Subscribe(1, (Subscription("+/" * 32_767 + "#", 0),)))
        answer = caller.receive()
        assert isinstance(answer, Disconnect)
        assert answer.reason_code == 0x81
        caller.sock.close()


@pytest.mark.attack("MQTT", "answers and messages that nobody reads")
def test_floods_of_unread_answers(served: Served, innocent: Innocent) -> None:
    """Pings by MQTT and WebSocket whose answers nobody reads only fill up their sender's socket."""
    before = served.resident
    plain, web = enter(served.port, "flood"), RawWebSocket(served.ws_port)
    web.connect("web flood")
    floods: list[list[Any]] = [
        [plain.sock, b"\xc0\x00" * 5000, 0],
        [web.sock, (b"\x89\xfd" + bytes(4) + b"x" * 125) * 100, 0],
    ]
    until = time.monotonic() + (3 if IS_FULL else 0.5)
    plain.sock.setblocking(False)
    web.sock.setblocking(False)
    while time.monotonic() < until:
        for flood in floods:
            sock, data, sent = flood
            with suppress(BlockingIOError):
                flood[2] = (sent + sock.send(memoryview(data)[sent:])) % len(data)
        time.sleep(0.0001)
    assert served.resident - before < 16 * MIB
    plain.sock.close()
    web.sock.close()
