"""Faults of a cluster inside the program: peers that do not reach each other, and a slow disk."""

from __future__ import annotations

import inspect
import time

import pytest

from raft_client import AsyncRaftClient, NoLeaderError, RaftClient
from raft_client.errors import InvalidArgumentError
from raft_client.server.embedded_cluster import AsyncEmbeddedCluster, EmbeddedCluster


def test_the_majority_goes_on_without_a_leader_that_is_cut_off() -> None:
    """The others elect a leader and acknowledge, the old one steps down, and after the heal it takes what it missed."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as log:
        log.append(b"before")
        old = cluster.leader()
        cluster.partition([old])
        log.append(b"meanwhile")
        new = cluster.leader()
        assert new != old
        cluster.heal()
        # With the third one away the old leader is needed, and it is only elected, or follows, with all of the log.
        cluster.kill(next(each for each in cluster.running if each not in (old, new)))
        log.append(b"after")
        assert [entry.data for entry in log.entries() if entry.is_state] == [b"before", b"meanwhile", b"after"]


async def test_no_group_without_a_majority_acknowledges() -> None:
    """Three groups of one elect nobody, also after a restart; the next partition takes the place of this one."""
    async with AsyncEmbeddedCluster(3) as cluster, AsyncRaftClient(cluster.url) as log:
        await log.append(b"x")
        await cluster.partition(["1"], ["2"], ["3"])
        await cluster.kill("2")
        await cluster.restart("2")
        with pytest.raises(NoLeaderError):
            await log.append(b"y", timeout=1.0)
        await cluster.partition(["1"])
        assert await cluster.leader() in {"2", "3"}
        await log.append(b"z")


def test_an_append_waits_for_a_slow_disk() -> None:
    """The leader acknowledges nothing before it is on its own disk, too; the disk is as before when 0 is said."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as log:
        log.append(b"x")
        leader = cluster.leader()
        cluster.slow_disk(leader, 0.3)
        begin = time.monotonic()
        log.append(b"y")
        assert time.monotonic() - begin >= 0.3
        cluster.slow_disk(leader, 0)
        log.append(b"z")


def test_a_leader_whose_disk_stalls_is_replaced() -> None:
    """It steps down after ``disk_stall_s``, and what waits for its disk neither holds up the others nor its end."""
    with EmbeddedCluster(3, settings={"disk_stall_s": 0.2}) as cluster, RaftClient(cluster.url) as log:
        log.append(b"x")
        leader = cluster.leader()
        begin = time.monotonic()
        cluster.slow_disk(leader, 3000.0)
        log.append(b"y", timeout=60.0)
        assert cluster.leader() != leader
        cluster.kill(leader)
        assert time.monotonic() - begin < 1000.0


def test_faults_that_cannot_be_are_refused() -> None:
    """Groups of peers that there are not, or that overlap, and times that no disk takes, change nothing."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as log:
        with pytest.raises(InvalidArgumentError, match="peer '7' is none of 1, 2, 3"):
            cluster.partition(["1"], ["7"])
        with pytest.raises(InvalidArgumentError, match="peer '2' is in two groups"):
            cluster.partition(["1", "2"], ["2"])
        with pytest.raises(InvalidArgumentError, match="seconds is from 0 to 3600, not -1"):
            cluster.slow_disk("1", -1)
        with pytest.raises(InvalidArgumentError, match="seconds is from 0 to 3600, not '1'"):
            cluster.slow_disk("1", "1")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="no peer '7' is running"):
            cluster.slow_disk("7", 1)
        log.append(b"x")


def test_both_clusters_have_the_same_controls() -> None:
    """Names, arguments and docstrings of one are those of the other."""
    controls = [name for name in vars(AsyncEmbeddedCluster) if not name.startswith("_") and name != "machine"]
    assert {"partition", "heal", "slow_disk"} <= set(controls)
    for name in controls:
        one, other = (inspect.getattr_static(each, name) for each in (AsyncEmbeddedCluster, EmbeddedCluster))
        assert inspect.getdoc(one) == inspect.getdoc(other)
        if inspect.isfunction(one):
            assert inspect.signature(one).parameters == inspect.signature(other).parameters
