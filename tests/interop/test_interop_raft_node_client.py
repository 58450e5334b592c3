"""Node's client and subscriber (npm zmq-raft 0.5.0) on our peers: every request that they know, through a change of the
leader."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.raft_peers import install_zmq_raft

from raft_client import LogEntry, RaftClient
from raft_client.server import BroadcastStateMachine, EmbeddedCluster

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("zmq_raft")]


COUNT = 1_000
PROGRAM = Path(__file__).parent / "node_client.js"


def test_node_programs_are_served_by_our_peers() -> None:
    """Node's client finds the leader, appends, survives the kill of the leader, reads the log, and changes the members;
    Node's subscriber hears each entry once, in order, from the one leader and from the next."""
    with EmbeddedCluster(3, machine=BroadcastStateMachine) as cluster:
        first = cluster.leader()
        command = ["node", str(PROGRAM), str(install_zmq_raft()), cluster.url, str(COUNT)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
            assert node.stdin is not None
            assert node.stdout is not None
            said: dict[str, Any] = {}
            halves = 0
            for line in node.stdout:
                name, value = json.loads(line)
                said[name] = value
                if name == "half":
                    if not halves:
                        cluster.kill(cluster.leader())
                        cluster.leader()
                    halves += 1
                    node.stdin.write("go on\n")
                    node.stdin.flush()
        assert node.returncode == 0
        with RaftClient(cluster.url) as log:
            entries = [entry for entry in log.entries() if isinstance(entry, LogEntry)]
    assert said["config"] == {"leader": first, "peers": [[peer.id, peer.url] for peer in cluster.peers]}
    written = [[entry.index, entry.data.decode()] for entry in entries if entry.is_state]
    assert sorted(said["appended"]) == said["heard"] == written
    assert len(written) == COUNT
    assert said["info"]["first"] == 1
    assert said["read"] == [entry.frame.hex() for entry in entries[: len(said["read"])]]
    assert len(said["read"]) >= written[-1][0]
    assert said["refused"] == "no change in cluster membership"
    assert said["changed"] == said["config"]["peers"]
