"""Several addresses, of the URL or of a name, of which some swallow packets or refuse: in both shells, both drivers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.ports import black_hole, reserved_port
from support.proxy import Proxy
from support.shells import SHELLS, Shell

from statestore_client import ConnectionLostError
from statestore_client.server import EmbeddedServer

_ALL_DRIVERS = pytest.mark.parametrize("names", [pytest.param(names, id="-".join(names)) for names in SHELLS])


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the name ``plant`` has for addresses."""
    found: list[int] = []
    look_up = socket.getaddrinfo

    def fake(host: Any, *arguments: Any, **options: Any) -> Any:
        if host not in ("plant", b"plant"):
            return look_up(host, *arguments, **options)
        if options.get("flags"):
            raise socket.gaierror("it is a name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in found]

    monkeypatch.setattr(socket, "getaddrinfo", fake)
    return found


@_ALL_DRIVERS
async def test_an_address_that_swallows_packets_costs_a_tenth_of_a_second(
    names: tuple[str, str], executor: Any, server: EmbeddedServer, ports: list[int]
) -> None:
    """Two of them, and one that refuses, cost two."""
    with black_hole() as hole, black_hole() as other:
        ports += [hole, reserved_port(), other, server.port]
        began = time.monotonic()
        async with Shell(*names, executor).client("mqtt://plant", connect_timeout=60.0) as store:
            assert (await store.set("k", b"1")).applied
        assert 0.19 < time.monotonic() - began < 8.0
    gc.collect()  # no socket of an attempt is left: that would be a ResourceWarning


@contextlib.asynccontextmanager
async def refusing() -> AsyncIterator[int]:
    """A port at which each CONNECT is answered: server unavailable (MQTT 5.0, 3.2.2.2)."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(bytes.fromhex("20 03 00 88 00"))
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1") as listener:
        yield listener.sockets[0].getsockname()[1]


@_ALL_DRIVERS
@pytest.mark.parametrize("of", ["url", "name"])
async def test_a_server_that_refuses_does_not_end_the_attempt(
    names: tuple[str, str], executor: Any, server: EmbeddedServer, ports: list[int], of: str
) -> None:
    """Nor does one that says nothing keep the client from asking the others."""
    async with refusing() as busy:
        with black_hole() as hole:
            ports += [busy, hole, server.port]
            url = "mqtt://plant" if of == "name" else "mqtt://" + ",".join(f"127.0.0.1:{port}" for port in ports)
            began = time.monotonic()
            async with Shell(*names, executor).client(url, connect_timeout=60.0) as store:
                assert (await store.set("k", b"1")).applied
            assert 0.09 < time.monotonic() - began < 8.0
    gc.collect()


@_ALL_DRIVERS
async def test_a_first_attempt_waits_for_those_that_are_late(names: tuple[str, str], executor: Any) -> None:
    """And fails when they have had their time, with what they did not say."""
    with black_hole() as hole:
        url = f"mqtt://127.0.0.1:{hole},127.0.0.1:{reserved_port()}"
        began = time.monotonic()
        with pytest.raises(
            ConnectionLostError, match=f"cannot connect to mqtt://127.0.0.1:{hole}: no answer within 0.6 s"
        ):
            await Shell(*names, executor).client(url, connect_timeout=0.6).open()
        assert 0.59 < time.monotonic() - began < 8.0
    gc.collect()


@_ALL_DRIVERS
async def test_a_name_with_several_addresses_is_doubted_sooner(
    names: tuple[str, str], executor: Any, server: EmbeddedServer, ports: list[int]
) -> None:
    """As a URL with several; the next one is not the one that vanished."""
    async with Proxy(server.port) as one, Proxy(server.port) as two:
        ports += [int(proxy.url.rpartition(":")[2]) for proxy in (one, two)]
        async with Shell(*names, executor).client("mqtt://plant", silence_timeout=30.0) as store:
            await store.set("k", b"0")
            one.hold("up", "down")
            began = time.monotonic()
            assert (await store.set("k", b"1", timeout=20.0)).applied
            assert time.monotonic() - began < 5.0
            assert (one.connections, two.connections) == (1, 1)


@_ALL_DRIVERS
async def test_the_last_failure_is_told_and_the_time_is_kept(
    names: tuple[str, str], executor: Any, ports: list[int]
) -> None:
    """All refuse, or none answers."""
    shell = Shell(*names, executor)
    ports += [reserved_port(), reserved_port()]
    with pytest.raises(ConnectionLostError, match="refused"):
        await shell.client("mqtt://plant", connect_timeout=8.0).open()
    with black_hole() as hole, black_hole() as other:
        ports[:] = [hole, other]
        began = time.monotonic()
        with pytest.raises(ConnectionLostError):
            await shell.client("mqtt://plant", connect_timeout=0.3).open()
        assert 0.25 < time.monotonic() - began < 8.0
    gc.collect()
