"""A peer whose disk or state machine fails: it says nothing more, says why, and gives everything back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import zmq
from support.waiting import until

from raft_client import AsyncRaftClient, LogEntry, NoLeaderError, Peer
from raft_client.errors import StorageError
from raft_client.server.machines.broadcast import BroadcastStateMachine
from raft_client.server.node.settings import NodeSettings
from raft_client.server.runtime.peer import RaftPeer
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.wire.peer_rpcs import AppendEntries

PEERS = (Peer("1", "tcp://127.0.0.1:1"),)


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


def open_log(path: Path) -> FailingLog:
    return FailingLog.open(path, peer_id="1", ident=b"", peers=PEERS)


async def test_a_peer_whose_disk_fails_ends_and_gives_its_directory_back(tmp_path: Path) -> None:
    """Nothing is acknowledged after the failure, the reason is kept, and another process may open the directory."""
    log = open_log(tmp_path)
    peer = RaftPeer(NodeSettings(peer_id="1"), log, BroadcastStateMachine(), url="tcp://127.0.0.1:*")
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
    peer = RaftPeer(NodeSettings(peer_id="1"), open_log(tmp_path), FailingMachine(), url="tcp://127.0.0.1:*")
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
    members = (Peer("1", "tcp://127.0.0.1:1"), Peer("2\nforged", "tcp://127.0.0.1:2"))
    log = DiskLog.open(tmp_path, peer_id="1", ident=b"", peers=members)
    heartbeat = AppendEntries(b"", "2\nforged", 7, 0, 0, 0, ())
    with caplog.at_level(logging.INFO, "raft_client.server"), zmq.Context() as context:
        async with RaftPeer(NodeSettings(peer_id="1"), log, BroadcastStateMachine(), url="tcp://127.0.0.1:*") as peer:
            with context.socket(zmq.DEALER) as dealer:
                dealer.linger = 0
                dealer.connect(peer.url)
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
    first = RaftPeer(NodeSettings(peer_id="1"), open_log(tmp_path), BroadcastStateMachine(), url="tcp://127.0.0.1:*")
    await first.start()
    async with AsyncRaftClient(first.url) as client:
        for _ in range(20):
            await client.append(bytes(100_000))
    await first.close()
    machine = SlowMachine()
    peer = RaftPeer(NodeSettings(peer_id="1"), open_log(tmp_path), machine, url="tcp://127.0.0.1:*")
    await peer.start()
    while machine.last_applied < 20:
        machine.turns += 1
        await asyncio.sleep(0)
    assert len(machine.turns_at) >= 7
    assert len(set(machine.turns_at)) == len(machine.turns_at)
    await peer.close()
