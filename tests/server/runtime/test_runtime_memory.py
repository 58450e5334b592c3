"""Memory of a process that belongs to the server: its collector, and what goes back to the system."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import re
import subprocess
import sys
import weakref
from asyncio.sslproto import SSLProtocol
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest
from support.keys import Certificates
from support.waiting import until

from statestore_client.mqtt.packets import Connect, encode
from statestore_client.server import ServerTls
from statestore_client.server.broker import BrokerLimits
from statestore_client.server.runtime.process import memory_given_back, short_pauses
from statestore_client.server.runtime.server import Server
from statestore_client.server.runtime.settings import ServerSettings
from statestore_client.server.runtime.transport.connection import ServerConnection
from statestore_client.server.runtime.transport.sockets import SocketTransport


class _Ring:
    """A cycle."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thaw() -> Iterator[None]:
    """This process goes on."""
    yield
    gc.unfreeze()


@pytest.mark.parametrize(
    ("blocks", "growth", "is_collected"), [(1000, 0, True), (50_000_000, 0, False), (50_000_000, 20_000_000, True)]
)
@pytest.mark.ci
async def test_full_collections_happen_while_there_is_little(blocks: int, growth: int, is_collected: bool) -> None:
    """Full collections run at set times, and are put off while they would stop everybody for long, unless what is there
    doubles: peers that come and go could fill the memory with garbage otherwise.
    """
    looks = asyncio.Event()
    counts = itertools.count(blocks, growth)

    def count() -> int:
        looks.set()
        return next(counts)

    with short_pauses(asyncio.get_running_loop(), pause_s=0.001, blocks=count):
        ring = weakref.ref(_Ring())
        for _ in range(6):
            looks.clear()
            await looks.wait()
        assert (ring() is None) is is_collected


@pytest.mark.ci
async def test_values_that_replace_others_are_looked_through_in_small_parts() -> None:
    """New objects are looked through also if as many went, which Python does not count; at times with older ones."""
    values = {key: [key] for key in range(2000)}
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    with short_pauses(asyncio.get_running_loop()):
        gc.set_threshold(0)
        gc.callbacks.append(note)
        try:
            for _ in range(20):
                before = len(generations)
                while len(generations) == before:
                    for key in values:
                        values[key] = [key]
                    await asyncio.sleep(0.001)
        finally:
            gc.callbacks.remove(note)
    assert generations == [*[0] * 9, 1] * 2


async def assert_nothing_is_left(server: Server, kinds: tuple[type, ...], sent: bytes) -> None:
    """Of these kinds, after a client has come, sent this and gone: three times, without the collector."""

    def count() -> int:
        return sum(isinstance(each, kinds) for each in gc.get_objects())

    await server.start()
    gc.collect()
    gc.disable()
    try:
        host, port = server.urls[0].partition("://")[2].split(":")
        for _ in range(3):
            reader, writer = await asyncio.open_connection(host, int(port))
            await until(lambda: count() > 0, "it is there")
            writer.write(sent)
            writer.write_eof()
            with contextlib.suppress(OSError):
                await reader.read()
            writer.close()
            await until(lambda: count() == 0, "all of it is gone")
    finally:
        gc.enable()
        await server.stop()


@pytest.mark.parametrize("sent", [b"", b"\xff" * 20, encode(Connect("c"), 5), encode(Connect("c"), 5) + b"\xff" * 20])
@pytest.mark.ci
async def test_a_connection_leaves_nothing_to_collect(sent: bytes) -> None:
    """What belongs to a connection goes with it, without the collector: others come and go thousands of times."""
    server = Server(ServerSettings(broker_limits=BrokerLimits(connect_timeout_s=0.01)))
    await assert_nothing_is_left(server, (ServerConnection, SocketTransport), sent)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00" + bytes(512)])
@pytest.mark.ci
async def test_a_failed_handshake_leaves_no_buffers_to_collect(sent: bytes, tmp_path: Path) -> None:
    """The 300 kB of a TLS handshake go with it: strangers can let any number of handshakes fail."""
    certificates = Certificates(tmp_path)
    tls = ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file)
    await assert_nothing_is_left(Server(ServerSettings(tls=tls)), (SSLProtocol,), sent)


@pytest.mark.ci
async def test_the_collector_is_left_as_it_was() -> None:
    """After the end the collector's thresholds are the process's own."""
    before = gc.get_threshold()
    with short_pauses(asyncio.get_running_loop()):
        assert gc.get_threshold()[2] > 1_000_000
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before


# -- memory that was freed goes back to the system ---------------------------------------------------------------------

_PROGRAM = """
import re
from statestore_client.server.runtime.process import trim_memory
def resident_kb():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1])
kept = []
large = []
for number in range(60_000):
    large.append(bytes(1000))
    if not number % 100:
        kept.append(bytes(1000))  # in between
full = resident_kb()
del large
trim_memory()
print(full - resident_kb())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say how much there is")
@pytest.mark.ci
def test_what_was_freed_in_between_goes_back() -> None:
    """Of 60 MB of freed messages, with some kept among them, most goes back to the system (glibc), or all (musl)."""
    found = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, check=True, timeout=60)
    freed_kb = int(re.fullmatch(rb"(-?\d+)\n", found.stdout)[1])  # type: ignore[index]  # it is one number
    assert freed_kb > 40_000


@pytest.mark.parametrize(
    ("blocks", "count"),
    [
        ((100_000, 90_000, 100_000, 85_000), 0),  # it comes and goes
        ((100_000, 500_000, 490_000, 100_000, 100_000), 1),  # a queue was drained
        ((100_000, 95_000, 90_000, 85_000, 80_000, 79_000), 1),  # in small steps, too
        ((500_000, 100_000, 500_000, 100_000), 2),
    ],
)
async def test_when_it_is_given_back(blocks: tuple[int, ...], count: int) -> None:
    """Memory is given back once after much was freed."""
    loop, is_over, trims = asyncio.get_running_loop(), asyncio.Event(), list[None]()

    def numbers() -> Iterator[int]:
        yield from blocks
        is_over.set()
        yield from repeat(blocks[-1])

    counts = chain(numbers())
    with memory_given_back(loop, pause_s=0.001, blocks=lambda: next(counts), trim=lambda: trims.append(None)):
        await is_over.wait()
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop))
    await loop.shutdown_default_executor()
    assert len(trims) == count
