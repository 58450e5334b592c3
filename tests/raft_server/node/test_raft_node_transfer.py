"""Handing over (Raft, §3.10): clients that ask for another leader (HandOver), and what they are told.

The scenarios transfer.txt and transfer_that_is_given_up.txt show the messages between the peers.
"""

from __future__ import annotations

import pytest
from node_cluster import NodeCluster

from raft_client.server.node.ready import Role
from raft_client.wire.client_requests import HandOver, HandOverReply, Outcome
from raft_client.wire.frames import Message
from raft_client.wire.peer_messages import TimeoutNow, TimeoutNowReply


def ask(cluster: NodeCluster, name: str, to: str | None, request_id: bytes = b"\x01") -> list[Message]:
    return cluster.ask(name, HandOver(b"test", to), request_id)


def told(cluster: NodeCluster, request_id: bytes = b"\x01") -> list[Message]:
    """All that the client with this request id was told."""
    return [answer.message for answer in cluster.answers if answer.request_id == request_id]


def test_a_member_that_a_client_names_leads_and_the_client_hears_of_it() -> None:
    """The member that a client names leads after it, and the former leader says who leads now."""
    cluster = NodeCluster()
    leader, target, _ = cluster.elected()
    cluster.update(b"x")
    ask(cluster, leader, target)
    cluster.run_until(lambda: bool(told(cluster)))
    assert cluster.leader == target
    assert told(cluster) == [HandOverReply(Outcome.NOT_LEADER, target)]


def test_without_a_name_the_member_with_most_of_the_log_leads() -> None:
    """Without a name the member that has most of the log is chosen: the hand-over does not wait for one that lags."""
    cluster = NodeCluster()
    leader, ahead, behind = cluster.elected()
    for lagging, target in ((behind, ahead), (ahead, behind)):
        leader = cluster.elect(leader)
        cluster.isolate(lagging)
        cluster.update(b"x")
        ask(cluster, leader, None)
        cluster.run_until(lambda target=target: cluster.leader == target, 0.05)  # type: ignore[misc]
        cluster.heal()
        cluster.run(0.5)


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("z", "there is no other member 'z'"),
        ("a", "there is no other member 'a'"),
        ("b", "b is not connected, or is a Node peer, which cannot take over on request"),
        (None, "no other member is connected that can take over on request"),
    ],
)
def test_a_hand_over_that_cannot_be_is_refused_at_once(to: str | None, reason: str) -> None:
    """A stranger, the leader itself, and Node peers cannot be handed to: the client is told so, and nothing changes."""
    cluster = NodeCluster(capabilities=frozenset())
    cluster.elect()
    while cluster.leader != "a":
        cluster.isolate(cluster.leader)
        cluster.run(1.0)
        cluster.heal()
        cluster.run(1.0)
    assert ask(cluster, "a", to) == [HandOverReply(Outcome.REFUSED, reason=reason)]
    assert cluster.update(b"x", "a")  # updates are not held up


def test_only_the_leader_hands_over() -> None:
    """A follower hands nothing over, and says who leads."""
    cluster = NodeCluster()
    leader, follower, _ = cluster.elected()
    assert ask(cluster, follower, follower) == [HandOverReply(Outcome.NOT_LEADER, leader)]
    cluster.run(0.5)
    assert cluster.leader == leader


def test_a_member_that_does_not_take_over_is_reported() -> None:
    """If the other one does not take over within an election time-out, the client is told, and the leader goes on."""
    cluster = NodeCluster()
    leader, target = cluster.elect_with_one_behind()
    assert ask(cluster, leader, target) == []
    cluster.run_until(lambda: bool(told(cluster)), 0.31)
    assert told(cluster) == [HandOverReply(Outcome.REFUSED, reason=f"{target} did not take over in time")]
    assert cluster.leader == leader


def test_whoever_asks_meanwhile_waits_or_comes_back() -> None:
    """During a hand-over those who want the same wait for its end, each told once, and those who want another one are
    told to come back."""
    cluster = NodeCluster()
    leader, target, other = cluster.elected()
    cluster.isolate(target)
    cluster.update(b"x")
    assert ask(cluster, leader, target, b"\x01") == []
    assert ask(cluster, leader, target, b"\x01") == []  # repeated
    assert ask(cluster, leader, None, b"\x02") == []
    assert ask(cluster, leader, other, b"\x03") == [HandOverReply(Outcome.BUSY)]
    cluster.heal()
    cluster.run(0.5)
    done = [HandOverReply(Outcome.NOT_LEADER, target)]
    assert (told(cluster, b"\x01"), told(cluster, b"\x02")) == (done, done)


def test_a_leader_that_is_deposed_meanwhile_tells_in_the_end() -> None:
    """If nobody leads after it, the client is told that within two election time-outs, and does not wait for ever."""
    cluster = NodeCluster()
    leader, target = cluster.elect_with_one_behind()
    assert ask(cluster, leader, target) == []
    cluster.isolate(leader)
    cluster.run_until(lambda: cluster.nodes[leader].role is Role.FOLLOWER, 0.31)  # it reaches no majority
    assert told(cluster) == []
    cluster.run_until(lambda: bool(told(cluster)), 0.31)
    assert told(cluster) == [HandOverReply(Outcome.NOT_LEADER)]


def test_a_flood_of_requests_is_bounded() -> None:
    """The clients that wait for the end of a hand-over are bounded; more are told to come back."""
    cluster = NodeCluster()
    leader, target = cluster.elect_with_one_behind()
    answers = [ask(cluster, leader, target, b"%d" % number) for number in range(1001)]
    assert answers.count([]) == 1000
    assert answers[-1] == [HandOverReply(Outcome.BUSY)]


def test_only_a_leader_hands_over_and_only_to_a_member_that_knows_how() -> None:
    """A hand-over by a peer that does not lead, or to one that is not a member or does not know how, is refused."""
    cluster = NodeCluster()
    leader, follower, _ = cluster.elected()
    node = cluster.nodes[leader]
    assert not cluster.nodes[follower].transfer(leader, cluster.now)
    assert not node.transfer(leader, cluster.now)
    assert not node.transfer("z", cluster.now)
    node.set_capabilities(follower, frozenset(), cluster.now)
    assert not node.transfer(follower, cluster.now)
    cluster.run(0.2)
    assert not [ask for _, ask in cluster.sent if isinstance(ask.message, TimeoutNow)]


def test_timeout_now_of_somebody_else_starts_nothing() -> None:
    """TimeoutNow of another term, or of a peer that does not lead, starts no election."""
    cluster = NodeCluster()
    leader, one, two = cluster.elected()
    term = cluster.nodes[leader].term
    for message in (TimeoutNow(b"test", leader, term - 1), TimeoutNow(b"test", two, term)):
        assert cluster.ask(one, message) == [TimeoutNowReply(term, started=False)]
    assert cluster.nodes[one].role is Role.FOLLOWER


def test_a_transfer_that_leads_nowhere_ends() -> None:
    """A hand-over that does not succeed ends, and the leader goes on with what had to wait."""
    cluster = NodeCluster()
    leader, target = cluster.elect_with_one_behind()
    cluster.nodes[leader].transfer(target, cluster.now)
    assert cluster.update(b"y", leader) == []
    cluster.run(0.5)
    assert cluster.leader == leader
    assert cluster.data(leader) == [b"x", b"y"]
