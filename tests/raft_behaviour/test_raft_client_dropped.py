"""What a program drops without closing it: a ResourceWarning, as of files and sockets, and what can be ended is."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

from support.dropped import unclosed
from support.scripted_peers import ScriptedCluster
from support.waiting import eventually, until

from raft_client import AsyncRaftClient, RaftClient
from raft_client.links import Link


def links() -> int:
    """How many sockets of clients are open."""
    return sum(isinstance(each, Link) and not each.is_closed for each in gc.get_objects())


def test_a_dropped_client_ends(peers: ScriptedCluster) -> None:
    """Its sockets are closed, and its threads end."""
    client = RaftClient(peers.seeds, heartbeat=0.1, on_state=lambda *_: None).open()
    with unclosed(f"raft client of {peers.seeds}"):
        del client
        eventually(lambda: not links(), meanwhile=gc.collect)
        eventually(lambda: not [each for each in threading.enumerate() if each.name.startswith("raft ")])


async def test_a_dropped_asyncio_client_ends(peers: ScriptedCluster) -> None:
    """The same, and its tasks."""
    before = asyncio.all_tasks()
    client = await AsyncRaftClient(peers.seeds, heartbeat=0.1, on_state=lambda *_: None).open()
    with unclosed(f"raft client of {peers.seeds}") as count:
        del client
        await until(lambda: count() and not links())
        await until(lambda: asyncio.all_tasks() <= before)


def test_what_is_closed_is_no_loss(peers: ScriptedCluster) -> None:
    """Nobody has to close what never began, what has ended, or what belongs to a client that is closed."""
    peers.fill(3)
    with unclosed():
        RaftClient(peers.seeds)
        with RaftClient(peers.seeds) as client:
            assert len(list(client.entries(0))) == 3
            client.entries(0)
            client.subscribe()
            with client.watch(), client.subscribe():
                pass
            others = client.watch(), client.subscribe().start()
        del client, others


def test_dropped_streams_end(peers: ScriptedCluster) -> None:
    """Entries, subscribers and watches that were dropped are ended; the client goes on."""
    peers.fill(3)
    with RaftClient(peers.seeds) as client:
        with unclosed("watch on "):
            client.watch()
        eventually(lambda: client.watches.open == 0)
        with unclosed("<"):
            client.subscribe(0).start()
        assert client.append(b"x") > 0


async def test_dropped_streams_of_an_asyncio_client_end(peers: ScriptedCluster) -> None:
    """The same."""
    async with AsyncRaftClient(peers.seeds) as client:
        with unclosed("watch on "):
            client.watch()
        await until(lambda: client.watches.open == 0)
        with unclosed("<"):
            await client.subscribe(0).start()
        assert await client.append(b"x") > 0


def test_what_is_in_use_keeps_its_client(peers: ScriptedCluster) -> None:
    """A subscriber that is in use keeps its client."""
    with unclosed():
        reader: Any = RaftClient(peers.seeds).open().subscribe(0).start()
        peers.fill(1)
        gc.collect()
        assert reader.get(timeout=10) is not None
    with unclosed("<", "raft client of "):
        del reader
