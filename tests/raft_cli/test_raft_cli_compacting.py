"""``zmqraft snapshot`` and ``zmqraft trim``: what they print, for real peers and for those that know neither."""

from __future__ import annotations

import json
from typing import Any

from support.raft_peers import move_leadership
from support.scripted_peers import ScriptedCluster

from raft_client import RaftClient
from raft_client.server.embedded_cluster import EmbeddedCluster
from raft_client.server.machines.broadcast import BroadcastStateMachine

Run = Any  # conftest.py has it


def test_every_peer_makes_a_snapshot(bare_run: Run) -> None:
    """``zmqraft snapshot`` prints one line a peer, with what the snapshot has; it can be asked of some peers only."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as log:
        move_leadership(log, "1")  # all of them run
        index = log.append(b"x")
        done = bare_run("snapshot", "1", "--url", cluster.url)
        assert (done.code, done.err) == (0, "")
        heading, row = done.out.decode().splitlines()
        assert heading.split() == ["peer", "url", "up_to", "bytes"]
        assert row.split()[:3] == ["1", cluster.peers[0].url, str(index)]
        cluster.kill("3")
        done = bare_run("snapshot", "1", "2", "--json", "--url", cluster.url)
        first, second = map(json.loads, done.out.splitlines())
        assert (first["id"], first["index"], second["id"]) == ("1", index, "2")
        assert int(first["size"]) == int(row.split()[3])


def test_a_peer_that_makes_none_is_named(bare_run: Run) -> None:
    """A peer that makes no snapshot is named with its reason, and the exit code is 1."""
    with EmbeddedCluster(1) as cluster:
        done = bare_run("snapshot", "--url", cluster.url)
        assert (done.code, done.out) == (1, b"")
        assert f"1 at {cluster.url}: nothing was applied yet" in done.err
        done = bare_run("snapshot", "--json", "--url", cluster.url)
        assert json.loads(done.out) == {"id": "1", "url": cluster.url, "error": "nothing was applied yet"}
        done = bare_run("snapshot", "9", "--url", cluster.url)
        assert (done.code, done.err) == (2, "zmqraft: there is no peer '9'; there are 1\n")


def test_a_log_is_trimmed(bare_run: Run) -> None:
    """``zmqraft trim`` prints the highest index that was told so far; an index beyond the log is exit code 3."""
    with EmbeddedCluster(1, machine=BroadcastStateMachine) as cluster, RaftClient(cluster.url) as log:
        log.append_many([b"x"] * 5)
        done = bare_run("trim", "3", "--url", cluster.url)
        assert (done.code, done.out) == (0, b"entries up to 3 are dropped when their request ids have expired\n")
        assert json.loads(bare_run("trim", "2", "--json", "--url", cluster.url).out) == {"index": 3}
        done = bare_run("trim", "6", "--url", cluster.url)
        assert (done.code, done.out, done.err) == (3, b"", "zmqraft: the log ends at 5\n")
        assert bare_run("trim", "0", "--url", cluster.url).code == 2


def test_node_peers_are_told_apart(run: Run, peers: ScriptedCluster) -> None:
    """Peers that say hello as Node peers do are sent nothing else; their own tools compact their logs."""
    done = run("trim", "1")
    assert done.code == 3
    assert "Node peer" in done.err
    done = run("snapshot")
    assert done.code == 1
    assert done.err.count("Node peer") == 3
    assert not [kind for _, _, kind, _ in peers.seen if len(kind) > 1]
