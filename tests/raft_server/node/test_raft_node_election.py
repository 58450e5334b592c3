"""Elections (Raft, §3.4, §4.2.3, §9.6; facts §1.4)."""

from __future__ import annotations

import pytest
from node_cluster import OURS, NodeCluster, make_id

from raft_client.server.node.ready import Reply, Request, Role
from raft_client.wire.peer_messages import PreVote, PreVoteReply, RequestVote, VoteReply

NODE: frozenset[str] = frozenset()


@pytest.mark.parametrize("capabilities", [OURS, NODE])
@pytest.mark.parametrize("names", ["a", "ab", "abc", "abcde"])
def test_a_cluster_elects_one_leader(names: str, capabilities: frozenset[str]) -> None:
    """A cluster has one leader after an election, and all other peers follow it."""
    cluster = NodeCluster(names, capabilities=capabilities)
    cluster.run(1.0)
    roles = [*cluster.roles().values()]
    assert roles.count(Role.LEADER) == 1
    assert roles.count(Role.FOLLOWER) == len(names) - 1
    assert {node.leader_id for node in cluster.nodes.values()} == {cluster.leader}


def test_a_cluster_of_one_leads_at_once() -> None:
    """A cluster of one leads as soon as its disk is done."""
    cluster = NodeCluster("a")
    cluster.run(0.0)
    assert cluster.nodes["a"].role is Role.LEADER


def test_no_request_for_votes_leaves_before_the_own_vote_is_durable() -> None:
    """A candidate requests votes only when its own vote is durable, because after a crash it could vote twice."""
    cluster = NodeCluster()
    for name in "abc":
        cluster.hold_disk(name)
    cluster.run(0.4)
    assert Role.CANDIDATE in cluster.roles().values()
    assert not [ask for _, ask in cluster.sent if isinstance(ask.message, RequestVote)]
    for name in "abc":
        cluster.release_disk(name)
    cluster.run(0.5)
    assert Role.LEADER in cluster.roles().values()


def test_one_vote_in_a_term() -> None:
    """In a term the first candidate gets the vote, however often it asks, and another one does not."""
    cluster = NodeCluster()
    assert cluster.ask("a", RequestVote(b"test", "b", 7, 0, 0)) == [VoteReply(7, granted=True)]
    assert cluster.ask("a", RequestVote(b"test", "b", 7, 0, 0)) == [VoteReply(7, granted=True)]
    assert cluster.ask("a", RequestVote(b"test", "c", 7, 0, 0)) == [VoteReply(7, granted=False)]


def test_a_voter_that_hears_a_leader_says_nothing() -> None:
    """A voter that hears a leader does not answer, because a Node candidate answered by a majority would raise its term
    (Raft, §4.2.3)."""
    cluster = NodeCluster()
    leader = cluster.elect()
    term = cluster.nodes[leader].term
    for name in "abc":
        assert cluster.ask(name, RequestVote(b"test", "b", term + 1, 99, 99)) == []
        assert cluster.nodes[name].term == term


def test_a_voter_that_has_just_started_says_nothing_either() -> None:
    """A voter that has just started does not answer, because it may have promised a leader not to vote before it
    stopped."""
    cluster = NodeCluster()
    leader, follower, _ = cluster.elected()
    cluster.stop(follower)
    cluster.start(follower)
    assert cluster.ask(follower, RequestVote(b"test", leader, 9, 99, 99)) == []
    cluster.isolate(follower)
    cluster.run(0.21)
    assert cluster.ask(follower, RequestVote(b"test", leader, 9, 99, 99)) == [VoteReply(9, granted=True)]


def test_a_peer_that_was_cut_off_does_not_raise_its_term() -> None:
    """A peer that was cut off does not raise its term, so that the leader goes on when it is back (Raft, §9.6)."""
    cluster = NodeCluster()
    leader, follower, _ = cluster.elected()
    term = cluster.nodes[leader].term
    cluster.isolate(follower)
    cluster.run(5.0)
    assert cluster.nodes[follower].term == term
    cluster.heal()
    cluster.run(1.0)
    assert cluster.leader == leader
    assert {node.term for node in cluster.nodes.values()} == {term}


def test_a_candidate_that_nobody_answers_stays_in_its_term() -> None:
    """A candidate repeats its question in one term until a majority answers, or it hears of a higher term."""
    cluster = NodeCluster()
    leader, follower, other = cluster.elected()
    term = cluster.nodes[leader].term
    cluster.isolate(follower)
    cluster.nodes[follower]._election.campaign()  # a pre-vote that was won before
    cluster.sent.clear()
    cluster.run(2.0)
    assert cluster.nodes[follower].term == term + 1
    asks = [ask for name, ask in cluster.sent if name == follower and ask.peer_id == other]
    assert len({ask.request_id for ask in asks}) == 1
    assert 30 <= len(asks) <= 41  # every 50 ms
    assert cluster.ask(follower, RequestVote(b"test", other, term + 5, 99, 99)) == [VoteReply(term + 5, granted=True)]


def test_a_connected_node_peer_counts_as_willing_but_only_answers_raise_the_term() -> None:
    """A Node peer that is connected counts as willing in a pre-vote, but a candidate raises its term only if one
    answers."""
    cluster = NodeCluster(capabilities=NODE)
    leader, follower, _ = cluster.elected()
    term = cluster.nodes[leader].term
    cluster.isolate(follower)  # and the connections stand
    cluster.run(3.0)
    assert cluster.nodes[follower].term == term + 1


def test_a_pre_vote_changes_nothing() -> None:
    """After a pre-vote the voter's term is the same, and its vote is free."""
    cluster = NodeCluster()
    assert cluster.ask("a", PreVote(b"test", "c", 3, 0, 0)) == [PreVoteReply(0, granted=True)]
    assert cluster.nodes["a"].term == 0
    assert cluster.logs["a"].jobs == []


def test_nothing_that_a_peer_does_not_know_is_sent_to_it() -> None:
    """A peer is sent nothing that it has not said it knows, nor after its connection is lost."""
    cluster = NodeCluster()
    for node in cluster.nodes.values():
        for name in "abc":
            node.peer_lost(name, cluster.now)
    cluster.run(1.0)
    assert cluster.sent == []
    cluster.introduce()
    cluster.run(1.0)
    assert Role.LEADER in cluster.roles().values()


def test_a_bridge_is_elected() -> None:
    """A peer that reaches all others is elected, although it alone hears the old leader."""
    cluster = NodeCluster("abcde")
    leader = cluster.elect("a")
    cluster.update(b"x")
    cluster.run(0.2)
    for one in "abcde":
        for two in "abcde":
            if "c" not in (one, two):
                cluster.cut.add((one, two))
    cluster.run(0.9)  # three election time-outs
    assert leader == "a"
    assert cluster.leader == "c"
    cluster.update(b"y")
    cluster.run(0.2)
    assert cluster.data("c") == [b"x", b"y"]


def test_a_disk_that_failed_silences_the_peer() -> None:
    """After its disk has failed a peer sends nothing, because nobody knows what the disk holds."""
    cluster = NodeCluster()
    leader = cluster.elect()
    node = cluster.nodes[leader]
    node.step(Request(b"client", make_id(1), RequestVote(b"test", "b", 99, 99, 99)), cluster.now, cluster.wall_s)
    node.fail(cluster.now)
    assert node.role is Role.STOPPED
    cluster.sent.clear()
    cluster.answers.clear()
    cluster.run(1.0)
    assert not [name for name, _ in cluster.sent if name == leader]
    assert cluster.answers == []


@pytest.mark.parametrize("quiet_s", [0.2, 0.0])
def test_a_candidate_that_is_no_member_is_not_heard_while_there_is_a_leader(quiet_s: float) -> None:
    """While there is a leader, a candidate that is not a member (it may have been removed) is not answered."""
    cluster = NodeCluster()
    cluster.elect()
    for node in cluster.nodes.values():
        node._state.timing.quiet_until = cluster.now + quiet_s
    for name in "abc":
        assert cluster.ask(name, RequestVote(b"test", "z", 9, 99, 99)) == []


def test_a_candidate_that_is_no_member_is_heard_without_a_leader() -> None:
    """Without a leader, a candidate that is not a member is answered: it may be a new one, unknown to this peer (Raft,
    §4.1)."""
    cluster = NodeCluster()
    assert cluster.ask("a", RequestVote(b"test", "z", 9, 99, 99)) == [VoteReply(9, granted=True)]


def test_a_pre_vote_ends_with_a_vote_for_somebody_else() -> None:
    """After a vote for another peer, late answers to a pre-vote do not make this peer a candidate."""
    cluster = NodeCluster()
    node = cluster.nodes["a"]
    cluster.isolate("a")
    cluster.run(0.31)  # it asks, and nobody hears
    asks = {ask.peer_id: ask for name, ask in cluster.sent if name == "a" and isinstance(ask.message, PreVote)}
    replies = [Reply(peer, ask.request_id, PreVoteReply(0, granted=True)) for peer, ask in asks.items()]
    vote = Request(b"b", b"\x01", RequestVote(b"test", "b", 1, 0, 0))
    node.steps([replies[0], vote, replies[1]], cluster.now, cluster.wall_s)
    assert node.role is Role.FOLLOWER
    assert node.term == 1
