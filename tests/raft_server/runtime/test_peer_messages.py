"""What a peer on an event loop does with the messages that reach its ROUTER."""

from __future__ import annotations

from pathlib import Path

import zmq
from support.waiting import until

from raft_client import Peer
from raft_client.server.machines.broadcast import BroadcastStateMachine
from raft_client.server.node.settings import NodeSettings
from raft_client.server.runtime.peer import RaftPeer
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.wire.messages import Message, RequestVote
from raft_client.wire.peer_rpcs import AppendEntries

MEMBERS = (Peer("1", "tcp://127.0.0.1:1"), Peer("2", "tcp://127.0.0.1:2"))


async def test_another_cluster_is_not_heard(tmp_path: Path) -> None:
    """A message with another ident is dropped and counted, be it a vote or a leader's (facts §1.1)."""
    log = DiskLog.open(tmp_path, peer_id="1", ident=b"", peers=MEMBERS)
    settings = NodeSettings(peer_id="1", election_timeout_min_s=60.0, election_timeout_max_s=60.0)
    foreign: list[Message] = [RequestVote(b"other", "2", 7, 0, 0), AppendEntries(b"other", "2", 7, 0, 0, 0, ())]
    with zmq.Context() as context:
        async with RaftPeer(settings, log, BroadcastStateMachine(), url="tcp://127.0.0.1:*") as peer:
            with context.socket(zmq.DEALER) as dealer:
                dealer.linger = 0
                dealer.connect(peer.url)
                for message in foreign:
                    dealer.send_multipart([b"\x01", *message.to_frames()])
                await until(lambda: peer.dropped["another cluster"] == len(foreign), "the messages that are dropped")
                assert (peer.status().term, peer.status().leader_id) == (0, None)
                dealer.send_multipart([b"\x02", *AppendEntries(b"", "2", 7, 0, 0, 0, ()).to_frames()])
                await until(lambda: peer.status().leader_id == "2", "the leader of the own cluster")
