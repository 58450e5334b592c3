"""What real peers do not give: the claims of docs/explanation/what-zmq-raft-does-not-give.md that can be shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from support.raft_peers import RaftCluster, why_not

from raft_client import ClusterBusyError, Freshness, NoLeaderError, Peer, RaftClient, RequestTimeoutError

pytestmark = pytest.mark.interop


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RaftCluster]:
    """Three peers, to be harmed."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with RaftCluster(tmp_path) as running:
        yield running


def test_a_leader_without_a_majority_still_says_that_all_is_well(cluster: RaftCluster) -> None:
    """A leader without a majority serves reads and broadcasts, and only appends show that it cannot commit."""
    with RaftClient(cluster.seeds[0]) as log:
        first = log.append("before the cut")
        with log.subscribe(after=first - 1) as subscriber:
            assert next(subscriber).index == first
            for peer in [p for p in cluster.running if p != cluster.leader()]:
                cluster.kill(peer)
            with pytest.raises(RequestTimeoutError) as caught:
                log.append("after the cut", timeout=1.5)
            assert caught.value.may_have_been_applied
            assert subscriber.next_batch(timeout=0.01) is None
            assert subscriber.state.freshness is Freshness.FRESH
        assert [entry.data for entry in log.entries(after=first - 1)] == [b"before the cut"]


def test_survivors_without_a_leader_say_so(cluster: RaftCluster) -> None:
    """One remaining peer of three elects nobody and serves no reads, and says that there is no leader."""
    with RaftClient(cluster.seeds[0]) as log:
        log.append("x")
        leader = cluster.leader()
        cluster.kill(leader)
        cluster.kill(next(iter(cluster.running)))
        with pytest.raises(NoLeaderError):
            log.append("y", timeout=1.0)
        with pytest.raises(NoLeaderError):
            next(log.entries(timeout=1.0))


def test_a_malformed_message_ends_a_peer(cluster: RaftCluster) -> None:
    """A RequestEntries without an index, from a program that checks nothing, makes the peer's process exit."""
    victim = next(p for p in cluster.running if p != cluster.leader())
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(cluster.urls[victim])
        dealer.send_multipart([b"\x01", b"\x3c", b""])
        cluster.until(lambda: cluster._processes[victim].poll() is not None, "the peer is still there")
    cluster.kill(victim)
    with RaftClient(cluster.seeds[0] if victim != "1" else cluster.seeds[1]) as log:
        assert log.append("the others go on")


def test_members_are_settled_when_the_cluster_says_so(tmp_path: Path) -> None:
    """A transition that waits for a peer which is not up lists both configurations, and only a change of the peers
    tells that it is on. What config(settled=True) sends for that is refused by a settled cluster, and changes
    nothing."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with RaftCluster(tmp_path, size=1) as single, RaftClient(single.seeds[0]) as log:
        before = log.config(settled=True).peers
        assert log.config().peers == before
        single.allot("2")
        second = Peer("2", single.urls["2"])
        with pytest.raises(RequestTimeoutError):
            log.update_config([*before, second], timeout=0.5)
        assert log.config().peers == (*before, second)
        with pytest.raises(ClusterBusyError):
            log.config(settled=True, timeout=0.7)
        with pytest.raises(ClusterBusyError):
            log.update_config(before, wait=False)
        single.launch("2")
        assert log.config(settled=True, timeout=30.0).peers == (*before, second)
