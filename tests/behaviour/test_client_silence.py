"""A server whose machine vanished while TCP keeps the connection up, and one that only pauses; over all drivers."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import time

import pytest
from support.proxy import Proxy
from support.shells import Shell
from support.waiting import until

from statestore_client import ConnectionState, RequestTimeoutError, StateStoreError
from statestore_client.server import EmbeddedServer


@pytest.mark.parametrize("addresses", [1, 2])
async def test_a_vanished_machine_costs_no_error(shell: Shell, server: EmbeddedServer, addresses: int) -> None:
    """The request in flight is answered over the next connection, and done once."""
    async with Proxy(server.port) as one, Proxy(server.port) as two:
        url = ",".join([one.url, two.url.removeprefix("mqtt://")][:addresses])
        async with shell.client(url, silence_timeout=0.6 if addresses == 1 else 30.0) as store:
            await store.set("k", b"0")
            one.vanish()
            began = time.monotonic()
            results = await asyncio.gather(*(store.set(f"k{n}", b"1", timeout=20.0) for n in range(20)))
            assert time.monotonic() - began < 5.0
            assert all(result.applied for result in results)
            assert one.connections == (2 if addresses == 1 else 1)
            assert two.connections == addresses - 1
            assert store.stats.resent
            assert not store.stats.timeouts
            versions = {result.version for result in results}
            assert {(await store.get(f"k{n}")).version for n in range(20)} == versions


async def test_a_lone_request_on_an_idle_connection_notices(shell: Shell, server: EmbeddedServer) -> None:
    """Also after a while in which nothing was owed, and no timer ran."""
    async with Proxy(server.port) as proxy, shell.client(proxy.url, silence_timeout=0.6) as store:
        await store.set("k", b"0")
        await asyncio.sleep(0.5)
        proxy.vanish()
        began = time.monotonic()
        assert await store.get("k", timeout=20.0)
        assert time.monotonic() - began < 5.0


@pytest.mark.ci
async def test_the_error_says_for_how_long_no_byte_came(shell: Shell, server: EmbeddedServer) -> None:
    """With one address, to a caller with little time, and then while the machine stays away."""
    async with Proxy(server.port) as proxy, shell.client(proxy.url, silence_timeout=0.5) as store:
        seen = rf"no byte from {proxy.url} for \d\.\d s, not even for a ping"
        await store.set("k", b"0")
        proxy.vanish()
        with pytest.raises(RequestTimeoutError, match=rf"\(no byte from {proxy.url} for 0\.\d s\)"):
            await store.set("k", b"1", timeout=0.3)
        proxy.hold("up", "down")
        with pytest.raises(RequestTimeoutError, match=seen):
            await store.set("k", b"2", timeout=2.0)
        with pytest.raises(RequestTimeoutError, match=seen):
            await store.lock("l").acquire(timeout=0.1)


@pytest.mark.ci
async def test_the_keep_alive_says_for_how_long_no_byte_came(shell: Shell, server: EmbeddedServer) -> None:
    """Of a broker that owes nothing else."""
    states: list[tuple[ConnectionState, StateStoreError | None]] = []
    async with (
        Proxy(server.port) as proxy,
        shell.client(proxy.url, keep_alive=1, on_state=lambda *change: states.append(change)) as store,
    ):
        await store.set("k", b"0")
        proxy.vanish()
        await until(lambda: states[-1][0] is not ConnectionState.CONNECTED)
        assert re.search(rf"no byte from {proxy.url} for \d\.\d s, not even for a ping", str(states[-1][1]))


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="TCP of this system cannot be told")
@pytest.mark.parametrize(("silence_timeout", "gives_up_after_ms"), [(2.0, 10_000), (30.0, 30_000)])
async def test_tcp_gives_up_what_no_machine_acknowledges(
    shell: Shell, server: EmbeddedServer, silence_timeout: float, gives_up_after_ms: int
) -> None:
    """After ten seconds, and not after a quarter of an hour, unless the user bears a longer silence."""
    async with Proxy(server.port) as proxy, shell.client(proxy.url, silence_timeout=silence_timeout):
        (ours,) = (
            sock
            for sock in gc.get_objects()
            if isinstance(sock, socket.socket) and sock.fileno() >= 0 and _peer(sock) == proxy.url.rpartition(":")[2]
        )
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == gives_up_after_ms


def _peer(sock: socket.socket) -> str | None:
    try:
        return str(sock.getpeername()[1])
    except (OSError, IndexError):
        return None


@pytest.mark.ci
async def test_a_pause_costs_no_connection(shell: Shell, server: EmbeddedServer) -> None:
    """The server's machine stands still for a second, with requests in flight."""
    async with Proxy(server.port) as proxy, shell.client(proxy.url) as store:
        await store.set("k", b"0")
        proxy.hold("up", "down")
        pending = asyncio.ensure_future(store.set("k", b"1"))
        await asyncio.sleep(1.0)
        proxy.flow("up", "down")
        assert (await pending).applied
        assert proxy.connections == 1


@pytest.mark.ci
async def test_a_server_that_answers_pings_is_not_left(shell: Shell) -> None:
    """It never acknowledges, nor answers: a PINGRESP is a sign of life all the same."""
    with EmbeddedServer(faults=True) as server:
        async with Proxy(server.port) as proxy, shell.client(proxy.url, silence_timeout=0.5) as store:
            await store.set("k", b"0")
            server.faults.withhold("PUBLISH", by="client")
            with pytest.raises(RequestTimeoutError, match=r"no byte from mqtt://127.* for 0\.\d s"):
                await store.set("k", b"1", timeout=2.0)
            server.faults.clear()
            assert (await store.set("k", b"1")).applied
            assert proxy.connections == 1
