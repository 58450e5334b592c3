"""Candidates that cannot reach the server: what they are told is what they can know, with both shells."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.proxy import Proxy
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    AsyncStateStoreClient,
    ClosedError,
    ConnectionLostError,
    ConnectionState,
    LockNotAcquiredError,
    RequestTimeoutError,
)
from statestore_client.server import EmbeddedServer


async def test_who_is_not_connected_does_not_blame_another(shell: Shell, server: EmbeddedServer) -> None:
    """On a suspended connection locks, elections and edits, also one that waits for another, end with a transport
    error; once connected, they say what the server says."""
    async with (
        AsyncStateStoreClient(server.url) as other,
        Proxy(server.port) as proxy,
        shell.client(proxy.url) as store,
        other.lock("job", lease=60, holder="other"),
        other.lock("leader", lease=60, holder="other"),
    ):
        lock, election = store.lock("job"), store.election("leader")

        async def lead(timeout: float) -> None:
            async with election.campaign(timeout=timeout):
                raise AssertionError("it leads")

        def calls(timeout: float) -> tuple[Any, ...]:
            return (
                lambda: store.lock("job").acquire(timeout=timeout),
                lambda: election.campaign(timeout=timeout),
                lambda: lead(timeout),
                lambda: lock.edit("key", lambda _: b"", timeout=timeout),
            )

        await proxy.refuse()
        proxy.cut()
        await until(lambda: store.state is ConnectionState.SUSPENDED)
        for call in calls(0.3):
            with pytest.raises(RequestTimeoutError, match=r"not known: .*not connected") as caught:
                await call()
            assert not caught.value.may_have_been_applied
        first = asyncio.ensure_future(lock.edit("key", lambda _: b"", timeout=60))
        await asyncio.sleep(0)  # it has begun
        with pytest.raises(RequestTimeoutError, match="not known: suspended"):
            await lock.edit("key", lambda _: b"", timeout=0.3)
        await proxy.accept()
        await until(lambda: store.state is ConnectionState.CONNECTED)
        for call in calls(1.0):
            with pytest.raises(LockNotAcquiredError):
                await call()
        first.cancel()
        await asyncio.wait([first])


async def test_a_cut_during_the_wait_is_told(shell: Shell, server: EmbeddedServer) -> None:
    """A wait for a held lock that ends while the link is down says that nobody knows who has the lock."""
    async with (
        AsyncStateStoreClient(server.url) as other,
        Proxy(server.port) as proxy,
        shell.client(proxy.url) as store,
        other.lock("job", lease=60),
    ):
        waiting = asyncio.ensure_future(store.lock("job").acquire(timeout=4))
        await until(lambda: sum(b"NEX" in m.payload for m in server.messages) >= 3)  # ours before and after KEYNOTIFY
        await proxy.refuse()
        proxy.cut()
        with pytest.raises(RequestTimeoutError, match=r"not known: .*; it was held \d\.\d s ago"):
            await waiting


async def test_acquiring_ends_with_the_client(shell: Shell, server: EmbeddedServer) -> None:
    """Callers that wait for a lock learn that the client was replaced by another with its id and is closed for good."""
    async with (
        AsyncStateStoreClient(server.url) as other,
        other.lock("job", lease=60),
        shell.client(server.url, client_id="twin") as store,
    ):
        waiting = asyncio.ensure_future(store.lock("job").acquire())
        await asyncio.wait([waiting], timeout=0.2)
        async with AsyncStateStoreClient(server.url, client_id="twin"):
            with pytest.raises((ClosedError, ConnectionLostError), match="another connection uses the same client id"):
                await asyncio.wait_for(waiting, 20)
