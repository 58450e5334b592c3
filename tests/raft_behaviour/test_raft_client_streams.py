"""Both clients against scripted peers: entries, subscribers and watches, how they are read, and where they stop."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from raft_shells import RaftShell
from support.scripted_peers import BROADCAST, ENTRIES, LOG_INFO, ScriptedCluster
from support.waiting import until

import raft_client
from raft_client import (
    BusyError,
    Change,
    ChangeKind,
    ClientClosedError,
    Freshness,
    InvalidArgumentError,
    Key,
    KeyValueCodec,
    NoLeaderError,
    Position,
    RequestTimeoutError,
    Tree,
    WatchEvent,
)


async def indexes(entries: Any) -> list[int]:
    return [entry.index async for entry in entries]


# -- entries -----------------------------------------------------------------------------------------------------------


async def test_entries_come_in_order(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Entries come in order from the beginning, from the middle, as many as wanted, and none at the end."""
    peers.fill(100)
    async with raft.client(peers.seeds) as client:
        assert await indexes(client.entries()) == list(range(1, 101))
        assert await indexes(client.entries(90)) == list(range(91, 101))
        assert await indexes(client.entries(10, 15)) == list(range(11, 26))
        assert await indexes(client.entries(100)) == []
        [entry] = [entry async for entry in client.entries(6, 1)]
        assert entry.data == b"6"


async def test_entries_can_be_taken_in_batches(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A batch has the entries that came together, and None at the end."""
    peers.fill(10)
    async with raft.client(peers.seeds) as client:
        entries = client.entries()
        batches = []
        while (batch := await entries.next_batch()) is not None:
            batches.append([entry.index for entry in batch])
        assert batches == [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10]]
        assert await entries.next_batch() is None
        assert entries.position == Position(10, 1)


async def test_closing_early_tells_the_peer(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Closing entries early tells the peer with a count of 0, and then the entries are closed."""
    peers.fill(200)
    async with raft.client(peers.seeds) as client:
        async with client.entries(buffer_bytes=1) as entries:  # all of them would be here before it is closed
            assert (await anext(entries)).index == 1
        with pytest.raises(ClientClosedError):
            await entries.next_batch()
        await client.append(b"x")
        assert [seen[3][1] for seen in peers.seen if seen[2] == ENTRIES and len(seen[3]) > 1][-1] == b"\x00"


@pytest.mark.filterwarnings("ignore:unclosed entries", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_abandoned_entries_are_cancelled(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Entries that a broken-off loop left open are cancelled by the client's next call."""
    peers.fill(200)
    async with raft.client(peers.seeds) as client:
        async for _ in client.entries(buffer_bytes=1):  # it would be over before it is abandoned
            break
        gc.collect()
        for _ in range(1000):  # each call is an opportunity; the event loop, too, needs some time to drop a generator
            await client.append(b"x")
            if any(seen[2] == ENTRIES and seen[3][1:] == [b"\x00"] for seen in list(peers.seen)):
                return
    pytest.fail("the peer was not told")


async def test_entries_go_on_with_the_next_leader(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Entries go on at the right index with the next leader."""
    peers.fill(500)
    async with raft.client(peers.seeds) as client:
        entries = client.entries()
        seen = [(await anext(entries)).index for _ in range(30)]
        peers.kill("1")
        peers.elect("2")
        seen += await indexes(entries)
        assert seen == list(range(1, 501))
        assert client.leader.id == "2"


async def test_a_reader_waits_no_longer_than_its_timeout(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A reader waits no longer than its time-out for a silent leader, or for none at all."""
    peers.script("1", ENTRIES, lambda _frames: [])
    async with raft.client(peers.seeds) as client:
        with pytest.raises((RequestTimeoutError, NoLeaderError)):
            await indexes(client.entries(timeout=0.2))


async def test_several_streams_and_appends_share_a_client(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Several streams and appends share a client without waiting for each other."""
    peers.fill(300)
    async with raft.client(peers.seeds) as client:
        *streams, appended = await asyncio.gather(
            *(indexes(client.entries(n)) for n in range(5)), client.append_many([b"x"] * 100)
        )
    assert len(appended) == 100
    for n, stream in enumerate(streams):
        assert stream == list(range(n + 1, stream[-1] + 1))
        assert stream[-1] >= 300


# -- subscribers -------------------------------------------------------------------------------------------------------


async def test_a_subscriber_sees_the_past_and_the_present(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A subscriber sees each index once, past and present, and is fresh when it has seen everything."""
    peers.fill(50)
    async with raft.client(peers.seeds) as client, client.subscribe(0) as subscriber:
        seen = [(await anext(subscriber)).index for _ in range(50)]
        for _ in range(30):
            await client.append(b"x")
        seen += [(await anext(subscriber)).index for _ in range(30)]
        assert seen == list(range(1, 81))
        assert subscriber.position == Position(80, 1)
        while subscriber.state.freshness is not Freshness.FRESH:
            assert await subscriber.next_batch(0.05) is None


async def test_a_subscriber_follows_the_leader(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A subscriber misses nothing when the leader changes."""
    async with raft.client(peers.seeds) as client, client.subscribe(0) as subscriber:
        await client.append(b"x")
        assert (await anext(subscriber)).index == 1
        peers.kill("1")
        peers.elect("3")
        await client.append_many([b"x"] * 20)
        assert [(await anext(subscriber)).index for _ in range(20)] == list(range(2, 22))


async def test_a_subscriber_takes_silence_for_what_it_is_told(raft: RaftShell, peers: ScriptedCluster) -> None:
    """The silence of one subscriber is its own, and bad values are refused."""
    async with raft.client(peers.seeds, broadcast_timeout=3600.0) as client:
        async with client.subscribe(0, silence=0.1) as hasty, client.subscribe(0) as patient:
            await client.append(b"x")
            for subscriber in (hasty, patient):
                assert (await subscriber.get(timeout=20)).index == 1
            peers.freeze("1")
            while hasty.state.freshness is not Freshness.SILENT:
                assert await hasty.get(timeout=0.05) is None
            assert patient.state.freshness is not Freshness.SILENT
            peers.thaw("1")
        for silence in (0.09, 3601, "1", True, float("nan")):
            with pytest.raises(InvalidArgumentError, match="silence must be a number of seconds"):
                client.subscribe(0, silence=silence)


async def test_what_is_expected_comes_without_its_broadcast(raft: RaftShell, peers: ScriptedCluster) -> None:
    """An entry that is expected comes although nobody broadcasts; a bad index is refused."""
    async with raft.client(peers.seeds) as client, client.subscribe(0, silence=3600) as subscriber:
        await client.append(b"x")
        assert (await subscriber.get(timeout=20)).index == 1
        peers.loses_broadcasts = True
        index = await client.append(b"x")
        subscriber.expect(index)
        assert (await subscriber.get(timeout=20)).index == index
        with pytest.raises(InvalidArgumentError):
            subscriber.expect(-1)


async def test_closing_ends_an_iteration(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Closing a subscriber or its client ends an iteration."""
    async with raft.client(peers.seeds) as client:
        for close in ("subscriber", "client"):
            peers.seen.clear()
            subscriber = client.subscribe(0)
            reading = asyncio.create_task(indexes(subscriber))
            await until(lambda: any(seen[2] == BROADCAST for seen in list(peers.seen)))
            await (subscriber if close == "subscriber" else client).close()
            assert await asyncio.wait_for(reading, 5) == []
            with pytest.raises(ClientClosedError):
                await subscriber.next_batch()
            await subscriber.close()


# -- watches -----------------------------------------------------------------------------------------------------------


async def keys(watch: Any, count: int) -> list[bytes]:
    found = []
    while len(found) < count:
        event = await watch.get(5)
        assert isinstance(event, WatchEvent)
        found += [change.key for change in event.changes]
    return found


async def test_watches_see_what_they_want(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Watches on a prefix, a key, a tree and a condition each see what they select."""
    async with raft.client(peers.seeds) as client:
        deletions = client.watch(lambda change: change.kind is ChangeKind.DELETE, after=0)
        async with (
            client.watch(prefix="a/", after=0) as prefix,
            client.watch(Key(b"a/1"), after=0) as key,
            client.watch(Tree(b"a"), after=0) as tree,
            deletions,
            client.watch(after=0) as everything,
        ):
            for name in ("a", "a/1", "a/2", "ab", "b"):
                await client.append(KeyValueCodec.set(name, "x"))
            await client.append(KeyValueCodec.delete("b"))
            assert await keys(prefix, 2) == [b"a/1", b"a/2"]
            assert await keys(key, 1) == [b"a/1"]
            assert await keys(tree, 3) == [b"a", b"a/1", b"a/2"]
            assert await keys(deletions, 1) == [b"b"]
            assert await keys(everything, 6) == [b"a", b"a/1", b"a/2", b"ab", b"b", b"b"]
            assert await key.get(0.05) is None


async def test_a_watch_resumes_where_another_stopped(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A watch of another client resumes at the position, stored as text, where the first one stopped."""
    async with raft.client(peers.seeds) as client:
        for n in range(10):
            await client.append(KeyValueCodec.set(f"k{n}", "x"))
        async with client.watch(prefix="k", after=0) as watch:
            assert await keys(watch, 3) == [b"k0", b"k1", b"k2"]
            assert (await watch.get(5)).position == Position(4, 1)
            assert watch.started_after == Position(0)
            text = str(watch.resume_after)
        assert text.startswith("4@1@")
    async with raft.client(peers.seeds) as client, client.watch(prefix="k", after=Position.parse(text)) as watch:
        assert await keys(watch, 6) == [b"k4", b"k5", b"k6", b"k7", b"k8", b"k9"]
        await client.append(KeyValueCodec.set("k10", "x"))
        assert await keys(watch, 1) == [b"k10"]
        assert watch.is_live


async def test_a_watch_with_a_codec_of_the_users_own(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A watch may use a codec of the user's own, which decodes entries into changes."""

    class Lines:
        def decode(self, data: bytes) -> list[Change]:
            return [Change(ChangeKind.SET, line, b"") for line in data.splitlines()]

    async with raft.client(peers.seeds) as client, client.watch(prefix="x", after=0, codec=Lines()) as watch:
        await client.append("xa\nya\nxb")
        assert await keys(watch, 2) == [b"xa", b"xb"]


async def test_closing_ends_a_watch(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Closing a watch ends its iteration, and may be done twice."""
    async with raft.client(peers.seeds) as client:
        watch = client.watch()
        reading = asyncio.create_task(anext(watch, None))
        await until(lambda: any(seen[2] == BROADCAST for seen in list(peers.seen)))
        await watch.close()
        assert await asyncio.wait_for(reading, 5) is None
        await watch.close()
        with pytest.raises(ClientClosedError):
            await watch.get(1)


# -- one way to read all three: iterate, or get(timeout); and subscriptions that begin now -----------------------------


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


# -- where a reader stopped, and what becomes of it when it comes back -------------------------------------------------


def index_of(position: Any) -> int:
    return getattr(position, "index", position)


def change_terms(peers: ScriptedCluster, term: int) -> None:
    """Another log with the same data."""
    peers._order(lambda: peers.log.__setitem__(slice(None), [e[:13] + bytes([term]) + e[14:] for e in peers.log]))


async def test_the_position_of_a_reader_is_behind_the_last_item(raft: RaftShell, peers: ScriptedCluster) -> None:
    """After each item the position is that of the item, whatever else was received, so that a new reader loses and
    repeats nothing."""
    peers.fill(40)
    async with raft.client(peers.seeds) as client:
        assert index_of(client.entries().position) == 0
        for kind in (client.entries, client.subscribe):
            async with kind(after=0) as reader:
                async for entry in reader:
                    assert index_of(reader.position) == entry.index
                    if entry.index == 11:
                        break
            async with kind(after=reader.position) as again:
                assert [(await anext(again)).index for _ in range(29)] == list(range(12, 41))


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
