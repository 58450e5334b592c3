"""Watches that the leader serves: sessions, windows, limits, and leaders that serve none; C1, C4, R8, R10, R14."""

from __future__ import annotations

import pytest
from raft_network import url_of
from served_cluster import ServedCluster, WatchClient, seen

from raft_client.core.selectors import Key, Prefix
from raft_client.core.watch_state import Phase, WatchState
from raft_client.wire.watch_messages import WATCH_TYPE, BeginWatch, decode_watch_request


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


def test_a_session_that_is_over_is_begun_again() -> None:
    """A client that was silent for so long that the leader forgot it begins its watches again, and misses nothing."""
    cluster = ServedCluster()
    client = WatchClient(cluster)
    watches = [client.watch(after=0) for _ in range(3)]
    cluster.write("a")
    first = [indexes(client, watch) for watch in watches]
    client.time += 60.0  # as if the process had been stopped
    client.flush(url_of(1))
    assert cluster.peers[url_of(1)].server.session_count == 0
    cluster.write("b")
    client.quiet_time(2.0)
    assert [each + indexes(client, watch) for each, watch in zip(first, watches, strict=True)] == [[1, 2]] * 3


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
    client.runner.at(client.time)
    client.watches._table.served._say_seen()  # type: ignore[union-attr]  # as when 64 more arrive
    client.perform()
    cluster.peers[url_of(1)].is_frozen = False
    client.peer_works(url_of(1))
    client.receive_one()
    client.settle()
    assert late.phase is Phase.SERVED
    assert len(begins(client)) == 2
