"""Watches at peers that run: a client of raw frames, real sockets, peers that are killed, cut off and restarted."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import partial

import pytest
from raw_watcher import RawWatcher, shown
from support.waiting import eventually, until

from raft_client import AsyncRaftClient, KeyValueCodec, LogEntry, RaftClient, TermMismatchError, WatchEvent
from raft_client.codecs import Change, ChangeKind
from raft_client.server import AsyncEmbeddedCluster, BroadcastStateMachine, EmbeddedCluster, Fsync
from raft_client.server.machines.watch_server import WatchServer, WatchServerLimits
from raft_client.server.runtime import machine_runner
from raft_client.wire.hello import Capability
from raft_client.wire.log_entry import Position
from raft_client.wire.watch_messages import BeginWatch, CancelWatch, EndReason, NoSession, WatchProgress

Limit = Callable[..., None]
put, gone = KeyValueCodec.set, KeyValueCodec.delete


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Peers that start from now on have these limits."""
    with_limits = partial(partial, WatchServerLimits)
    return lambda **limits: monkeypatch.setattr(machine_runner, "WatchServerLimits", with_limits(**limits))


def a_cluster(size: int = 1) -> AsyncEmbeddedCluster:
    return AsyncEmbeddedCluster(size, fsync=Fsync.OFF)


def server(cluster: AsyncEmbeddedCluster, peer_id: str) -> WatchServer:
    found = cluster._running[peer_id].runner.watches.server
    assert found is not None
    return found


def url(cluster: AsyncEmbeddedCluster, peer_id: str) -> str:
    return next(peer.url for peer in cluster.peers if peer.id == peer_id)


async def applied(cluster: AsyncEmbeddedCluster, index: int) -> None:
    peers = cluster._running.values()
    await until(lambda: all(peer.status().applied_index >= index for peer in peers), f"entry {index} everywhere")


async def test_keys_and_prefixes_are_watched() -> None:
    """A client is told what really changes, with index and term: not a deletion of nothing, nor a comparison that
    failed; all changes of an entry at once (R1, R3)."""
    async with a_cluster() as cluster, AsyncRaftClient(cluster.url) as client:
        with RawWatcher(cluster.seeds[0]) as watcher:
            hello = await watcher.say_hello()
            assert hello is not None
            assert hello.knows(Capability.WATCH)
            await client.append(put(b"before", b""))
            key, prefix = await watcher.begin(b"a/1"), await watcher.begin(b"a/", is_prefix=True)
            first = await client.append(put(b"a/1", b"1"))
            await client.append(gone(b"a/2"))
            await client.append(KeyValueCodec.compare_and_set(b"a/1", b"2", b"3"))
            await client.append(put(b"b", b""))
            changes = [Change(ChangeKind.SET, b"a/2", b""), Change(ChangeKind.DELETE, b"a/1")]
            last = await client.append(KeyValueCodec.encode(changes))
            for request_id, expected in (
                (key, [(b"a/1", b"1"), (b"a/1", None)]),
                (prefix, [(b"a/1", b"1"), (b"a/2", b""), (b"a/1", None)]),
            ):
                events = await watcher.told(request_id, 2)
                assert shown(events) == expected
                assert [each.position for each in events] == [Position(first, 1), Position(last, 1)]
            progress = WatchProgress(watcher.session, Position(last, 1), True, events[-1].position.entry_id)
            assert await watcher.ask() == progress
            watcher.send(CancelWatch(b""), prefix)
            assert (await watcher.ended(prefix)).reason is EndReason.CANCELLED
            await client.append(put(b"a/1", b"4"))
            assert len(await watcher.told(key, 3)) == 3
            assert len(watcher.events(prefix)) == 2


async def test_a_watch_is_told_what_its_client_appends_at_once() -> None:
    """A client need not wait for its watch: what it appends next is told, also if that is applied before the leader has
    greeted the client."""
    with EmbeddedCluster(1, fsync=Fsync.OFF) as cluster, RaftClient(cluster.url) as other:
        async with AsyncRaftClient(cluster.url) as client, client.watch() as watch:
            append = asyncio.ensure_future(client.append(put(b"a", b"1")))
            await asyncio.sleep(0)  # it is on its way, and the loop of this client stands still now
            eventually(lambda: other.log_info().last_applied, "the entry")
            event = await watch.get(timeout=20)
            assert isinstance(event, WatchEvent)
            assert event.index == await append


async def test_a_slow_reader_is_told_and_others_are_not_held_up(limit: Limit) -> None:
    """A client that says nothing of what arrives gets 256 messages, then the end of its watch; others get all (R8)."""
    limit(history_bytes=20_000)
    async with a_cluster() as cluster, AsyncRaftClient(cluster.url) as client:
        with RawWatcher(cluster.seeds[0]) as slow, RawWatcher(cluster.seeds[0]) as quick:
            slow_id, quick_id = await slow.begin(b"k"), await quick.begin(b"k")
            for number in range(400):
                await client.append(put(b"k", struct.pack("<I", number)))
                if not number % 50:
                    await quick.ask()
            await quick.told(quick_id, 400)
            assert (await slow.ended(slow_id)).reason is EndReason.TOO_SLOW
            assert len(slow.events(slow_id)) == 256
            assert (server(cluster, "1").watch_count, server(cluster, "1").ended) == (1, {"too_slow": 1})


async def test_a_client_that_is_gone_leaves_nothing() -> None:
    """A client that ends loses its watches at the next message for it, which the ROUTER refuses (R10)."""
    async with a_cluster() as cluster, AsyncRaftClient(cluster.url) as client:
        with RawWatcher(cluster.seeds[0]) as watcher:
            await watcher.begin(b"k")
        while not server(cluster, "1").ended:
            await client.append(put(b"k", b""))
        await until(lambda: server(cluster, "1").watch_count == 0, "the end of its watches")
        assert (server(cluster, "1").session_count, server(cluster, "1").ended) == (0, {"refused": 1})


async def test_a_client_that_is_silent_is_forgotten_and_told_so(limit: Limit) -> None:
    """A client that says nothing for long loses its watches, although nothing happens, and is told so (R10)."""
    limit(silence_s=0.3)
    async with a_cluster() as cluster:
        with RawWatcher(cluster.seeds[0]) as silent:
            watch = await silent.begin(b"k")
            await until(lambda: server(cluster, "1").watch_count == 0, "the end of its watches")
            assert (server(cluster, "1").session_count, server(cluster, "1").ended) == (0, {"silent": 1})
            assert await silent.ask() == NoSession(silent.session)
            assert len(silent.replies[watch]) == 1


async def test_one_client_with_thousands_of_watches_holds_up_nobody() -> None:
    """A peer tells 5,000 watches of one key in several turns, and answers others between them."""
    async with a_cluster() as cluster, AsyncRaftClient(cluster.url) as client:
        with RawWatcher(cluster.seeds[0]) as watcher:
            first = await watcher.begin(b"k")
            for _ in range(20):
                begun = [watcher.send(BeginWatch(b"", b"k")) for _ in range(250)]
                await until(lambda: watcher.pump() and begun[-1] in watcher.replies, "the answers")  # noqa: B023 - at once
            assert server(cluster, "1").watch_count == 5_001
            await client.append(put(b"k", b""))
            while watcher.received < 5_001:
                assert isinstance(await watcher.ask(), WatchProgress)
            assert server(cluster, "1").ended == {}
            assert len(watcher.events(first)) == 1


async def test_watches_outlive_their_leader() -> None:
    """When the leader is killed, a watch at a follower goes on with the next one's entries; a client of the leader
    resumes at another peer, and neither misses one or is told twice (R4)."""
    async with a_cluster(3) as cluster, AsyncRaftClient(cluster.url) as client:
        leader = await cluster.leader()
        follower = next(peer_id for peer_id in cluster.running if peer_id != leader)
        with RawWatcher(url(cluster, leader)) as at_leader, RawWatcher(url(cluster, follower)) as at_follower:
            first, other = await at_leader.begin(b"k"), await at_follower.begin(b"k")
            for number in range(10):
                await client.append(put(b"k", b"%d" % number))
            before = await at_leader.told(first, 10)
            progress = await at_leader.ask()
            assert isinstance(progress, WatchProgress)
            assert progress.leads
            await cluster.kill(leader)
            for number in range(10, 20):
                last = await client.append(put(b"k", b"%d" % number))
            await applied(cluster, last)
            all_of_them = await at_follower.told(other, 20)
            assert [value for _, value in shown(all_of_them)] == [b"%d" % n for n in range(20)]
            assert {each.position.term for each in all_of_them[10:]} == {cluster._running[follower].status().term}
            resumed = await at_follower.begin(b"k", after=progress.position)
            assert before + await at_follower.told(resumed, 10) == all_of_them


async def test_a_restarted_peer_knows_no_session() -> None:
    """A connection that libzmq makes again by itself is another one: the peer says that it knows no session, and the
    client resumes with its position in the log that the peer has applied again."""
    async with a_cluster(3) as cluster, AsyncRaftClient(cluster.url) as client:
        leader = await cluster.leader()
        follower = next(peer_id for peer_id in cluster.running if peer_id != leader)
        with RawWatcher(url(cluster, follower)) as watcher:
            watch = await watcher.begin(b"k")
            await client.append(put(b"k", b"1"))
            (event,) = await watcher.told(watch, 1)
            await cluster.kill(follower)
            await client.append(put(b"k", b"2"))
            await cluster.restart(follower)
            await client.append(put(b"k", b"3"))
            assert await watcher.ask() == NoSession(watcher.session)
            session = watcher.session
            resumed = await watcher.begin(b"k", after=event.position)
            assert watcher.session != session
            assert [value for _, value in shown(await watcher.told(resumed, 2))] == [b"2", b"3"]


async def test_a_peer_that_is_cut_off_says_that_it_does_not_lead() -> None:
    """A leader that is cut off tells nothing new, and soon that it leads no more; together again, it tells the rest."""
    async with a_cluster(3) as cluster, AsyncRaftClient(cluster.url) as client:
        leader = await cluster.leader()
        with RawWatcher(url(cluster, leader)) as watcher:
            watch = await watcher.begin(b"k")
            await client.append(put(b"k", b"1"))
            await watcher.told(watch, 1)
            await cluster.partition([leader])
            last = await client.append(put(b"k", b"2"))
            async with asyncio.timeout(20):
                while not isinstance(progress := await watcher.ask(), WatchProgress) or progress.leads:
                    pass
            assert progress.position.index < last
            assert len(watcher.events(watch)) == 1
            await cluster.heal()
            assert [value for _, value in shown(await watcher.told(watch, 2))] == [b"1", b"2"]


async def test_a_state_machine_without_keys_has_no_watches() -> None:
    """A peer whose state machine does not tell its changes does not say that it serves watches; a watch that comes all
    the same is dropped and counted."""
    async with AsyncEmbeddedCluster(1, machine=BroadcastStateMachine, fsync=Fsync.OFF) as cluster:
        with RawWatcher(cluster.seeds[0]) as watcher:
            hello = await watcher.say_hello()
            assert hello is not None
            assert not hello.knows(Capability.WATCH)
            watcher.send(CancelWatch(b""))
            await until(lambda: cluster._running["1"].dropped["a watch that cannot be served"] == 1, "it is dropped")


def test_a_position_of_another_young_log_is_refused() -> None:
    """Positions of entries, of events and of progress that the leader told are refused by a log that was written anew
    in the same term: entries, subscriptions, and watches that the leader serves. In their own log they are good."""
    with EmbeddedCluster(1, fsync=Fsync.OFF) as one, EmbeddedCluster(1, fsync=Fsync.OFF) as other:
        with RaftClient(one.url) as client, client.watch(prefix="k", after=0) as watch:
            for number in range(5):
                client.append(put(b"k%d" % number, b""))
            entries = client.entries(count=5)
            positions = [*(entry.position for entry in entries if isinstance(entry, LogEntry)), entries.position]
            for _ in range(5):
                event = watch.get(10)
                assert isinstance(event, WatchEvent)
                positions.append(event.position)
            assert watch.resume_after is not None
            positions.append(watch.resume_after)
            client.append(put(b"k5", b""))
            for position in positions:
                with client.watch(prefix="k", after=position) as again:
                    event = again.get(10)
                    assert isinstance(event, WatchEvent)
                    assert event.index == position.index + 1
        with RaftClient(other.url) as client:
            for number in range(6):
                client.append(put(b"k%d" % number, b""))
            for position in positions:
                assert client.log_info().current_term == position.term
                with pytest.raises(TermMismatchError):
                    client.entries(position).get()
                with client.subscribe(position) as subscriber, pytest.raises(TermMismatchError):
                    subscriber.get(10)
                stored = Position.parse(str(position))
                with client.watch(prefix="k", after=stored) as refused, pytest.raises(TermMismatchError):
                    refused.get(10)
