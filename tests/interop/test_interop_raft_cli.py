"""``zmqraft`` against real peers (npm zmq-raft 0.5.0): the way of a user through all commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from raft_cluster import RaftCluster, why_not

pytestmark = pytest.mark.interop

Run = Callable[..., bytes]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RaftCluster]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with RaftCluster(tmp_path, ident="cli") as running:
        yield running


@pytest.fixture
def run(cluster: RaftCluster) -> Run:
    """Run ``zmqraft``; returns its standard output. An unexpected exit code fails the test."""
    environment = os.environ | {"ZMQRAFT_SEEDS": ",".join(cluster.seeds), "ZMQRAFT_CLUSTER": "cli"}

    def run(*arguments: str, stdin: bytes = b"", code: int = 0) -> bytes:
        command = [sys.executable, "-m", "raft_client.cli", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=60)
        assert done.returncode == code, (arguments, done)
        return done.stdout

    return run


def test_the_way_of_a_user(cluster: RaftCluster, run: Run, tmp_path: Path) -> None:
    """Append, read, lose the leader, append, change the peers, compact, dump with the snapshot."""
    lines = b"".join(b"line %d\n" % n for n in range(2000))
    assert run("append", stdin=lines) == b"appended 2000 entries, index 1 to 2000\n"
    assert run("tail", "--from", "1", "--raw") == lines
    assert run("set", "site/1", "up") == b"2001\n"

    cluster.kill(cluster.leader())
    assert run("info", code=1).count(b"no answer") == 1
    index = int(run("set", "site/1", "down"))
    assert index in (2002, 2003)  # the new leader may have added a checkpoint
    changes = run("watch", "site/", "--after", "1990", "--count", "2")
    assert changes == b"set 2001 site/1 up\nset %d site/1 down\n" % index

    for peer in set(cluster.urls) - set(cluster.running):
        cluster.start(peer)
    cluster.launch("4")
    run("add-peer", "4", cluster.urls["4"])
    cluster.until(lambda: cluster.ask("4") is not None, "peer 4 does not join")
    assert len(json.loads(run("config", "--json"))["peers"]) == 4
    run("add-peer", "4", cluster.urls["4"], code=1)
    run("add-peer", "5", "tcp://no-ip-address:8047", code=3)
    assert b"4 tcp" not in run("remove-peer", "4")

    for peer in ("1", "2", "3"):
        cluster.compact(peer, 1500)
    run("tail", "--from", "1", code=1)
    assert run("tail", "--from", "1", "--skip-snapshot", "--count", "1") == b"1501 state line 1500\n"
    snapshot, entries = tmp_path / "snapshot", tmp_path / "rest.jsonl"
    run("dump", "--snapshot", str(snapshot), "--output", str(entries), "--state-only", "--to", "2001")
    # The peers' example state machine makes a snapshot of the data, one after another.
    assert snapshot.read_bytes() == lines.replace(b"\n", b"")[: len(snapshot.read_bytes())]
    rest = [json.loads(line) for line in entries.read_text().splitlines()]
    assert [record["index"] for record in rest] == list(range(1501, 2002))
    assert rest[0]["data"] == "line 1500"
