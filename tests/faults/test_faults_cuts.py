"""A connection that is cut anywhere: each request is applied exactly once and answered, with both shells."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from support.proxy import Proxy
from support.shells import Shell

from statestore_client import AsyncStateStoreClient
from statestore_client.server import EmbeddedServer

#: Sessions at once. Each waits a tenth of a second for its second connection, most of the time.
_PARALLEL = 40


async def short_session(store: Any, key: str) -> None:
    """Three requests whose answers would differ if any of them were carried out twice or not at all."""
    taken = await store.set(key, b"1", condition="NX", timeout=20)
    assert taken.applied
    item = await store.get(key, timeout=20)
    assert (item.value, item.version) == (b"1", taken.version)
    gone = await store.vdelete(key, b"1", timeout=20)
    assert (gone.count, gone.matched) == (1, True)


async def run_cut(shell: Shell, server: EmbeddedServer, key: str, *, up: int | None, down: int | None) -> int:
    """One short session whose first connection is cut; returns how often it connected."""
    async with Proxy(server.port) as proxy:
        proxy.cuts = [(up, down)]
        store = shell.client(proxy.url, client_id=key, retry_first_connect=True)
        try:
            await asyncio.wait_for(store.open(timeout=20), 25)
            await asyncio.wait_for(short_session(store, key), 25)
        finally:
            await store.close()
        return proxy.connections


@pytest.mark.turns(2)
@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_cut_at_any_byte_harms_no_request(shell: Shell, server: EmbeddedServer, direction: str) -> None:
    """After a cut at any byte the session is resumed and each request is applied once, from the server's cache when
    repeated. The asyncio client with the native driver is cut at every byte (its first connection has about 2,000 bytes
    up and 1,000 down), the others, which share its core, at every ninth."""
    step = 1 if shell.is_aio and shell.driver == "native" else 9
    offsets = iter(range(1, 3000, step))
    beyond = asyncio.Event()  # somebody got through on the first connection: later cuts come after the session

    async def worker() -> None:
        for offset in offsets:
            if beyond.is_set():
                return
            limits = {"up": None, "down": None, direction: offset}
            if await run_cut(shell, server, f"{direction}{offset:04}", **limits) == 1:
                beyond.set()

    async with asyncio.TaskGroup() as group:
        for _ in range(_PARALLEL):
            group.create_task(worker())
    assert beyond.is_set()
    async with AsyncStateStoreClient(server.url) as store:
        assert [key async for key in store.scan("*")] == []


async def test_cuts_under_load_lose_and_repeat_nothing(shell: Shell, server: EmbeddedServer) -> None:
    """While the connection is cut again and again, each SET NX of 600 is applied once and says so."""
    random = Random(7)
    async with Proxy(server.port) as proxy:
        proxy.cuts = [(None, random.randrange(2_000, 40_000)) for _ in range(3)]
        proxy.cuts += [(random.randrange(2_000, 40_000), None) for _ in range(2)]
        store = shell.client(proxy.url, max_in_flight=32)
        await store.open()
        done = await asyncio.gather(*(store.set(f"k{i}", b"%d" % i, condition="NX", timeout=60) for i in range(600)))
        assert all(d.applied for d in done)
        items = await store.get_many([f"k{i}" for i in range(600)], timeout=60)
        assert [(item.value, item.version) for item in items] == [(b"%d" % i, done[i].version) for i in range(600)]
        assert proxy.connections == 6
        assert store.stats.resent > 0
        assert (await store.get("k0")).value == b"0"
        await store.close()
