"""MQTT over WebSocket: peers that do too much."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from support.server_clients import Wire
from support.waiting import eventually
from support.websocket_wire import BINARY, CONTINUATION, PING, PONG, RawWebSocket, frame, handshake
from web_server import raw_websocket, web_server, ws_port

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
from statestore_client.server import BrokerLimits, EmbeddedServer

__all__ = ["raw_websocket", "web_server"]


def test_unfinished_frames_are_bounded_over_all_connections() -> None:
    """Unfinished frames count as unfinished packets do, and the connection that holds most gets 0x97."""
    limits = BrokerLimits(packet_bytes=200_000, unfinished_bytes=200_000)
    with EmbeddedServer(ws_port=0, broker_limits=limits) as server:
        driver = server._running()._driver
        assert driver is not None
        with RawWebSocket(ws_port(server)) as first, RawWebSocket(ws_port(server)) as second:
            first.connect("first")
            second.connect("second")
            first.sock.sendall(frame(BINARY, bytes(120_000), length=150_000))
            eventually(lambda: driver.unfinished_bytes == 120_000, "the first frame has come, as far as it goes")
            second.sock.sendall(frame(BINARY, bytes(119_000), length=150_000))
            told = first.receive()
            assert isinstance(told, Disconnect)
            assert told.reason_code == ReasonCode.QUOTA_EXCEEDED
            eventually(lambda: driver.unfinished_bytes == 119_000, "the first is forgotten")
            second.sock.close()
            eventually(lambda: driver.unfinished_bytes == 0, "both are forgotten")


def test_a_message_in_fragments_without_end(raw: RawWebSocket) -> None:
    """A message in fragments ends the connection when its sum exceeds the limit."""
    raw.connect("c")
    raw.sock.sendall(frame(BINARY, b"\xc0\x00", flags=0))
    assert isinstance(raw.receive(), Pingresp)
    ping = frame(CONTINUATION, b"\xc0\x00" * 10_000, flags=0)
    with pytest.raises((OSError, AssertionError)):  # noqa: PT012 - which of the writes fails is the kernel's choice
        while True:
            raw.sock.sendall(ping)
            for _ in range(10_000):
                assert isinstance(raw.receive(), Pingresp)


@pytest.mark.parametrize("flood", [frame(PING, b"x" * 100), frame(BINARY), frame(PONG)], ids=["ping", "empty", "pong"])
def test_floods_of_small_frames_stop_nobody(server: EmbeddedServer, flood: bytes) -> None:
    """While small frames flood in others are served, and a client that does not take its pongs is not read."""
    with RawWebSocket(ws_port(server), receive_buffer=4096) as hostile, Wire(server) as innocent:
        hostile.connect("hostile")
        innocent.connect("innocent")
        hostile.sock.setblocking(False)
        data, sent, slowest = flood * 5_000, 0, 0.0
        until = time.monotonic() + 0.5
        while (now := time.monotonic()) < until:
            with suppress(BlockingIOError):
                sent += hostile.sock.send(memoryview(data)[sent % len(data) :])
            innocent.send(Pingreq())
            assert isinstance(innocent.receive(), Pingresp)
            slowest = max(slowest, time.monotonic() - now)
        assert slowest < 2.0  # on a busy machine
        if flood[0] & 0x0F == PING:
            assert sent < 30_000_000


def test_a_slow_reader_is_kept_at_bay(server: EmbeddedServer) -> None:
    """The publisher gets 0x97 when the queue of a slow reader over WebSocket is full."""
    with RawWebSocket(ws_port(server), receive_buffer=4096) as slow, Wire(server) as writer:
        slow.connect("slow")
        slow.send(Subscribe(1, (Subscription("t", 1),)))
        assert isinstance(slow.receive(), Suback)
        writer.connect("writer")
        codes = []
        for number in range(1, 151):
            writer.send(Publish("t", number.to_bytes(2, "big") + b"x" * 50_000, 1, packet_id=number))
            answer = writer.receive()
            assert isinstance(answer, Puback)
            codes.append(answer.reason_code)
        accepted = [number for number, code in enumerate(codes, 1) if not code]
        assert 20 < len(accepted) < 140
        got = []
        while len(got) < len(accepted):
            message = slow.receive()
            assert isinstance(message, Publish)
            got.append(int.from_bytes(message.payload[:2], "big"))
            slow.send(Puback(message.packet_id))
        assert got == accepted


def test_more_connections_than_allowed() -> None:
    """The limit of connections is one for all endpoints."""
    with (
        EmbeddedServer(ws_port=0, broker_limits=BrokerLimits(connections=1)) as server,
        Wire(server) as first,
        RawWebSocket(ws_port(server)) as second,
    ):
        first.connect("first")
        answer = second.connect("second")
        assert isinstance(answer, Connack)
        assert answer.reason_code == ReasonCode.SERVER_BUSY


def test_stopping_with_open_websockets() -> None:
    """At a stop clients get DISCONNECT 0x8B, then a closing frame, and a handshake under way is dropped."""
    with EmbeddedServer(ws_port=0) as server:
        ready, half = RawWebSocket(ws_port(server)), RawWebSocket(ws_port(server), shake=False)
        ready.connect("ready")
        half.sock.sendall(handshake()[:20])
    packet = ready.receive()
    assert isinstance(packet, Disconnect)
    assert packet.reason_code == ReasonCode.SERVER_SHUTTING_DOWN
    assert ready.close_code() == 1000
    assert half.sock.recv(10) == b""
    for web in (ready, half):
        web.sock.close()
