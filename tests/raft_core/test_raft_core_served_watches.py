"""Watches that the leader serves, and the same over the log: one behaviour, whoever tells the changes.

The peers' side is the real WatchServer. Source: facts (kvstore and watch) §8, C1 to C6 and R1 to R14.
"""

from __future__ import annotations

from typing import Any

import pytest
from model_watches import seen
from raft_network import IDENT, url_of
from served_cluster import ServedCluster, WatchClient

from raft_client import KeyValueCodec
from raft_client.core.calls import Append, GetLogInfo
from raft_client.core.selectors import Key, Prefix, Tree, Where
from raft_client.core.stream_actions import Freshness
from raft_client.core.watch_events import Phase, Progress, Resumed, SnapshotEvent, Suspended, WatchState
from raft_client.errors import HistoryOutrunError, OutOfDateLogError, SubscriberOverflowError, TermMismatchError
from raft_client.wire.key_changes import Previous
from raft_client.wire.log_entry import Position
from raft_client.wire.watch_messages import (
    WATCH_TYPE,
    BeginWatch,
    WatchEnded,
    WatchProgress,
    decode_watch_reply,
    decode_watch_request,
)


@pytest.fixture(params=["served", "log"])
def cluster(request: pytest.FixtureRequest) -> ServedCluster:
    """One that serves watches, and one that does not."""
    return ServedCluster(offers=request.param == "served")


def told(client: WatchClient, watch: Any) -> list[tuple[int, list[bytes]]]:
    """What it has when a second has passed."""
    items = client.take(watch)
    client.quiet_time(1.0)
    return seen(items + client.take(watch))


def is_as_offered(client: WatchClient, watch: Any) -> bool:
    """Whether what the cluster offers is what the watch uses."""
    offers = client.cluster.offers
    return watch.phase is (Phase.SERVED if offers else Phase.LIVE) and bool(client.listening) is not offers


# -- what is told ------------------------------------------------------------------------------------------------------


def test_a_watch_begins_at_the_end_and_is_told_what_follows(cluster: ServedCluster) -> None:
    """Without an index a watch is told what is written from then on; all changes of one entry are one event."""
    cluster.write("a", "b")
    client = WatchClient(cluster)
    watch = client.watch()
    client.quiet_time(0.2)
    assert watch.started_after is not None
    assert watch.started_after.index == 2
    cluster.write("a;b", "c")
    assert told(client, watch) == [(3, [b"a", b"b"]), (4, [b"c"])]
    assert is_as_offered(client, watch)
    assert client.state_of(watch) is Freshness.FRESH


@pytest.mark.parametrize("others", [0, 1, 300])
def test_a_watch_is_told_what_its_client_appends_next(cluster: ServedCluster, others: int) -> None:
    """What a client appends as soon as it has made a watch comes after the watch's start, also if the leader commits it
    before it has greeted the client, or is told of more watches than are begun at once."""
    cluster.write("before")
    client = WatchClient(cluster)
    client.submit(GetLogInfo(IDENT, of_leader=True), "the leader is known")
    client.settle()
    if others:
        client.watch()
    for _ in range(others):
        client.watch(settle=False)
    watch = client.watch(settle=False)
    client.submit(Append(IDENT, KeyValueCodec.set("a", "x"), bytes(12), has_new_id=True), "appended")
    assert told(client, watch) == [(2, [b"a"])]
    assert watch.started_after is not None
    assert watch.started_after.index == 1


@pytest.mark.parametrize("after", [0, 1, 3, Position(2, 1)])
def test_a_watch_begins_after_any_index(cluster: ServedCluster, after: Any) -> None:
    """With an index, or a position, it is told first what was written after that."""
    cluster.write("k1", "k2", "k3")
    client = WatchClient(cluster)
    watch = client.watch(after=after)
    cluster.write("k4")
    index = Position.of(after).index
    assert told(client, watch) == [(n, [b"k%d" % n]) for n in range(index + 1, 5)]
    assert is_as_offered(client, watch)


def test_only_what_is_wanted_is_told(cluster: ServedCluster) -> None:
    """Keys, prefixes, trees and conditions are told what they want, and nothing else."""
    cluster.write("a", "a/1", "ab;a/2", "-a/1", "b")
    client = WatchClient(cluster)
    wanted = {
        Key(b"a"): [(1, [b"a"])],
        Prefix(b"a/"): [(2, [b"a/1"]), (3, [b"a/2"]), (4, [b"a/1"])],
        Tree(b"a"): [(1, [b"a"]), (2, [b"a/1"]), (3, [b"a/2"]), (4, [b"a/1"])],
        Where(lambda change: change.value is None): [(4, [b"a/1"])],
        Prefix(b""): [(1, [b"a"]), (2, [b"a/1"]), (3, [b"ab", b"a/2"]), (4, [b"a/1"]), (5, [b"b"])],
    }
    watches = [(client.watch(selector, after=0), events) for selector, events in wanted.items()]
    assert all(told(client, watch) == events for watch, events in watches)


def test_previous_values_are_those_that_the_watch_has_seen(cluster: ServedCluster) -> None:
    """A watch that asks is told what its keys had before, also by a leader that does not send that."""
    client = WatchClient(cluster)
    watch = client.watch(after=0, previous=True)
    cluster.write("a", value="1")
    cluster.write("a", value="2")
    cluster.write("-a")
    client.quiet_time(0.5)
    before = [item.changes[0].previous for item in client.take(watch)]
    assert before == [Previous(), Previous(b"1"), Previous(b"2")]


# -- leaders and connections -------------------------------------------------------------------------------------------


def test_another_leader_goes_on_where_the_last_one_stopped(cluster: ServedCluster) -> None:
    """When the leader dies, nothing is lost and nothing told twice: the next one is told the last index seen."""
    client = WatchClient(cluster)
    watches = [client.watch(Prefix(b"k"), after=0), client.watch(Key(b"k2"))]
    client.quiet_time(0.2)
    cluster.write("k1")
    client.quiet_time(0.2)
    first = client.take(watches[0])
    cluster.write("k2", "z")  # on its way when the leader dies
    client.kill(url_of(1))
    cluster.lead(2)
    cluster.write("k3")
    client.quiet_time(3.0)
    assert seen(first + client.take(watches[0])) == [(1, [b"k1"]), (2, [b"k2"]), (4, [b"k3"])]
    assert seen(client.take(watches[1])) == [(2, [b"k2"])]
    assert all(is_as_offered(client, watch) for watch in watches)


def test_a_connection_that_breaks_loses_nothing(cluster: ServedCluster) -> None:
    """When the connection breaks with events under way, they are told over the next one, once."""
    client = WatchClient(cluster)
    watch = client.watch(after=0)
    items = []
    for n in range(5):
        cluster.write(f"k{n}")
        for url in cluster.peers:
            client.flush(url)
        client.receive_one()
        client.break_link(url_of(1))
        client.quiet_time(0.7)
        items += client.take(watch)
    assert [index for index, _ in seen(items)] == [1, 2, 3, 4, 5]


def test_a_silent_leader_is_noticed_and_told(cluster: ServedCluster) -> None:
    """A leader that freezes is noticed within the silence allowed; the watch is told, and goes on with the next one."""
    client = WatchClient(cluster, silence_s=1.0)
    watch = client.watch(connection_events=True)
    client.quiet_time(5.0)
    assert client.take(watch) == []
    cluster.peers[url_of(1)].is_frozen = True
    client.quiet_time(1.3)
    assert client.state_of(watch) is Freshness.SILENT
    assert [type(item) for item in client.take(watch)] == [Suspended]
    cluster.lead(3)
    cluster.write("k")
    client.quiet_time(3.0)
    items = client.take(watch)
    assert seen(items[:1]) == [(1, [b"k"])]
    assert [type(item) for item in items[1:]] == [Resumed]
    assert client.state_of(watch) is Freshness.FRESH


def test_a_quiet_watch_hears_of_progress(cluster: ServedCluster) -> None:
    """While nothing happens to its keys, a watch is told how far it is, so that it does not resume from long ago."""
    client = WatchClient(cluster, progress_s=10.0)
    watch = client.watch(Key(b"mine"), after=0)
    cluster.write("a", "b", "c")
    client.quiet_time(11.0)
    assert [(type(item), item.position) for item in client.take(watch)] == [(Progress, Position(3, 1))]
    cluster.write("d")
    client.quiet_time(1.0)
    assert client.watches.resume_after(watch) == Position(4, 1)


# -- slow readers, and the end -----------------------------------------------------------------------------------------


def test_a_slow_reader_loses_nothing_and_holds_up_nobody(cluster: ServedCluster) -> None:
    """What does not fit into the queue of a slow reader is told later; another watch is told it at once."""
    client = WatchClient(cluster)
    slow, other = client.watch(after=0, queue_bytes=300), client.watch(after=0)
    client.quiet_time(0.2)
    for n in range(1, 41):
        cluster.write(f"k{n}")
        client.quiet_time(0.1)
        assert slow.size < 300 + 200
    assert [index for index, _ in seen(client.take(other))] == list(range(1, 41))
    items = []
    for _ in range(40):
        items += client.take(slow)
        client.quiet_time(0.2)
    assert [index for index, _ in seen(items)] == list(range(1, 41))


def test_a_reader_that_is_too_slow_is_told_if_it_asked_for_that(cluster: ServedCluster) -> None:
    """With overflow="error" the watch ends after what was queued; another one goes on."""
    client = WatchClient(cluster)
    slow, other = client.watch(after=0, queue_bytes=300, overflow="error"), client.watch(after=0)
    client.quiet_time(0.2)
    for n in range(1, 11):
        cluster.write(f"k{n}")
        client.quiet_time(0.1)
    assert [index for index, _ in seen(client.take(slow))] == [1, 2, 3]
    assert isinstance(slow.error, SubscriberOverflowError)
    assert len(seen(client.take(other))) == 10


def test_without_watches_nothing_is_left(cluster: ServedCluster) -> None:
    """After the last watch was closed nothing of it is handed out, asked or kept, here or at the leader."""
    client = WatchClient(cluster)
    watches = [client.watch(after=0) for _ in range(3)]
    cluster.write("a", "b")
    client.quiet_time(0.3)
    for watch in watches:
        client.cancel(watch)
    cluster.write("c")
    client.quiet_time(0.3)
    assert all(client.next_item(watch) is None for watch in watches)
    assert not client.runners.members
    assert not client.listening
    assert client.machine.pending == 0
    assert [peer.server.watch_count for peer in cluster.peers.values()] == [0, 0, 0]
    again = client.watch()
    cluster.write("d")
    assert told(client, again) == [(4, [b"d"])]


@pytest.mark.parametrize("after", [9, Position(9, 1)])
def test_a_log_that_was_never_that_long_is_refused(cluster: ServedCluster, after: Any) -> None:
    """A watch after an index or a position that the log does not reach ends, and says so (R5)."""
    client = WatchClient(cluster)
    cluster.write("a")
    watch = client.watch(after=after)
    client.quiet_time(10.0)
    assert isinstance(watch.error, OutOfDateLogError)


def test_another_log_is_refused(cluster: ServedCluster) -> None:
    """A watch after a position of another log ends, and says which terms there are."""
    client = WatchClient(cluster)
    cluster.write("a", "b", "c")
    watch = client.watch(after=Position(2, 5))
    client.quiet_time(2.0)
    assert isinstance(watch.error, TermMismatchError)
    assert (watch.error.index, watch.error.term, watch.error.found_term) == (2, 5, 1)


@pytest.mark.parametrize("relist", [False, True])
def test_history_that_is_gone_is_told(cluster: ServedCluster, relist: bool) -> None:
    """If what follows the index is in a snapshot alone, the watch ends with that, or hands the snapshot out first."""
    cluster.write(*(f"k{n}" for n in range(1, 9)))
    cluster.outrun(6)
    for url in cluster.peers:
        cluster.peers[url].restart()
    client = WatchClient(cluster)
    watch = client.watch(after=2, relist=relist)
    client.quiet_time(1.0)
    items = client.take(watch)
    if not relist:
        assert isinstance(watch.error, HistoryOutrunError)
        assert watch.error.snapshot_index == 6
        return
    chunks = [item for item in items if isinstance(item, SnapshotEvent)]
    assert chunks[-1].position.index == 6
    cluster.write("k9")
    assert seen(items) + told(client, watch) == [(n, [b"k%d" % n]) for n in (7, 8, 9)]
    assert is_as_offered(client, watch)


# -- sessions, windows, limits, and leaders that serve none (C1, C4, R8, R10, R14) -------------------------------------


def begins(client: WatchClient) -> list[tuple[str, BeginWatch]]:
    """What was asked to be begun, where."""
    asked = [(url, decode_watch_request(frames[1:])) for url, frames in client.sent if frames[1] == WATCH_TYPE]
    return [(url, request) for url, request in asked if isinstance(request, BeginWatch)]


def indexes(client: WatchClient, watch: WatchState, rounds: int = 1) -> list[int]:
    items = []
    for _ in range(rounds):
        items += client.take(watch)
        client.quiet_time(0.5)
    return [index for index, _ in seen(items)]


def test_only_what_is_wanted_travels() -> None:
    """A leader that serves the watch sends the changes of its keys alone; over the log, every entry travels."""
    received = {}
    for offers in (True, False):
        client = WatchClient(ServedCluster(offers=offers))
        watch = client.watch(Prefix(b"mine/"))
        client.quiet_time(1.0)
        before = client.received_bytes
        for n in range(100):
            client.cluster.write(f"others/{n}", value="x" * 1000)
        client.cluster.write("mine/1")
        client.quiet_time(1.0)
        assert indexes(client, watch) == [101]
        received[offers] = client.received_bytes - before
    assert received[True] < 2_000
    assert received[False] > 100_000


def test_a_node_leader_is_sent_nothing_about_watches_and_the_watch_goes_on() -> None:
    """In a mixed cluster: when a leader that serves none takes over, the watch reads the log from where it was."""
    cluster = ServedCluster()
    cluster.peers[url_of(2)].offers = False
    client = WatchClient(cluster)
    watches = [client.watch(Key(b"k%d" % n)) for n in range(300)]
    cluster.write("k1", "k2")
    client.quiet_time(0.3)
    assert all(watch.phase is Phase.SERVED for watch in watches)
    client.kill(url_of(1))
    cluster.lead(2)
    late = client.watch(Key(b"k1"), settle=False)
    cluster.write("k1")
    client.quiet_time(3.0)  # the peer asserts that it is sent nothing that it does not know
    assert all(watch.phase is Phase.LIVE for watch in [*watches, late])
    assert indexes(client, watches[1], 2) == [1, 3]
    assert indexes(client, watches[2], 2) == [2]


@pytest.mark.parametrize("what", ["the end of a watch", "what has arrived"])
def test_a_node_leader_that_is_being_greeted_is_sent_nothing_about_watches(what: str) -> None:
    """Nor before it is known to be one: a watch that was not begun there is not ended there, and that events of the
    last leader have arrived concerns the last leader."""
    cluster = ServedCluster()
    client = WatchClient(cluster)
    client.watch()
    client.quiet_time(0.5)
    cluster.peers[url_of(2)].offers = False
    cluster.lead(2)
    client.flush(url_of(1))  # its watches are told by one that does not lead
    client.time += 0.5
    client.runners.tick(client.time)  # a sign of life
    client.perform()
    for _ in range(20):
        if any(url == url_of(2) and frames[0].startswith(b"\x00zmqraft") for url, frames in client.sent):
            break  # the hello is on its way
        for url in cluster.peers:
            client.peer_works(url)
        client.receive_one()
    else:
        pytest.fail("the client does not greet the new leader")
    if what == "the end of a watch":
        client.cancel(client.watch(settle=False))
    else:
        cluster.write(*(f"k{n}" for n in range(64)))
        client.flush(url_of(1))
        while client.receive_one():
            pass
    client.settle()  # the peer asserts that it is sent nothing that it does not know


def test_what_the_leader_has_forgotten_is_read_from_the_log() -> None:
    """A leader remembers the last changes only; what is older comes from the log, and then it serves the watch."""
    cluster = ServedCluster(history_bytes=2_000)
    cluster.write(*(f"k{n}" for n in range(1, 101)))
    client = WatchClient(cluster)
    watch = client.watch(after=0)
    client.quiet_time(1.0)
    cluster.write("k101")
    assert indexes(client, watch, 3) == list(range(1, 102))
    assert watch.phase is Phase.SERVED


def test_progress_after_the_end_of_a_watch_is_not_that_watchs() -> None:
    """What a leader says of all watches, after it has ended one that was too slow, hides nothing that this one lacks,
    also if both come in together."""
    cluster = ServedCluster(history_bytes=1_000)
    client = WatchClient(cluster)
    watch = client.watch(after=0)
    cluster.write(*(f"k{n}" for n in range(1, 101)))
    client.flush(url_of(1))  # the leader remembers the last of them only
    client.time += 1.0
    client.runners.tick(client.time)  # a sign of life
    client.perform()
    client.peer_works(url_of(1))
    kinds = [type(decode_watch_reply(frames[1:])) for _, _, frames in client.to_client]
    assert kinds == [WatchEnded, WatchProgress]
    client.receive_one(len(kinds))
    assert indexes(client, watch, 3) == list(range(1, 101))


def test_a_watch_that_was_refused_is_not_taken_for_lost() -> None:
    """A refusal that comes in with the answer to a sign of life is an answer: the watch is not begun once more."""
    cluster = ServedCluster(history_bytes=1_000)
    cluster.write(*(f"k{n}" for n in range(1, 101)))
    client = WatchClient(cluster)
    client.watch()
    cluster.peers[url_of(1)].is_frozen = True
    late = client.watch(after=0, settle=False)
    client.time += 1.0
    client.runners.tick(client.time)  # a sign of life
    client.perform()
    cluster.peers[url_of(1)].is_frozen = False
    while client.peer_works(url_of(1)):
        pass
    client.receive_one(len(client.to_client))
    assert late.phase is Phase.BEHIND
    assert len(begins(client)) == 2
    assert indexes(client, late, 3) == list(range(1, 101))


def test_a_peer_that_started_anew_takes_no_old_session_for_its_own() -> None:
    """When the leader's process is a new one behind the same connection, its watches are begun again."""
    cluster = ServedCluster()
    client = WatchClient(cluster)
    watch = client.watch(after=0)
    cluster.write("a")
    first = indexes(client, watch)
    cluster.peers[url_of(1)].restart()
    cluster.write("b")
    client.quiet_time(2.0)
    assert first + indexes(client, watch) == [1, 2]


def test_a_watch_that_ends_with_much_on_its_way_does_not_hold_up_the_others() -> None:
    """What is on its way to watches that have ended is counted, too: else the leader would wait for it for ever."""
    cluster = ServedCluster(window_messages=8)
    client = WatchClient(cluster)
    keeps = client.watch(Key(b"keep"))
    for n in range(10):
        passing = client.watch(Prefix(b""))
        cluster.write(*(f"k{n}" for n in range(6)))
        client.flush(url_of(1))
        client.cancel(passing)
    client.quiet_time(2.0)
    cluster.write(*["keep"] * 20)
    assert len(indexes(client, keeps, 30)) == 20


def test_many_events_pass_without_waiting_for_the_clock() -> None:
    """The leader is told after every 64 messages that they arrived, so its window of 256 never fills."""
    cluster = ServedCluster()
    client = WatchClient(cluster)
    watch = client.watch(after=0)
    cluster.write(*(f"k{n}" for n in range(1000)))
    client.settle()
    assert len(seen(client.take(watch))) == 1000


def test_many_watches_are_begun_in_portions() -> None:
    """No more than 256 are begun before the first of them is answered, at first and after a change of the leader."""
    cluster = ServedCluster()
    client = WatchClient(cluster)
    client.watch()
    cluster.peers[url_of(1)].is_frozen = True
    watches = [client.watch(Key(b"k%d" % n), settle=False) for n in range(1000)]
    assert len(begins(client)) == 1 + 256
    cluster.peers[url_of(1)].is_frozen = False
    client.settle()
    assert all(watch.phase is Phase.SERVED for watch in watches)
    assert len(begins(client)) == 1 + 1000


def test_a_leader_without_room_is_not_asked_again() -> None:
    """If the leader has no room for one more watch, all of the client read the log, and it serves none of them."""
    cluster = ServedCluster(watches=2)
    client = WatchClient(cluster)
    watches = [client.watch(after=0) for _ in range(3)]
    cluster.write("a")
    client.quiet_time(1.0)
    assert [indexes(client, watch) for watch in watches] == [[1]] * 3
    assert {watch.phase for watch in watches} == {Phase.LIVE}
    assert cluster.peers[url_of(1)].server.watch_count == 0


def test_a_former_leader_that_says_so_is_left() -> None:
    """A leader that was voted out says so with the next sign of life, and the watches are begun at the new one."""
    cluster = ServedCluster()
    client = WatchClient(cluster)
    watch = client.watch(after=0)
    client.quiet_time(1.0)
    cluster.lead(2)
    cluster.peers[url_of(1)].cut_off()
    cluster.write("a")
    client.quiet_time(2.0)
    assert indexes(client, watch) == [1]
    assert [url for url, _ in begins(client)] == [url_of(1), url_of(2)]


@pytest.mark.parametrize("reply", [b"\x09", b"\x63"])
def test_answers_that_nobody_can_read_end_nothing_else(reply: bytes) -> None:
    """If what the leader says of the session cannot be read, the watches read the log instead."""
    cluster = ServedCluster()
    client = WatchClient(cluster)
    watch = client.watch(after=0)
    client.quiet_time(0.5)
    hello = next(frames[0] for _, frames in client.sent if frames[0].startswith(b"\x00zmqraft"))
    client.machine.received(url_of(1), [hello, reply], client.time)
    client.perform()
    cluster.write("a")
    client.quiet_time(2.0)
    assert indexes(client, watch) == [1]
    assert watch.phase is Phase.LIVE


def test_two_words_under_way_are_two() -> None:
    """The answer to one sign of life says nothing of a watch that was begun before the next one."""
    cluster = ServedCluster()
    client = WatchClient(cluster)
    client.watch()
    cluster.write(*(f"k{n}" for n in range(64)))
    client.flush(url_of(1))
    cluster.peers[url_of(1)].is_frozen = True
    while client.receive_one():  # at the 64th message the leader is told
        pass
    late = client.watch(Key(b"late"), settle=False)
    client.runner.touch(client.time)
    client.watches._served._acknowledge()  # type: ignore[union-attr]  # as when 64 more arrive
    client.perform()
    cluster.peers[url_of(1)].is_frozen = False
    client.peer_works(url_of(1))
    client.receive_one()
    client.settle()
    assert late.phase is Phase.SERVED
    assert len(begins(client)) == 2
