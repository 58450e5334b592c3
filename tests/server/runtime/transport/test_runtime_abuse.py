"""Peers that do it wrong, on purpose or not: the others must not notice."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.server_clients import CONNECT_AND_PING, TIMEOUT_S, Wire, serves
from support.waiting import eventually

from statestore_client.mqtt.packets import (
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
)
from statestore_client.server import EmbeddedServer
from statestore_client.server.broker import BrokerLimits


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    limits = BrokerLimits(packet_bytes=200_000, connect_timeout_s=1.0, queued_bytes=2_000_000, when_full="refuse")
    with EmbeddedServer(broker_limits=limits) as running:
        yield running
        assert serves(running)  # whatever happened


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x00" * 1000,
        b"\xff" * 1000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client hello
        b"\xc0\x00",  # PINGREQ without CONNECT
    ],
)
def test_garbage_instead_of_connect(server: EmbeddedServer, garbage: bytes) -> None:
    """Garbage in place of CONNECT is closed without an answer."""
    with Wire(server) as wire:
        wire.send(garbage)
        assert wire.rest() == []


def test_garbage_after_connect(server: EmbeddedServer) -> None:
    """DISCONNECT 0x81 for garbage arrives although much unread garbage follows it."""
    with Wire(server) as wire:
        wire.connect("c")
        wire.send(b"\xc1\x00" + b"\xff" * 3_000_000)
        (disconnect,) = wire.rest()
        assert (type(disconnect), disconnect.reason_code) == (Disconnect, ReasonCode.MALFORMED_PACKET)


def test_the_packets_before_the_bad_one_count(server: EmbeddedServer) -> None:
    """A message before nonsense in one chunk is acknowledged."""
    with Wire(server) as wire:
        wire.connect("c")
        wire.send(Publish("t", b"x", 1, packet_id=1), b"\xc1\x00")
        puback, disconnect = wire.rest()
        assert isinstance(puback, Puback)
        assert isinstance(disconnect, Disconnect)


def test_a_packet_that_is_too_large(server: EmbeddedServer) -> None:
    """A packet that is too large gets 0x95 as soon as its length is known."""
    with Wire(server) as wire:
        wire.connect("c")
        wire.send(bytes.fromhex("30ffffff7f") + b"x")
        (disconnect,) = wire.rest()
        assert (type(disconnect), disconnect.reason_code) == (Disconnect, ReasonCode.PACKET_TOO_LARGE)


@pytest.mark.attack("MQTT", "packets that never end")
def test_unfinished_packets_are_bounded_over_all_connections() -> None:
    """Unfinished packets of all connections are bounded together: the largest is dropped with its connection."""
    # PUBLISH, remaining length 150,000, of which 120,000 bytes come
    unfinished = bytes.fromhex("30f09309") + bytes(120_000)
    limits = BrokerLimits(packet_bytes=200_000, unfinished_bytes=200_000)
    with EmbeddedServer(broker_limits=limits) as server:
        driver = server._running()._driver
        assert driver is not None
        for _ in range(3):
            eventually(lambda: driver.unfinished_bytes == 0, "nothing is unfinished")
            with Wire(server) as first, Wire(server) as second:
                first.connect("first")
                second.connect("second")
                first.send(unfinished)
                first.send(bytes(10_000))
                eventually(lambda: driver.unfinished_bytes == 130_004, "the first packet has come, as far as it goes")
                second.send(unfinished)
                (told,) = first.rest()
                assert (type(told), told.reason_code) == (Disconnect, ReasonCode.QUOTA_EXCEEDED)
                second.send(bytes(30_000))  # the rest of its packet: topic "", which is one too few
                (told,) = second.rest()
                assert (type(told), told.reason_code) == (Disconnect, ReasonCode.PROTOCOL_ERROR)


def test_no_connect_in_time(server: EmbeddedServer) -> None:
    """Without CONNECT in time silence, and bytes that trickle in, are both cut off."""
    with Wire(server) as silent, Wire(server) as slow:
        assert silent.rest() == []
        with pytest.raises(OSError):  # noqa: PT012 - which of the writes fails is the kernel's choice
            for byte in bytes.fromhex("101000044d5154540502003c0321001400") * 1000:
                slow.sock.sendall(bytes((byte,)))
                time.sleep(0.01)


@pytest.mark.attack("MQTT", "answers and messages that nobody reads")
def test_a_slow_reader_is_kept_at_bay(server: EmbeddedServer) -> None:
    """A slow reader holds up nobody, costs bounded memory, and gets what fits when it reads on."""
    with Wire(server, receive_buffer=4096) as slow, Wire(server) as quick, Wire(server) as writer:
        for name, wire in (("slow", slow), ("quick", quick), ("writer", writer)):
            wire.connect(name)
        for wire in (slow, quick):
            wire.send(Subscribe(1, (Subscription("t", 0),)))
            assert isinstance(wire.receive(), Suback)
        payload = b"x" * 50_000
        for number in range(400):
            writer.send(Publish("t", number.to_bytes(2, "big") + payload))
            message = quick.receive()
            assert isinstance(message, Publish)
            assert message.payload[:2] == number.to_bytes(2, "big")
        assert server.counters.dropped_qos0 > 100
        numbers = []
        slow.send(Pingreq())
        while isinstance(packet := slow.receive(), Publish):
            numbers.append(int.from_bytes(packet.payload[:2], "big"))
        assert numbers[:20] == list(range(20))
        assert numbers == sorted(numbers)


def test_a_writer_that_does_not_read_its_acknowledgements(server: EmbeddedServer) -> None:
    """A publisher that does not read its acknowledgements is not read until it does."""
    with Wire(server, receive_buffer=4096) as wire:
        wire.connect("c")
        requests = b"".join(
            b"\x32\x0a\x00\x01t" + (i % 60_000 + 1).to_bytes(2, "big") + b"\x00abcd" for i in range(10_000)
        )
        wire.sock.setblocking(False)
        sent = 0
        last = time.monotonic()
        while time.monotonic() - last < 0.2 and sent < 100_000_000:
            try:
                sent += wire.sock.send(memoryview(requests)[sent % len(requests) :])
                last = time.monotonic()
            except BlockingIOError:
                continue
        assert sent < 100_000_000
        wire.sock.settimeout(TIMEOUT_S)
        received = 0
        while received < 1000:
            assert isinstance(wire.receive(), Puback)
            received += 1


def test_who_published_to_many_is_read_again() -> None:
    """A publisher whose next packet waited while hundreds were served is read again afterwards."""
    with EmbeddedServer() as server, ExitStack() as stack:
        wires = [stack.enter_context(Wire(server)) for _ in range(200)]
        for number, wire in enumerate(wires):
            wire.connect(f"s{number}")
            wire.send(Subscribe(1, (Subscription("t", 0),)))
            assert isinstance(wire.receive(), Suback)
        writer = stack.enter_context(Wire(server))
        writer.connect("writer")
        writer.send(Publish("t", b"x"))
        assert all(isinstance(wire.receive(), Publish) for wire in wires)
        writer.send(Pingreq())
        assert isinstance(writer.receive(), Pingresp)


def test_a_client_that_shuts_down_its_writing_side_still_gets_its_answers(server: EmbeddedServer) -> None:
    """A client that shuts down its writing side, as ``printf ... | nc`` does, still gets its answers."""
    with Wire(server) as wire:
        wire.send(CONNECT_AND_PING)
        wire.sock.shutdown(socket.SHUT_WR)
        assert [type(packet) for packet in wire.rest()] == [Connack, Pingresp]


def test_five_hundred_connects_take_less_than_a_second(server: EmbeddedServer) -> None:
    """Five hundred connects with a DISCONNECT each take less than a second of the processor."""

    def run() -> float:
        started = time.process_time()
        for number in range(500):
            with Wire(server, version=4) as wire:
                assert isinstance(wire.connect(f"c{number}"), Connack)
                wire.send(b"\xe0\x00")
        return time.process_time() - started

    assert min(run() for _ in range(2)) < 1.0


@pytest.mark.machine
def test_a_thousand_connections_at_once() -> None:
    """A thousand connections are all answered, and a message reaches every one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"this process may open only {hard} files; the test needs 4096")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    try:
        with EmbeddedServer() as server, ExitStack() as stack:
            wires = [stack.enter_context(Wire(server, version=4)) for _ in range(1000)]
            for number, wire in enumerate(wires):
                wire.connect(f"c{number}")
                wire.send(Subscribe(1, (Subscription("all", 1),)))
                assert isinstance(wire.receive(), Suback)
            wires[0].send(Publish("all", b"x", 1, packet_id=9))
            assert wires[0].receive() == Puback(9)
            assert all(isinstance(wire.receive(), Publish) for wire in wires)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_connections_than_allowed() -> None:
    """Connections beyond the limit get CONNACK 0x89, and a place that becomes free is taken."""

    def code(wire: Wire) -> int:
        answer = wire.connect(f"c{wire.sock.fileno()}")
        assert isinstance(answer, Connack)
        return answer.reason_code

    def has_room() -> bool:
        with Wire(server) as another:
            return code(another) == 0

    limits = BrokerLimits(connections=2)
    with EmbeddedServer(broker_limits=limits) as server, Wire(server) as first, Wire(server) as second:
        assert [code(first), code(second)] == [0, 0]
        with Wire(server) as third:
            assert code(third) == ReasonCode.SERVER_BUSY
        first.send(Disconnect())
        first.rest()
        eventually(has_room, "a place for another one")
