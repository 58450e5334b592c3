"""Watches of both clients, served by real peers or read from their log, and with scripted peers; R7, R9, R10, R12."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from raft_shells import RaftShell
from support.scripted_peers import ScriptedCluster
from support.waiting import until

from raft_client import (
    AsyncRaftClient,
    BusyError,
    Freshness,
    KeyValueCodec,
    Position,
    Previous,
    RaftClient,
    Resumed,
    SubscriberOverflowError,
    Suspended,
    WatchCounts,
    WatchEvent,
)
from raft_client.server import AsyncEmbeddedCluster, KeyValueStateMachine, StateMachine


class Untold(StateMachine):
    """Keys and values in a machine that does not tell its changes, as peers without watches have it."""

    def __init__(self) -> None:
        self._inner = KeyValueStateMachine()

    def apply(self, entries: Sequence[Any]) -> None:
        self._inner.apply(entries)

    def snapshot(self) -> Iterator[bytes]:
        return self._inner.snapshot()

    def restore(self, index: int, chunks: Iterator[bytes]) -> None:
        self._inner.restore(index, chunks)


@pytest.fixture(params=["served", "log"])
def machine(request: pytest.FixtureRequest) -> Callable[[], StateMachine]:
    """The state machine of peers that serve watches, and one of peers that do not."""
    return KeyValueStateMachine if request.param == "served" else Untold


async def put(client: Any, *keys: str) -> int:
    """The index of the last one."""
    index = 0
    for key in keys:
        index = await client.append(KeyValueCodec.set(key, "x"))
    return index


async def keys_of(watch: Any, count: int) -> list[bytes]:
    """Of so many changes, in their order; each index is above the one before."""
    keys: list[bytes] = []
    last = Position(0)
    while len(keys) < count:
        item = await watch.get(20)
        assert item is not None, f"{keys} came, and no more"
        assert isinstance(item, (Suspended, Resumed)) or item.position > last
        if isinstance(item, WatchEvent):
            last = item.position
            keys += [change.key for change in item.changes]
    return keys


async def starts(watch: Any) -> None:
    """Until it is known where. A blocking client looks only while somebody waits for it."""
    while watch.started_after is None:
        assert await watch.get(0.05) is None


async def reaches_index(watch: Any, index: int) -> None:
    while watch.resume_after.index < index:
        assert await watch.get(0.05) is None


async def test_who_serves_a_watch_is_not_seen_in_what_it_tells(raft: RaftShell, machine: Any) -> None:
    """The changes of the watched keys come in order from any index on, and the place to resume is the same."""
    async with AsyncEmbeddedCluster(1, machine=machine) as cluster, raft.client(cluster.url) as client:
        end = await put(client, "a/1", "b", "a/2")
        async with client.watch(prefix="a/", after=0) as watch, client.watch(prefix="a/") as later:
            assert await keys_of(watch, 2) == [b"a/1", b"a/2"]
            await starts(later)
            assert later.started_after.index == end
            end = await put(client, "a/3", "c")
            assert await keys_of(watch, 1) == [b"a/3"]
            assert await keys_of(later, 1) == [b"a/3"]
            await reaches_index(watch, end)
            at = watch.resume_after
        await put(client, "a/4")
        async with client.watch(prefix="a/", after=at) as watch:
            assert await keys_of(watch, 1) == [b"a/4"]


async def test_only_a_leader_that_serves_watches_leaves_out_the_entry(raft: RaftShell, machine: Any) -> None:
    """An event has its entry when the client has read the log, and None when the leader told the changes alone."""
    async with (
        AsyncEmbeddedCluster(1, machine=machine) as cluster,
        raft.client(cluster.url) as client,
        client.watch(after=0) as watch,
    ):
        await put(client, "a")
        event = await watch.get(20)
        assert (event.entry is None) is (machine is KeyValueStateMachine)
        assert event.position.index == event.index


@pytest.mark.ci
async def test_leaders_that_are_killed_lose_and_double_nothing(raft: RaftShell, machine: Any) -> None:
    """While leaders are killed, one after the other, each watch is told each change once, in order."""
    async with (
        AsyncEmbeddedCluster(3, machine=machine) as cluster,
        raft.client(cluster.url) as client,
        client.watch(prefix="k", after=0) as all_keys,
        client.watch(prefix="k1") as some,
    ):
        await starts(some)
        written: list[str] = []
        for round_number in range(3):
            for n in range(20):
                written.append(f"k{round_number}{n:02}")
                await put(client, written[-1])
                if n == 10:
                    killed = await cluster.leader()
                    await cluster.kill(killed)
            await cluster.restart(killed)
        assert await keys_of(all_keys, 60) == [key.encode() for key in written]
        assert await keys_of(some, 20) == [key.encode() for key in written[20:40]]
        assert client.watches.queued_events == 0


async def test_a_leader_that_is_cut_off_is_left(raft: RaftShell, machine: Any) -> None:
    """A watch does not stay with a leader that is cut off from the others: it goes on with the next one."""
    async with (
        AsyncEmbeddedCluster(3, machine=machine) as cluster,
        raft.client(cluster.url) as client,
        client.watch(after=0) as watch,
    ):
        await put(client, "a")
        assert await keys_of(watch, 1) == [b"a"]
        former = await cluster.leader()
        others = [peer for peer in cluster.running if peer != former]
        await cluster.partition([former], others)
        await put(client, "b")
        assert await keys_of(watch, 1) == [b"b"]
        await cluster.heal()
        await put(client, "c")
        assert await keys_of(watch, 1) == [b"c"]


async def test_a_slow_reader_holds_up_nobody(raft: RaftShell, machine: Any) -> None:
    """A reader that takes nothing for long is told everything in the end; another watch, and requests, go on."""
    async with (
        AsyncEmbeddedCluster(1, machine=machine) as cluster,
        raft.client(cluster.url) as client,
        client.watch(after=0, queue_bytes=1_000) as slow,
        client.watch(after=0) as other,
    ):
        names = [f"k{n:04}" for n in range(600)]
        await client.append_many([KeyValueCodec.set(name, "x") for name in names])
        expected = [name.encode() for name in names]
        assert await keys_of(other, 600) == expected
        assert client.watches.queued_bytes < 16_000  # of 64,000: the last message may be one too many
        assert await keys_of(slow, 600) == expected


async def test_a_watch_may_be_closed_in_its_own_callback(machine: Any) -> None:
    """close() in the callback of a watch ends it there and then; others, and the client, go on."""
    async with AsyncEmbeddedCluster(1, machine=machine) as cluster, AsyncRaftClient(cluster.url) as client:
        called: list[int] = []

        async def callback(item: Any) -> None:
            called.append(item.index)
            await watch.close()

        watch = client.watch(after=0, callback=callback)
        async with client.watch(after=0) as other:
            await put(client, "a", "b", "c")
            assert await keys_of(other, 3) == [b"a", b"b", b"c"]
            assert len(called) == 1
            assert client.watches.open == 1


async def test_keys_are_read_and_then_watched_without_a_gap(raft: RaftShell) -> None:
    """kv.range says the index that its page shows; a watch after that index tells what follows, and nothing else."""
    async with AsyncEmbeddedCluster(1) as cluster, raft.client(cluster.url) as client:
        await put(client, "k/1", "k/2")
        index, _more, *items = await client.dispatch("kv.range", b"k/", b"", b"\x64")
        assert items[::2] == [b"k/1", b"k/2"]
        await put(client, "k/3", "z", "k/4")
        async with client.watch(prefix="k/", after=int.from_bytes(index, "little")) as watch:
            assert await keys_of(watch, 2) == [b"k/3", b"k/4"]
            assert await watch.get(0.1) is None


# -- with scripted peers -----------------------------------------------------------------------------------------------


# -- callbacks (R12) ---------------------------------------------------------------------------------------------------


async def test_a_callback_is_called_in_order_and_may_fail(
    raft: RaftShell, peers: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback is called in order, in another thread than the appends; its exceptions are logged, and the next event
    follows."""
    seen: list[int] = []

    def callback(item: Any) -> None:
        seen.append(item.index)
        if item.index == 2:
            raise RuntimeError("a mistake of the user's")

    async with raft.client(peers.seeds) as client, client.watch(after=0, callback=callback) as watch:
        await put(client, "a", "b", "c", "d")
        await until(lambda: len(seen) == 4)
        with pytest.raises(BusyError, match="callback"):
            await watch.get(0)
    assert seen == [1, 2, 3, 4]
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("a mistake of the user's",)]


def test_a_callback_may_use_the_client(peers: ScriptedCluster) -> None:
    """A callback runs in a thread of its own without the client's lock, so it may call, watch, and end its own
    watch."""
    with RaftClient(peers.seeds) as client:
        answers: list[Any] = []
        done = threading.Event()

        def callback(item: Any) -> None:
            answers.append(client.append(b"an answer"))
            answers.append(client.config().leader_id)
            watch.close()
            done.set()

        watch = client.watch(prefix="a", callback=callback)
        client.append(KeyValueCodec.set("a", "1"))
        assert done.wait(20)
        assert answers == [2, "1"]
        client.append(KeyValueCodec.set("a", "2"))
        assert client.watches.open == 0


async def test_an_asyncio_callback_may_be_a_coroutine_function(peers: ScriptedCluster) -> None:
    """A coroutine function as callback is awaited before the next event, and may use the client."""
    async with AsyncRaftClient(peers.seeds) as client:
        seen: list[int] = []
        running = 0

        async def callback(item: Any) -> None:
            nonlocal running
            running += 1
            assert running == 1
            await client.config()
            seen.append(item.index)
            running -= 1

        async with client.watch(after=0, callback=callback):
            await put(client, "a", "b", "c")
            await until(lambda: seen == [1, 2, 3])


async def test_no_callback_starts_after_a_watch_was_closed(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Once close() of a watch has returned no callback starts, and queued events are dropped (R9)."""
    peers.fill(3)
    entered, leave = threading.Event(), threading.Event()
    seen: list[int] = []

    def callback(item: Any) -> None:
        seen.append(item.index)
        entered.set()
        if not raft.is_aio:
            assert leave.wait(20)

    async with raft.client(peers.seeds) as client:
        watch = client.watch(after=0, callback=callback)
        await put(client, "a", "b", "c")
        await until(entered.is_set)
        await watch.close()
        count = len(seen)
        leave.set()
        await put(client, "d")
        other = client.watch(after=0)
        assert (await other.get(10)).index == 4
        assert len(seen) == count


@pytest.mark.ci
async def test_the_end_of_a_watch_with_a_callback_is_told(
    raft: RaftShell, peers: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of a watch with a callback is logged and kept in ``error``, after all its events."""
    async with raft.client(peers.seeds, election_grace=0.01) as client:
        with caplog.at_level(logging.ERROR, "raft_client"):
            watch = client.watch(after=10**6, callback=lambda _item: None)
            await until(lambda: any("has ended" in record.getMessage() for record in caplog.records))
        assert "the log ends at 0" in str(watch.error)


# -- the link (R7) -----------------------------------------------------------------------------------------------------


async def test_a_quiet_watch_is_told_from_one_that_is_cut_off(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A watch that is cut off says so in its state and by events; what it missed comes before it is up to date
    again."""
    async with raft.client(peers.seeds) as client, client.watch(after=0, connection_events=True) as watch:
        await put(client, "a")
        assert (await watch.get(10)).index == 1
        await reaches(watch, Freshness.FRESH)
        peers.elect(None)
        assert isinstance(await watch.get(20), Suspended)
        assert watch.state.freshness is Freshness.SILENT
        peers.elect("2")
        await put(client, "b")
        items = [await watch.get(20)]
        while not isinstance(items[-1], Resumed):
            items.append(await watch.get(20))
        assert [item.index for item in items if isinstance(item, WatchEvent)] == [2]
        assert watch.state.freshness is Freshness.FRESH


@pytest.mark.ci
async def test_a_watch_without_a_cluster_says_that_it_hears_nothing(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A watch without a cluster says that it hears nothing, has not begun, and knows no end of the log."""
    async with raft.client(peers.seeds) as client:
        peers.elect(None)
        async with client.watch(connection_events=True) as watch, client.subscribe(0) as subscriber:
            assert isinstance(await watch.get(20), Suspended)
            assert watch.started_after is None
            assert await subscriber.next_batch(1.2) is None
            assert subscriber.state.freshness is Freshness.SILENT


async def reaches(watch: Any, freshness: Freshness) -> None:
    while watch.state.freshness is not freshness:
        assert await watch.get(0.05) is None


# -- what is told with an event, and counts (R2, R3, R8, R10) ----------------------------------------------------------


async def test_a_watch_has_an_id_and_its_events_what_was_there_before(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A watch has an id, which each of its events names, and events tell what the key had before."""
    async with raft.client(peers.seeds) as client:
        watch, other = client.watch(after=0, previous=True), client.watch()
        await put(client, "a", "a")
        events = [await watch.get(10) for _ in range(2)]
        assert [event.changes[0].previous for event in events] == [Previous(), Previous(b"x")]
        assert {event.watch_id for event in events} == {watch.id} != {other.id}


async def test_open_watches_are_counted(raft: RaftShell, peers: ScriptedCluster) -> None:
    """The client counts open watches over all codecs, and closing them, or the client, takes them off."""
    client = raft.client(peers.seeds)
    assert client.watches == WatchCounts()
    async with client:
        watches = [client.watch(after=0, codec=KeyValueCodec()) for _ in range(3)]
        assert client.watches.open == 3
        await put(client, "a")
        for watch in watches:
            assert (await watch.get(10)).index == 1
        await watches[0].close()
        assert client.watches.open == 2
    assert client.watches == WatchCounts()


async def test_a_reader_that_is_too_slow_is_told_why(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A reader that is too slow gets what was queued and then the reason, and another watch sees everything."""
    async with raft.client(peers.seeds) as client:
        slow, other = client.watch(after=0, overflow="error", queue_bytes=300), client.watch(after=0)
        await reaches(slow, Freshness.FRESH)
        await put(client, *(f"k{n}" for n in range(30)))
        assert [(await other.get(10)).index for _ in range(30)] == list(range(1, 31))
        seen: list[int] = []
        with pytest.raises(SubscriberOverflowError, match="queue_bytes=300"):
            await drain(slow, seen)
        assert seen == list(range(1, len(seen) + 1))
        assert 0 < slow.resume_after.index == len(seen) < 30


async def drain(watch: Any, seen: list[int]) -> None:
    while True:
        seen.append((await watch.get(10)).index)
