"""Calls that cannot work in this way or at this moment: an error of their own, with both shells."""

from __future__ import annotations

import asyncio
import threading

import pytest
from support.shells import Shell

from statestore_client import AsyncStateStoreClient, BusyError, ClosedError, StateStoreClient
from statestore_client.server import EmbeddedServer


def test_misuse_is_no_bad_value() -> None:
    """The error for misuse of a lock is no ValueError, so that code that catches those of its parsing does not hide
    it."""
    assert not issubclass(BusyError, ValueError)


@pytest.mark.parametrize("kind", ["watch", "observation"])
async def test_a_watch_has_one_reader(shell: Shell, server: EmbeddedServer, kind: str) -> None:
    """A second reader of a watch is refused at once and takes nothing; after the first has ended another may follow."""
    async with (
        shell.client(server.url) as store,
        store.watch("key") if kind == "watch" else store.lock("key").observe() as readable,
    ):
        if kind == "observation":
            assert (await readable.get(timeout=5)).free
        readers = {asyncio.ensure_future(readable.get(timeout=20)) for _ in range(3)}
        while len(readers) > 1:
            refused, readers = await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
            for reader in refused:
                with pytest.raises(BusyError, match=r"another (thread|task) reads here at this moment"):
                    await reader
        await store.set("key", b"1")
        assert await readers.pop() is not None
        await store.set("key", b"2")
        assert await anext(readable) is not None


async def test_a_reader_that_was_cancelled_leaves_its_place(server: EmbeddedServer) -> None:
    """After a reader is cancelled, the next one may read."""
    async with AsyncStateStoreClient(server.url) as store, store.watch("key") as events:
        for _ in range(2):
            reading = asyncio.ensure_future(events.get())
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        await store.set("key", b"1")
        assert (await events.get(timeout=5)) is not None


async def test_what_is_not_open_or_not_started_says_so(shell: Shell, server: EmbeddedServer) -> None:
    """A client or watch that is not open yet says so, and one that was closed says that."""
    store = shell.client(server.url)
    watch = store.watch("key")
    for call in (lambda: store.get("key"), watch.get, store.lock("job").acquire, store.lock("job").observe().start):
        with pytest.raises(BusyError, match=r"not opened: use it as|not started; use it as"):
            await call()
    async with store:
        pass
    with pytest.raises(ClosedError):
        await store.get("key")


async def test_a_lock_object_is_one_contender(shell: Shell, server: EmbeddedServer) -> None:
    """A lock object that holds its lock is refused in whichever way it asks for the lock again."""
    async with shell.client(server.url) as store:
        lock, election = store.lock("job"), store.election("leader")
        async with lock.acquire(timeout=5), election.campaign(timeout=5):
            for call in (lock.acquire, lock.try_acquire, lock.__aenter__, election.campaign, election.try_campaign):
                with pytest.raises(BusyError, match="holds the lock already; it is not reentrant"):
                    await call()
        async with lock.acquire(timeout=5):
            pass


def test_a_reader_in_another_thread_may_follow() -> None:
    """A reader in another thread may follow when the first has got its event."""
    with EmbeddedServer() as server, StateStoreClient(server.url) as store, store.watch("key", initial=True) as events:
        store.set("key", b"1")
        for _ in range(3):
            thread = threading.Thread(target=events.get, kwargs={"timeout": 0.01})
            thread.start()
            thread.join(10)
        store.set("key", b"2")
        assert events.get(timeout=5) is not None
