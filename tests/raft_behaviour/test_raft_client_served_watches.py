"""Both clients with real peers: watches that the leader serves, and the same where it serves none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from raft_shells import RaftShell

from raft_client import KeyValueCodec, Position, Resumed, Suspended, WatchEvent
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


async def reaches(watch: Any, index: int) -> None:
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
            await reaches(watch, end)
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
    from raft_client import AsyncRaftClient

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
