"""Peers that compact their logs by themselves: real sockets, real disks; only the eight hours pass at once."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from raw_watcher import RawWatcher
from support.ports import reserved_port
from support.waiting import until

from raft_client import AsyncRaftClient, KeyValueCodec, LogEntry, Peer, SnapshotChunk, new_request_id
from raft_client.errors import StorageFullError
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.machines.state_machine import StateMachine
from raft_client.server.node.settings import NodeSettings
from raft_client.server.runtime.peer import RaftPeer
from raft_client.server.runtime.request_horizon import RequestHorizon
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.server.runtime.storage.options import StorageLimits
from raft_client.server.runtime.storage.snapshot_store import SnapshotWriter
from raft_client.wire.positions import Position
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
        while len(seen) < 10:
            await asyncio.gather(*(client.append(b"x" * 50) for _ in range(200)))
            if log.snapshot is not None:
                seen[log.snapshot.index] = int(log.read_snapshot(0, 100))
    assert seen == {index: index for index in seen}


@pytest.mark.usefixtures("hours_pass")
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
