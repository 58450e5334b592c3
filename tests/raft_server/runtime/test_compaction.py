"""Peers that compact their logs, by themselves and when clients ask for it: real sockets, real disks; only the eight
hours pass at once."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from raw_watcher import RawWatcher
from support.ports import reserved_port
from support.scripted_peers import ScriptedCluster
from support.waiting import until

from raft_client import (
    AsyncRaftClient,
    CompactionError,
    HandOverError,
    KeyValueCodec,
    LogEntry,
    Peer,
    RaftClient,
    SnapshotChunk,
    TakenSnapshot,
    new_request_id,
)
from raft_client.errors import StorageFullError
from raft_client.server.embedded_cluster import AsyncEmbeddedCluster, EmbeddedCluster
from raft_client.server.machines.broadcast import BroadcastStateMachine
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.machines.state_machine import StateMachine
from raft_client.server.node.settings import NodeSettings
from raft_client.server.runtime.peer import RaftPeer, RequestHorizon
from raft_client.server.runtime.storage.disk_log import DiskLog, StorageLimits
from raft_client.server.runtime.storage.snapshots import SnapshotWriter
from raft_client.wire.frames import encode_uint
from raft_client.wire.log_entry import Position
from raft_client.wire.watch_messages import EndReason, NoSession, Watching

KEYS = 40
#: A snapshot after some 60 entries, and segments of 50.
COMPACT_BYTES, LIMITS = 3_000, StorageLimits(segment_entries=50)


class Running:
    """A peer that runs, with its log and its state machine."""

    def __init__(self, peer_id: str, folder: Path, peers: tuple[Peer, ...], url: str) -> None:
        self.machine = KeyValueStateMachine()
        self.log = DiskLog.open(folder / peer_id, peer_id=peer_id, ident=b"", peers=peers, limits=LIMITS)
        self.peer = RaftPeer(
            NodeSettings(peer_id=peer_id), self.log, self.machine, url=url, compact_bytes=COMPACT_BYTES
        )


@asynccontextmanager
async def running(peer_id: str, folder: Path, peers: tuple[Peer, ...], url: str = "") -> AsyncIterator[Running]:
    url = url or next(peer.url for peer in peers if peer.id == peer_id)
    each = Running(peer_id, folder, peers, url)
    async with each.peer:
        yield each


def members(count: int) -> tuple[Peer, ...]:
    return tuple(Peer(str(n), f"tcp://127.0.0.1:{reserved_port()}") for n in range(1, count + 1))


async def fill(client: AsyncRaftClient, count: int, start: int = 0) -> None:
    """Set KEYS keys again and again: the last value of each is the number of its entry."""
    for number in range(start, start + count):
        await client.append(KeyValueCodec.set(b"%d" % (number % KEYS), b"%d" % number))


def state(machine: KeyValueStateMachine) -> dict[int, int]:
    return {key: int(machine.get(b"%d" % key) or b"-1") for key in range(KEYS)}


@pytest.fixture
def hours_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request id is at once as old as one that nobody may repeat."""
    monkeypatch.setattr(RequestHorizon, "due", lambda _self, _now, wall_s, _newest_s: wall_s + 60.0)


@pytest.mark.usefixtures("hours_pass")
@pytest.mark.ci
async def test_logs_stay_short_and_nothing_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every peer compacts its log again and again, says so, and starts with the snapshot; a new peer gets it."""
    caplog.set_level(logging.INFO, "raft_client.server")
    peers = members(3)
    async with AsyncExitStack() as stack:
        all_three = [await stack.enter_async_context(running(peer.id, tmp_path, peers)) for peer in peers]
        client = await stack.enter_async_context(AsyncRaftClient([peer.url for peer in peers]))
        await fill(client, 600)
        written = 600
        while not all(each.log.first_index > 300 for each in all_three):  # later snapshots need later entries
            await fill(client, KEYS, written)
            written += KEYS
            assert written < 10_000
        expected = {key: written - KEYS + key for key in range(KEYS)}
        await until(lambda: all(state(each.machine) == expected for each in all_three))
        async with running("4", tmp_path, peers, "tcp://127.0.0.1:*") as newcomer:
            await until(lambda: state(newcomer.machine) == expected)
            assert newcomer.log.snapshot is not None
        found = [item async for item in client.entries()]
        assert isinstance(found[0], SnapshotChunk)
    assert {int(line.split()[1].rstrip(":")) for line in caplog.messages if "the log begins at" in line} >= {1, 2, 3}
    for peer in peers:  # each alone has the whole state
        log = DiskLog.open(tmp_path / peer.id, peer_id=peer.id, ident=b"", peers=peers, limits=LIMITS)
        assert log.first_index > 300
        # How many files are left depends on how much was written in the second between two looks. Those of entries
        # that are gone are gone, too: six segments at least.
        assert min(int(file.stem, 16) for file in (tmp_path / peer.id).glob("*.log")) > 300 // LIMITS.segment_entries
        log.close()
    async with AsyncExitStack() as stack:
        again = [await stack.enter_async_context(running(peer.id, tmp_path, peers)) for peer in peers]
        await until(lambda: all(state(each.machine) == expected for each in again))


async def test_a_snapshot_is_held_while_ids_before_it_are_fresh(tmp_path: Path) -> None:
    """While a request id before it could be repeated a snapshot replaces nothing, and the id is known."""
    peers = members(1)
    request_id = new_request_id()
    async with running("1", tmp_path, peers) as one, AsyncRaftClient(peers[0].url) as client:
        first = await client.append(b"x", request_id=request_id)
        await fill(client, 300)
        await until(lambda: one.peer._compaction._meta is not None)
        assert (one.log.first_index, one.log.snapshot) == (1, None)
        assert await client.append(b"x", request_id=request_id) == first


@pytest.mark.usefixtures("hours_pass")
@pytest.mark.ci
async def test_a_disk_that_stands_still_holds_up_the_snapshot_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a snapshot cannot be written, the peer leads on and takes entries; later it is written as it was begun."""
    gate, begun = threading.Event(), threading.Event()
    original = SnapshotWriter.write

    def write(writer: SnapshotWriter, data: bytes) -> None:
        begun.set()
        assert gate.wait(60)
        original(writer, data)

    monkeypatch.setattr(SnapshotWriter, "write", write)
    peers = members(1)
    async with running("1", tmp_path, peers) as one, AsyncRaftClient(peers[0].url) as client:
        await fill(client, 200)
        await until(begun.is_set)
        term = one.peer.status().term
        await fill(client, 200, 200)
        assert (one.log.snapshot, one.peer.status().term) == (None, term)
        gate.set()
        await until(lambda: one.log.snapshot is not None)
        assert one.log.snapshot is not None
        assert one.log.snapshot.index < 200


@pytest.mark.usefixtures("hours_pass")
async def test_a_disk_without_room_costs_the_snapshot_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A snapshot for which there is no room is given up with a warning, and another one is made later."""
    original = SnapshotWriter.write
    failures = iter([StorageFullError("no room")])

    def write(writer: SnapshotWriter, data: bytes) -> None:
        if (failure := next(failures, None)) is not None:
            raise failure
        original(writer, data)

    monkeypatch.setattr(SnapshotWriter, "write", write)
    peers = members(1)
    async with running("1", tmp_path, peers) as one, AsyncRaftClient(peers[0].url) as client:
        await fill(client, 600)
        await until(lambda: one.log.snapshot is not None)
    assert "peer 1: a snapshot is given up: no room" in caplog.messages


async def test_without_the_option_nothing_is_compacted(tmp_path: Path) -> None:
    """A peer that was not told to compacts nothing."""
    peers = members(1)
    log = DiskLog.open(tmp_path, peer_id="1", ident=b"", peers=peers, limits=LIMITS)
    async with (
        RaftPeer(NodeSettings(peer_id="1"), log, KeyValueStateMachine(), url=peers[0].url) as peer,
        AsyncRaftClient(peer.url) as client,
    ):
        await fill(client, 300)
        assert (log.first_index, log.snapshot) == (1, None)


class NewestIndex(StateMachine):
    """Its state is the index of the newest entry, and its snapshot a generator that looks at it when it begins."""

    def __init__(self) -> None:
        self.index = 0

    def apply(self, entries: Sequence[LogEntry]) -> None:
        self.index = entries[-1].index

    def snapshot(self) -> Iterator[bytes]:
        yield b"%d" % self.index

    def restore(self, index: int, pieces: Iterable[bytes]) -> None:
        self.index = int(b"".join(pieces))
        assert self.index == index


@pytest.mark.ci
@pytest.mark.usefixtures("hours_pass")
async def test_a_snapshot_has_the_state_of_its_index(tmp_path: Path) -> None:
    """A snapshot that a generator writes holds the entries up to its index, and none that was applied meanwhile."""
    peers = members(1)
    log = DiskLog.open(tmp_path, peer_id="1", ident=b"", peers=peers, limits=LIMITS)
    seen: dict[int, int] = {}
    async with (
        RaftPeer(NodeSettings(peer_id="1"), log, NewestIndex(), url=peers[0].url, compact_bytes=COMPACT_BYTES) as peer,
        AsyncRaftClient(peer.url) as client,
    ):
        while len(seen) < 4:
            await asyncio.gather(*(client.append(b"x" * 50) for _ in range(200)))
            if log.snapshot is not None:
                seen[log.snapshot.index] = int(log.read_snapshot(0, 100))
    assert seen == {index: index for index in seen}


@pytest.mark.usefixtures("hours_pass")
@pytest.mark.ci
async def test_a_snapshot_of_another_peer_ends_all_watches(tmp_path: Path) -> None:
    """What a snapshot changed is not known: the sessions of a peer that is given one end, and who resumes before it is
    told that it is outrun; as at a peer that starts with its own one."""
    peers = members(1)
    async with running("1", tmp_path, peers) as leader, AsyncRaftClient([peers[0].url]) as client:
        while leader.log.first_index < 100:
            await fill(client, KEYS)
    async with running("4", tmp_path, peers, "tcp://127.0.0.1:*") as newcomer:
        with RawWatcher(newcomer.peer.url) as watcher:
            watch = await watcher.begin(b"1")
            assert watcher.replies[watch] == [Watching(watcher.session, Position(0))]
            async with running("1", tmp_path, peers) as leader:
                await until(lambda: newcomer.peer.status().applied_index > 99)
                assert await watcher.ask() == NoSession(watcher.session)
                assert watcher.events(watch) == []
                with RawWatcher(leader.peer.url) as restarted:
                    for each in (watcher, restarted):
                        outrun = await each.ended(await each.begin(b"1", after=Position(99)))
                        assert outrun.reason is EndReason.HISTORY_OUTRUN
                        assert outrun.oldest > 99


# -- logs that are kept short because clients ask for it ---------------------------------------------------------------


def cluster_of(
    machine: Callable[[], StateMachine] = BroadcastStateMachine, size: int = 3, **settings: object
) -> AsyncEmbeddedCluster:
    return AsyncEmbeddedCluster(size, machine=machine, limits=LIMITS, settings=settings)


async def first_indexes(client: AsyncRaftClient, cluster: AsyncEmbeddedCluster) -> set[int]:
    return {(await client.log_info(peer.url)).first_index for peer in cluster.peers}


async def append(client: AsyncRaftClient, count: int) -> int:
    return max(await client.append_many([b"x"] * count))


async def append_in_segments(client: AsyncRaftClient, cluster: AsyncEmbeddedCluster, count: int) -> int:
    """Append so that each log begins a segment at least every 70 entries: what comes at once stays in one."""
    last = 0
    for _ in range(0, count, 20):
        last = await append(client, 20)
        await until(lambda last=last: all(peer._storage.last_index >= last for peer in cluster._running.values()))
    return last


def is_trimmed(peer: RaftPeer, index: int) -> bool:
    """Whether the log begins with the segment that has the entry after ``index``. How long a segment is depends on how
    many entries came at once.
    """
    oldest = peer._storage._segments.segments[0]
    return oldest.first <= index + 1 <= oldest.last


async def append_until_trimmed(client: AsyncRaftClient, cluster: AsyncEmbeddedCluster, index: int) -> int:
    """Append, as the list of members has to follow the snapshot, until all logs are trimmed up to there. Returns the
    last index.
    """
    last = await append(client, 20)
    try:
        async with asyncio.timeout(100):
            while not all(is_trimmed(peer, index) for peer in cluster._running.values()):
                last = await append(client, 20)
                await asyncio.sleep(0.01)  # the peers need the processor for what is awaited
    except TimeoutError:
        firsts = await first_indexes(client, cluster)
        raise AssertionError(f"the logs begin at {firsts}, and end at {last}") from None
    return last


def bytes_of(cluster: AsyncEmbeddedCluster, peer_id: str) -> int:
    """What the log of a peer has on the disk, without its snapshot."""
    total = 0
    for file in (cluster._folder / peer_id).glob("*.log"):
        with suppress(FileNotFoundError):  # it is compacted at this moment
            total += file.stat().st_size
    return total


@pytest.mark.usefixtures("hours_pass")
@pytest.mark.ci
async def test_all_peers_drop_what_nobody_needs_and_no_more() -> None:
    """A log is trimmed on all peers up to the index that was told, in whole segments; readers get an index instead."""
    async with cluster_of() as cluster, AsyncRaftClient(cluster.url) as client:
        last = await append_in_segments(client, cluster, 400)
        assert await client.trim(220) == 220
        assert await client.trim(100) == 220  # what was said is not taken back
        last = await append_until_trimmed(client, cluster, 220)
        found = [item async for item in client.entries()]
        assert isinstance(found[0], SnapshotChunk)
        assert 150 < found[0].index <= 220
        assert found[0].data == encode_uint(found[0].index)
        assert found[-1].index >= last


async def move_leadership(client: AsyncRaftClient, to: str) -> None:
    """Ask for it until it is done: a disk that stands still for an election time-out fails a hand-over."""
    async with asyncio.timeout(20):
        while True:
            with suppress(HandOverError):
                await client.transfer_leadership(to)
                return


@pytest.mark.usefixtures("hours_pass")
@pytest.mark.ci
async def test_a_peer_that_was_away_hears_it_when_it_is_back() -> None:
    """A peer that was killed while the log was trimmed hears of it later, from another leader too."""
    async with cluster_of() as cluster, AsyncRaftClient(cluster.url) as client:
        await append_in_segments(client, cluster, 400)
        leader = await cluster.leader()
        away = next(peer.id for peer in cluster.peers if peer.id != leader)
        await cluster.kill(away)
        await client.trim(220)
        await move_leadership(client, next(each for each in cluster.running if each != leader))
        await cluster.restart(away)
        await append_until_trimmed(client, cluster, 220)


@pytest.mark.usefixtures("hours_pass")
@pytest.mark.ci
async def test_a_leader_that_was_not_reached_hears_it_from_who_follows_it() -> None:
    """One peer knows the index, of a leader that is gone: the next leader does not, and tells the others then."""
    async with cluster_of() as cluster, AsyncRaftClient(cluster.url) as client:
        await append_in_segments(client, cluster, 400)
        told, untold = sorted({peer.id for peer in cluster.peers} - {await cluster.leader()})
        cluster._running[told]._trimming.index = 220
        await move_leadership(client, untold)
        await append_until_trimmed(client, cluster, 220)


async def test_a_log_keeps_what_may_be_repeated() -> None:
    """While a request id before the index is fresh nothing is dropped, and its repetition is not appended again."""
    async with cluster_of(size=1) as cluster, AsyncRaftClient(cluster.url) as client:
        last = await append(client, 400)
        await client.trim(last)
        await append(client, 400)
        await cluster.kill("1")
        await cluster.restart("1")
        assert await first_indexes(client, cluster) == {1}


@pytest.mark.ci
async def test_ids_that_need_not_be_known_keep_nothing() -> None:
    """With ``trim_forgets_ids`` entries go although their ids are fresh, and only those: a repetition of one is
    appended again, a repetition of one that is still there is not.
    """
    async with cluster_of(trim_forgets_ids=True) as cluster, AsyncRaftClient(cluster.url) as client:
        ids = [new_request_id() for _ in range(2)]
        await client.append(b"first", request_id=ids[0])
        await append_in_segments(client, cluster, 200)
        index = await client.trim(await append(client, 1))
        kept = await client.append(b"kept", request_id=ids[1])
        last = await append_until_trimmed(client, cluster, index)
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
@pytest.mark.ci
async def test_a_snapshot_is_made_when_a_client_asks() -> None:
    """Without ``compact_bytes`` too, each peer makes a snapshot when it is asked, and its log begins after it later."""
    async with cluster_of(KeyValueStateMachine) as cluster, AsyncRaftClient(cluster.url) as client:
        for number in range(200):
            last = await client.append(KeyValueCodec.set(b"k", b"%d" % number))
        for name in range(4):
            last = await client.append(KeyValueCodec.set(b"large/%d" % name, bytes(300_000)))
        taken = [await client.take_snapshot(peer.id) for peer in cluster.peers]
        assert all(each.index <= last and each.size > 0 for each in taken)
        assert (await client.take_snapshot()).index == last
        while not all(first > 100 for first in await first_indexes(client, cluster)):
            await append(client, 20)
        first, *rest = [item async for item in client.entries() if isinstance(item, SnapshotChunk)]
        assert first.is_first
        assert rest
        again = [item async for item in client.entries(snapshot_after=first)]
        assert [item for item in again if isinstance(item, SnapshotChunk)] == rest


async def test_one_snapshot_is_held_at_a_time() -> None:
    """While a snapshot waits for request ids to expire, it is the answer; what waits is not put off."""
    async with cluster_of(KeyValueStateMachine, 1) as cluster, AsyncRaftClient(cluster.url) as client:
        await append(client, 10)
        taken = await client.take_snapshot()
        assert taken.index == 10
        await append(client, 10)
        assert await client.take_snapshot("1") == taken


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


@pytest.mark.ci
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


# -- up to when a peer forgets request ids, on a clock that somebody sets ----------------------------------------------

DAY_S = 86_400.0


def at_once() -> float:
    """Appends go on: the newest id is newer than all that is asked about."""
    return math.inf


def test_the_horizon_follows_the_clock() -> None:
    """Every ten seconds, ids older than their time to live may be forgotten; without one, none ever is."""
    horizon = RequestHorizon(100.0)
    assert horizon.due(0.0, 5_000.0, at_once) == 4_900.0
    assert horizon.due(9.9, 5_009.9, at_once) is None
    assert horizon.due(10.0, 5_010.0, at_once) == 4_910.0
    assert RequestHorizon(None).due(0.0, 5_000.0, at_once) is None


def test_a_clock_that_is_set_forward_for_a_while_forgets_nothing_that_is_fresh_afterwards() -> None:
    """A year ahead for a minute: what was remembered is remembered when the clock is right again."""
    horizon = RequestHorizon(100.0)
    horizon.due(0.0, 5_000.0, at_once)
    for now in range(10, 70, 10):
        assert horizon.due(float(now), 5_000.0 + now + 365 * DAY_S, at_once) == 4_900.0 + now
    assert horizon.due(70.0, 5_070.0, at_once) == 4_970.0


def test_a_clock_that_is_set_back_for_a_while_costs_no_memory() -> None:
    """When the clock is right again the horizon is where it would have been."""
    horizon = RequestHorizon(100.0)
    horizon.due(0.0, 5_000.0, at_once)
    for now in range(10, 70, 10):
        assert horizon.due(float(now), 5_000.0 + now - DAY_S, at_once) == 4_900.0
    assert horizon.due(70.0, 5_070.0, at_once) == 4_970.0


def test_a_machine_that_boots_with_a_wrong_clock_forgets_nothing_that_is_fresh() -> None:
    """However far ahead its clock is, a peer that starts believes the ids in its log, less what clocks may differ."""
    horizon = RequestHorizon(100.0)
    assert horizon.due(0.0, 5_000.0 + 365 * DAY_S, lambda: 5_000.0) == 5_000.0 - 900.0 - 100.0
    assert horizon.due(10.0, 5_010.0, lambda: 5_010.0) == 5_010.0 - 900.0 - 100.0


def test_a_log_without_ids_has_nothing_to_forget() -> None:
    """While no segment of the log with request ids has ended, nothing is forgotten."""
    assert RequestHorizon(100.0).due(0.0, 5_000.0, lambda: -math.inf) is None


def test_a_log_that_stood_still_catches_up() -> None:
    """A peer that was off for a week forgets the old ids as soon as new ones say which time it is."""
    horizon = RequestHorizon(100.0)
    now_s = 7 * DAY_S
    assert horizon.due(0.0, now_s, lambda: 5_000.0) == 4_000.0
    assert horizon.due(10.0, now_s + 10, lambda: now_s) == now_s - 1_000.0
