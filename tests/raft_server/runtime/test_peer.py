"""One peer on an event loop: what fails in it, what reaches its ROUTER, the files that it has open, and its clock."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import zmq
from support.raft_peers import Peers
from support.waiting import eventually, until

from raft_client import AsyncRaftClient, LogEntry, NoLeaderError, Peer, RaftClient
from raft_client._common.durable_files import SystemFile, SystemFolder
from raft_client.errors import StorageError
from raft_client.server.machines.broadcast import BroadcastStateMachine
from raft_client.server.node.settings import NodeSettings
from raft_client.server.runtime.peer import RaftPeer
from raft_client.server.runtime.storage.directory import Owner
from raft_client.server.runtime.storage.disk_log import DiskLog, StorageLimits
from raft_client.wire.configuration import ConfigChange
from raft_client.wire.frames import Message
from raft_client.wire.peer_messages import AppendEntries, RequestVote

PEERS = (Peer("1", "tcp://127.0.0.1:1"),)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
FEW = 60


class FailingLog(DiskLog):
    """Its disk fails when it is told to."""

    fails = False

    def sync(self) -> None:
        if self.fails:
            raise StorageError("the disk is gone")
        super().sync()


class FailingMachine(BroadcastStateMachine):
    """It cannot apply an entry of clients."""

    def apply(self, entries: Sequence[LogEntry]) -> None:
        if any(entry.is_state for entry in entries):
            raise ZeroDivisionError("a defect")
        super().apply(entries)


def open_log(path: Path, peers: tuple[Peer, ...] = PEERS) -> FailingLog:
    return FailingLog.open(path, peer_id="1", ident=b"", peers=peers)


def peer_of(log: DiskLog, machine: BroadcastStateMachine | None = None, **settings: Any) -> RaftPeer:
    """A peer that is yet to start, on a free port."""
    own = NodeSettings(peer_id="1", **settings)
    return RaftPeer(own, log, machine or BroadcastStateMachine(), url="tcp://127.0.0.1:*")


@contextmanager
def dealer_to(peer: RaftPeer) -> Iterator[zmq.Socket[bytes]]:
    """A client that speaks in raw frames."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(peer.url)
        yield dealer


async def test_a_peer_whose_disk_fails_ends_and_gives_its_directory_back(tmp_path: Path) -> None:
    """Nothing is acknowledged after the failure, the reason is kept, and another process may open the directory."""
    log = open_log(tmp_path)
    peer = peer_of(log)
    await peer.start()
    async with AsyncRaftClient(peer.url) as client:
        assert await client.append(b"x") == 1
        log.fails = True
        with pytest.raises(NoLeaderError):
            await client.append(b"y", timeout=1.0)
    await peer.ended.wait()
    assert isinstance(peer.failure, StorageError)
    await peer.close()
    await peer.close()
    with open_log(tmp_path) as again:
        assert again.last_index >= 1


async def test_a_peer_whose_state_machine_fails_ends(tmp_path: Path) -> None:
    """The others would go on without knowing that this one differs; so it stops speaking, and says why."""
    peer = peer_of(open_log(tmp_path), FailingMachine())
    await peer.start()
    async with AsyncRaftClient(peer.url) as client:
        with pytest.raises(NoLeaderError):
            await client.append(b"x", timeout=1.0)
    await peer.ended.wait()
    assert isinstance(peer.failure, ZeroDivisionError)
    await peer.close()
    open_log(tmp_path).close()


async def test_the_name_of_a_leader_does_not_break_a_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A leader is called what it says it is called; a line break in its name begins no line of the log."""
    log = open_log(tmp_path, (*PEERS, Peer("2\nforged", "tcp://127.0.0.1:2")))
    heartbeat = AppendEntries(b"", "2\nforged", 7, 0, 0, 0, ())
    with caplog.at_level(logging.INFO, "raft_client.server"):
        async with peer_of(log) as peer:
            with dealer_to(peer) as dealer:
                dealer.send_multipart([b"\x01", *heartbeat.to_frames()])
                await until(lambda: "forged" in caplog.text, "the leader in the log")
    assert not [record for record in caplog.records if "\n" in record.getMessage()]


class SlowMachine(BroadcastStateMachine):
    """It takes 30 ms for a batch of entries, and knows what ran in between."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.turns_at: list[int] = []

    def apply(self, entries: Sequence[LogEntry]) -> None:
        time.sleep(0.03)
        self.turns_at.append(self.turns)
        super().apply(entries)


async def test_a_peer_that_applies_its_whole_log_goes_on_with_everything_else(tmp_path: Path) -> None:
    """A peer that starts applies its log in parts, and the event loop, with its heartbeats, has its turn after each."""
    async with peer_of(open_log(tmp_path)) as first, AsyncRaftClient(first.url) as client:
        for _ in range(20):
            await client.append(bytes(100_000))
    machine = SlowMachine()
    async with peer_of(open_log(tmp_path), machine):
        while machine.last_applied < 20:
            machine.turns += 1
            await asyncio.sleep(0)
    assert len(machine.turns_at) >= 7
    assert len(set(machine.turns_at)) == len(machine.turns_at)


class ColdFile(SystemFile):
    """The system has none of it in memory. ``waited`` are the bytes that another thread has read."""

    waited: set[int]
    read_in_loop: list[int]
    loop_thread: int

    def is_in_memory(self, count: int, offset: int) -> bool:
        return False

    def read(self, count: int, offset: int) -> bytes:
        places = range(offset, min(offset + count, self.size))
        if threading.get_ident() != self.loop_thread:
            self.waited.update(places)
        elif cold := sum(place not in self.waited for place in places):
            self.read_in_loop.append(cold)
        return super().read(count, offset)


class ColdFolder(SystemFolder):
    """A directory whose disk takes long. ``read_in_loop`` is how many bytes the thread of the loop waited for."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.waited: dict[str, set[int]] = {}
        self.read_in_loop: list[int] = []
        self.loop_thread = threading.get_ident()

    def open(self, name: str, *, create: bool = False) -> ColdFile:
        descriptor = os.open(self._path / name, os.O_RDWR | (os.O_CREAT | os.O_TRUNC if create else 0))
        file = ColdFile(descriptor)
        file.waited, file.read_in_loop = self.waited.setdefault(name, set()), self.read_in_loop
        file.loop_thread = self.loop_thread
        return file


async def test_a_peer_waits_for_no_disk_that_it_reads(tmp_path: Path) -> None:
    """What is not in memory another thread reads: the log that is applied at the start, and entries for clients."""
    limits = StorageLimits(segment_entries=50)
    with DiskLog.open(tmp_path, peer_id="1", ident=b"", peers=PEERS, limits=limits) as log:
        async with peer_of(log) as peer, AsyncRaftClient(peer.url) as client:
            await client.append_many([b"%d" % number for number in range(400)])
    folder = ColdFolder(tmp_path)
    owner = Owner("1", b"", ConfigChange(PEERS))
    log = DiskLog.open_in(folder, owner, limits=limits)
    folder.read_in_loop.clear()  # what it read to open the log
    async with peer_of(log) as peer, AsyncRaftClient(peer.url) as client:
        found = [entry.data async for entry in client.entries() if entry.is_state]
        assert found == [b"%d" % number for number in range(400)]
        assert sum(map(len, folder.waited.values())) > 5_000
        assert sum(folder.read_in_loop) < 1_000  # the terms of the last entries, when it began to lead


# -- what reaches its ROUTER -------------------------------------------------------------------------------------------


async def test_a_flood_of_requests_is_taken_in_small_parts(tmp_path: Path) -> None:
    """Between two parts of at most 200 requests others have their turn: an append takes four turns of its leader."""
    many = 3_000
    async with peer_of(open_log(tmp_path)) as peer:
        with zmq.Context() as context, context.socket(zmq.DEALER) as client:
            client.linger = -1
            client.connect(peer.url)
            for _ in range(many):
                client.send_multipart([b"\x01", b"\x78", b""])
        parts = []
        while (before := peer.dropped.total()) < many:
            await asyncio.sleep(0)
            parts.append(peer.dropped.total() - before)
    assert max(parts) <= 2 * 200  # a turn for what is readable, and one that a timer began


async def test_another_cluster_is_not_heard(tmp_path: Path) -> None:
    """A message with another ident is dropped and counted, be it a vote or a leader's (facts §1.1)."""
    log = open_log(tmp_path, (*PEERS, Peer("2", "tcp://127.0.0.1:2")))
    foreign: list[Message] = [RequestVote(b"other", "2", 7, 0, 0), AppendEntries(b"other", "2", 7, 0, 0, 0, ())]
    async with peer_of(log, election_timeout_min_s=60.0, election_timeout_max_s=60.0) as peer:
        with dealer_to(peer) as dealer:
            for message in foreign:
                dealer.send_multipart([b"\x01", *message.to_frames()])
            await until(lambda: peer.dropped["another cluster"] == len(foreign), "the messages that are dropped")
            assert (peer.status().term, peer.status().leader_id) == (0, None)
            dealer.send_multipart([b"\x02", *AppendEntries(b"", "2", 7, 0, 0, 0, ()).to_frames()])
            await until(lambda: peer.status().leader_id == "2", "the leader of the own cluster")


# -- files that it may have open, connections of clients too -----------------------------------------------------------


class PoorPeers(Peers):
    """Each may have this many files open, at first or for good."""

    def __init__(self, directory: Path, limit: str) -> None:
        super().__init__(directory)
        self.limit = limit

    def command(self, name: str, *more: str) -> list[str]:
        return ["sh", "-c", f'ulimit {self.limit} {FEW}; exec "$0" "$@"', *super().command(name, *more)]

    def descriptors(self, name: str) -> int:
        return len(list(Path(f"/proc/{self.running[name].pid}/fd").iterdir()))


@LINUX
@pytest.mark.ci
def test_a_leader_without_a_descriptor_leads_on(tmp_path: Path) -> None:
    """Idle connections take all descriptors of a leader whose follower is lost: it goes on with the other one, and has
    the first one back when it has a descriptor."""
    peers = PoorPeers(tmp_path, "-n")
    try:
        for name in peers.urls:
            peers.start(name)
        with RaftClient(peers.url) as log, ExitStack() as open_ones:
            index = log.append(b"x")
            for url in peers.urls.values():  # a follower that the leader has yet to connect to would stay unreachable
                eventually(lambda: log.log_info(url).last_index >= index, f"{url} has the entry")  # noqa: B023 - at once
            assert log.leader is not None
            leader = log.leader.id
            one, other = (name for name in peers.urls if name != leader)
            port = int(peers.urls[leader].rpartition(":")[2])
            for _ in range(2 * FEW):
                open_ones.enter_context(socket.create_connection(("127.0.0.1", port)))
            eventually(lambda: peers.descriptors(leader) >= FEW - 1, "the descriptors are in use")
            peers.end(one, SIGKILL)
            for _ in range(100):
                log.append(bytes(100_000))
            peers.start(one)
            open_ones.close()
            peers.end(other, SIGKILL)
            log.append(b"z", timeout=60)
            assert peers.running[leader].poll() is None
    finally:
        for name in list(peers.running):
            peers.end(name, SIGKILL)


@LINUX
@pytest.mark.ci
def test_a_peer_takes_all_descriptors_that_it_may_have(tmp_path: Path) -> None:
    """``zmqraft serve`` raises the soft limit to the hard one, so that 60 clients are not the end."""
    peers = PoorPeers(tmp_path, "-S -n")
    try:
        peers.start("1")
        port = int(peers.urls["1"].rpartition(":")[2])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 * FEW)]
        eventually(lambda: peers.descriptors("1") > 2 * FEW, "they are all taken in")
        for connection in idle:
            connection.close()
    finally:
        peers.end("1", SIGKILL)


# -- its clock, on a machine that was suspended ------------------------------------------------------------------------

AHEAD_S = 100_000
UNSHARE = ["unshare", "--user", "--map-root-user", "--time", "--boottime", str(AHEAD_S), "--fork"]
PROGRAM = """
import asyncio, sys, time
from pathlib import Path
from raft_client import Peer
from raft_client.server import KeyValueStateMachine, NodeSettings
from raft_client.server.node.node import RaftNode
from raft_client.server.runtime.peer import RaftPeer
from raft_client.server.runtime.storage.disk_log import DiskLog

class Node(RaftNode):
    def tick(self, now, wall_s):
        times.append(now - time.monotonic())
        super().tick(now, wall_s)

async def main():
    log = DiskLog.open(Path(sys.argv[1]), peer_id="1", ident=b"", peers=(Peer("1", "tcp://127.0.0.1:1"),))
    peer = RaftPeer(NodeSettings(peer_id="1"), log, KeyValueStateMachine(), url="tcp://127.0.0.1:*", make_node=Node)
    async with peer:
        while not times:
            await asyncio.sleep(0)

times = []
asyncio.run(main())
print(min(times))
"""


def _can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.machine
@pytest.mark.skipif(not _can_unshare(), reason="this system makes no time namespaces")
def test_the_clock_of_a_peer_goes_on_while_the_machine_is_suspended(tmp_path: object) -> None:
    """In a namespace whose clock of the time since the boot is a day ahead, as after a suspension, the node's is, too:
    its leases are over."""
    command = [*UNSHARE, sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) == pytest.approx(AHEAD_S, abs=60)
