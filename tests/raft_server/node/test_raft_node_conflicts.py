"""Logs that differ, and how a leader brings them in line (Raft, §3.5; facts §1.4)."""

from __future__ import annotations

import pytest
from log_entries import entry, fill
from memory_log import MemoryLog
from node_cluster import OURS, NodeCluster, peers_of

from raft_client.server.node.ready import Persist
from raft_client.server.node.stored_log import HardState
from raft_client.wire.messages import AppendEntries, AppendReply, Outcome, UpdateReply

NODE: frozenset[str] = frozenset()

FIGURE_3_6 = {
    "a": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b": (1, 1, 1, 4),
    "c": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e": (1, 1, 1, 4, 4, 4, 4),
    "f": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


@pytest.mark.parametrize("capabilities", [OURS, NODE])
def test_a_leader_brings_every_log_of_figure_3_6_in_line(capabilities: frozenset[str]) -> None:
    """Followers that lack entries, have more, or both end with the leader's log (thesis, Figure 3.6)."""
    cluster = NodeCluster("", capabilities=capabilities, check_quorum=False)
    for name in "xabcdef":
        fill(
            cluster.logs.setdefault(name, MemoryLog(peers_of("xabcdef"))),
            *FIGURE_3_6.get(name, (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)),
        )
        cluster.logs[name].do(Persist(HardState(7)))
    for name in "xabcdef":
        cluster.start(name)
    cluster.nodes["x"]._election.campaign()
    cluster.run(1.0)
    assert cluster.leader == "x"
    cluster.update(b"new")
    cluster.run(1.0)
    expected = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 8, 8]
    for name in "xabcdef":
        assert [each.term for each in cluster.logs[name].log] == expected


def test_conflicts_are_told_as_the_node_peers_tell_them() -> None:
    """A conflict names the index after a log that is too short, and otherwise the start of the differing term, as with
    Node peers."""
    cluster = NodeCluster()
    fill(cluster.logs["a"], 1, 1, 2, 2, 2)
    cluster.stop("a")
    cluster.start("a")
    late = AppendEntries(b"test", "b", 5, 9, 4, 0)
    assert cluster.ask("a", late) == [AppendReply(5, success=False, conflict_index=6)]
    assert AppendReply(5, success=False, conflict_index=6).to_frames() == [b"\x05", b"", b"\x06"]
    other = AppendEntries(b"test", "b", 5, 5, 4, 0)
    assert cluster.ask("a", other, b"\x02") == [AppendReply(5, success=False, conflict_index=3)]


def test_a_follower_keeps_what_it_has_committed() -> None:
    """A message that lies before a follower's commit is answered, and nothing is cut, where a Node peer would exit."""
    cluster = NodeCluster()
    three = (entry(1, 1), entry(2, 1), entry(3, 1))
    cluster.ask("a", AppendEntries(b"test", "b", 1, 0, 0, 3, three), b"\x01")
    assert cluster.nodes["a"].commit_index == 3
    assert cluster.ask("a", AppendEntries(b"test", "b", 1, 0, 0, 3, three[:1]), b"\x02") == [
        AppendReply(1, success=True)
    ]
    assert cluster.ask("a", AppendEntries(b"test", "b", 1, 1, 1, 3), b"\x03") == [AppendReply(1, success=True)]
    assert cluster.logs["a"].last_index == 3


def test_entries_that_were_not_committed_are_replaced() -> None:
    """Entries that an isolated leader took, and never acknowledged, are cut off when it comes back."""
    cluster = NodeCluster()
    old = cluster.elect()
    cluster.isolate(old)
    for number in range(5):
        cluster.update(b"lost %d" % number, old)
    cluster.run(1.5)
    new = cluster.leader
    assert new != old
    for number in range(3):
        cluster.update(b"%d" % number, new)
    cluster.heal()
    cluster.run(1.5)
    assert cluster.data(old) == [b"0", b"1", b"2"]
    finals = [answer.message for answer in cluster.answers if isinstance(answer.message, UpdateReply)]
    assert sum(message.outcome is Outcome.COMMITTED for message in finals) == 3


def test_a_follower_that_lost_its_log_is_counted_no_longer() -> None:
    """A follower that lost its log gets everything again, and what it had confirmed no longer counts for a majority."""
    cluster = NodeCluster(check_quorum=False)
    leader = cluster.elect()
    for number in range(5):
        cluster.update(b"%d" % number)
    cluster.run(0.2)
    follower = next(name for name in "abc" if name != leader)
    cluster.stop(follower)
    cluster.logs[follower] = MemoryLog(peers_of("abc"))
    cluster.applied[follower].clear()
    cluster.start(follower)
    cluster.run(1.0)
    assert cluster.data(follower) == cluster.data(leader)
