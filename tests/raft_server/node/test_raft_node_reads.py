"""Linearizable reads (Raft, §6.4)."""

from __future__ import annotations

import time

from node_cluster import OURS, NodeCluster

from raft_client.server.node.ready import ReadGranted, Role
from raft_client.wire.peer_messages import ReadIndex, ReadIndexReply, TimeoutNow


def followers(cluster: NodeCluster) -> list[str]:
    return [name for name in cluster.nodes if name != cluster.leader]


def expire_lease(cluster: NodeCluster) -> None:
    """No lease in this term: reads need a round of messages."""
    node = cluster.nodes[cluster.leader]
    node._reads.lease_lost_in = node.term


def test_a_read_sees_what_is_committed() -> None:
    """Within the lease a read is granted at once without a message, and sees what is committed."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.update(b"x")
    cluster.sent.clear()
    cluster.nodes[leader].read("token", cluster.now)
    cluster.settle()
    assert cluster.reads == [ReadGranted("token", 1, leader)]
    assert cluster.sent == []


def test_without_a_lease_a_read_takes_one_round() -> None:
    """Without a lease a read takes one round of messages, which begins at once."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.update(b"x")
    expire_lease(cluster)
    cluster.nodes[leader].read("token", cluster.now)
    cluster.run(0.0)
    assert cluster.reads == [ReadGranted("token", 1, leader)]


def test_a_cluster_of_one_reads() -> None:
    """A cluster of one grants reads by itself."""
    cluster = NodeCluster("a")
    cluster.elect()
    cluster.update(b"x")
    cluster.nodes["a"].read("token", cluster.now)
    cluster.settle()
    assert cluster.reads == [ReadGranted("token", 1, "a")]


def test_an_isolated_leader_grants_nothing_after_its_lease() -> None:
    """An isolated leader grants no reads after its lease, because another may lead and have committed more."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.isolate(leader)
    cluster.run(0.19)
    cluster.nodes[leader].read("token", cluster.now)
    cluster.settle()
    assert cluster.reads == []
    cluster.run(0.5)
    assert cluster.reads == [ReadGranted("token", None, None)]


def test_the_lease_is_over_before_anybody_else_can_lead() -> None:
    """As long as the old leader grants reads by its lease, nobody else can lead."""
    for seed in range(20):
        cluster = NodeCluster(seed=seed)
        leader = cluster.elect()
        cluster.update(b"x")
        cluster.isolate(leader)
        granted_at = elected_at = 0.0
        while not elected_at:
            cluster.reads.clear()
            cluster.nodes[leader].read("token", cluster.now)
            cluster.settle()
            if any(read.index is not None for read in cluster.reads):
                granted_at = cluster.now
            cluster.run(0.002)
            if any(cluster.nodes[name].role is Role.LEADER for name in cluster.nodes if name != leader):
                elected_at = cluster.now
        assert 0.0 < granted_at < elected_at


def test_no_lease_among_node_peers() -> None:
    """Among Node peers, which vote for anybody at any time, there is no lease."""
    cluster = NodeCluster(capabilities=frozenset())
    leader = cluster.elect()
    cluster.update(b"x")
    cluster.isolate(leader)
    cluster.nodes[leader].read("token", cluster.now)
    cluster.settle()
    assert cluster.reads == []


def test_no_lease_once_another_peer_was_told_to_stand() -> None:
    """Once another peer was told to stand for election there is no lease, because it may do so late and win."""
    cluster = NodeCluster()
    leader = cluster.elect()
    target = followers(cluster)[0]
    cluster.lost = lambda ask: isinstance(ask.message, TimeoutNow)
    cluster.nodes[leader].transfer(target, cluster.now)
    cluster.run(0.5)
    assert cluster.leader == leader
    assert not cluster.nodes[leader]._reads._has_lease


def test_a_follower_asks_the_leader_and_waits_until_it_has_applied_as_much() -> None:
    """A follower asks the leader for the index and grants the read when it has applied as much."""
    cluster = NodeCluster()
    leader = cluster.elect()
    follower = followers(cluster)[0]
    cluster.update(b"x")
    cluster.nodes[follower].read("token", cluster.now)
    cluster.settle()
    assert cluster.reads == []
    cluster.run(0.1)
    assert cluster.reads == [ReadGranted("token", 1, leader)]
    assert cluster.data(follower) == [b"x"]


def test_a_follower_of_a_node_leader_names_it() -> None:
    """A follower of a Node leader, which cannot be asked, answers with the leader's id."""
    cluster = NodeCluster(capabilities=OURS - {"read-index"})
    leader = cluster.elect()
    follower = followers(cluster)[0]
    cluster.nodes[follower].read("token", cluster.now)
    cluster.settle()
    assert cluster.reads == [ReadGranted("token", None, leader)]


def test_a_follower_whose_leader_is_gone_says_so() -> None:
    """A follower whose leader is gone refuses the read, which does not wait for ever."""
    cluster = NodeCluster()
    leader = cluster.elect()
    follower = followers(cluster)[0]
    cluster.isolate(follower)
    cluster.nodes[follower].read("token", cluster.now)
    cluster.run(0.5)
    assert cluster.reads == [ReadGranted("token", None, None)]
    assert leader


def test_clients_and_peers_ask_with_read_index() -> None:
    """The leader answers ReadIndex of clients and peers with the index, and other peers with its id."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.update(b"x")
    assert cluster.ask(leader, ReadIndex(b"test")) == [ReadIndexReply(leader, 1)]
    assert cluster.ask(followers(cluster)[0], ReadIndex(b"test")) == [ReadIndexReply(leader)]


def _cost_of_waiting_reads(count: int) -> float:
    """CPU seconds for so many reads whose entry the leader's own disk does not have yet."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.hold_disk(leader)
    cluster.update(b"x", leader)
    cluster.run(0.1)
    node = cluster.nodes[leader]
    assert node.commit_index > node.status().applied_index
    begin = time.process_time()
    for number in range(count):
        node.read(number, cluster.now)
    cost = time.process_time() - begin
    assert not node.ready().reads
    cluster.release_disk(leader)
    cluster.run(0.1)
    assert [granted.token for granted in cluster.reads] == [*range(count)]
    return cost


def test_reads_that_wait_cost_the_same_each() -> None:
    """Four times as many reads that wait for the disk cost about four times as much, not sixteen times."""
    _cost_of_waiting_reads(100)
    few, many = (min(_cost_of_waiting_reads(count) for _ in range(3)) for count in (1_000, 4_000))
    assert many < 9 * few
