"""RequestUpdate (ØMQ Raft protocol; facts §1.4), and what is bounded."""

from __future__ import annotations

import pytest
from node_cluster import NodeCluster, make_id

from raft_client.server.node.ready import Request
from raft_client.wire.client_requests import LogInfoReply, Outcome, RequestLogInfo, RequestUpdate, UpdateReply
from raft_client.wire.frames import Message
from raft_client.wire.log_entry import SnapshotChunk
from raft_client.wire.peer_messages import (
    AppendEntries,
    InstallSnapshot,
    PreVote,
    ReadIndex,
    ReadIndexReply,
    RequestVote,
    TimeoutNow,
)
from raft_client.wire.streams import RequestEntries

ACCEPTED = UpdateReply(Outcome.ACCEPTED)


def outcomes(cluster: NodeCluster, request_id: bytes) -> list[tuple[bytes, Message]]:
    """All that was answered, with the route."""
    return [(each.route, each.message) for each in cluster.answers if each.request_id == request_id]


def is_committed(answers: list[Message]) -> bool:
    """Whether an update got its one answer."""
    return [isinstance(each, UpdateReply) and each.outcome for each in answers] == [Outcome.COMMITTED]


def test_accepted_after_a_while_and_committed_when_it_is_applied() -> None:
    """An update that waits for its disks is accepted within 50 ms, once, and committed when it is applied, with the
    frames on the wire (facts §1.3)."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.hold_disk(leader)
    cluster.isolate(*[name for name in "abc" if name != leader])
    assert cluster.update(b"x", request_id=make_id(7)) == []
    cluster.run(0.05)
    assert outcomes(cluster, make_id(7)) == [(b"client", ACCEPTED)]
    cluster.heal()
    cluster.release_disk(leader)
    cluster.run(0.2)
    done = UpdateReply(Outcome.COMMITTED, 1)
    assert outcomes(cluster, make_id(7)) == [(b"client", ACCEPTED), (b"client", done)]
    assert (ACCEPTED.to_frames(), done.to_frames()) == ([b"\x01"], [b"\x01", b"\x01"])


def test_an_update_that_is_committed_soon_has_one_answer() -> None:
    """An update that is committed soon is answered once: each message costs both sides more than all else."""
    cluster = NodeCluster()
    cluster.elect()
    for number in range(100):
        assert cluster.update(b"x", request_id=make_id(number)) == [UpdateReply(Outcome.COMMITTED, number + 1)]
        cluster.run(0.001)
    assert len(cluster.answers) == 100


def test_updates_that_come_one_after_the_other_are_all_accepted_in_time() -> None:
    """Under load, too, everybody who waits is told so between 25 and 50 ms after the update came."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.isolate(leader)
    came, told = dict[bytes, float](), dict[bytes, float]()
    for number in range(150):
        came[make_id(number)] = cluster.now
        cluster.update(b"x", leader, make_id(number))
        cluster.run(0.001)
        for answer in cluster.answers:
            told.setdefault(answer.request_id, cluster.now)
    waited = [told[each] - came[each] for each in came if each in told]
    assert len(waited) >= 100
    assert all(0.025 <= each <= 0.0521 for each in waited)
    assert len(cluster.answers) == len(told)


def test_a_leader_that_steps_down_says_first_that_it_had_accepted() -> None:
    """A client that hears only who leads takes its update for refused; it may be in the log all the same."""
    cluster = NodeCluster()
    leader, other, _ = cluster.elected()
    cluster.isolate(leader)
    assert cluster.update(b"x", leader, make_id(7)) == []
    cluster.ask(leader, AppendEntries(b"test", other, cluster.nodes[leader].term + 1, 0, 0, 0))
    refer = UpdateReply(Outcome.NOT_LEADER, leader_id=other)
    assert outcomes(cluster, make_id(7)) == [(b"client", ACCEPTED), (b"client", refer)]


def test_what_a_leader_had_accepted_does_not_count_when_it_leads_again() -> None:
    """A leader whose log was cut off tells those who wait for the new entries at the same indexes."""
    cluster = NodeCluster()
    old = cluster.elect()
    cluster.isolate(old)
    for number in range(10):
        cluster.update(b"x", old, make_id(number))
    cluster.run(1.0)
    cluster.heal()
    cluster.run(0.3)
    cluster.elect(old)
    cluster.isolate(old)
    cluster.update(b"y", old, make_id(20))
    cluster.run(0.05)
    assert outcomes(cluster, make_id(20)) == [(b"client", ACCEPTED)]


def test_a_repeated_id_is_appended_once_and_the_newest_who_asked_has_the_last_word() -> None:
    """A repeated id is accepted at once and appended once; the final answer goes to the newest connection, as the one
    before may be gone."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.hold_disk(leader)
    cluster.isolate(leader)
    for route, answers in ((b"one", []), (b"two", [ACCEPTED])):
        assert cluster.ask(leader, RequestUpdate(b"test", b"x"), make_id(7), route) == answers
    cluster.release_disk(leader)
    cluster.heal()
    cluster.run(0.2)
    done = UpdateReply(Outcome.COMMITTED, 1)
    of_two = [message for route, message in outcomes(cluster, make_id(7)) if route == b"two"]
    assert done not in [message for route, message in outcomes(cluster, make_id(7)) if route == b"one"]
    assert (of_two[0], of_two[-1]) == (ACCEPTED, done)
    assert cluster.ask(leader, RequestUpdate(b"test", b"x"), make_id(7), b"three") == [done]
    assert cluster.nodes[leader].status().last_index == 1


@pytest.mark.parametrize(
    ("age_s", "outcome"),
    [
        (8 * 3600 - 15 * 60, Outcome.EXPIRED),
        (8 * 3600 - 15 * 60 - 2, Outcome.COMMITTED),
        (-900, Outcome.COMMITTED),
        (-902, Outcome.EXPIRED),
    ],
)
def test_ids_that_are_too_old_or_of_the_future_are_refused(age_s: float, outcome: Outcome) -> None:
    """An id is too old at exactly now - (8 h - 15 min), not two seconds later, and too far ahead at 15 min 2 s (facts
    §4)."""
    cluster = NodeCluster()
    cluster.elect()
    answer = cluster.update(b"x", request_id=make_id(1, cluster.wall_s - age_s))[0]
    assert isinstance(answer, UpdateReply)
    assert answer.outcome is outcome


def test_without_a_ttl_every_id_is_fresh() -> None:
    """With request_id_ttl_s = None every id is fresh."""
    cluster = NodeCluster(request_id_ttl_s=None)
    cluster.elect()
    assert is_committed(cluster.update(b"x", request_id=make_id(1, 5.0)))


def test_what_cannot_be_an_entry_is_ignored() -> None:
    """Data that cannot be an entry is ignored without an answer, as by the Node peers."""
    cluster = NodeCluster(max_entry_bytes=10)
    cluster.elect()
    assert cluster.update(bytes(11)) == []
    assert cluster.update(b"x", request_id=b"\x01") == []
    assert is_committed(cluster.update(bytes(10)))


def test_a_follower_names_the_leader() -> None:
    """A follower answers (false, leader), with nil when it knows none, as on the wire (facts §1.3)."""
    cluster = NodeCluster()
    nobody = UpdateReply(Outcome.NOT_LEADER)
    assert cluster.update(b"x", "a") == [nobody]
    assert nobody.to_frames() == [b"", b"\xc0"]
    leader, follower, _ = cluster.elected()
    assert cluster.update(b"x", follower) == [UpdateReply(Outcome.NOT_LEADER, leader_id=leader)]


def test_a_leader_takes_no_more_than_it_may_have_uncommitted() -> None:
    """Beyond the limit of uncommitted entries updates are not answered; the client repeats them until there is room."""
    cluster = NodeCluster(max_uncommitted_bytes=1000)
    leader = cluster.elect()
    cluster.isolate(leader)
    for _ in range(5):
        assert cluster.update(bytes(300), leader) == []
    assert cluster.nodes[leader].status().last_index == 3
    cluster.run(0.05)
    assert [each.message for each in cluster.answers] == [ACCEPTED] * 3
    cluster.heal()
    cluster.run(0.2)
    assert cluster.nodes[leader].status().uncommitted_bytes == 0
    assert is_committed(cluster.update(bytes(300), leader))


def test_the_seven_numbers_of_a_log() -> None:
    """RequestLogInfo has the seven numbers of the log in every role."""
    cluster = NodeCluster()
    leader, follower, _ = cluster.elected()
    cluster.update(b"x")
    cluster.run(0.2)
    cluster.logs[leader].prune_index = 1
    assert cluster.ask(leader, RequestLogInfo(b"test")) == [LogInfoReply(True, leader, 1, 1, 1, 1, 1, 0, 1)]
    reply = cluster.ask(follower, RequestLogInfo(b"test"))[0]
    assert isinstance(reply, LogInfoReply)
    assert (reply.is_leader, reply.leader_id, reply.last_applied) == (False, leader, 1)


def test_many_messages_at_once_are_as_many_one_by_one() -> None:
    """Many messages at once are all appended in their order, and each is answered."""
    cluster = NodeCluster()
    leader = cluster.elect()
    requests = [Request(b"client", make_id(n), RequestUpdate(b"test", b"%d" % n)) for n in range(100)]
    cluster.nodes[leader].steps(requests, cluster.now, cluster.wall_s)
    cluster.run(0.1)
    assert cluster.data(leader) == [b"%d" % n for n in range(100)]
    assert [each.message for each in cluster.answers] == [UpdateReply(Outcome.COMMITTED, n + 1) for n in range(100)]


# -- what others can do ------------------------------------------------------------------------------------------------


def test_what_waits_for_a_disk_that_stands_still_is_bounded() -> None:
    """What waits for a disk that does not answer is bounded, however often others ask meanwhile."""
    cluster = NodeCluster()
    cluster.hold_disk("a")
    cluster.ask("a", RequestVote(b"test", "b", 1, 0, 0))
    for number in range(20_000):
        request = Request(b"b", number.to_bytes(3, "big"), RequestVote(b"test", "b", 1, 0, 0))
        cluster.nodes["a"].steps([request], cluster.now, cluster.wall_s)
    assert len(cluster.nodes["a"]._state.outbox._waiting) <= 10_000


def test_reads_that_wait_are_bounded() -> None:
    """A leader that reaches nobody bounds the reads that wait, and refuses more."""
    cluster = NodeCluster(gives_up=False)
    leader = cluster.elect()
    cluster.isolate(leader)
    cluster.run(0.3)  # its lease is over
    request = Request(b"client", b"\x01", ReadIndex(b"test"))
    cluster.nodes[leader].steps([request] * 100_001, cluster.now, cluster.wall_s)
    cluster.settle()
    assert [answer.message for answer in cluster.answers] == [ReadIndexReply(leader)]


def test_a_leader_takes_no_more_updates_than_it_can_keep_track_of() -> None:
    """A leader bounds its updates by number, since short ones cost more than their bytes."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.isolate(leader)
    requests = [Request(b"client", make_id(n), RequestUpdate(b"test", b"x")) for n in range(100_010)]
    cluster.nodes[leader].steps(requests, cluster.now, cluster.wall_s)
    assert cluster.nodes[leader].status().last_index == 100_000


@pytest.mark.parametrize(
    "message",
    [
        RequestVote(b"test", "b", 2**53 - 1, 0, 0),
        AppendEntries(b"test", "b", 2**53 - 1, 0, 0, 0),
        AppendEntries(b"test", "b", 5, 2**53 - 1, 0, 0),
        InstallSnapshot(b"test", "b", 5, SnapshotChunk(2**53 - 1, 5, 0, 0, b"")),
        PreVote(b"test", "b", 2**53 - 1, 0, 0),
        RequestEntries(b"test", 2**53 - 1),
        TimeoutNow(b"test", "b", 2**53 - 1),
    ],
)
def test_numbers_at_the_end_of_the_numbers_do_no_harm(message: Message) -> None:
    """A term at the end of the numbers is not adopted: a peer that took it could not send any more."""
    cluster = NodeCluster(gives_up=False)
    cluster.ask("a", message)
    leader = cluster.elect()
    cluster.ask(leader, message)
    cluster.run(1.0)
    assert is_committed(cluster.update(b"x", cluster.leader))
    assert cluster.nodes["a"].term < 2**52
