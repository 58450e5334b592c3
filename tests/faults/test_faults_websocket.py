"""WebSocket: a listener made with the ``websockets`` library in front of the embedded server, and bad ones."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

import pytest
from support.keys import Certificates
from support.proxy import Proxy
from support.shells import Shell
from support.waiting import until
from websocket_bridge import Bridge
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve
from websockets.typing import Subprotocol

from statestore_client import ConnectionLostError, ConnectionSettings, SettingsError, StateStoreError, TransportError
from statestore_client.server import EmbeddedServer


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of this file's own."""
    return Certificates(tmp_path_factory.mktemp("wss"))


@pytest.fixture(params=["sync", "aio"])
def native(request: pytest.FixtureRequest, executor: ThreadPoolExecutor) -> Shell:
    """What concerns our own WebSocket only."""
    return Shell(request.param, "native", executor)


async def use(store: Any, events: Any) -> None:
    """Small and large values in both directions, a pipeline, and notifications."""
    await store.set_many((f"k{i}", b"x" * 100) for i in range(300))
    items = await store.get_many([f"k{i}" for i in range(300)], timeout=10)
    assert all(item.value == b"x" * 100 for item in items)
    large = bytes(range(256)) * 1024
    await store.set("k", large, timeout=10)
    assert (await events.get(timeout=10)).value == large
    assert (await store.get("k", timeout=10)).value == large


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_everything_works_over_websocket(
    shell: Shell, server: EmbeddedServer, certificates: Certificates, scheme: str
) -> None:
    """Over WebSocket the subprotocol is agreed upon, data comes in binary frames, and requests made together share
    frames."""
    tls = certificates.server_context() if scheme == "wss" else None
    options = {"tls_ca_file": certificates.ca_file} if tls else {}
    async with (
        Bridge(server.port, tls=tls) as bridge,
        shell.client(bridge.url, **options) as store,
        store.watch("k", max_queued=1000) as events,
    ):
        assert bridge.url.startswith(scheme)
        await use(store, events)
        assert bridge.paths == ["/mqtt"]
        if shell.driver == "native":
            assert bridge.frames_up < 600  # of 1,200 packets


@pytest.mark.parametrize("size", [1, 7])
async def test_frames_may_hold_any_part_of_a_packet(native: Shell, server: EmbeddedServer, size: int) -> None:
    """A frame may hold any part of a packet, here one or seven bytes (MQTT 5.0, 6)."""
    async with Bridge(server.port, frame_bytes=size) as bridge, native.client(bridge.url) as store:
        await store.set_many((f"k{i}", b"%d" % i) for i in range(30))
        assert [item.value for item in await store.get_many([f"k{i}" for i in range(30)], timeout=10)] == [
            b"%d" % i for i in range(30)
        ]


async def test_pings_are_answered(native: Shell, server: EmbeddedServer) -> None:
    """WebSocket pings are answered, also while the client has nothing to send."""
    async with Bridge(server.port) as bridge, native.client(bridge.url) as store:
        await store.set("k", b"1")
        (connection,) = bridge.connections
        for _ in range(3):
            await asyncio.wait_for(await connection.ping(), 5)


async def test_a_close_frame_says_why(native: Shell, server: EmbeddedServer) -> None:
    """The code and reason of a close frame are in the listener's error, and then the client comes back."""
    told: list[Exception] = []
    async with (
        Bridge(server.port) as bridge,
        native.client(bridge.url, on_state=lambda _, error: error and told.append(error)) as store,
    ):
        await store.set("k", b"1")
        for connection in tuple(bridge.connections):
            await connection.close(1008, "policy")
        assert (await store.get("k", timeout=10)).value == b"1"
        assert "closed the WebSocket with code 1008, policy" in str(told[0])


async def test_a_client_says_goodbye(native: Shell, server: EmbeddedServer) -> None:
    """close() ends the WebSocket with code 1000 after MQTT's DISCONNECT."""
    async with Bridge(server.port) as bridge:
        async with native.client(bridge.url) as store:
            await store.set("k", b"1")
            (connection,) = bridge.connections
        await asyncio.wait_for(connection.wait_closed(), 5)
        assert connection.protocol.close_code == 1000  # websockets 13 has it nowhere else


async def test_a_cut_websocket_is_bridged(shell: Shell, server: EmbeddedServer) -> None:
    """After a cut over WebSocket each request is applied once."""
    async with Bridge(server.port) as bridge, Proxy(int(bridge.url.split(":")[2].split("/")[0])) as proxy:
        proxy.cuts = [(None, 4000)]
        async with shell.client(proxy.url.replace("mqtt", "ws") + "/mqtt") as store:
            done = await asyncio.gather(*(store.set(f"k{i}", b"", condition="NX", timeout=20) for i in range(50)))
            assert all(d.applied for d in done)
            assert proxy.connections == 2


async def test_a_refused_handshake_names_the_status(native: Shell, server: EmbeddedServer) -> None:
    """The error about a refused handshake names the HTTP status and the setting to check."""
    async with Bridge(server.port, status=HTTPStatus.NOT_FOUND) as bridge:
        with pytest.raises(ConnectionLostError, match=r"HTTP status 404; is websocket_path right"):
            await native.client(bridge.url).open()


async def test_a_port_without_websocket_is_an_error(native: Shell, server: EmbeddedServer) -> None:
    """A port that speaks MQTT without WebSocket is an error."""
    with pytest.raises(TransportError, match="ws://"):
        await native.client(f"ws://127.0.0.1:{server.port}", connect_timeout=1).open()


async def test_a_silent_port_is_given_up_in_time(shell: Shell, server: EmbeddedServer) -> None:
    """A silent WebSocket handshake ends after connect_timeout."""
    async with Proxy(server.port) as proxy:
        proxy.hold("up", "down")
        with pytest.raises(ConnectionLostError, match=r"within 0\.3 s"):
            await asyncio.wait_for(shell.client(proxy.url.replace("mqtt", "ws"), connect_timeout=0.3).open(), 5)


async def test_an_endless_handshake_is_given_up_in_time(shell: Shell) -> None:
    """A handshake that sends a few bytes at a time ends at the time-out, which counts for all of it."""

    talking: list[asyncio.Task[None] | None] = []

    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talking.append(asyncio.current_task())
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nX: ")
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"aaaa")
                await writer.drain()
                await asyncio.sleep(0.02)  # the fault itself
        writer.transport.abort()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as listener:
        url = f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionLostError, match=r"within 0\.2 s"):
            await asyncio.wait_for(shell.client(url, connect_timeout=0.2).open(), 5)
        await asyncio.wait_for(asyncio.gather(*filter(None, talking)), 5)  # it noticed


async def test_a_handshake_that_fails_leaves_no_socket_behind(shell: Shell) -> None:
    """A failed handshake leaves no socket behind, not even for the garbage collector to warn about."""

    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listener:
        url = f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        with pytest.raises(TransportError, match="ws://"):
            await asyncio.wait_for(shell.client(url).open(), 5)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(w.message) for w in told if "127.0.0.1" in str(w.message)] == []


async def test_pings_without_end_are_not_answered_without_end(native: Shell) -> None:
    """Forty thousand pings at once end the connection, because no peer that reads the answers sends so many."""
    with talking(lambda c: c.socket.sendall(b"\x89\x00" * 40_000)) as url, pytest.raises(TransportError, match="pings"):
        await asyncio.wait_for(native.client(url, connect_timeout=5).open(), 10)


@contextmanager
def talking(say: Any) -> Iterator[str]:
    """A WebSocket server that says one thing to everyone."""

    def handler(connection: ServerConnection) -> None:
        connection.recv()
        say(connection)
        with suppress(ConnectionClosed):
            for _ in connection:
                pass

    with serve(handler, "127.0.0.1", 0, subprotocols=[Subprotocol("mqtt")]) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}/mqtt"
        server.shutdown()
        thread.join(5)


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (lambda c: c.send("a text"), "broke the WebSocket protocol: a text frame"),
        (lambda c: c.send(b"\x20\x03\x00\x00"), "did not answer CONNECT"),
        (lambda c: c.socket.sendall(b"\x83\x00"), "broke the WebSocket protocol"),  # opcode 3 is reserved
        (lambda c: c.socket.sendall(b"\x82\xff\x00\x00\xff\xff\xff\xff\xff\xff"), "broke the WebSocket protocol"),
    ],
)
async def test_a_broken_websocket_is_a_typed_error(native: Shell, say: Any, why: str) -> None:
    """Text frames, reserved opcodes, masked or endless frames, and half a CONNACK are typed errors."""
    with talking(say) as url, pytest.raises(TransportError, match=why):
        await asyncio.wait_for(native.client(url, connect_timeout=0.5).open(), 10)


async def test_a_path_that_cannot_be_is_named(native: Shell, server: EmbeddedServer) -> None:
    """An impossible path is a SettingsError that names the setting."""
    settings = ConnectionSettings(host="127.0.0.1", port=server.port, websocket=True, websocket_path="/a#b")
    with pytest.raises(SettingsError, match="websocket_path"):
        await native.client(settings).open()


# -- open_socket -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws"])
async def test_sockets_come_from_where_the_user_says(
    native: Shell, server: EmbeddedServer, certificates: Certificates, scheme: str
) -> None:
    """A user's function opens the sockets, also for a host that only its proxy knows, under TLS and WebSocket, at each
    reconnect."""
    asked: list[tuple[str, int]] = []
    tls = certificates.server_context() if scheme == "mqtts" else None
    async with Proxy(server.port, tls=tls) as proxy, Bridge(server.port) as bridge:
        port = int((bridge.url if scheme == "ws" else proxy.url).split(":")[2].split("/")[0])

        def tunnel(host: str, remote_port: int, timeout: float) -> socket.socket:
            assert 0 < timeout <= 5
            asked.append((host, remote_port))
            return socket.create_connection(("127.0.0.1", port), timeout)

        host = "127.0.0.1" if tls else "broker.invalid"
        options = {"tls_ca_file": certificates.ca_file} if tls else {}
        store = native.client(f"{scheme}://{host}:7", open_socket=tunnel, connect_timeout=5, **options)
        async with store:
            await store.set("k", b"1")
            assert asked == [(host, 7)]
            if scheme != "ws":
                proxy.cut()
                assert (await store.get("k")).value == b"1"
                assert asked == [(host, 7)] * 2


async def test_a_tunnel_that_fails_is_an_error(native: Shell) -> None:
    """An OSError of a tunnel is a lost connection with its words, and a result that is not a socket is a mistake."""

    def fail(_host: str, _port: int, _timeout: float) -> socket.socket:
        raise OSError("the proxy asks for a password")

    with pytest.raises(ConnectionLostError, match="asks for a password"):
        await native.client("mqtt://broker.invalid", open_socket=fail).open()
    with pytest.raises(SettingsError, match="open_socket must return"):
        await native.client("mqtt://broker.invalid", open_socket=lambda *_: None).open()


def _fails(_host: str, _port: int, _timeout: float) -> socket.socket:
    raise KeyError("no such tunnel")


def _exits(_host: str, _port: int, _timeout: float) -> socket.socket:
    raise SystemExit(3)


def _closed(_host: str, _port: int, _timeout: float) -> socket.socket:
    sock = socket.socket()
    sock.close()
    return sock


@pytest.mark.parametrize(
    ("opened", "why"),
    [
        (_fails, "open_socket raised KeyError"),
        (_exits, "open_socket raised SystemExit"),
        (_closed, "open_socket returned a socket that is not connected"),
        (lambda *_: socket.socket(), "open_socket returned a socket that is not connected"),
        (lambda *_: socket.socket(type=socket.SOCK_DGRAM), "open_socket returned a socket that is not connected"),
    ],
)
async def test_whatever_a_tunnel_does_is_an_error_with_its_name(
    native: Shell, opened: Callable[[str, int, float], socket.socket], why: str
) -> None:
    """Any other exception of a tunnel ends the client with it as the reason, and leaves no thread, loop or socket
    behind."""
    with pytest.raises(ConnectionLostError, match=why):
        await native.client("mqtt://broker.invalid", open_socket=opened).open()
    gc.collect()  # a warning is an error


@pytest.mark.parametrize("closes", [False, True])
async def test_a_tunnel_that_hangs_holds_nobody_up(native: Shell, closes: bool) -> None:
    """A tunnel that hangs is left after connect_timeout or by close(), and the socket that it gives later is closed."""
    entered, go_on = threading.Event(), threading.Event()
    late: list[socket.socket] = []

    def hang(_host: str, _port: int, _timeout: float) -> socket.socket:
        entered.set()
        go_on.wait(20)
        ours, theirs = socket.socketpair()
        theirs.close()
        late.append(ours)
        return ours

    store = native.client("mqtt://broker.invalid", open_socket=hang, connect_timeout=1 if closes else 0.2)
    opening = asyncio.ensure_future(store.open())
    await until(entered.is_set)
    if closes:
        await asyncio.wait_for(store.close(), 5)
    with pytest.raises(StateStoreError):
        await asyncio.wait_for(opening, 5)
    go_on.set()
    await until(lambda: bool(late) and late[0].fileno() == -1)


def test_paho_opens_its_sockets_itself(executor: ThreadPoolExecutor) -> None:
    """With the paho driver a function that opens sockets is refused, and the error names the driver that takes it."""
    for name in ("sync", "aio"):
        with pytest.raises(SettingsError, match="driver='native'"):
            Shell(name, "paho", executor).client("mqtt://h", open_socket=socket.create_connection)
