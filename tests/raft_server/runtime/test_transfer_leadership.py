"""A client moves the leadership of real peers, in both shells, and from the command line."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest
from support.raft_peers import move_leadership
from support.scripted_peers import ScriptedCluster
from support.waiting import eventually

from raft_client import AsyncRaftClient, HandOverError, RaftClient
from raft_client.server.embedded_cluster import AsyncEmbeddedCluster, EmbeddedCluster


def test_the_leadership_moves_to_whom_the_client_says() -> None:
    """It moves to the named member, stays where it is when that leads, and moves away when none is named."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as log:
        log.append(b"x")
        for target in ("1", "2", "3", "3"):
            assert move_leadership(log, target) == target
            assert cluster.leader() == target
            assert log.leader is not None
            assert log.leader.id == target
        after = move_leadership(log)
        assert after in ("1", "2")
        assert cluster.leader() == after


def test_a_hand_over_takes_less_than_50_ms() -> None:
    """From the client's question to the next leader's answer, unless the machine is busy: the best of many counts."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as log:
        log.append(b"x")

        def hand_over() -> float:
            begin = time.monotonic()
            move_leadership(log)
            return time.monotonic() - begin

        eventually(lambda: hand_over() < 0.05, "a hand-over in less than 50 ms")


def test_appends_go_on_while_the_leadership_moves() -> None:
    """Appends of another client go on while the leadership moves many times: each is in the log once, in order."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as log, RaftClient(cluster.url) as mover:
        moved = threading.Event()

        def move() -> None:
            try:
                for number in range(12):
                    move_leadership(mover, str(number % 3 + 1))
            finally:
                moved.set()

        moving = threading.Thread(target=move)
        moving.start()
        sent: list[bytes] = []
        while not moved.is_set():
            sent.append(b"%d" % len(sent))
            log.append(sent[-1])
        moving.join()
        assert [entry.data for entry in log.entries() if entry.is_state] == sent


async def test_tasks_may_ask_at_the_same_time() -> None:
    """Tasks that ask for the same leader at the same time are all told when it leads."""
    async with AsyncEmbeddedCluster(3) as cluster, AsyncRaftClient(cluster.url) as log:
        target = "2" if await cluster.leader() == "1" else "1"
        assert await asyncio.gather(*(log.transfer_leadership(target) for _ in range(5))) == [target] * 5


def test_what_cannot_be_is_refused_with_its_reason() -> None:
    """A stranger cannot lead, nor anybody else in a cluster of one; the leader goes on."""
    with EmbeddedCluster(1) as cluster, RaftClient(cluster.url) as log:
        with pytest.raises(HandOverError, match="there is no other member '9'"):
            log.transfer_leadership("9")
        with pytest.raises(HandOverError, match="no other member is connected") as caught:
            log.transfer_leadership()
        assert not caught.value.may_have_been_applied
        assert log.append(b"x") == 1


def test_a_node_peer_is_not_asked_to_hand_over() -> None:
    """A leader that answers a hello as Node peers do is sent nothing that it does not know."""
    with ScriptedCluster() as cluster, RaftClient(cluster.seeds) as log:
        with pytest.raises(HandOverError, match="Node peer"):
            log.transfer_leadership("2")
        assert not [kind for _, _, kind, _ in cluster.seen if len(kind) > 1]


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "raft_client.cli", *arguments], capture_output=True, timeout=60)


@pytest.mark.ci
def test_the_command_prints_who_leads() -> None:
    """``zmqraft transfer`` prints the peers with a star at the new leader; a refusal is exit code 3."""
    with EmbeddedCluster(3) as cluster:
        done = run("transfer", "2", "--url", cluster.url)
        assert (done.returncode, done.stderr) == (0, b"")
        assert [line.split()[0] for line in done.stdout.splitlines() if line.endswith(b"*")] == [b"2"]
        done = run("transfer", "--url", cluster.url, "--json")
        assert done.returncode == 0
        assert b'"leader_id": "2"' not in done.stdout
        done = run("transfer", "9", "--url", cluster.url)
        assert (done.returncode, done.stderr) == (3, b"zmqraft: there is no other member '9'\n")
