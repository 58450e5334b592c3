"""A broker with several addresses: which one is used when another is gone, in both shells, over both drivers."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest
from reached_states import sent
from support.keys import Certificates
from support.ports import black_hole, reserved_port
from support.proxy import Proxy
from support.shells import Shell
from websocket_bridge import Bridge

from statestore_client import ConnectionLostError
from statestore_client.server import EmbeddedServer


def url_of(*proxies: Proxy) -> str:
    """One URL with the addresses of all."""
    return "mqtt://" + ",".join(proxy.url.removeprefix("mqtt://") for proxy in proxies)


async def test_the_session_goes_on_at_another_address(shell: Shell, server: EmbeddedServer) -> None:
    """When the door in use is gone the client is back through the other one, and requests in flight are answered."""
    async with Proxy(server.port) as one, Proxy(server.port) as two, shell.client(url_of(one, two)) as store:
        await store.set("k", b"0")
        for door in (one, two, one):
            door.hold("up")
            pending = [asyncio.ensure_future(store.set(f"k{n}", b"1", timeout=20)) for n in range(20)]
            await sent(store, 20)
            await door.refuse()
            door.cut()
            assert all(result.applied for result in await asyncio.gather(*pending))
            door.flow("up")
            await door.accept()
            assert (await store.get("k")).value == b"0"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of this file's own."""
    return Certificates(tmp_path_factory.mktemp("alternates"))


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws"])
async def test_an_address_that_swallows_packets_costs_a_tenth_of_a_second(
    shell: Shell, server: EmbeddedServer, certificates: Certificates, scheme: str
) -> None:
    """Also with TLS and over WebSocket, where a handshake follows."""
    tls = certificates.server_context() if scheme == "mqtts" else None
    with black_hole() as hole:
        async with Bridge(server.port) as bridge, Proxy(server.port, tls=tls) as proxy:
            door = bridge.url if scheme == "ws" else proxy.url
            port = door.split(":")[2].split("/")[0]
            url = f"{scheme}://127.0.0.1:{hole},127.0.0.1:{reserved_port()},127.0.0.1:{port}"
            began = time.monotonic()
            options = {"tls_ca_file": certificates.ca_file} if tls else {}
            async with shell.client(url, connect_timeout=60.0, **options) as store:
                assert (await store.set("k", b"1")).applied
            assert 0.09 < time.monotonic() - began < 8.0
    gc.collect()  # no socket of an attempt is left: that would be a ResourceWarning


async def test_the_first_connection_tries_all_addresses(shell: Shell, server: EmbeddedServer) -> None:
    """A first address that refuses, or swallows everything, does not keep the client from the second one."""
    async with Proxy(server.port) as dead, Proxy(server.port) as mute, Proxy(server.port) as good:
        await dead.refuse()
        mute.hold("up", "down")
        began = time.monotonic()
        async with shell.client(url_of(dead, mute, good), connect_timeout=3.0) as store:
            assert (await store.set("k", b"1")).applied
        assert time.monotonic() - began >= 0.9, "the second address had its third of the time"


async def test_the_first_connection_fails_when_all_addresses_did(shell: Shell, server: EmbeddedServer) -> None:
    """Without ``retry_first_connect`` the client gives up after one round, and names both in its error."""
    async with Proxy(server.port) as one, Proxy(server.port) as two:
        await one.refuse()
        await two.refuse()
        with pytest.raises(ConnectionLostError, match=f"{one.url} and {two.url}: connection refused"):
            await shell.client(url_of(one, two)).open()


async def test_a_reconnect_after_a_stable_connection_is_at_once(
    shell: Shell, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a connection that lasted the client does not wait before it connects again."""
    monkeypatch.setattr("statestore_client.core.connection._STABLE_AFTER_S", 0.0)  # and not five seconds
    async with (
        Proxy(server.port) as proxy,
        shell.client(proxy.url, reconnect_delay=60.0, max_reconnect_delay=60.0) as store,
    ):
        await store.set("k", b"0")
        proxy.cut()
        assert (await store.set("k", b"1", timeout=20)).applied
