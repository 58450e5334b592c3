"""The peer's side of State Watch: the requirements R1 to R14, and its limits."""

from __future__ import annotations

import pytest
from watch_values import (
    OTHER,
    ROUTE,
    TERM,
    W1,
    W2,
    a_server,
    apply,
    at,
    begun,
    events,
    gone,
    indexes,
    key_watch,
    prefix_watch,
    put,
    seen,
    told,
)

from raft_client.wire.positions import Position
from raft_client.wire.watch_messages import (
    BeginWatch,
    CancelWatch,
    EndReason,
    Events,
    NoSession,
    WatchEnded,
    Watching,
    WatchProgress,
)

# -- the requirements --------------------------------------------------------------------------------------------------


def test_changes_of_one_entry_come_together_with_its_index() -> None:
    """The changes of one entry that a watch wants come together, in the order of the entry, with its index and term
    (R1, R3)."""
    server = a_server()
    begun(server, prefix_watch(b"a"))
    apply(server, 11, put(b"a1"), put(b"b"), gone(b"a2"))
    assert told(server) == [Events(Position(11, TERM), (put(b"a1"), gone(b"a2")))]


def test_a_watch_begins_with_the_position_that_it_begins_at() -> None:
    """A watch is told what comes after the position at which it begins, so that keys read there leave no gap (R2)."""
    server = a_server()
    apply(server, 11, put(b"k", b"old"))
    assert begun(server, key_watch()) == [Watching(7, at(11))]
    apply(server, 12, put(b"k", b"new"))
    assert told(server) == [events(12, put(b"k", b"new"))]


def test_a_watch_that_begins_between_two_turns_is_told_nothing_that_was_applied_before() -> None:
    """A watch that begins while others are still to be told of an entry is not told of it (R2)."""
    server = a_server()
    begun(server, key_watch(request_id := b"k"), request_id=W2)
    apply(server, 11, put(request_id))
    assert begun(server, key_watch()) == [Watching(7, at(11))]


@pytest.mark.parametrize("watch", [key_watch(b"k", at(11)), prefix_watch(b"", Position(11))])
def test_a_watch_resumes_after_a_position(watch: BeginWatch) -> None:
    """A watch that resumes after a position is told the entries after it, for keys and for prefixes; without a term the
    position is not compared (R4)."""
    server = a_server()
    for index in (11, 12, 13):
        apply(server, index, put(b"k", b"%d" % index))
    assert begun(server, watch) == [Watching(7, at(13)), *(events(n, put(b"k", b"%d" % n)) for n in (12, 13))]
    apply(server, 14, put(b"k"))
    assert told(server) == [events(14, put(b"k"))]


def test_a_watch_after_an_index_that_is_still_to_come_waits_for_it() -> None:
    """A watch after an index that is still to come waits for it, so that a peer that lags tells nothing twice (R4)."""
    server = a_server()
    assert begun(server, key_watch(b"k", at(12))) == [Watching(7, at(10))]
    for index in (11, 12, 13):
        apply(server, index, put(b"k"))
    assert told(server) == [events(13, put(b"k"))]


def test_a_history_that_was_outrun_is_told() -> None:
    """A watch whose history was compacted is told the oldest index that is left, and no event before it (R5)."""
    server = a_server(history_bytes=4000)
    for index in range(11, 40):
        apply(server, index, put(b"k", b"x" * 50))
    oldest = server.oldest
    assert 20 < oldest < 40
    assert begun(server, key_watch(b"k", at(12))) == [WatchEnded(EndReason.HISTORY_OUTRUN, oldest, at(39))]
    assert begun(server, key_watch(b"k", at(oldest - 1)))[0] == Watching(7, at(39))
    assert server.watch_count == 1


def test_what_was_before_the_start_is_outrun() -> None:
    """A peer that has restored a snapshot knows no change before it, so an earlier watch is told that it is outrun
    (R5)."""
    assert begun(a_server(), key_watch(b"k", at(9))) == [WatchEnded(EndReason.HISTORY_OUTRUN, 11, at(10))]
    assert begun(a_server(), key_watch(b"k", at(10))) == [Watching(7, at(10))]


def test_progress_is_told_when_the_client_asks() -> None:
    """Each Seen is answered with the newest position, also of entries that changed nothing, after all that was told
    before it, and with whether the peer leads (R6, R7)."""
    server = a_server()
    begun(server, key_watch())
    apply(server, 11, put(b"other"))
    apply(server, 12)
    server.turn(0.0)
    assert seen(server, 0) == [WatchProgress(7, at(12), leads=False)]
    server.leads = True
    server.take()
    assert seen(server, 0) == [WatchProgress(7, at(12), leads=True)]


def test_progress_stands_still_before_what_is_to_be_told() -> None:
    """Progress says nothing of an entry that is still to be told, and of a watch that is behind (R6)."""
    server = a_server(window_messages=1)
    begun(server, key_watch())
    apply(server, 11, put(b"k"))
    assert seen(server, 0) == [WatchProgress(7, at(10), leads=False)]
    server.turn(0.0)
    assert seen(server, 0)[-1] == WatchProgress(7, at(11), leads=False)
    apply(server, 12, put(b"k"))
    apply(server, 13)
    assert indexes(told(server)) == [11]
    assert seen(server, 0) == [WatchProgress(7, at(11), leads=False)]
    assert seen(server, 1)[-1] == WatchProgress(7, at(11), leads=False)
    assert indexes(told(server)) == [12]
    assert seen(server, 1) == [WatchProgress(7, at(13), leads=False)]


def test_a_slow_client_is_told_when_it_takes_more() -> None:
    """What is on its way to a slow client is bounded; the rest waits in the history, which all watches share (R8)."""
    server = a_server(window_messages=2)
    begun(server, key_watch())
    for index in range(11, 16):
        apply(server, index, put(b"k"))
    assert indexes(told(server)) == [11, 12]
    for messages, more in ((1, [13]), (1, []), (3, [14, 15])):
        seen(server, messages)
        assert indexes(told(server)) == more
    apply(server, 16, put(b"k"))
    assert told(server) == []
    seen(server, 99)
    assert indexes(told(server)) == [16]
    apply(server, 17, put(b"k"))
    assert indexes(told(server)) == [17]


def test_large_events_fill_the_window_alone() -> None:
    """The bytes of a large event count in the window, but one message may always be sent (R8)."""
    server = a_server(window_bytes=1000)
    begun(server, key_watch())
    for index in (11, 12):
        apply(server, index, put(b"k", b"x" * 5000))
    assert indexes(told(server)) == [11]


def test_what_is_on_its_way_to_all_clients_is_bounded() -> None:
    """What is on its way to all clients together is bounded, and each of them may be sent one message all the same."""
    server = a_server(window_bytes_of_all=10_000)
    for route in (ROUTE, OTHER):
        begun(server, key_watch(), route)
    for index in range(11, 16):
        apply(server, index, put(b"k", b"x" * 5000))
    server.turn(0.0)
    assert [(each.route, each.reply.position.index) for each in server.take()] == [(ROUTE, 11), (OTHER, 11)]
    seen(server, 1)
    assert indexes(told(server)) == [12]


def test_a_client_that_is_outrun_is_told_so_at_once_and_others_are_not() -> None:
    """The watch of a client that is outrun ends as soon as the history drops what it was not told, without a word of
    its client, and others go on (R8)."""
    server = a_server(window_messages=1, history_bytes=4000)
    begun(server, key_watch())
    begun(server, key_watch(b"other"), request_id=W2)
    apply(server, 11, put(b"k"))
    apply(server, first_missed := 12, put(b"k"))
    assert told(server) == [events(11, put(b"k"))]
    index, replies = first_missed, []
    while server.oldest <= first_missed:
        assert replies == []
        index += 1
        apply(server, index, put(b"k", b"x" * 50))
        replies = told(server)
    assert replies == [WatchEnded(EndReason.TOO_SLOW, first_missed + 1, at(index))]
    assert server.watch_count == 1
    seen(server, 1)
    apply(server, 100, put(b"other"))
    assert told(server, request_id=W2) == [events(100, put(b"other"))]


def test_cancelling_is_answered_and_nothing_follows() -> None:
    """Cancelling is answered as often as it is asked for, also for an unknown watch, and nothing follows (R9)."""
    server = a_server()
    begun(server, key_watch())
    for _ in range(2):
        server.request(ROUTE, W1, CancelWatch(b""), 0.0)
        assert told(server) == [WatchEnded(EndReason.CANCELLED, 11, at(10))]
    apply(server, 11, put(b"k"))
    server.turn(100.0)
    assert server.take() == []
    assert server.next_deadline() is None


def test_watches_of_a_connection_that_is_silent_are_freed() -> None:
    """The watches of a connection that is silent for too long are freed, because a ROUTER is not told of its end
    (R10)."""
    server = a_server()
    begun(server, key_watch())
    seen(server, 0, now=10.0)
    server.request(OTHER, W1, key_watch(), 20.0)
    server.turn(39.9)
    assert (server.watch_count, server.session_count, server.next_deadline()) == (2, 2, 40.0)
    server.turn(40.0)
    assert (server.watch_count, server.session_count) == (1, 1)
    server.turn(50.0)
    assert (server.watch_count, server.session_count, server.next_deadline()) == (0, 0, None)
    assert server.ended == {"silent": 2}


def test_a_client_that_was_forgotten_is_told_so() -> None:
    """A client that was taken for gone is told so when it speaks, also if it has begun a watch meanwhile (R10)."""
    server = a_server()
    begun(server, key_watch())
    server.turn(30.0)
    assert seen(server, 0, now=31.0) == [NoSession(7)]
    server.take()
    server.request(ROUTE, W2, key_watch(), 31.0)
    assert told(server, request_id=W2, now=31.0) == [Watching(8, at(10))]
    assert seen(server, 0, now=31.0) == [NoSession(7)]
    assert seen(server, 0, session=8, now=31.0)[-1] == WatchProgress(8, at(10), leads=False)


def test_a_connection_that_takes_nothing_loses_its_watches() -> None:
    """When a message could not be handed to a connection all its watches end: nobody knows what its client has."""
    server = a_server()
    begun(server, key_watch())
    begun(server, key_watch(), request_id=W2)
    begun(server, key_watch(), OTHER)
    server.refused(ROUTE)
    server.turn(0.0)
    assert (server.watch_count, server.ended) == (1, {"refused": 1})
    apply(server, 11, put(b"k"))
    server.turn(0.0)
    assert {each.route for each in server.take()} == {OTHER}
    assert seen(server, 0) == [NoSession(7)]


def test_two_watches_of_one_key_are_both_told() -> None:
    """Two watches of one key, on one connection or on two, are both told (R11)."""
    server = a_server()
    for route, request_id in ((ROUTE, W1), (ROUTE, W2), (OTHER, W1)):
        server.request(route, request_id, key_watch(), 0.0)
    server.take()
    apply(server, 11, put(b"k"))
    server.turn(0.0)
    assert [(each.route, each.request_id) for each in server.take()] == [(ROUTE, W1), (ROUTE, W2), (OTHER, W1)]


def test_a_key_that_is_not_there_can_be_watched() -> None:
    """A key that does not exist can be watched: its creation, deletion and second creation are told (R13)."""
    server = a_server()
    begun(server, key_watch())
    changes = [put(b"k"), gone(b"k"), put(b"k", b"2")]
    for index, change in enumerate(changes, 11):
        apply(server, index, change)
    assert told(server) == [events(index, change) for index, change in enumerate(changes, 11)]


def test_a_crowd_of_watches_is_bounded() -> None:
    """Each of many watches begins with a message of its own; one too many is told so, and costs nothing (R14)."""
    server = a_server(watches=3, watches_of_a_session=2)
    too_many = [WatchEnded(EndReason.TOO_MANY, 11, at(10))]
    assert begun(server, key_watch()) == [Watching(7, at(10))]
    assert begun(server, key_watch(), request_id=W2) == [Watching(7, at(10))]
    assert begun(server, key_watch(), request_id=b"\x04") == too_many
    assert begun(server, key_watch(), OTHER) == [Watching(8, at(10))]
    assert begun(server, key_watch(), OTHER, W2) == too_many
    assert server.watch_count == 3
    begun(server, key_watch(b"other"))
    assert server.watch_count == 3


def test_the_bytes_of_keys_are_bounded() -> None:
    """The bytes of keys and request ids are bounded, for one client and for all; a watch that ends gives them back."""
    server = a_server(key_bytes=250, key_bytes_of_a_session=101)
    key = b"k" * 100
    assert [len(begun(server, key_watch(key), request_id=id_)) for id_ in (W1, W2)] == [1, 1]
    assert server.watch_count == 1
    begun(server, key_watch(key), OTHER)
    begun(server, key_watch(key), b"\x00r3")
    assert server.watch_count == 2
    server.request(ROUTE, W1, CancelWatch(b""), 0.0)
    begun(server, key_watch(key), b"\x00r3")
    assert server.watch_count == 2
    begun(server, key_watch(b"k" * 101), b"\x00r4")
    assert server.watch_count == 2


def test_the_number_of_clients_is_bounded() -> None:
    """One client more than are served is told so, until another one is gone."""
    server = a_server(sessions=1)
    begun(server, key_watch())
    assert begun(server, key_watch(), OTHER) == [WatchEnded(EndReason.TOO_MANY, 11, at(10))]
    server.turn(30.0)
    server.request(OTHER, W1, key_watch(), 30.0)
    assert told(server, OTHER, now=30.0) == [Watching(8, at(10))]


def test_a_watch_that_is_asked_for_again_begins_anew() -> None:
    """A watch whose client asks for it again begins again, and is not told twice of what comes."""
    server = a_server()
    begun(server, key_watch())
    assert begun(server, key_watch(b"other")) == [Watching(7, at(10))]
    apply(server, 11, put(b"k"), put(b"other"))
    assert told(server) == [events(11, put(b"other"))]


def test_a_restored_snapshot_ends_every_session() -> None:
    """A restored snapshot ends every session, because nobody knows what it changed; who resumes is told that."""
    server = a_server()
    begun(server, key_watch())
    apply(server, 11, put(b"k"))
    told(server)
    server.restored(at(50, 4))
    server.turn(0.0)
    assert (server.watch_count, server.take()) == (0, [])
    assert seen(server, 1) == [NoSession(7)]
    assert begun(server, key_watch(b"k", at(11))) == [WatchEnded(EndReason.HISTORY_OUTRUN, 51, at(50, 4))]
    assert begun(server, key_watch(b"k", at(50, 4))) == [Watching(8, at(50, 4))]
