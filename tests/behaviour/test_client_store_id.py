"""A server without data is started again in the middle: what it had is gone, and the client says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.shells import Shell
from support.waiting import until

from statestore_client import BatchError, LeaseLostError, SessionLostError, SetResult, StoreReplacedError
from statestore_client.server import EmbeddedServer


async def test_a_batch_over_a_restart_that_loses_everything(shell: Shell) -> None:
    """``set_many`` fails, and what it calls written is what the store has: no more."""
    with EmbeddedServer() as server:

        def pairs() -> Iterator[tuple[str, str]]:
            for i in range(1000):
                if i == 600:
                    server.restart(keep_state=False)
                yield f"k{i}", "v"

        async with shell.client(server.url) as store:
            await store.set("before", "v")
            with pytest.raises(BatchError) as caught:
                await store.set_many(pairs())
            results = caught.value.results
            kept = {f"k{i}".encode() for i, result in enumerate(results) if isinstance(result, SetResult)}
            assert {key async for key in store.scan("*")} == kept
            failed = [result for result in results if not isinstance(result, SetResult)]
            assert any(isinstance(result, StoreReplacedError) for result in failed)
            assert all(isinstance(result, (StoreReplacedError, SessionLostError)) for result in failed)
            assert len(failed) >= 400


async def test_a_batch_over_a_restart_that_keeps_everything(shell: Shell, tmp_path: Path) -> None:
    """A server with a data directory is the same store after a restart: nothing that was written counts as lost."""
    with EmbeddedServer(data=tmp_path) as server:
        async with shell.client(server.url) as store:
            first = await store.set("before", "v")
            await asyncio.to_thread(server.restart, keep_state=True)
            results = await store.set_many([(f"k{i}", "v") for i in range(100)])
            assert {result.store_id for result in results} == {first.store_id}
            assert first.store_id is not None


async def test_a_batch_after_a_restart(shell: Shell) -> None:
    """A batch that another store carries out as a whole is good; its results have another ``store_id``."""
    with EmbeddedServer() as server:
        async with shell.client(server.url) as store:
            (before,) = await store.set_many([("k", "v")])
            await asyncio.to_thread(server.restart, keep_state=False)
            await until(lambda: server.counters.connects == 1, "the client is connected again")
            after = await store.set_many([(f"k{i}", "v") for i in range(10)])
            assert before.store_id not in {result.store_id for result in after}


async def test_a_lease_is_lost_with_its_store(shell: Shell) -> None:
    """A renewal that takes the lock in an empty store is none: somebody else may have held it in between. It is given
    back after the lease has ended, and long before it would end by itself.
    """
    with EmbeddedServer() as server:
        async with shell.client(server.url) as store:
            lock = store.lock("lock", lease=3.0)
            lease = await lock.acquire()
            await asyncio.to_thread(server.restart, keep_state=False)
            await until(lambda: not lease.valid, "the lease is lost")
            with pytest.raises(LeaseLostError, match="began anew"):
                lease.check()
            await (await store.lock("lock").acquire(timeout=1.5)).release()
            assert await store.get("lock") is None
