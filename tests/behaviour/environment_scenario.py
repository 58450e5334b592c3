"""What a program does with both clients, for ``test_client_environments``: calls, a lock, a watch, a reconnect."""

from __future__ import annotations

import asyncio

from statestore_client import AsyncStateStoreClient, StateStoreClient
from statestore_client.server import EmbeddedServer

_LONG_S = 30.0


def use_blocking(server: EmbeddedServer, url: str) -> None:
    """With the blocking client."""
    with StateStoreClient(url, request_timeout=_LONG_S) as store:
        for number in range(20):
            store.set(f"key {number}", b"%d" % number)
            found = store.get(f"key {number}")
            assert_equal(found and found.value, b"%d" % number)
        with store.watch("watched") as events:
            store.set("watched", b"1")
            event = events.get(timeout=_LONG_S)
            assert_equal(event and event.value, b"1")
        with store.lock("lock", lease=5) as lease:
            store.set("guarded", b"1", fencing_token=lease.fencing_token)
        server.faults.cut(0, client_id=store.client_id, times=1)
        store.set("after a reconnect", b"1")


async def use_asyncio(server: EmbeddedServer, url: str) -> None:
    """With the asyncio client."""
    async with AsyncStateStoreClient(url, request_timeout=_LONG_S) as store:
        await asyncio.gather(*(store.set(f"key {number}", b"%d" % number) for number in range(20)))
        seen: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        async with store.watch("watched", callback=lambda event: seen.done() or seen.set_result(event.value)):
            await store.set("watched", b"1")
            assert_equal(await asyncio.wait_for(seen, _LONG_S), b"1")
        async with store.lock("lock", lease=5) as lease:
            await store.set("guarded", b"1", fencing_token=lease.fencing_token)
        server.faults.cut(0, client_id=store.client_id, times=1)
        await store.set("after a reconnect", b"1")


def use_once(url: str) -> None:
    """In a child process."""
    with StateStoreClient(url, request_timeout=_LONG_S) as store:
        store.set("from a child", b"1")


def assert_equal(found: object, wanted: object) -> None:
    """Also where Python is run with -O."""
    if found != wanted:
        raise AssertionError(f"{found!r} is not {wanted!r}")


def use_both(url_options: str = "") -> None:
    """One client after the other."""
    with EmbeddedServer(faults=True) as server:
        use_blocking(server, server.url + url_options)
        asyncio.run(use_asyncio(server, server.url + url_options))
    print("fine")  # noqa: T201 - the test reads it
