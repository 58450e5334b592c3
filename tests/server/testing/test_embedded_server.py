"""EmbeddedServer: starting, stopping, and being a good guest in somebody else's process."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest
from support.ports import reserved_port
from support.server_clients import Paho, Wire
from support.waiting import eventually

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import Connack, Connect, Disconnect, PacketDecoder, ReasonCode, encode
from statestore_client.server import EmbeddedServer


@pytest.mark.parametrize("count", [0, 100])
@pytest.mark.parametrize("faults", [False, True], ids=["", "faults"])
def test_starts_and_stops_in_less_than_50_ms(count: int, faults: bool) -> None:
    """Starting and stopping takes less than 50 ms, with clients that neither take their DISCONNECT nor close, and one
    that never said CONNECT."""

    def once() -> tuple[float, float]:
        started = time.perf_counter()
        server = EmbeddedServer(faults=faults)
        server.start()
        ready = time.perf_counter()
        with ExitStack() as stack:
            for wire in [stack.enter_context(Wire(server)) for _ in range(count)][1:]:
                wire.connect("")
            stopping = time.perf_counter()
            server.stop()
            stopped = time.perf_counter()
        return ready - started, stopped - stopping

    eventually(lambda: max(once()) < 0.05, "a start and a stop in less than 50 ms: the best of many counts")


def test_takes_a_free_port_and_tells_it() -> None:
    """Two servers take different free ports, and the URL is what clients take."""
    with EmbeddedServer() as one, EmbeddedServer() as two:
        assert one.port != two.port
        assert one.url == f"mqtt://127.0.0.1:{one.port}"


def test_a_port_in_use_is_an_error_of_the_caller() -> None:
    """A port in use is an OSError in the thread that starts, and the object can be used later."""
    with EmbeddedServer(reserved_port()) as first:
        second = EmbeddedServer(first.port)
        with pytest.raises(OSError, match="in use"):
            second.start()
        port = first.port
    with second:
        assert second.port == port


def test_can_be_started_again_and_is_empty() -> None:
    """A server that is started again is empty."""
    server = EmbeddedServer()
    for _ in range(2):
        with server, Paho(server, "c") as client:
            client.subscribe("t", 1)
            client.publish("t", b"x", 1, retain=True)
            assert not client.message().retain
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.counters


def test_starting_twice_is_a_mistake() -> None:
    """Starting twice is a RuntimeError that leaves the running server alone, and stopping twice is harmless."""
    server = EmbeddedServer()
    assert server.start() is server
    try:
        with pytest.raises(RuntimeError, match="running already"):
            server.start()
        with Wire(server) as wire:
            assert isinstance(wire.connect("c"), Connack)
    finally:
        server.stop()
        server.stop()


async def test_in_a_running_loop() -> None:
    """``async with`` starts no thread, and clients of the same loop are served."""
    before = threading.active_count()
    async with EmbeddedServer() as server:
        assert threading.active_count() == before
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(encode(Connect("c")))
        decoder = PacketDecoder(version=5, max_packet_size=1000)
        assert isinstance(decoder.feed(await reader.read(100))[0], Connack)
    (goodbye,) = decoder.feed(await reader.read(100))
    assert (type(goodbye), goodbye.reason_code) == (Disconnect, ReasonCode.SERVER_SHUTTING_DOWN)
    writer.close()
    await writer.wait_closed()


_IN_A_THREAD = """
import gc, socket, threading
from statestore_client.server import EmbeddedServer
for _ in range(20):
    with EmbeddedServer() as server:
        socks = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        socks[0].sendall(b"garbage")
        socks[1].sendall(bytes.fromhex("101000044d5154540502003c032100140000"))
    for sock in socks: sock.close()
gc.collect()
assert threading.active_count() == 1, threading.enumerate()
"""

#: Every kind of endpoint, clients in every state, and things that wait: an appointment of the clock, a coroutine.
_IN_A_LOOP = """
import asyncio, gc, os, socket, sys, tempfile, threading
from statestore_client.server import EmbeddedServer
async def once(**options):
    async with EmbeddedServer(**options) as server:
        assert len(asyncio.all_tasks()) == 1
        endpoints = [("127.0.0.1", int(url.split(":")[2].split("/")[0])) for url in server.urls.values() if "//" in url]
        socks = [socket.create_connection(endpoint) for endpoint in endpoints for _ in range(20)]
        for number, sock in enumerate(socks):
            sock.sendall((bytes.fromhex("101000044d5154540502003c032100140000c000"), b"GET / HT", b"")[number % 3])
        if options.get("faults"):
            server.faults.delay("PINGRESP", 60, times=None)
        waiting = asyncio.ensure_future(server.wait_for_async("never"))
        await asyncio.sleep(0.02)  # the server ends in the middle of all this, wherever it is by now
        waiting.cancel()
    for sock in socks: sock.close()
async def main():
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            await once()
            await once(faults=True)
            await once(ws_port=0, metrics_port=0, unix_socket=os.path.join(folder, "socket"))
            await once(data=os.path.join(folder, "data"))
    assert len(asyncio.all_tasks()) == 1, asyncio.all_tasks()
asyncio.run(main())
gc.collect()
assert threading.active_count() == 1, threading.enumerate()
"""


@pytest.mark.parametrize("program", [_IN_A_THREAD, _IN_A_LOOP], ids=["in a thread", "in a loop"])
def test_nothing_is_left_behind(program: str) -> None:
    """A run in an interpreter with all warnings on leaves no thread, socket, task or warning."""
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    # That a callback took long says that the machine is busy.
    said = [line for line in run.stderr.splitlines() if not line.startswith("Executing <")]
    assert (run.returncode, said) == (0, [])


def test_forgetting_to_stop_does_not_hang_the_program() -> None:
    """A program that forgets to stop the server ends, because its thread is a daemon."""
    program = "from statestore_client.server import EmbeddedServer; EmbeddedServer().start()"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert run.returncode == 0


@pytest.mark.machine
def test_ipv6_urls_have_brackets() -> None:
    """A URL with an IPv6 address has brackets (RFC 3986)."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with EmbeddedServer(host="::1") as server:
        assert server.url == f"mqtt://[::1]:{server.port}"
        socket.create_connection(("::1", server.port)).close()
    gc.collect()


def test_an_address_that_is_not_known_yet_is_none() -> None:
    """A URL whose port the server chooses is known only while it runs, and one that was given always."""
    server = EmbeddedServer()
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"is not running, and takes a free port when it starts: .* call start\(\)"
        ):
            _ = server.url
        assert repr(server) == "<EmbeddedServer not running>"
        with server:
            assert server.url.startswith("mqtt://127.0.0.1:")
            assert repr(server) == f"<EmbeddedServer at {server.url}>"  # for reports of failed tests
    assert EmbeddedServer(port=1883).url == "mqtt://127.0.0.1:1883"


def test_what_is_kept_needs_a_directory() -> None:
    """``persist`` without ``data`` is refused, because it could have no effect."""
    with pytest.raises(InvalidArgumentError, match="give a directory as data, too"):
        EmbeddedServer(persist="asked")
    with pytest.raises(InvalidArgumentError, match="is not a pattern of keys"):
        EmbeddedServer(data="d", persist="[x")
    for wrong in (5, None, [5]):
        with pytest.raises(InvalidArgumentError, match=r"patterns? of keys"):
            EmbeddedServer(data="d", persist=wrong)  # type: ignore[arg-type]
