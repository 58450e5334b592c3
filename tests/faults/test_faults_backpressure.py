"""A peer that stops reading: what a client holds back is bounded by its window, and leaves when it reads again."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

from support.proxy import Proxy
from support.shells import Shell

from statestore_client.server import EmbeddedServer

_MEGABYTE = 1_000_000


async def published(store: Any, count: int) -> None:
    """Wait until this many requests were handed to the driver."""
    engine = getattr(store, "target", store)._engine
    while engine._machine.request_table.in_flight < count:  # noqa: ASYNC110 - a counter announces nothing
        await asyncio.sleep(0.005)


async def test_memory_is_bounded_by_the_window(shell: Shell, server: EmbeddedServer) -> None:
    """Fifty values of a megabyte (one object) and a window of four make fewer than four copies more than the window
    allows."""
    value = bytes(_MEGABYTE)
    async with Proxy(server.port) as proxy, shell.client(proxy.url, max_in_flight=4) as store:
        await store.set("k", b"1")
        proxy.hold("up")
        tracemalloc.start()
        try:
            sets = [asyncio.ensure_future(store.set(f"k{i}", value, timeout=30)) for i in range(50)]
            await published(store, 4)
            await asyncio.wait(sets, timeout=0.1)
            proxy_bytes = 2 * 65_536 * 16  # what asyncio's streams of the proxy have read ahead
            assert tracemalloc.get_traced_memory()[1] < 12 * _MEGABYTE + proxy_bytes
        finally:
            tracemalloc.stop()
        proxy.flow("up")
        assert all(done.applied for done in await asyncio.gather(*sets))


async def test_order_is_kept_through_a_pause(shell: Shell, server: EmbeddedServer) -> None:
    """Large and small values that are held back in the middle each arrive whole and in order."""
    async with Proxy(server.port) as proxy, shell.client(proxy.url, max_in_flight=32) as store:
        values = [bytes([i]) * (500_000 if i % 3 == 0 else 10) for i in range(60)]
        proxy.hold("up")
        sets = [asyncio.ensure_future(store.set(f"k{i}", value, timeout=30)) for i, value in enumerate(values)]
        await published(store, 32)
        proxy.flow("up")
        assert all(done.applied for done in await asyncio.gather(*sets))
        items = await store.get_many([f"k{i}" for i in range(60)], timeout=30)
        assert [item.value for item in items] == values
