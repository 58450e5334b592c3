"""MQTT over WebSocket (MQTT 5.0, section 6; RFC 6455): the handshake, frames, and peers that do it wrong."""

from __future__ import annotations

import contextlib
import ssl
import time
from contextlib import suppress

import paho.mqtt.client as paho
import pytest
from support.keys import Certificates
from support.server_clients import CONNECT_AND_PING, TIMEOUT_S, Paho, Wire
from support.shells import Shell
from support.waiting import eventually
from support.websocket_wire import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, RawWebSocket, frame, handshake
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
    Will,
)
from statestore_client.server import BrokerLimits, EmbeddedServer, ServerTls

__all__ = ["raw_websocket", "web_server"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of this file's own."""
    return Certificates(tmp_path_factory.mktemp("server-wss"))


def serve_wss(certificates: Certificates) -> EmbeddedServer:
    tls = ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file)
    return EmbeddedServer(tls=tls, tls_port=0, ws_port=0, wss_port=0)


# -- clients -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_our_own_clients(shell: Shell, certificates: Certificates, scheme: str) -> None:
    """Our clients handle small and large values, pipelines and notifications over WebSocket without a bridge."""
    options = {"tls_ca_file": certificates.ca_file} if scheme == "wss" else {}
    with serve_wss(certificates) as server:
        async with shell.client(server.urls[scheme], **options) as store, store.watch("large") as events:
            await store.set_many((f"k{i}", b"x" * 100) for i in range(100))
            assert all(item.value == b"x" * 100 for item in await store.get_many([f"k{i}" for i in range(100)]))
            large = bytes(range(256)) * 4096
            await store.set("large", large)
            assert (await events.get(timeout=10)).value == large
            assert (await store.get("large")).value == large


@pytest.mark.parametrize(("version", "is_secure"), [(4, False), (5, False), (5, True)])
def test_paho_over_websocket(certificates: Certificates, version: int, is_secure: bool) -> None:
    """paho over WebSocket and a client by TCP reach each other."""
    with serve_wss(certificates) as server, Paho(server, "tcp") as other:
        other.subscribe("t", 1)
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, "web", protocol=paho.MQTTProtocolVersion(version), transport="websockets"
        )
        if is_secure:
            client.tls_set(certificates.ca_file)
        endpoints = server._running().endpoints
        client.connect("127.0.0.1", (endpoints.wss_port if is_secure else endpoints.ws_port) or 0)
        client.loop_start()
        client.publish("t", b"x" * 100_000, 1).wait_for_publish(TIMEOUT_S)
        assert other.message().payload == b"x" * 100_000
        client.disconnect()
        client.loop_stop()
        client._reset_sockets()


# -- the handshake -----------------------------------------------------------------------------------------------------


def test_the_handshake(server: EmbeddedServer) -> None:
    """The subprotocol is "mqtt" (MQTT-6.0.0-4), the key's answer that of RFC 6455, 1.3, and compression is declined."""
    with RawWebSocket(ws_port(server), shake=False) as web:
        web.sock.sendall(handshake("Sec-WebSocket-Extensions: permessage-deflate", subprotocol="other, mqtt"))
        response = web.http()
        assert response.startswith("HTTP/1.1 101 ")
        assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in response
        assert "Sec-WebSocket-Protocol: mqtt" in response
        assert "Extensions" not in response


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (handshake(path="/other"), 404),
        (handshake(subprotocol=None), 400),
        (handshake(subprotocol="mqttv3.1"), 400),
        (handshake("Origin: https://example.org"), 403),
        (handshake("Origin: null"), 403),
        (handshake("Origin: http://127.0.0.1", "Origin: http://127.0.0.1"), 403),
        (handshake("Origin: http://["), 403),
        (b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n", 426),
        (b"POST /mqtt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 405),
        (b"POST /mqtt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"OPTIONS /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (handshake("Content-Length: 5") + b"hello", 400),
        (handshake("Transfer-Encoding: chunked") + b"0\r\n\r\n", 400),
        (handshake("no colon"), 400),
    ],
)
def test_handshakes_that_are_refused(server: EmbeddedServer, request_: bytes, status: int) -> None:
    """A bad handshake gets an HTTP status, whatever the library for WebSocket makes of it, and the connection ends."""
    with RawWebSocket(ws_port(server), shake=False) as web:
        web.sock.sendall(request_)
        assert web.http().split()[1] == str(status)
        while web.sock.recv(65536):
            pass


@pytest.mark.parametrize("garbage", [b"\x10\x0e\x00\x04MQTT\r\n\r\n", b"\xff" * 9000, bytes.fromhex("16030102000100")])
def test_garbage_instead_of_a_handshake(server: EmbeddedServer, garbage: bytes) -> None:
    """Garbage in place of a handshake ends the connection, at the latest after the time for CONNECT."""
    with RawWebSocket(ws_port(server), shake=False) as web:
        web.sock.sendall(garbage)
        while web.sock.recv(65536):
            pass


@pytest.mark.attack("MQTT by WebSocket", "a page of another site")
def test_origins(server: EmbeddedServer) -> None:
    """Pages of the same host may connect, locally only by a name of this machine, and others when they are named."""
    with EmbeddedServer(ws_port=0, ws_origins=["https://example.org"]) as other:
        for running, origin, host, is_welcome in (
            (server, "http://localhost:3000", "localhost:9001", True),
            (server, "http://127.0.0.1:3000", "127.0.0.1", True),
            (server, "http://rebound.example.org", "rebound.example.org", False),
            (other, "https://example.org", "127.0.0.1", True),
            (other, "http://example.org", "127.0.0.1", False),
        ):
            with RawWebSocket(ws_port(running), shake=False) as web:
                web.sock.sendall(handshake(f"Origin: {origin}").replace(b"Host: 127.0.0.1", f"Host: {host}".encode()))
                assert web.http().startswith("HTTP/1.1 101 " if is_welcome else "HTTP/1.1 403 ")
    with (
        EmbeddedServer(ws_port=0, ws_origins=["*"]) as open_to_all,
        RawWebSocket(ws_port(open_to_all), shake=False) as web,
    ):
        web.sock.sendall(handshake("Origin: https://example.org"))
        assert web.http().startswith("HTTP/1.1 101 ")


@pytest.mark.attack("MQTT by WebSocket", "handshakes that are none, or never end")
def test_handshakes_that_never_end(server: EmbeddedServer) -> None:
    """A handshake that trickles ends after the time for CONNECT, and a long one after 16 KiB."""
    with RawWebSocket(ws_port(server), shake=False) as slow, RawWebSocket(ws_port(server), shake=False) as long:
        slow.sock.sendall(handshake()[:60])
        with pytest.raises(OSError):  # noqa: PT012 - which of the writes fails is the kernel's choice
            for number in range(100_000):
                long.sock.sendall(b"X-%d: %b\r\n" % (number, b"x" * 1000))
            while long.sock.recv(65536):
                pass
            raise ConnectionResetError
        assert slow.sock.recv(65536) == b""


def test_no_connect_after_the_handshake(raw: RawWebSocket) -> None:
    """Pings do not prolong the time for CONNECT."""
    began = time.monotonic()
    with pytest.raises(OSError):  # noqa: PT012 - which of the writes fails is the kernel's choice
        while time.monotonic() - began < TIMEOUT_S:
            raw.sock.sendall(frame(PING))
            time.sleep(0.01)


# -- frames ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 100])
def test_frames_may_hold_any_part_of_a_packet(raw: RawWebSocket, size: int) -> None:
    """A frame may hold any part of a packet (MQTT-6.0.0-2)."""
    for begin in range(0, len(CONNECT_AND_PING), size):
        raw.sock.sendall(frame(BINARY, CONNECT_AND_PING[begin : begin + size]))
    assert isinstance(raw.receive(), Connack)
    assert isinstance(raw.receive(), Pingresp)


def test_fragments(raw: RawWebSocket) -> None:
    """A message in fragments, with a ping between them, is processed as it comes."""
    raw.sock.sendall(frame(BINARY, CONNECT_AND_PING[:9], flags=0))
    raw.sock.sendall(frame(PING, b"hello"))
    raw.sock.sendall(frame(CONTINUATION, CONNECT_AND_PING[9:-2], flags=0))
    assert raw.next_frame() == (PONG, b"hello")
    assert isinstance(raw.receive(), Connack)
    raw.sock.sendall(frame(CONTINUATION, CONNECT_AND_PING[-2:]))
    assert isinstance(raw.receive(), Pingresp)


def test_bytes_come_as_they_like(server: EmbeddedServer) -> None:
    """Handshake and frames are understood byte by byte, and all at once."""
    everything = handshake() + frame(BINARY, CONNECT_AND_PING)
    with RawWebSocket(ws_port(server), shake=False) as slow, RawWebSocket(ws_port(server), shake=False) as quick:
        for byte in everything:
            slow.sock.sendall(bytes((byte,)))
        quick.sock.sendall(everything)
        for web in (slow, quick):
            assert web.http().startswith("HTTP/1.1 101 ")
            assert isinstance(web.receive(), Connack)
            assert isinstance(web.receive(), Pingresp)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (frame(TEXT, b"x"), 1003),
        (frame(BINARY, b"x", flags=0xC0), 1002),  # compressed
        (frame(BINARY, b"x", mask=False), 1002),
        (frame(CONTINUATION, b"x"), 1002),
        (frame(3, b"x"), 1002),
        (frame(PING, b"x" * 126), 1002),
        (frame(CLOSE, b"x"), 1002),
        (frame(BINARY, b"x", length=1 << 40), 1009),
    ],
)
def test_bad_frames(server: EmbeddedServer, raw: RawWebSocket, bad: bytes, code: int) -> None:
    """A bad frame ends the connection with WebSocket's code; what came before counts, and the will is sent."""
    raw.connect("c", will=Will("will", b"gone"))  # first: the server waits a second for CONNECT
    with Paho(server, "watcher") as watcher:
        watcher.subscribe("#", 1)
        raw.sock.sendall(frame(BINARY, raw.encoded(Publish("t", b"before"))) + bad + frame(BINARY, b"\xc0\x00"))
        assert raw.close_code() == code
        assert [watcher.message().payload for _ in range(2)] == [b"before", b"gone"]


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (frame(CLOSE, b"\x03\xe8"), 1000),
        (frame(CLOSE) + frame(CLOSE), None),
        (frame(BINARY, b"x", mask=False), 1002),
        (frame(BINARY, CONNECT_AND_PING) + frame(TEXT, b"x"), 1003),
    ],
)
@pytest.mark.parametrize("size", [1, 150, 100_000])
def test_frames_right_behind_the_handshake(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture, frames: bytes, code: int | None, size: int
) -> None:
    """Frames of a client that does not wait for the handshake's answer are processed."""
    everything = handshake() + frames
    with RawWebSocket(ws_port(server), shake=False) as web:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may hang up before the last byte
            for start in range(0, len(everything), size):
                web.sock.sendall(everything[start : start + size])
        try:
            assert web.http().startswith("HTTP/1.1 101 ")
            assert web.close_code() == (0 if code is None else code)
        except ConnectionResetError:
            # Only who goes on after his goodbye may lose what he has not read yet (RFC 6455, 5.5.1).
            assert code is None
            assert size < len(everything)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("path", ["//[/", "http://[::1/mqtt"])
def test_paths_that_are_none(server: EmbeddedServer, caplog: pytest.LogCaptureFixture, path: str) -> None:
    """An unknown or impossible path is answered "not found", and nothing about it is logged."""
    with RawWebSocket(ws_port(server), shake=False) as web:
        web.sock.sendall(handshake(path=path))
        assert web.http().startswith("HTTP/1.1 404 ")
    assert not caplog.records


def test_goodbyes(server: EmbeddedServer) -> None:
    """A closing frame alone is a lost connection, and after DISCONNECT it is not; it is answered (RFC 6455, 5.5.1)."""
    with Paho(server, "watcher") as watcher:
        watcher.subscribe("#", 1)
        for client_id, last in (("polite", frame(BINARY, b"\xe0\x00")), ("rude", b"")):
            with RawWebSocket(ws_port(server)) as web:
                web.connect(client_id, will=Will(client_id, b"gone"))
                web.sock.sendall(last + frame(CLOSE, b"\x03\xe8"))
                assert web.close_code() == 1000
        assert watcher.message().topic == "rude"
        assert watcher.messages.empty()


def test_the_server_says_why_it_disconnects(certificates: Certificates) -> None:
    """DISCONNECT, then WebSocket's closing frame, arrive although unread garbage follows, over TLS too."""
    tls = ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file)
    with EmbeddedServer(tls=tls, ws_port=0, wss_port=0) as server:
        for scheme in ("ws", "wss"):
            endpoints = server._running().endpoints
            port = endpoints.ws_port if scheme == "ws" else endpoints.wss_port
            context = certificates_context(certificates) if scheme == "wss" else None
            with RawWebSocket(port or 0, tls=context) as web:
                web.connect(scheme)
                web.sock.sendall(frame(BINARY, b"\xc1\x00") + frame(BINARY, b"\xff" * 50_000) * 10)
                packet = web.receive()
                assert (type(packet), packet.reason_code) == (Disconnect, ReasonCode.MALFORMED_PACKET)
                found = web.next_frame()
                assert found is not None
                assert found[0] == CLOSE


def certificates_context(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificates.ca_file)


# -- mqtt over websocket -----------------------------------------------------------------------------------------------


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
            assert (type(told), told.reason_code) == (Disconnect, ReasonCode.QUOTA_EXCEEDED)
            eventually(lambda: driver.unfinished_bytes == 119_000, "the first is forgotten")
            second.sock.close()
            eventually(lambda: driver.unfinished_bytes == 0, "both are forgotten")


def test_a_message_in_fragments_without_end(raw: RawWebSocket) -> None:
    """A message in fragments ends the connection when its sum exceeds the limit."""
    raw.connect("c")
    raw.sock.sendall(frame(BINARY, b"\xc0\x00", flags=0))
    assert isinstance(raw.receive(), Pingresp)
    part = frame(CONTINUATION, raw.encoded(Publish("t", bytes(20_000))), flags=0)
    with contextlib.suppress(OSError):  # which of the writes fails is the kernel's choice
        for _ in range(200):
            raw.sock.sendall(part)
    assert raw.close_code() == 1009


@pytest.mark.parametrize("flood", [frame(PING, b"x" * 100), frame(BINARY), frame(PONG)], ids=["ping", "empty", "pong"])
@pytest.mark.attack("MQTT by WebSocket", "floods of small frames")
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


def test_stopping_with_open_websockets() -> None:
    """At a stop clients get DISCONNECT 0x8B, then a closing frame, and a handshake under way is dropped."""
    with EmbeddedServer(ws_port=0) as server:
        ready, half = RawWebSocket(ws_port(server)), RawWebSocket(ws_port(server), shake=False)
        ready.connect("ready")
        half.sock.sendall(handshake()[:20])
    packet = ready.receive()
    assert (type(packet), packet.reason_code) == (Disconnect, ReasonCode.SERVER_SHUTTING_DOWN)
    assert ready.close_code() == 1000
    assert half.sock.recv(10) == b""
    for web in (ready, half):
        web.sock.close()
