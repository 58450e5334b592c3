"""Both clients against scripted peers: where a reader stopped, and what becomes of it when it comes back."""

from __future__ import annotations

from typing import Any

import pytest
from raft_shells import RaftShell
from support.scripted_peers import ScriptedCluster, compact

import raft_client
from raft_client import KeyValueCodec, LogEntry, SnapshotChunk


def index_of(position: Any) -> int:
    return getattr(position, "index", position)


def change_terms(peers: ScriptedCluster, term: int) -> None:
    """Another log with the same data."""
    peers._order(lambda: peers.log.__setitem__(slice(None), [e[:13] + bytes([term]) + e[14:] for e in peers.log]))


async def test_the_position_of_entries_is_behind_the_last_one(raft: RaftShell, peers: ScriptedCluster) -> None:
    """After each item the position is that of the item, whatever else was received, so that a new reader loses and
    repeats nothing."""
    peers.fill(40)
    async with raft.client(peers.seeds) as client:
        entries = client.entries()
        assert index_of(entries.position) == 0
        async for entry in entries:
            assert index_of(entries.position) == entry.index
            if entry.index == 11:
                break
        rest = [entry.index async for entry in client.entries(entries.position)]
        assert rest == list(range(12, 41))


async def test_the_position_of_a_subscriber_is_behind_the_last_one(raft: RaftShell, peers: ScriptedCluster) -> None:
    """The position of a subscriber is that of its last item, and stays when the subscriber is closed."""
    peers.fill(40)
    async with raft.client(peers.seeds) as client:
        async with client.subscribe(0) as subscriber:
            async for entry in subscriber:
                assert index_of(subscriber.position) == entry.index
                if entry.index == 11:
                    break
        async with client.subscribe(subscriber.position) as again:
            assert (await anext(again)).index == 12


async def test_what_a_loop_left_comes_before_the_next_batch(raft: RaftShell, peers: ScriptedCluster) -> None:
    """What a loop left comes before the next batch, so that loops and batches may be mixed."""
    peers.fill(20)
    async with raft.client(peers.seeds) as client, client.subscribe(0) as subscriber:
        for reader in (client.entries(), subscriber):
            seen = [(await anext(reader)).index for _ in range(3)]
            while len(seen) < 20:
                seen += [entry.index for entry in await reader.next_batch()]
                assert index_of(reader.position) == seen[-1]
            assert seen == list(range(1, 21))


async def test_a_crash_within_a_snapshot_skips_no_state(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A reader that stores its position after each piece and dies within a snapshot gets the snapshot again."""
    peers.fill(9)
    compact(peers, 6, b"the whole state")
    async with raft.client(peers.seeds) as client:
        entries = client.entries(2)
        stored = []
        async for item in entries:
            stored.append(index_of(entries.position))
            if isinstance(item, LogEntry):
                break
        assert stored == [2, 2, 6, 7]
        state = [item async for item in client.entries(stored[1])]
        pieces = [item.data for item in state if isinstance(item, SnapshotChunk)]
        assert b"".join(pieces) == b"the whole state"


async def test_a_position_in_another_log_is_refused(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Every reader refuses a position in another log, here of a cluster that lost its disks and wrote as many entries
    again."""
    peers.fill(20)
    async with raft.client(peers.seeds) as client:
        entries = client.entries(count=12)
        assert [entry.index async for entry in entries][-1] == 12
        stored = raft_client.Position.parse(str(entries.position))
        assert [entry.index async for entry in client.entries(stored)] == list(range(13, 21))
        change_terms(peers, 4)
        with pytest.raises(raft_client.TermMismatchError) as caught:
            [entry async for entry in client.entries(stored)]
        assert (caught.value.index, caught.value.term, caught.value.found_term) == (12, 1, 4)
        async with client.subscribe(stored) as subscriber:
            with pytest.raises(raft_client.TermMismatchError):
                await subscriber.next_batch(5)
        async with client.watch(after=stored) as watch:
            with pytest.raises(raft_client.TermMismatchError):
                await watch.get(5)


async def test_a_watch_tells_where_to_resume_with_the_term(raft: RaftShell, peers: ScriptedCluster) -> None:
    """The position of a watch, stored as text with its term, resumes a watch of another client."""
    async with raft.client(peers.seeds) as client:
        for n in range(6):
            await client.append(KeyValueCodec.set(f"k{n}", "x"))
        async with client.watch(prefix="k", after=0) as watch:
            for _ in range(4):
                event = await watch.get(5)
            assert event.position == raft_client.Position(4, 1)
            text = str(watch.resume_after)
        assert text == "4@1"
    stored = raft_client.Position.parse(text)
    async with raft.client(peers.seeds) as client, client.watch(prefix="k", after=stored) as watch:
        assert [(await watch.get(5)).index for _ in range(2)] == [5, 6]
