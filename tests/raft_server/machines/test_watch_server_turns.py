"""The peer's side of State Watch: positions of another log, and turns that stay short."""

from __future__ import annotations

import pytest
from watch_values import OTHER, ROUTE, TERM, W1, W2, a_server, apply, at, begun, key_watch, put, told

from raft_client.server.machines import watch_server
from raft_client.server.machines.watch_server import WatchServer
from raft_client.wire.positions import Position
from raft_client.wire.watch_messages import EndReason, Events, WatchEnded, Watching

# -- positions of another log ------------------------------------------------------------------------------------------

ENDED_AT_ONCE = [(at(10, 2), "below"), (at(11, TERM), "another term begins"), (at(12, 5), "the same index")]


@pytest.mark.parametrize(("after", "_why"), ENDED_AT_ONCE)
def test_a_position_of_another_log_is_told_at_once(after: Position, _why: str) -> None:
    """A watch that resumes at an index whose entry has another term is told that it is of another log: entries that it
    has seen were replaced, as by a backup that was restored."""
    server = a_server()
    apply(server, 11, term=4)
    apply(server, 12, put(b"k"), term=4)
    assert begun(server, key_watch(b"k", after)) == [WatchEnded(EndReason.OTHER_LOG, 11, at(12, 4))]


@pytest.mark.parametrize("after", [at(10), at(11, 4), at(12, 4), at(13, 4), at(13, 5), Position(12)])
def test_a_position_of_this_log_is_taken(after: Position) -> None:
    """A position of this log is taken, also one that the peer has not applied yet."""
    server = a_server()
    apply(server, 11, term=4)
    apply(server, 12, put(b"k"), term=4)
    assert begun(server, key_watch(b"k", after))[0] == Watching(7, at(12, 4))


def test_a_position_ahead_of_a_higher_term_is_of_another_log() -> None:
    """A position still to come, with a term below that of the newest entry, is of another log: terms only rise."""
    server = a_server()
    assert begun(server, key_watch(b"k", at(20, 2))) == [WatchEnded(EndReason.OTHER_LOG, 11, at(10))]


def test_a_position_ahead_is_compared_when_the_log_is_there() -> None:
    """A position still to come is compared when its entry, or a higher term before it, is applied: nothing that follows
    the entry is told to who has another one there."""
    server = a_server()
    for request_id, after in ((W1, at(12, 3)), (W2, at(12, 4)), (b"\x04", at(13, 4)), (b"\x05", at(12, 5))):
        begun(server, key_watch(b"k", after), request_id=request_id)
    apply(server, 11, term=4)
    assert told(server) == [WatchEnded(EndReason.OTHER_LOG, 11, at(11, 4))]
    apply(server, 12, put(b"k"), term=4)
    apply(server, 13, put(b"k"), term=4)
    apply(server, 14, put(b"k"), term=4)
    server.turn(0.0)
    replies = [(each.request_id, type(each.reply), each.reply.__class__ is Events) for each in server.take()]
    assert replies == [
        (b"\x05", WatchEnded, False),
        (W2, Events, True),
        (W2, Events, True),
        (b"\x04", Events, True),
    ]


# -- turns -------------------------------------------------------------------------------------------------------------


def turns_until_idle(server: WatchServer) -> tuple[int, list[int]]:
    """How many turns it took, and how many messages came of each."""
    counts = []
    while server.next_deadline() == 0.0:
        server.turn(0.0)
        counts.append(len(server.take()))
    return len(counts), counts


def test_a_long_way_back_is_gone_in_several_turns() -> None:
    """Entries that a watch does not want are passed in several turns, since they take time although no message."""
    server = a_server(0)
    for index in range(1, 12_001):
        apply(server, index, put(b"k" if index == 12_000 else b"other"))
    server.request(ROUTE, W1, key_watch(b"k", Position(0)), 0.0)
    turns, counts = turns_until_idle(server)
    assert 2 < turns < 20
    assert sum(counts) == 2


def test_one_turn_stays_short_however_many_watch() -> None:
    """What one turn tells is bounded over all connections, however many watches want an entry, and all are told."""
    server = a_server()
    for number in range(100):
        for watch in range(40):
            server.request(b"%d" % number, b"%d" % watch, key_watch(), 0.0)
    server.turn(0.0)
    assert len(server.take()) == 4000
    apply(server, 11, put(b"k"))
    turns, counts = turns_until_idle(server)
    assert turns >= 4
    assert max(counts) <= watch_server._TURN_STEPS / 5
    assert sum(counts) == 4000


def test_thousands_that_resume_go_through_the_history_together() -> None:
    """Thousands of watches that begin again at the same time cost little more than one: they share the way (R14)."""

    def turns(watches: int) -> int:
        server = a_server(0)
        for index in range(1, 4001):
            apply(server, index, put(b"other"))
        for number in range(watches):
            server.request(b"%d" % (number % 100), b"%d" % number, key_watch(after=at(number % 50)), 0.0)
        server.take()
        return turns_until_idle(server)[0]

    assert turns(5_000) <= turns(1) + 8


def test_the_end_of_many_clients_is_told_apart_in_turns() -> None:
    """Watches of clients that are gone are taken away in several turns, and do not hold up the others."""
    server = a_server()
    for number in range(9_000):
        server.request(b"%d" % (number % 3), b"%d" % number, key_watch(b"%d" % number), 0.0)
    server.take()
    server.request(OTHER, W1, key_watch(), 29.0)
    turns = 0
    server.turn(30.0)
    while server.next_deadline() == 0.0:
        server.turn(30.0)
        turns += 1
    assert turns >= 3
    assert server.watch_count == 1
