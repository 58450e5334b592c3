"""AppendEntries on both sides, and what is committed (Raft, §3.5, §3.6; facts §1.4)."""

from __future__ import annotations

import pytest
from memory_log import MemoryLog
from node_cluster import OURS, NodeCluster, peers_of

from raft_client.server.node.ready import Ask, HardState, Persist
from raft_client.wire.configuration import ConfigChange, encode_config
from raft_client.wire.log_entry import EntryKind, LogEntry
from raft_client.wire.peer_messages import AppendEntries, AppendReply, RequestVote

NODE: frozenset[str] = frozenset()


def entry(index: int, term: int) -> LogEntry:
    """Of a client."""
    return LogEntry.of(b"x", term=term, index=index)


def asked(cluster: NodeCluster, peer: str) -> list[AppendEntries]:
    """What this follower was sent."""
    return [ask.message for _, ask in cluster.sent if ask.peer_id == peer and isinstance(ask.message, AppendEntries)]


@pytest.mark.parametrize("capabilities", [OURS, NODE])
def test_what_is_appended_is_applied_everywhere(capabilities: frozenset[str]) -> None:
    """Entries are applied on every peer in the order in which the leader took them."""
    cluster = NodeCluster(capabilities=capabilities)
    cluster.elect()
    for number in range(100):
        cluster.update(b"%d" % number)
    cluster.run(0.3)
    for name in "abc":
        assert cluster.data(name) == [b"%d" % number for number in range(100)]


def test_a_follower_that_was_away_catches_up() -> None:
    """A follower that was away gets what it lacks in messages of bounded size."""
    cluster = NodeCluster(max_message_bytes=1000)
    leader, follower, _ = cluster.elected()
    cluster.isolate(follower)
    for number in range(100):
        cluster.update(b"%d" % number + bytes(100))
    cluster.heal()
    cluster.sent.clear()
    cluster.run(1.0)
    assert cluster.data(follower) == cluster.data(leader)
    assert max(sum(each.size for each in message.entries) for message in asked(cluster, follower)) <= 1000


@pytest.mark.parametrize("capabilities", [OURS, NODE])
def test_a_follower_hears_its_leader_while_the_disk_is_read(
    capabilities: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until what a follower lacks was read it gets heartbeats, at the end of the log; its refusals say nothing about
    where its own log ends. Then it gets what it lacks.
    """
    cluster = NodeCluster(capabilities=capabilities)
    leader, follower = cluster.elect_with_one_behind()
    for number in range(20):
        cluster.update(b"%d" % number)
    cluster.stop(leader)
    cluster.start(leader)  # nothing is in its memory
    cluster.elect(leader)
    node, log, is_cold = cluster.nodes[leader], cluster.logs[leader], True
    monkeypatch.setattr(log, "last_at_hand", lambda after, _size: after if is_cold else log.last_index)
    cluster.heal()
    cluster.sent.clear()
    cluster.run(1.0)
    assert cluster.leader == leader
    heartbeats = [each for each in asked(cluster, follower) if each.prev_index == log.last_index]
    assert 5 < len(heartbeats) < 100
    assert cluster.data(follower) == []
    is_cold = False
    node.disk_read(cluster.now)
    cluster.sent.clear()
    cluster.run(0.1)
    assert cluster.data(follower) == cluster.data(leader)


def test_the_first_question_of_a_leader_is_empty_and_at_the_end_of_its_log() -> None:
    """A leader's first AppendEntries is empty and at the end of its log, so no follower is asked to go back before its
    commit (facts §1.4)."""
    cluster = NodeCluster()
    first = cluster.elect()
    cluster.update(b"x")
    cluster.run(0.2)
    cluster.sent.clear()
    second = next(name for name in "abc" if name != first)
    last = cluster.nodes[second].status().last_index
    cluster.elect(second)
    for peer in "abc":
        if peer != second:
            message = next(each for each in asked(cluster, peer) if each.leader_id == second)
            assert (message.prev_index, message.entries) == (last, ())


def test_what_may_be_a_node_peer_is_told_no_commit_beyond_the_entries_that_it_has_confirmed() -> None:
    """A peer that may be a Node peer is told no commit beyond the entries that it has confirmed: a repeated message
    must not lie before its own commit."""
    cluster = NodeCluster(capabilities=NODE)
    leader, late, _ = cluster.elected()
    cluster.cut.add((leader, late))
    for number in range(20):
        cluster.update(b"%d" % number)
    cluster.run(0.06)
    assert cluster.nodes[leader].commit_index == 20
    cluster.cut.clear()
    cluster.run(0.3)
    assert any(len(message.entries) > 1 for message in asked(cluster, late))
    assert all(message.commit_index <= message.prev_index for message in asked(cluster, late))
    assert {node.commit_index for node in cluster.nodes.values()} == {20}


def test_a_peer_of_ours_is_told_the_commit_at_once() -> None:
    """One of our peers is told the commit at once, because messages that lie before it do not harm it."""
    cluster = NodeCluster()
    _, follower, _ = cluster.elected()
    cluster.isolate(follower)
    for number in range(3):
        cluster.update(b"%d" % number)
    cluster.heal()
    cluster.sent.clear()
    cluster.run(0.15)
    assert any(message.commit_index > message.prev_index for message in asked(cluster, follower))


def test_one_question_at_a_time_with_one_id_until_it_is_answered() -> None:
    """A message is repeated with one id until it is answered, every 50 ms, or 100 ms with entries; the next has the
    next id."""
    cluster = NodeCluster(gives_up=False)
    _, follower, _ = cluster.elected()
    cluster.isolate(follower)
    cluster.sent.clear()
    for number in range(10):
        cluster.update(b"%d" % number)
    cluster.run(1.0)
    asks = [ask for _, ask in cluster.sent if ask.peer_id == follower and isinstance(ask.message, AppendEntries)]
    assert len({ask.request_id for ask in asks}) == 1
    assert 10 <= len(asks) <= 20
    assert all(ask.message is asks[0].message for ask in asks)


def test_ids_count_to_2_to_the_24th_and_begin_again_at_zero() -> None:
    """Ids count to 2^24 and start again at zero (ØMQ Raft protocol, identification frame)."""
    cluster = NodeCluster()
    leader = cluster.elect()
    for link in cluster.nodes[leader]._peers:
        link.last_id = 2**24 - 2
    cluster.sent.clear()
    cluster.run(0.3)
    ids = [ask.request_id for name, ask in cluster.sent if name == leader and ask.peer_id == cluster.sent[0][1].peer_id]
    assert ids[:3] == [b"\xff\xff\xff", b"\x00", b"\x01"]


def test_a_reply_to_entries_waits_for_the_disk() -> None:
    """A reply to entries, and to a heartbeat that confirms what is being written, waits for the disk."""
    cluster = NodeCluster()
    cluster.hold_disk("a")
    assert cluster.ask("a", AppendEntries(b"test", "b", 1, 0, 0, 0, (entry(1, 1),)), b"\x01") == []
    assert cluster.ask("a", AppendEntries(b"test", "b", 1, 1, 1, 0), b"\x02") == []
    cluster.release_disk("a")
    cluster.settle()
    assert [answer.request_id for answer in cluster.answers] == [b"\x01", b"\x02"]


def test_what_arrives_while_the_disk_works_is_one_job() -> None:
    """All that arrives while the disk works is written in one job with one sync."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.hold_disk(leader)
    for number in range(50):
        cluster.update(b"%d" % number, leader)
    cluster.logs[leader].jobs.clear()
    cluster.release_disk(leader)
    cluster.run(0.1)
    assert [len(job.entries) for job in cluster.logs[leader].jobs] == [1, 49]


def test_a_flood_is_written_in_jobs_of_bounded_length() -> None:
    """What has come while the disk worked is written in several jobs, none longer than allowed, and all of it counts.
    An entry that alone is longer has a job of its own."""
    cluster = NodeCluster(max_job_bytes=1000)
    leader = cluster.elect()
    cluster.hold_disk(leader)
    for size in [100] * 30 + [5000] + [100] * 20:
        cluster.update(bytes(size), leader)
    cluster.logs[leader].jobs.clear()
    cluster.release_disk(leader)
    cluster.run(0.3)
    jobs = [[entry.size for entry in job.entries] for job in cluster.logs[leader].jobs]
    assert [sizes for sizes in jobs if sum(sizes) > 1000] == [[5020]]
    assert len(jobs) < 12
    assert [len(cluster.data(name)) for name in "abc"] == [51] * 3


def test_a_new_leader_appends_a_checkpoint_only_if_something_is_not_committed() -> None:
    """A new leader appends a checkpoint only if its last entry is of another term and not committed (facts §3)."""
    cluster = NodeCluster()
    _, follower, _ = cluster.elected()
    cluster.update(b"x")
    cluster.run(0.2)
    cluster.elect(follower)
    assert cluster.nodes[follower].status().last_index == 1
    cluster.update(b"y")
    cluster.isolate(follower)
    cluster.run(1.0)
    assert cluster.nodes[cluster.leader].status().last_index == 3
    checkpoint = cluster.logs[cluster.leader].log[-1]
    assert (checkpoint.kind, checkpoint.data, checkpoint.request_id.raw) == (EntryKind.CHECKPOINT, b"\xc0", bytes(12))


def test_a_repetition_of_a_former_leader_is_answered_and_no_sign_of_life() -> None:
    """A message that a former leader repeats gets the reply that it had, and the present leader stays."""
    cluster = NodeCluster()
    message = AppendEntries(b"test", "b", 1, 0, 0, 0, (entry(1, 1),))
    done = [AppendReply(1, success=True)]
    assert cluster.ask("a", message) == done
    cluster.ask("a", AppendEntries(b"test", "c", 2, 1, 1, 0), b"\x02")
    assert cluster.ask("a", message) == done
    assert (cluster.nodes["a"].leader_id, cluster.nodes["a"].term, cluster.logs["a"].last_index) == ("c", 2, 1)


def test_an_old_leader_is_refused() -> None:
    """An old leader is refused and told the term, and nothing else happens."""
    cluster = NodeCluster(gives_up=False)
    cluster.ask("a", RequestVote(b"test", "b", 7, 0, 0))
    reply = cluster.ask("a", AppendEntries(b"test", "c", 6, 0, 0, 0, (entry(1, 6),)))
    assert reply == [AppendReply(7, success=False)]
    assert cluster.logs["a"].last_index == 0


@pytest.mark.parametrize(
    "bad",
    [
        entry(1, 9),  # of a later term than its leader's
        LogEntry.of(b"\xc1", term=1, kind=EntryKind.CONFIG, index=1),
        LogEntry.of(b"\x90", term=1, kind=EntryKind.CONFIG, index=1),
        LogEntry.of(encode_config(ConfigChange((), peers_of("a"))), term=1, kind=EntryKind.CONFIG, index=1),
    ],
)
def test_entries_that_cannot_be_are_not_appended(bad: LogEntry) -> None:
    """Impossible entries are neither appended nor answered, because the peer that sends them is broken."""
    cluster = NodeCluster()
    assert cluster.ask("a", AppendEntries(b"test", "b", 1, 0, 0, 0, (bad,))) == []
    assert cluster.logs["a"].last_index == 0


def test_the_same_calls_give_the_same_messages() -> None:
    """A node gives the same messages for the same calls."""

    def messages() -> list[tuple[str, Ask]]:
        cluster = NodeCluster("abcde", seed=7)
        cluster.elect()
        for number in range(10):
            cluster.update(b"%d" % number)
        cluster.run(1.0)
        return cluster.sent

    assert messages() == messages()


# -- logs that differ (Raft, §3.5) -------------------------------------------------------------------------------------

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
    cluster = NodeCluster("", capabilities=capabilities, gives_up=False)
    for name in "xabcdef":
        terms = FIGURE_3_6.get(name, (1, 1, 1, 4, 4, 5, 5, 6, 6, 6))
        cluster.logs[name] = MemoryLog(peers_of("xabcdef"))
        cluster.logs[name].do(Persist(HardState(7), entries=tuple(entry(i, term) for i, term in enumerate(terms, 1))))
    for name in "xabcdef":
        cluster.start(name)
        cluster.nodes[name]._state.timing.quiet_until = cluster.now
    cluster.nodes["x"]._election.campaign()
    cluster.run(1.0)
    assert cluster.leader == "x"
    cluster.update(b"new")
    cluster.run(1.0)
    expected = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 8, 8]
    for name in "xabcdef":
        assert [each.term for each in cluster.logs[name].log] == expected


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


def test_a_follower_that_lost_its_log_is_counted_no_longer() -> None:
    """A follower that lost its log gets everything again, and what it had confirmed no longer counts for a majority."""
    cluster = NodeCluster(gives_up=False)
    leader, follower, _ = cluster.elected()
    for number in range(5):
        cluster.update(b"%d" % number)
    cluster.run(0.2)
    cluster.stop(follower)
    cluster.logs[follower] = MemoryLog(peers_of("abc"))
    cluster.applied[follower].clear()
    cluster.start(follower)
    cluster.run(1.0)
    assert cluster.data(follower) == cluster.data(leader)
