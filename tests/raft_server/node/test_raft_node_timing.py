"""Who concludes what from silence: promises, suspicion, signs of life, and timers that come late."""

from __future__ import annotations

import random

import pytest
from node_cluster import OURS, NodeCluster, make_id

from raft_client.server.node.ready import Answer, Request, Role
from raft_client.server.node.settings import NodeSettings
from raft_client.server.node.timing import LONGEST_S, QUIET_S, RecentPeak, Timing
from raft_client.wire.client_requests import RequestLogInfo
from raft_client.wire.peer_messages import AppendEntries, AppendReply, ReadIndex, ReadIndexReply, RequestVote, VoteReply


def timing_of(**settings: float) -> Timing:
    return Timing(NodeSettings(peer_id="a", **settings), random.Random(1), 100.0, was_quiet=True)  # type: ignore[arg-type]


def waits(timing: Timing, now: float) -> float:
    """For how long, after a word of the leader, before it is suspected."""
    timing.hear_leader(now, is_the_same=False)
    return timing.election_at - now


def test_a_peak_is_forgotten_by_and_by() -> None:
    """It counts for half after ten seconds, and a longer one takes its place."""
    peak = RecentPeak()
    assert peak.at(5.0) == 0.0
    peak.add(0.4, 10.0)
    peak.add(0.1, 11.0)
    assert peak.at(20.0) == pytest.approx(0.2)
    peak.add(0.3, 20.0)
    assert peak.at(20.0) == 0.3


@pytest.mark.parametrize("kind", ["syncs", "silences"])
def test_suspicion_learns_from_what_was_slow(kind: str) -> None:
    """From disks and from silences that ended by themselves; up to two seconds, and never below the settings."""
    timing = timing_of()
    assert 0.2 <= waits(timing, 100.0) <= 0.3
    getattr(timing, kind).add(0.35, 100.0)
    assert 0.69 <= waits(timing, 100.0) <= LONGEST_S
    getattr(timing, kind).add(60.0, 100.0)
    assert waits(timing, 100.0) <= LONGEST_S
    assert 0.2 <= waits(timing, 1000.0) <= 0.3
    assert waits(timing_of(election_timeout_min_s=5.0, election_timeout_max_s=6.0), 100.0) >= 5.0


def test_what_a_voter_promises_is_the_same_whatever_is_set() -> None:
    """200 ms at least, at its start and after each word of a leader, also when the connection to that is gone."""
    soon = {"election_timeout_min_s": 0.01, "election_timeout_max_s": 0.02, "heartbeat_s": 0.005}
    for times in ({}, {**soon, "rpc_timeout_s": 0.005, "append_timeout_s": 0.005}):
        timing = timing_of(**times)
        assert timing.quiet_until == 100.0 + QUIET_S
        timing.hear_leader(200.0, is_the_same=True)
        timing.lose_leader(200.01)
        assert timing.quiet_until == 200.0 + QUIET_S
    timing = timing_of(election_timeout_min_s=3.0, election_timeout_max_s=4.0)
    timing.hear_leader(200.0, is_the_same=True)
    assert timing.quiet_until == 203.0  # heartbeats may be rare
    timing.lose_leader(201.0)
    assert timing.quiet_until <= 201.0


def test_a_follower_whose_leader_is_gone_does_not_wait() -> None:
    """A process that ends breaks its connections; its followers ask as soon as their promises are over."""
    cluster = NodeCluster(election_timeout_min_s=5.0, election_timeout_max_s=8.0)
    cluster.run_until(lambda: Role.LEADER in cluster.roles().values(), 20.0)
    cluster.run(1.0)
    began = cluster.now
    cluster.stop(cluster.leader)
    cluster.run_until(lambda: Role.LEADER in cluster.roles().values(), 1.0)
    assert cluster.now - began < 2 * QUIET_S


def test_a_leader_stays_whose_followers_write_for_long() -> None:
    """They answer for their disks later, and say at once that they are there."""
    cluster = NodeCluster()
    leader, *followers = cluster.elected()
    term = cluster.nodes[leader].term
    for name in followers:
        cluster.hold_disk(name)
    cluster.update(b"x")
    cluster.run(0.9)
    assert (cluster.nodes[leader].role, cluster.nodes[leader].term) == (Role.LEADER, term)
    assert any(isinstance(ask.message, RequestLogInfo) for _, ask in cluster.sent)
    for name in followers:
        cluster.release_disk(name)
    cluster.run(0.2)
    assert all(cluster.data(name) == [b"x"] for name in cluster.nodes)


def test_a_sign_of_life_of_another_term_is_none() -> None:
    """A follower that knows a newer term, or follows somebody else, is no reason to go on."""
    cluster = NodeCluster()
    leader, *followers = cluster.elected()
    for name in followers:
        cluster.nodes[name]._state.become_follower(cluster.nodes[name].term, "somebody else")
    cluster.lost = lambda ask: isinstance(ask.message, AppendEntries)
    cluster.run(0.5)
    assert cluster.nodes[leader].role is not Role.LEADER


def test_a_heartbeat_is_answered_while_the_disk_is_at_work() -> None:
    """It promises nothing that is not there. Entries that are on their way to the disk wait for it."""
    cluster = NodeCluster()
    leader, follower, _ = cluster.elected()
    cluster.isolate(follower)
    cluster.hold_disk(follower)
    term = cluster.nodes[leader].term
    entry = cluster.nodes[leader]._state.log
    cluster.update(b"x")
    with_entry = AppendEntries(b"test", leader, term, 0, 0, 0, tuple(entry.entries(0, 1, 1000)))
    assert cluster.ask(follower, with_entry, b"\x21") == []
    heartbeat = AppendEntries(b"test", leader, term, 0, 0, 0, ())
    assert cluster.ask(follower, heartbeat, b"\x22") == [AppendReply(term, success=True)]
    behind = AppendEntries(b"test", leader, term, 1, term, 0, ())
    assert cluster.ask(follower, behind, b"\x23") == []
    cluster.release_disk(follower)
    cluster.settle()
    replies = {answer.request_id: answer.message for answer in cluster.answers}
    assert replies[b"\x21"] == replies[b"\x23"] == AppendReply(term, success=True)


def test_a_vote_waits_for_the_vote_alone() -> None:
    """Entries that come after it are on their way to the disk, and do not hold it up."""
    cluster = NodeCluster()
    for name in "bc":
        cluster.isolate(name)
    assert cluster.ask("a", RequestVote(b"test", "b", 3, 0, 0), b"\x01") == [VoteReply(3, granted=True)]
    cluster.hold_disk("a")
    node = cluster.nodes["a"]
    leader = NodeCluster("x")
    leader.run(0.1)
    leader.update(b"x")
    entries = tuple(leader.nodes["x"]._state.log.entries(0, 1, 1000))
    node.step(Request(b"b", b"\x02", AppendEntries(b"test", "b", 3, 0, 0, 0, entries)), cluster.now, cluster.wall_s)
    cluster.settle()
    assert cluster.held["a"] is not None
    node._state.timing.quiet_until = cluster.now
    again = RequestVote(b"test", "b", 3, 9, 9)
    assert cluster.ask("a", again, b"\x03") == [VoteReply(3, granted=True)]


def test_a_process_that_stood_still_reads_before_it_concludes() -> None:
    """A timer that comes late gives what has come meanwhile a tenth of a second."""
    cluster = NodeCluster()
    leader, *_ = cluster.elected()
    node = cluster.nodes[leader]
    node.next_deadline()
    cluster.now += 0.9
    node.tick(cluster.now, cluster.wall_s)
    assert node.role is Role.LEADER
    assert node.status().lag_s > 0.8
    ends = cluster.now + 0.11
    while (due := node.next_deadline()) <= ends:
        node.tick(due, cluster.wall_s)
    assert node.role is not Role.LEADER


def test_a_lease_is_as_short_as_the_shortest_promise() -> None:
    """A leader asks a majority first when a voter's promise is over, whatever its own time-outs are."""
    cluster = NodeCluster(election_timeout_min_s=0.5, election_timeout_max_s=0.6)
    leader = cluster.elect()
    assert cluster.ask(leader, ReadIndex(b"test"), b"\x01")  # its heartbeats renew it
    cluster.isolate(leader)
    cluster.run(0.19)
    assert cluster.nodes[leader].role is Role.LEADER
    assert cluster.ask(leader, ReadIndex(b"test"), b"\x02") == []
    cluster.heal()
    cluster.run(0.1)
    replies = [answer for answer in cluster.answers if answer.request_id == b"\x02"]
    assert [type(each) for each in replies] == [Answer]
    assert isinstance(replies[0].message, ReadIndexReply)
    cluster.isolate(leader)
    assert cluster.ask(leader, ReadIndex(b"test"), b"\x03")
    for name in cluster.nodes:
        if name != leader:
            cluster.nodes[leader].set_capabilities(name, OURS, cluster.now, quiet_s=0.0)
    assert cluster.ask(leader, ReadIndex(b"test"), b"\x04") == []


def test_a_silent_connection_is_opened_anew() -> None:
    """After a second without any answer, and not only when TCP tries again."""
    cluster = NodeCluster()
    leader, follower, _ = cluster.elected()
    anew: list[str] = []
    original = cluster._send

    def send(name: str, output: object) -> None:
        if type(output).__name__ == "Reconnect":
            anew.append(output.peer_id)  # type: ignore[attr-defined]
        original(name, output)  # type: ignore[arg-type]

    cluster._send = send  # type: ignore[method-assign]
    cluster.isolate(follower)
    cluster.update(b"x", leader, make_id(1))
    cluster.run(0.9)
    assert follower not in anew
    cluster.run(1.3)
    assert anew.count(follower) in (1, 2)


def test_a_vote_that_is_on_its_way_to_the_disk_ends_with_its_term() -> None:
    """The disk will hold the next term and never that vote, so nobody hears of it."""
    cluster = NodeCluster()
    cluster.isolate("a")
    cluster.hold_disk("a")
    assert cluster.ask("a", RequestVote(b"test", "x", 2, 0, 0), b"\x01") == []  # job under way
    assert cluster.ask("a", RequestVote(b"test", "b", 3, 0, 0), b"\x02") == []
    assert cluster.ask("a", RequestVote(b"test", "c", 4, 0, 0), b"\x03") == []
    cluster.release_disk("a")
    cluster.settle()
    votes = [(answer.request_id, answer.message) for answer in cluster.answers]
    assert votes == [(b"\x03", VoteReply(4, granted=True))]
