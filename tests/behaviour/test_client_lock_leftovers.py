"""A contender that gives up leaves nothing of its lock behind, even with a full window, with both shells."""

from __future__ import annotations

import asyncio

import pytest
from support.proxy import Proxy
from support.shells import Shell
from support.waiting import until

from statestore_client import StateStoreError
from statestore_client.server import EmbeddedServer


async def test_a_claim_that_was_given_up_is_taken_back_however_late(shell: Shell, server: EmbeddedServer) -> None:
    """A claim that was given up without an answer is taken back, however many other requests are in front of that."""
    async with (
        Proxy(server.port) as proxy,
        shell.client(server.url) as other,
        shell.client(proxy.url, max_in_flight=2, request_timeout=20) as store,
    ):
        proxy.hold("down")
        acquiring = asyncio.ensure_future(store.lock("lock", lease=120).acquire(timeout=0.3))
        await until(lambda: store.stats.requests == 1)
        others = [asyncio.ensure_future(store.get("key")) for _ in range(5)]
        with pytest.raises(StateStoreError):
            await acquiring
        proxy.flow("down")
        await asyncio.gather(*others)
        await other.lock("lock").acquire(timeout=20)  # long before the lease would have ended


async def test_a_release_that_was_cancelled_still_releases(server: EmbeddedServer) -> None:
    """A release whose task is cancelled while it waits for room in the window is sent all the same."""
    from statestore_client import AsyncStateStoreClient

    async with (
        Proxy(server.port) as proxy,
        AsyncStateStoreClient(server.url) as other,
        AsyncStateStoreClient(proxy.url, max_in_flight=2, request_timeout=20) as store,
    ):
        lock = store.lock("lock", lease=120)
        await lock.acquire()
        proxy.hold("down")
        before = store.stats.requests
        others = [asyncio.ensure_future(store.get("key")) for _ in range(5)]
        releasing = asyncio.ensure_future(lock.release())
        await until(lambda: store.stats.requests == before + 6)
        releasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await releasing
        proxy.flow("down")
        await asyncio.gather(*others)
        await other.lock("lock").acquire(timeout=20)  # long before the lease would have ended
