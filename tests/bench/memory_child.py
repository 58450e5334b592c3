"""What bench_memory.py runs in processes of their own: ``memory_child.py WHAT SHELL URL DRIVER COUNT``; prints JSON.

Imports nothing that an application would not: what it measures is the memory of its own process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable

from statestore_client import AsyncStateStoreClient, ConnectionSettings, StateStoreClient

VALUE = b"v" * 100


def resident_bytes() -> int:
    """Of this process, now."""
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def idle_sync(settings: ConnectionSettings) -> dict[str, float]:
    before = resident_bytes()
    with StateStoreClient(settings) as first:
        first.set(b"k", VALUE)
        one = resident_bytes()
        with StateStoreClient(settings) as second:
            second.set(b"k", VALUE)
            two = resident_bytes()
    return {"first": one - before, "second": two - one}


def idle_aio(settings: ConnectionSettings) -> dict[str, float]:
    async def run() -> dict[str, float]:
        before = resident_bytes()
        async with AsyncStateStoreClient(settings) as first:
            await first.set(b"k", VALUE)
            one = resident_bytes()
            async with AsyncStateStoreClient(settings) as second:
                await second.set(b"k", VALUE)
                two = resident_bytes()
        return {"first": one - before, "second": two - one}

    return asyncio.run(run())


class Held:
    """Memory before and while ``count`` requests wait."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._resident = resident_bytes()
        self._blocks = sys.getallocatedblocks()

    def grown(self) -> dict[str, float]:
        blocks = sys.getallocatedblocks() - self._blocks
        resident = resident_bytes() - self._resident
        return {"resident": resident, "blocks": blocks / self._count, "bytes": resident / self._count}


def keys(count: int) -> list[bytes]:
    return [b"bench/%06d" % i for i in range(count)]


def held_aio(settings: ConnectionSettings, count: int, start: Callable[..., list[asyncio.Task[object]]]) -> object:
    """``start`` makes the tasks. The server acknowledges and never answers."""

    async def run() -> dict[str, float]:
        names = keys(count)
        store = await AsyncStateStoreClient(settings).open()
        held = Held(count)
        waiting = start(store, names)
        while store.stats.requests < count:  # noqa: ASYNC110 - the client tells nobody how much it has sent
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # what is left is in the sockets and the acknowledgements
        grown = held.grown()
        await store.close()
        await asyncio.gather(*waiting, return_exceptions=True)
        return grown

    return asyncio.run(run())


def as_tasks(store: AsyncStateStoreClient, names: list[bytes]) -> list[asyncio.Task[object]]:
    """A task for each request."""
    return [asyncio.ensure_future(store.set(name, VALUE, timeout=None)) for name in names]


def as_batch(store: AsyncStateStoreClient, names: list[bytes]) -> list[asyncio.Task[object]]:
    """One set_many."""
    return [asyncio.ensure_future(store.set_many(((name, VALUE) for name in names), timeout=None))]


def held_sync(settings: ConnectionSettings, count: int) -> dict[str, float]:
    """One set_many in a thread."""
    names = keys(count)
    store = StateStoreClient(settings).open()
    held = Held(count)

    def work() -> None:
        try:
            store.set_many(((name, VALUE) for name in names), timeout=None)
        except Exception:  # noqa: BLE001 - the client is closed under it
            return

    thread = threading.Thread(target=work)
    thread.start()
    while store.stats.requests < count:
        time.sleep(0.05)
    time.sleep(0.5)
    grown = held.grown()
    store.close()
    thread.join()
    return grown


def main() -> None:
    what, shell, url, driver, number = sys.argv[1:]
    count = int(number)
    settings = ConnectionSettings.from_url(url, driver=driver, max_in_flight=max(count, 64))
    works: dict[tuple[str, str], Callable[[], object]] = {
        ("idle", "aio"): lambda: idle_aio(settings),
        ("idle", "sync"): lambda: idle_sync(settings),
        ("tasks", "aio"): lambda: held_aio(settings, count, as_tasks),
        ("batch", "aio"): lambda: held_aio(settings, count, as_batch),
        ("batch", "sync"): lambda: held_sync(settings, count),
    }
    print(json.dumps(works[what, shell]()))


if __name__ == "__main__":
    main()
