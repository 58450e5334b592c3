"""Logs that are kept short because clients ask for it: real peers, both shells; only the eight hours pass at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from support.scripted_peers import ScriptedCluster
from support.waiting import until

from raft_client import (
    AsyncRaftClient,
    CompactionError,
    InvalidArgumentError,
    KeyValueCodec,
    RaftClient,
    SnapshotChunk,
    TakenSnapshot,
    new_request_id,
)
from raft_client.server.embedded_cluster import AsyncEmbeddedCluster, EmbeddedCluster
from raft_client.server.machines.broadcast import BroadcastStateMachine
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.machines.state_machine import StateMachine
from raft_client.server.runtime.request_horizon import RequestHorizon
from raft_client.server.runtime.storage.options import StorageLimits
from raft_client.wire.frames import encode_uint

LIMITS = StorageLimits(segment_entries=50)


@pytest.fixture
def hours_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request id is at once as old as one that nobody may repeat."""
    monkeypatch.setattr(RequestHorizon, "due", lambda _self, _now, wall_s, _newest_s: wall_s + 60.0)


def cluster_of(
    machine: Callable[[], StateMachine] = BroadcastStateMachine, size: int = 3, **settings: object
) -> AsyncEmbeddedCluster:
    return AsyncEmbeddedCluster(size, machine=machine, limits=LIMITS, settings=settings)


async def first_indexes(client: AsyncRaftClient, cluster: AsyncEmbeddedCluster) -> set[int]:
    return {(await client.log_info(peer.url)).first_index for peer in cluster.peers}


async def append(client: AsyncRaftClient, count: int) -> int:
    return max(await client.append_many([b"x"] * count))


def bytes_of(cluster: AsyncEmbeddedCluster, peer_id: str) -> int:
    """What the log of a peer has on the disk, without its snapshot."""
    total = 0
    for file in (cluster._folder / peer_id).glob("*.log"):
        with suppress(FileNotFoundError):  # it is compacted at this moment
            total += file.stat().st_size
    return total


@pytest.mark.usefixtures("hours_pass")
async def test_all_peers_drop_what_nobody_needs_and_no_more() -> None:
    """A log is trimmed on all peers up to the index that was told, in whole segments; readers get an index instead."""
    async with cluster_of() as cluster, AsyncRaftClient(cluster.url) as client:
        last = await append(client, 400)
        assert await client.trim(220) == 220
        assert await client.trim(100) == 220  # what was said is not taken back
        while not all(150 < first <= 221 for first in await first_indexes(client, cluster)):
            last = await append(client, 20)  # the list of members has to follow the snapshot
            assert last < 50_000
        found = [item async for item in client.entries()]
        assert isinstance(found[0], SnapshotChunk)
        assert 150 < found[0].index <= 220
        assert found[0].data == encode_uint(found[0].index)
        assert found[-1].index >= last


@pytest.mark.usefixtures("hours_pass")
async def test_a_peer_that_was_away_hears_it_when_it_is_back() -> None:
    """A peer that was killed while the log was trimmed hears of it later, from another leader too."""
    async with cluster_of() as cluster, AsyncRaftClient(cluster.url) as client:
        await append(client, 400)
        leader = await cluster.leader()
        away = next(peer.id for peer in cluster.peers if peer.id != leader)
        await cluster.kill(away)
        await client.trim(220)
        await client.transfer_leadership(next(each for each in cluster.running if each != leader))
        await cluster.restart(away)
        url = next(peer.url for peer in cluster.peers if peer.id == away)
        last = 0
        while (await client.log_info(url)).first_index <= 150:
            last = await append(client, 20)
            assert last < 50_000


async def test_a_log_keeps_what_may_be_repeated() -> None:
    """While a request id before the index is fresh nothing is dropped, and its repetition is not appended again."""
    async with cluster_of(size=1) as cluster, AsyncRaftClient(cluster.url) as client:
        last = await append(client, 400)
        await client.trim(last)
        await append(client, 400)
        await cluster.kill("1")
        await cluster.restart("1")
        assert await first_indexes(client, cluster) == {1}


async def test_ids_that_need_not_be_known_keep_nothing() -> None:
    """With ``trim_forgets_ids`` entries go although their ids are fresh, and only those: a repetition of one is
    appended again, a repetition of one that is still there is not.
    """
    async with cluster_of(trim_forgets_ids=True) as cluster, AsyncRaftClient(cluster.url) as client:
        ids = [new_request_id() for _ in range(2)]
        await client.append(b"first", request_id=ids[0])
        await append(client, 200)
        index = await client.trim(await append(client, 1))
        kept = await client.append(b"kept", request_id=ids[1])
        last = kept
        while not all(index - 51 < first <= index + 1 for first in await first_indexes(client, cluster)):
            last = await append(client, 20)  # whole segments go
            assert last < 50_000
        assert await client.append(b"kept", request_id=ids[1]) == kept
        assert await client.append(b"first", request_id=ids[0]) > last


async def test_what_cannot_be_trimmed_is_refused_with_its_reason() -> None:
    """An index beyond the log, and a state machine that keeps a state, are refused, and say what to do."""
    async with cluster_of(size=1) as cluster, AsyncRaftClient(cluster.url) as client:
        await append(client, 3)
        with pytest.raises(CompactionError, match="the log ends at 3"):
            await client.trim(4)
        with pytest.raises(CompactionError, match="zmqraft trim"):
            await client.take_snapshot()
    async with cluster_of(KeyValueStateMachine, 1) as cluster, AsyncRaftClient(cluster.url) as client:
        with pytest.raises(CompactionError, match="nothing was applied yet"):
            await client.take_snapshot()
        await append(client, 1)
        with pytest.raises(CompactionError, match="zmqraft snapshot"):
            await client.trim(1)


@pytest.mark.usefixtures("hours_pass")
async def test_a_snapshot_is_made_when_a_client_asks() -> None:
    """Without ``compact_bytes`` too, each peer makes a snapshot when it is asked, and its log begins after it later."""
    async with cluster_of(KeyValueStateMachine) as cluster, AsyncRaftClient(cluster.url) as client:
        for number in range(200):
            last = await client.append(KeyValueCodec.set(b"k", b"%d" % number))
        taken = [await client.take_snapshot(peer.id) for peer in cluster.peers]
        assert all(each.index <= last and each.size > 0 for each in taken)
        assert (await client.take_snapshot()).index == last
        while not all(first > 100 for first in await first_indexes(client, cluster)):
            await append(client, 20)
        found = [item async for item in client.entries()]
        assert isinstance(found[0], SnapshotChunk)


async def test_one_snapshot_is_held_at_a_time() -> None:
    """While a snapshot waits for request ids to expire, it is the answer; what waits is not put off."""
    async with cluster_of(KeyValueStateMachine, 1) as cluster, AsyncRaftClient(cluster.url) as client:
        await append(client, 10)
        taken = await client.take_snapshot()
        assert taken.index == 10
        await append(client, 10)
        assert await client.take_snapshot("1") == taken


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "1"])
def test_sizes_that_no_log_has_are_refused(value: object) -> None:
    """``compact_bytes`` is a number of bytes; both clusters say so at once."""
    for kind in (AsyncEmbeddedCluster, EmbeddedCluster):
        with pytest.raises(InvalidArgumentError, match="compact_bytes"):
            kind(1, compact_bytes=value)  # type: ignore[arg-type]  # what is refused


def test_the_blocking_client_asks_too() -> None:
    """Both calls of the blocking client do the same."""
    with EmbeddedCluster(1) as cluster, RaftClient(cluster.url) as log:
        index = log.append(b"x")
        taken = log.take_snapshot()
        assert isinstance(taken, TakenSnapshot)
        assert taken.index == index
        with pytest.raises(CompactionError):
            log.trim(1)
    with EmbeddedCluster(1, machine=BroadcastStateMachine) as cluster, RaftClient(cluster.url) as log:
        assert log.trim(log.append(b"x")) == 1


def test_a_node_peer_is_not_asked() -> None:
    """A peer that answers a hello as Node peers do is sent nothing that it does not know."""
    with ScriptedCluster() as cluster, RaftClient(cluster.seeds) as log:
        for call in (lambda: log.trim(1), log.take_snapshot, lambda: log.take_snapshot("2")):
            with pytest.raises(CompactionError, match="Node peer"):
                call()
        assert not [kind for _, _, kind, _ in cluster.seen if len(kind) > 1]


@pytest.mark.usefixtures("hours_pass")
async def test_a_follower_that_was_away_is_caught_up_by_a_snapshot_and_the_disk_stays_small() -> None:
    """With ``compact_bytes``, a cluster under load keeps its logs short; a peer that was away gets a snapshot, and
    all of them have the state after a restart."""
    made: list[KeyValueStateMachine] = []

    def machine() -> KeyValueStateMachine:
        made.append(KeyValueStateMachine())
        return made[-1]

    async with (
        AsyncEmbeddedCluster(3, machine=machine, compact_bytes=3_000, limits=LIMITS) as cluster,
        AsyncRaftClient(cluster.url) as client,
    ):
        leader = await cluster.leader()
        away = next(peer.id for peer in cluster.peers if peer.id != leader)
        await cluster.kill(away)
        number = 0
        while number < 2_000 or not all(bytes_of(cluster, each) < 10 * number for each in cluster.running):
            await client.append_many([KeyValueCodec.set(b"k", b"%d" % n) for n in range(number, number + 20)])
            number += 20
            assert number < 200_000
        await client.append(KeyValueCodec.set(b"k", b"end"))
        await cluster.restart(away)
        await until(lambda: made[-1].get(b"k") == b"end")
        assert bytes_of(cluster, away) < 10 * number
        for peer in cluster.peers:
            await cluster.kill(peer.id)
        for peer in cluster.peers:
            await cluster.restart(peer.id)
        await until(lambda: all(each.get(b"k") == b"end" for each in made[-3:]))
