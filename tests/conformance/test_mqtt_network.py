"""What only a real connection shows: closes that let the other side read why, time, pieces of packets, transports."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from handmade import Seen, Will, connect, disconnect, publish, read, split, subscribe
from normative import BOTH, normative
from support.server_clients import TIMEOUT_S
from support.waiting import eventually

from statestore_client.server import EmbeddedServer
from statestore_client.server.broker import BrokerLimits


class Line:
    """A socket that sends bytes and reads packets."""

    def __init__(self, server: EmbeddedServer, version: int = 5) -> None:
        self.version = version
        self._sock = socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S)
        self._data = b""

    def send(self, *packets: bytes) -> None:
        self._sock.sendall(b"".join(packets))

    def join(self, client_id: str, **options: object) -> Seen:
        self.send(connect(client_id, self.version, **options))
        return self.next()

    def next(self) -> Seen:
        """The next packet."""
        while True:
            try:
                first, *rest = split(self._data)
            except (AssertionError, ValueError):
                data = self._sock.recv(65536)
                assert data, "the server closed"
                self._data += data
            else:
                self._data = b"".join(rest)
                return read(first, self.version)

    def rest(self) -> list[Seen]:
        """Everything until the server closes; a reset raises."""
        while data := self._sock.recv(65536):
            self._data += data
        packets, self._data = split(self._data), b""
        return [read(packet, self.version) for packet in packets]

    def close(self) -> None:
        self._sock.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedServer]:
    """One server for the whole file; tests use client identifiers and topics of their own."""
    with EmbeddedServer(broker_limits=BrokerLimits(receive_maximum=5)) as server:
        yield server


@normative(v5="4.2-1", v3="7.1.1-1 7.0.0-2")
@BOTH
def test_tcp(shared: EmbeddedServer, version: int) -> None:
    """A TCP connection on which only the standard is spoken works."""
    line = Line(shared, version)
    line.join(f"tcp{version}")
    line.send(subscribe(1, ("tcp", 1), version=version))
    assert line.next().kind == "SUBACK"
    line.send(publish("tcp", b"x", 1, 2, version))
    assert [line.next().kind, line.next().kind] == ["PUBACK", "PUBLISH"]
    line.send(disconnect())
    assert line.rest() == []
    line.close()


@normative(v3="7.0.0-2")
@pytest.mark.interop
def test_a_client_of_somebody_else(shared: EmbeddedServer, require_tool: Callable[[str], str]) -> None:
    """mosquitto_pub publishes in both versions without special options."""
    program = require_tool("mosquitto_pub")
    line = Line(shared)
    line.join("mosq")
    line.send(subscribe(1, "from/mosquitto"))
    line.next()
    for version in ("mqttv311", "mqttv5"):
        arguments = ["-p", str(shared.port), "-V", version, "-t", "from/mosquitto", "-m", version]
        subprocess.run([program, *arguments], check=True, timeout=TIMEOUT_S)
        assert line.next().payload == version.encode()
    line.close()


def test_packets_in_single_bytes(shared: EmbeddedServer) -> None:
    """A stream that comes in single bytes is read."""
    line = Line(shared)
    stream = connect("bytes") + subscribe(1, "bytes") + publish("bytes", b"x", 1, 2) + b"\xc0\x00"
    for byte in stream:
        line.send(bytes([byte]))
    assert [line.next().kind for _ in range(5)] == ["CONNACK", "SUBACK", "PUBACK", "PUBLISH", "PINGRESP"]
    line.close()


@normative(v5="3.14.4-2 4.13.1-1 4.13.2-1", v3="4.8.0-1 2.2.2-2", more="F4 F10")
@BOTH
@pytest.mark.parametrize(("wrong", "code"), [(b"\xc0\x01\x00", 0x81), (b"\x00\x00", 0x82)])
def test_an_error_is_told_and_followed_by_a_close(
    shared: EmbeddedServer, version: int, wrong: bytes, code: int
) -> None:
    """DISCONNECT for an error reaches the client before the close, although a megabyte behind it was never read."""
    line = Line(shared, version)
    line.join(f"wrong{version}")
    line.send(wrong, bytes(1_000_000))
    told = [(packet.kind, packet.code) for packet in line.rest()]
    assert told == ([("DISCONNECT", code)] if version == 5 else [])
    line.close()


@normative(v5="3.3.4-7", more="F4")
def test_receive_maximum_exceeded(shared: EmbeddedServer) -> None:
    """DISCONNECT 0x93 arrives although the client goes on sending."""
    line = Line(shared)
    assert line.join("flood").prop(0x21) == 5
    line.send(*(publish("flood", bytes(1000), 2, packet_id) for packet_id in range(1, 500)))
    seen = line.rest()
    assert [packet.kind for packet in seen] == ["PUBREC"] * 5 + ["DISCONNECT"]
    assert seen[-1].code == 0x93
    line.close()


@normative(v5="3.1.2-22", v3="3.1.2-24", more="W2")
@BOTH
def test_a_silent_client(shared: EmbeddedServer, version: int) -> None:
    """With a keep-alive of one second a silent connection is closed after one and a half, and its will is sent."""
    reader = Line(shared, version)
    reader.join(f"watch{version}")
    reader.send(subscribe(1, f"silent/{version}", version=version))
    reader.next()
    line = Line(shared, version)
    line.join(f"silent{version}", keep_alive=1, will=Will(f"silent/{version}"))
    began = time.monotonic()
    told = line.rest()
    took_s = time.monotonic() - began
    assert [packet.kind for packet in told] == (["DISCONNECT"] if version == 5 else [])
    assert 1.4 < took_s < 1.5 + TIMEOUT_S
    assert reader.next().payload == b"gone"
    reader.close()
    line.close()


@normative(v5="3.1.4-3", v3="3.1.4-2", more="F15 S8")
def test_fifty_connections_with_one_identifier(shared: EmbeddedServer) -> None:
    """Of fifty simultaneous connections with one identifier one survives, and the others are told why and closed."""
    lines = [Line(shared) for _ in range(50)]
    told: dict[int, list[Seen]] = {}

    def come_in(number: int) -> None:
        lines[number].send(connect("same"))
        told[number] = lines[number].rest()

    threads = [threading.Thread(target=come_in, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(told) == 49, "all but one are closed")
    (survivor,) = set(range(50)) - set(told)
    lines[survivor].send(disconnect())
    for thread, line in zip(threads, lines, strict=True):
        thread.join()
        line.close()
    assert [packet.kind for packet in told.pop(survivor)] == ["CONNACK"]
    assert min(packets[-1].code for packets in told.values()) >= 0x80
    assert 0x8E in {packets[-1].code for packets in told.values()}


def test_a_connection_that_says_nothing() -> None:
    """A connection without a CONNECT in time is closed without an answer."""
    with EmbeddedServer(broker_limits=BrokerLimits(connect_timeout_s=0.2)) as server:
        line = Line(server)
        assert line.rest() == []
        line.close()


@normative(more="W1")
def test_a_peer_that_vanishes(shared: EmbeddedServer) -> None:
    """A socket that closes without DISCONNECT sends the will at once."""
    reader = Line(shared)
    reader.join("mourner")
    reader.send(subscribe(1, "vanished"))
    reader.next()
    line = Line(shared)
    line.join("vanishing", will=Will("vanished"))
    line.close()
    assert reader.next().payload == b"gone"
    reader.close()
