"""RequestEntries on both sides: the leader's streams, and the peer that copies the log (facts §1.4)."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest
from node_cluster import OURS, NodeCluster, peers_of

from raft_client.server.node.ready import Answer, Request, Role
from raft_client.wire.log_entry import LogEntry
from raft_client.wire.peer_messages import AppendEntries
from raft_client.wire.streams import EntriesReply, EntriesStatus, RequestEntries


def filled(count: int = 30, size: int = 100, **options: object) -> NodeCluster:
    """A leader that has applied ``count`` entries; a message holds ten of them."""
    cluster = NodeCluster("a", max_message_bytes=10 * (size + 20), **options)
    cluster.elect()
    for _ in range(count):
        cluster.update(bytes(size))
    cluster.answers.clear()
    return cluster


def ask(
    cluster: NodeCluster, after: int, count: int | None = None, offset: int | None = None, name: str = "a"
) -> list[EntriesReply]:
    """A request, or a follow-up."""
    replies = cluster.ask(name, RequestEntries(b"test", after, count, offset))
    return [reply for reply in replies if isinstance(reply, EntriesReply)]


def show(replies: list[EntriesReply]) -> list[tuple[int, int | None, int]]:
    """Status, last index, entries."""
    return [(int(reply.status), reply.last_index, len(reply.entries)) for reply in replies]


def test_all_that_is_applied_in_messages_of_bounded_size() -> None:
    """All that is applied comes in messages of bounded size; the last one says so, and frame 3 is nil (facts §1.4)."""
    cluster = filled()
    replies = ask(cluster, 0)
    assert show(replies) == [(2, 10, 10), (2, 20, 10), (1, 30, 10)]
    assert replies[0].to_frames()[:3] == [b"\x02", b"\xc0", b"\x0a"]


def test_a_count_ends_the_stream_earlier() -> None:
    """A count ends the stream earlier, and one beyond the end of the log does not matter."""
    cluster = filled()
    assert show(ask(cluster, 5, 3)) == [(1, 8, 3)]
    assert show(ask(cluster, 28, 99)) == [(1, 30, 2)]


def test_nothing_follows_the_end() -> None:
    """After the end of the log comes one message with the index that is applied, which may be lower than the one asked
    for (facts §1.4)."""
    cluster = filled()
    past_end = ask(cluster, 99)
    assert show(past_end) == [(1, 30, 0)]
    assert past_end[0].to_frames() == [b"\x01", b"\xc0", b"\x1e"]


def test_five_messages_before_the_first_is_confirmed_and_one_for_each_that_is() -> None:
    """Five messages come before the first is confirmed, then one for each; the last one need not be
    (REQUEST_ENTRIES_PIPELINES)."""
    cluster = filled(100)
    assert show(ask(cluster, 0)) == [(2, index, 10) for index in (10, 20, 30, 40, 50)]
    assert show(ask(cluster, 10)) == [(2, 60, 10)]
    for after in (20, 30, 40):
        assert len(ask(cluster, after)) == 1
    assert show(ask(cluster, 50)) == [(1, 100, 10)]
    for after in (60, 70, 80):
        assert ask(cluster, after) == []
    streams = cluster.nodes["a"]._streams
    assert len(streams) == 1
    assert ask(cluster, 90) == []
    assert len(streams) == 0


def test_a_very_long_entry_slows_the_stream_down() -> None:
    """Very long entries are sent one at a time, so that memory stays small."""
    cluster = filled(0)
    for _ in range(10):
        cluster.update(bytes(5000))
    cluster.answers.clear()
    assert show(ask(cluster, 0)) == [(2, 1, 1)]
    assert show(ask(cluster, 1)) == [(2, 2, 1)]


def test_a_follow_up_that_is_not_due_begins_a_new_stream() -> None:
    """A follow-up that is not expected begins a new stream from its index (facts §1.4)."""
    cluster = filled(100)
    ask(cluster, 0)
    assert show(ask(cluster, 70)) == [(2, 80, 10), (2, 90, 10), (1, 100, 10)]


def test_count_zero_ends_a_stream_without_a_word() -> None:
    """A count of zero ends a stream without a reply, and without a stream is ignored."""
    cluster = filled(100)
    ask(cluster, 0)
    assert ask(cluster, 10, 0) == []
    assert len(cluster.nodes["a"]._streams) == 0
    assert ask(cluster, 10, 0) == []


def test_two_clients_have_two_streams() -> None:
    """A stream belongs to its route and request id, so two clients have two."""
    cluster = filled(100)
    ask(cluster, 0)
    message = RequestEntries(b"test", 20)
    assert len(cluster.ask("a", message, b"\x01", b"other")) == 5
    assert len(cluster.ask("a", message, b"\x02", b"other")) == 5
    assert len(cluster.nodes["a"]._streams) == 3


def test_a_stream_that_nobody_follows_is_forgotten() -> None:
    """A stream without follow-ups is forgotten after REQUEST_ENTRIES_TTL and up to two seconds."""
    cluster = filled(100)
    ask(cluster, 0)
    cluster.run(4.5)
    ask(cluster, 10)
    cluster.run(4.5)
    assert len(cluster.nodes["a"]._streams) == 1
    cluster.run(3.0)
    assert len(cluster.nodes["a"]._streams) == 0


def test_a_stream_too_many_takes_the_place_of_the_one_heard_longest_ago() -> None:
    """A client that opens REQUEST_ENTRIES_HIGH_WATERMARK streams does not keep others from theirs, and a stream that is
    followed stays."""
    cluster = filled(100, max_streams=2)
    message, follow_up = RequestEntries(b"test", 0), RequestEntries(b"test", 10)
    assert [len(cluster.ask("a", message, bytes([number]))) for number in (1, 2)] == [5, 5]
    assert len(cluster.ask("a", follow_up, b"\x01")) == 1
    assert len(cluster.ask("a", message, b"\x03")) == 5
    assert len(cluster.nodes["a"]._streams) == 2
    assert len(cluster.ask("a", RequestEntries(b"test", 20), b"\x01")) == 1
    assert len(cluster.ask("a", follow_up, b"\x02")) == 5  # it was forgotten, and begins again


def test_streams_share_a_bounded_part_of_each_turn() -> None:
    """Between two ticks about 1 MiB is read for streams, however many there are, and all of them get theirs."""
    cluster = NodeCluster("a")
    cluster.elect()
    for _ in range(10):
        cluster.update(bytes(60_000))
    cluster.answers.clear()
    node = cluster.nodes["a"]
    requests = [Request(b"client", bytes([number]), RequestEntries(b"test", 0)) for number in range(40)]
    node.steps(requests, cluster.now, cluster.wall_s)
    ready = node.ready()
    assert 16 <= len(ready.send) <= 20
    assert node.next_deadline() == cluster.now
    for _ in range(13):
        node.tick(cluster.now, cluster.wall_s)
        sent = node.ready().send
        assert len(sent) <= 20
        ready = attrs.evolve(ready, send=ready.send + sent)
    received = Counter(output.request_id for output in ready.send if isinstance(output, Answer))
    assert set(received.values()) == {5}
    assert len(received) == 40
    assert node.next_deadline() > cluster.now


def test_a_follower_names_the_leader_and_a_leader_that_steps_down_says_nothing() -> None:
    """A follower answers with status 0, and a leader that steps down leaves its streams unanswered, so that clients ask
    again."""
    cluster = NodeCluster()
    leader, follower, _ = cluster.elected()
    refused = ask(cluster, 0, name=follower)
    assert refused == [EntriesReply(EntriesStatus.NOT_LEADER, leader_id=leader)]
    for _ in range(20):
        cluster.update(bytes(60_000))
    assert len(ask(cluster, 0, name=leader)) == 5
    cluster.answers.clear()
    cluster.elect(follower)
    assert len(cluster.nodes[leader]._streams) == 0
    assert [each for each in cluster.answers if isinstance(each.message, EntriesReply)] == []


# -- the snapshot ------------------------------------------------------------------------------------------------------


def compacted(data: bytes) -> NodeCluster:
    """A leader whose first entries are in a snapshot; a chunk has 1,200 bytes."""
    cluster = filled(10)
    assert cluster.compact("a", data) == 10
    return cluster


def chunks(replies: list[EntriesReply]) -> list[tuple[int, int, int]]:
    return [(each.chunk.offset, each.chunk.end, each.chunk.size) for each in replies if each.chunk is not None]


def test_what_was_compacted_comes_as_the_snapshot_two_chunks_ahead() -> None:
    """What was compacted comes as the snapshot, two chunks ahead, without regard to count; then a stream of entries
    follows."""
    cluster = compacted(bytes(3000))
    first = ask(cluster, 0, 1)
    assert chunks(first) == [(0, 1200, 3000), (1200, 2400, 3000)]
    assert first[0].to_frames()[:3] == [b"\x03", b"\x93\x00\xcd\x0b\xb8\x01", b"\x0a"]
    assert chunks(ask(cluster, 0, None, 1200)) == [(2400, 3000, 3000)]
    assert ask(cluster, 0, None, 2400) == []
    assert len(cluster.nodes["a"]._streams) == 0
    assert show(ask(cluster, 10))[0][:2] == (1, cluster.nodes["a"].status().applied_index)


def test_a_snapshot_is_continued_at_an_offset() -> None:
    """A snapshot can be continued at an offset; beyond its end, and if it is empty, comes one empty chunk (facts
    §1.4)."""
    cluster = compacted(bytes(3000))
    assert chunks(ask(cluster, 0, None, 2500)) == [(2500, 3000, 3000)]
    assert chunks(ask(cluster, 0, None, 9999)) == [(3000, 3000, 3000)]
    empty = compacted(b"")
    assert chunks(ask(empty, 0)) == [(0, 0, 0)]


def test_a_follow_up_with_another_offset_begins_again() -> None:
    """A follow-up with another offset makes the snapshot go on from there."""
    cluster = compacted(bytes(9000))
    ask(cluster, 0)
    assert chunks(ask(cluster, 0, None, 6000)) == [(6000, 7200, 9000), (7200, 8400, 9000)]


# -- the one who copies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capabilities", [OURS, frozenset[str]()])
def test_a_peer_that_is_no_member_follows_the_log(capabilities: frozenset[str]) -> None:
    """A peer that is not a member copies the log from any leader as a client does, and nobody waits for it."""
    cluster = NodeCluster(capabilities=capabilities, max_message_bytes=1000)
    cluster.elect()
    for number in range(50):
        cluster.update(b"%d" % number + bytes(100))
    cluster.start("d", peers_of("abc"))
    assert cluster.nodes["d"].role is Role.CLIENT
    cluster.run(1.0)
    assert cluster.data("d") == cluster.data(cluster.leader)
    for number in range(50):
        cluster.update(b"%d" % number)
    cluster.run(0.3)
    assert cluster.data("d") == cluster.data(cluster.leader)
    assert len(cluster.data("d")) == 100
    assert cluster.nodes["d"].leader_id == cluster.leader


def test_it_follows_the_next_leader_too() -> None:
    """The copy follows the next leader, which others name or which, after silence, is searched in the list."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.start("d", peers_of("abc"))
    cluster.run(0.5)
    cluster.stop(leader)
    cluster.run(1.0)
    cluster.update(b"x")
    cluster.run(2.5)
    assert cluster.data("d") == [b"x"]


def test_it_begins_with_the_snapshot_where_the_log_was_compacted() -> None:
    """The copy of a compacted log begins with the snapshot, and the entries after it follow."""
    cluster = NodeCluster(max_message_bytes=1000)
    leader = cluster.elect()
    for number in range(50):
        cluster.update(b"%d" % number)
    index = cluster.compact(leader, b"s" * 5000)
    cluster.start("d", peers_of("abc"))
    cluster.run(1.0)
    assert [meta.index for meta in cluster.restored["d"]] == [index]
    assert cluster.logs["d"].snapshot_data == b"s" * 5000
    assert cluster.nodes["d"].commit_index == cluster.nodes[leader].commit_index


def test_the_next_part_is_asked_for_when_this_one_is_on_the_disk() -> None:
    """The next part is requested when this one is on the disk, and what arrives before is bounded by the stream's
    window."""
    cluster = NodeCluster(max_message_bytes=1000)
    cluster.elect()
    for _ in range(200):
        cluster.update(bytes(400))
    cluster.start("d", peers_of("abc"))
    cluster.hold_disk("d")
    cluster.run(0.4)
    assert cluster.nodes["d"].status().last_index <= 10  # five messages of two
    cluster.release_disk("d")
    cluster.run(1.0)
    assert cluster.nodes["d"].commit_index == 200


def test_what_it_had_and_was_never_committed_is_replaced() -> None:
    """Entries of the copy that were never committed are replaced."""
    cluster = NodeCluster()
    leader = cluster.elect()
    for number in range(3):
        cluster.update(b"%d" % number)
    cluster.start("d", peers_of("abc"))
    log = cluster.logs["d"]
    log.log[:] = [LogEntry.of(b"lost", term=0, index=index) for index in (1, 2, 3, 4)]
    cluster.stop("d")
    cluster.start("d")
    cluster.run(1.0)
    assert cluster.data("d") == [b"0", b"1", b"2"]
    assert log.log == cluster.logs[leader].log


def test_a_new_leader_answers_when_it_has_what_was_acknowledged() -> None:
    """A leader that starts again has applied nothing yet; it answers with all that was acknowledged, not with less."""
    cluster = filled()
    cluster.stop("a")
    cluster.applied["a"].clear()
    cluster.start("a", peers_of("a"))
    cluster.hold_disk("a")
    cluster.run_until(lambda: cluster.held["a"] is not None)  # its vote for itself
    cluster.release_disk("a")
    cluster.hold_disk("a")
    assert cluster.nodes["a"].role is Role.LEADER
    early = {name: ask(cluster, after) for name, after in (("begin", 0), ("end", 30))}
    cluster.release_disk("a")
    cluster.run(0.1)
    assert early == {"begin": [], "end": []}
    replies = [answer.message for answer in cluster.answers if isinstance(answer.message, EntriesReply)]
    assert show(replies)[-1] == (1, 31, 1)  # the newest request of a stream counts; 31 is the CHECKPOINT


def test_a_deposed_leader_answers_what_waited_with_not_the_leader() -> None:
    """A request to a new leader that is deposed before it knows what is committed is answered with "not the leader";
    one that was ended is not answered."""
    cluster = NodeCluster()
    leader = cluster.elect()
    cluster.update(b"x")
    cluster.lost = lambda ask: isinstance(ask.message, AppendEntries)
    cluster.stop(leader)
    cluster.run_until(lambda: Role.LEADER in cluster.roles().values())
    second = cluster.leader
    assert ask(cluster, 0, name=second) == []
    cluster.ask(second, RequestEntries(b"test", 0), route=b"another")
    cluster.ask(second, RequestEntries(b"test", 0, 0), route=b"another")
    cluster.run_until(lambda: cluster.nodes[second].role is not Role.LEADER)  # nobody answers it
    answers = [(each.route, each.message) for each in cluster.answers]
    replies = [(route, int(reply.status)) for route, reply in answers if isinstance(reply, EntriesReply)]
    assert replies == [(b"client", 0)]


# -- the disk ----------------------------------------------------------------------------------------------------------


def test_a_stream_waits_for_what_is_not_in_memory_and_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that are not at hand are read by another thread; the stream goes on when they are. Others are answered
    meanwhile, and the node does not ask to be called again and again.
    """
    cluster = filled(5)
    cluster.stop("a")
    cluster.start("a")  # nothing is in its memory
    cluster.elect("a")
    node, at_hand = cluster.nodes["a"], 0
    monkeypatch.setattr(cluster.logs["a"], "last_at_hand", lambda after, _size: max(after, at_hand))
    assert ask(cluster, 0) == []
    assert node.next_deadline() > cluster.now
    assert cluster.update(b"goes on") != []
    at_hand = 2
    node.disk_read(cluster.now)
    cluster.answers.clear()
    cluster.run(0.01)
    replies = [each.message for each in cluster.answers if isinstance(each.message, EntriesReply)]
    assert show(replies) == [(2, 2, 2)]
    at_hand = 5
    node.disk_read(cluster.now)
    cluster.run(0.01)
    replies = [each.message for each in cluster.answers if isinstance(each.message, EntriesReply)]
    assert show(replies) == [(2, 2, 2), (1, 5, 3)]
