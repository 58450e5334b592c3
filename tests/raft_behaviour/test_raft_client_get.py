"""One way to read all three: iterate, or ``get(timeout)``; and subscriptions that begin now."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from raft_shells import RaftShell
from support.scripted_peers import ENTRIES, LOG_INFO, ScriptedCluster
from support.waiting import until

from raft_client import (
    BusyError,
    ClientClosedError,
    KeyValueCodec,
    Position,
    RequestTimeoutError,
)


def reader(client: Any, kind: str) -> Any:
    """Of what is appended from now on, or after the start."""
    return {"entries": client.entries, "subscribe": client.subscribe, "watch": client.watch}[kind](after=0)


@pytest.mark.parametrize("kind", ["entries", "subscribe", "watch"])
async def test_all_are_read_alike(raft: RaftShell, peers: ScriptedCluster, kind: str) -> None:
    """``get`` hands out what iterating does, one by one in the same order, and both may be mixed."""
    async with raft.client(peers.seeds) as client:
        await client.append_many(KeyValueCodec.set(f"{n}", "") for n in range(30))
        async with reader(client, kind) as readable:
            seen = [(await readable.get(timeout=10)).index for _ in range(4)]
            seen.append((await readable.__anext__()).index)
            seen.append((await readable.get()).index)
            async for item in readable:
                seen.append(item.index)
                if item.index == 20:
                    break
            while seen[-1] < 30:
                seen.append((await readable.get(timeout=10)).index)
            assert seen == list(range(1, 31))
        with pytest.raises(ClientClosedError):
            await readable.get(timeout=1)


@pytest.mark.parametrize("kind", ["subscribe", "watch"])
async def test_nothing_new_is_none(raft: RaftShell, peers: ScriptedCluster, kind: str) -> None:
    """``get`` returns None after its time-out, at once if that is 0, and what comes later is not lost."""
    async with raft.client(peers.seeds) as client, reader(client, kind) as readable:
        assert await readable.get(timeout=0) is None
        assert await readable.get(timeout=0.1) is None
        await client.append(KeyValueCodec.set("a", ""))
        assert (await readable.get(timeout=10)).index == 1


async def test_entries_tell_the_end_from_a_pause(raft: RaftShell, peers: ScriptedCluster) -> None:
    """None from entries means the end or a pause, and ``is_over`` tells which; ``get``'s own time-out ends nothing."""
    peers.fill(3)
    async with raft.client(peers.seeds) as client:
        peers.script("1", ENTRIES, lambda _frames: [])
        entries = client.entries(timeout=0.3)
        for timeout in (0, 0.05, 0.5):
            assert await entries.get(timeout=timeout) is None
            assert not entries.is_over
        with pytest.raises(RequestTimeoutError):
            await entries.get()
        assert entries.is_over
        peers.script("1", ENTRIES, None)
        entries = client.entries()
        assert [(await entries.get()).index for _ in range(3)] == [1, 2, 3]
        assert await entries.get() is None
        assert entries.is_over
        assert await entries.get(timeout=0) is None


async def test_a_subscription_begins_now(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A subscription from now begins with the first entry after it was entered; its position has the term once that is
    known."""
    peers.fill(5)
    async with raft.client(peers.seeds) as client:
        subscriber = client.subscribe()
        with pytest.raises(BusyError, match="not started"):
            subscriber.position  # noqa: B018 - reading it is the test
        assert "from now" in repr(subscriber)
        async with subscriber:
            assert subscriber.position.index == 5
            assert await subscriber.get(timeout=0.3) is None
            assert subscriber.position == Position(5, 1)
            await client.append("a")
            entry = await subscriber.get(timeout=10)
            assert (entry.index, entry.data) == (6, b"a")
            assert subscriber.position == Position(6, 1)


async def test_entries_are_not_missed_while_the_end_is_sought(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Entering a subscription waits for the log's end and fails without an answer; one that polls misses no entry
    meanwhile."""
    peers.script("1", LOG_INFO, lambda _frames: [])
    async with raft.client(peers.seeds, request_timeout=0.5) as client:
        with pytest.raises(RequestTimeoutError, match="where the log ends"):
            async with client.subscribe() as subscriber:
                pass
    async with raft.client(peers.seeds) as client:
        subscriber = client.subscribe()
        assert await subscriber.get(timeout=0.1) is None
        peers.script("1", LOG_INFO, None)
        await subscriber.start()
        await client.append("a", timeout=10)
        assert (await subscriber.get(timeout=10)).index == 1
        await subscriber.close()


async def test_a_subscription_that_begins_is_closed(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Closing a subscription wakes a caller that waits for its start."""
    peers.script("1", LOG_INFO, lambda _frames: [])
    async with raft.client(peers.seeds) as client:
        subscriber = client.subscribe()
        waiting = asyncio.create_task(subscriber.get())
        await until(lambda: "stale" in repr(subscriber))
        await subscriber.close()
        with pytest.raises(ClientClosedError):
            await waiting
