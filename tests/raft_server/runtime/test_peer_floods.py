"""A peer that is sent more than it can do goes on with everything else."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import zmq

from raft_client import Peer
from raft_client.server.machines.broadcast import BroadcastStateMachine
from raft_client.server.node.settings import NodeSettings
from raft_client.server.runtime.peer import RaftPeer
from raft_client.server.runtime.storage.disk_log import DiskLog

MANY = 3_000


async def test_a_flood_of_requests_is_taken_in_small_parts(tmp_path: Path) -> None:
    """Between two parts of at most 200 requests others have their turn: an append takes four turns of its leader."""
    log = DiskLog.open(tmp_path, peer_id="1", ident=b"", peers=(Peer("1", "tcp://127.0.0.1:1"),))
    peer = RaftPeer(NodeSettings(peer_id="1"), log, BroadcastStateMachine(), url="tcp://127.0.0.1:*")
    async with AsyncExitStack() as closing:
        await peer.start()
        closing.push_async_callback(peer.close)
        with zmq.Context() as context, context.socket(zmq.DEALER) as client:
            client.linger = -1
            client.connect(peer.url)
            for _ in range(MANY):
                client.send_multipart([b"\x01", b"\x78", b""])
        parts = []
        while (before := peer.dropped.total()) < MANY:
            await asyncio.sleep(0)
            parts.append(peer.dropped.total() - before)
    assert max(parts) <= 2 * 200  # a turn for what is readable, and one that a timer began
