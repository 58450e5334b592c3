"""``zmqraft`` against real peers (npm zmq-raft 0.5.0): the way of a user through all commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.raft_peers import RaftCluster, why_not

pytestmark = [pytest.mark.interop, pytest.mark.turns(2)]

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
    """A user can append, read, lose the leader, append, change the peers, compact, and dump with the snapshot. Indexes
    are at least those of a quiet cluster: a busy machine makes peers vote, and a new leader adds a checkpoint."""
    lines = b"".join(b"line %d\n" % n for n in range(2000))
    appended = re.fullmatch(rb"appended 2000 entries, index \d+ to (\d+)\n", run("append", stdin=lines))
    assert appended
    last = int(appended[1])
    assert run("tail", "--from", "1", "--raw") == lines
    first = int(run("set", "site/1", "up"))
    assert first > last >= 2000

    cluster.kill(cluster.leader())
    assert run("info", code=1).count(b"no answer") == 1
    second = int(run("set", "site/1", "down"))
    assert second > first
    changes = run("watch", "site/", "--after", "1990", "--count", "2")
    assert changes == b"set %d site/1 up\nset %d site/1 down\n" % (first, second)

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
    index, kind, text = run("tail", "--from", "1", "--skip-snapshot", "--count", "1").split(maxsplit=2)
    assert (index, kind) == (b"1501", b"state")
    snapshot, entries = tmp_path / "snapshot", tmp_path / "rest.jsonl"
    run("dump", "--snapshot", str(snapshot), "--output", str(entries), "--state-only", "--to", str(first))
    # The peers' example state machine makes a snapshot of the data, one after another.
    state = lines.replace(b"\n", b"")
    assert snapshot.read_bytes() == state[: state.index(text.strip())]
    rest = [json.loads(line) for line in entries.read_text().splitlines()]
    assert rest[0]["index"] == 1501
    assert rest[-1]["index"] == first
    assert [record["data"] for record in rest[:-1]] == lines.decode().splitlines()[-(len(rest) - 1) :]
