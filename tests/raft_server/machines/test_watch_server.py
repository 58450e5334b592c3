"""The peer's side of State Watch: the requirements R1 to R14, and a naive second implementation as the oracle."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raft_client.server.machines.watch_server import WatchServer, WatchServerLimits
from raft_client.wire.key_changes import Change, ChangeKind
from raft_client.wire.watch_messages import (
    BeginWatch,
    CancelWatch,
    EndReason,
    Events,
    Seen,
    WatchEnded,
    Watching,
    WatchProgress,
)

ROUTE, OTHER = b"\x00r1", b"\x00r2"
W1, W2 = b"\x01", b"\x02"


def put(key: bytes, value: bytes = b"v") -> Change:
    return Change(ChangeKind.SET, key, value)


def gone(key: bytes) -> Change:
    return Change(ChangeKind.DELETE, key)


def key_watch(key: bytes = b"k", after: int | None = None) -> BeginWatch:
    return BeginWatch(b"", key, False, after)


def prefix_watch(prefix: bytes, after: int | None = None) -> BeginWatch:
    return BeginWatch(b"", prefix, True, after)


def told(server: WatchServer, route: bytes = ROUTE, request_id: bytes = W1) -> list[Any]:
    """What the watch was told since the last call; what others were told is dropped."""
    return [each.reply for each in server.take() if (each.route, each.request_id) == (route, request_id)]


def begun(server: WatchServer, watch: BeginWatch, route: bytes = ROUTE, request_id: bytes = W1) -> list[Any]:
    server.request(route, request_id, watch, 0.0)
    return told(server, route, request_id)


# -- the requirements --------------------------------------------------------------------------------------------------


def test_changes_of_one_entry_come_together_with_its_index() -> None:
    """The changes of one entry that a watch wants come together, in the order of the entry, with its index (R1, R3)."""
    server = WatchServer(10)
    begun(server, prefix_watch(b"a"))
    server.applied(11, [put(b"a1"), put(b"b"), gone(b"a2")])
    assert told(server) == [Events(11, (put(b"a1"), gone(b"a2")))]


def test_a_watch_begins_with_the_index_that_it_begins_at() -> None:
    """A watch is told what comes after the index at which it begins, so that keys read at that index leave no gap
    (R2)."""
    server = WatchServer(10)
    server.applied(11, [put(b"k", b"old")])
    assert begun(server, key_watch()) == [Watching(11)]
    server.applied(12, [put(b"k", b"new")])
    assert told(server) == [Events(12, (put(b"k", b"new"),))]


@pytest.mark.parametrize("watch", [key_watch(b"k", 11), prefix_watch(b"", 11)])
def test_a_watch_resumes_after_an_index(watch: BeginWatch) -> None:
    """A watch that resumes after an index is told the entries after it, for keys and for prefixes (R4)."""
    server = WatchServer(10)
    for index in (11, 12, 13):
        server.applied(index, [put(b"k", b"%d" % index)])
    assert begun(server, watch) == [Watching(13), *(Events(n, (put(b"k", b"%d" % n),)) for n in (12, 13))]
    server.applied(14, [put(b"k")])
    assert told(server) == [Events(14, (put(b"k"),))]


def test_a_watch_after_an_index_that_is_still_to_come_waits_for_it() -> None:
    """A watch after an index that is still to come waits for it, so that a peer that lags tells nothing twice (R4)."""
    server = WatchServer(10)
    assert begun(server, key_watch(b"k", 12)) == [Watching(10)]
    for index in (11, 12, 13):
        server.applied(index, [put(b"k")])
    assert told(server) == [Events(13, (put(b"k"),))]


def test_a_history_that_was_outrun_is_told() -> None:
    """A watch whose history was compacted is told the oldest index that is left, and no event before it (R5)."""
    server = WatchServer(10, WatchServerLimits(history_bytes=400))
    for index in range(11, 40):
        server.applied(index, [put(b"k", b"x" * 50)])
    oldest = server.oldest
    assert 30 < oldest < 40
    assert begun(server, key_watch(b"k", 12)) == [WatchEnded(EndReason.HISTORY_OUTRUN, 12, oldest)]
    assert begun(server, key_watch(b"k", oldest - 1))[0] == Watching(39)
    assert server.watch_count == 1


def test_what_was_before_the_start_is_outrun() -> None:
    """A peer that has restored a snapshot knows no change before it, so an earlier watch is told that it is outrun
    (R5)."""
    assert begun(WatchServer(10), key_watch(b"k", 9)) == [WatchEnded(EndReason.HISTORY_OUTRUN, 9, 11)]
    assert begun(WatchServer(10), key_watch(b"k", 10)) == [Watching(10)]


def test_progress_is_told_while_nothing_happens() -> None:
    """While nothing happens, a watch is told the newest index, after all that was told before it (R6, R7)."""
    server = WatchServer(10)
    begun(server, key_watch())
    server.applied(11, [put(b"other")])
    server.applied(12)
    assert server.next_deadline() == 5.0
    server.tick(4.9)
    assert told(server) == []
    server.tick(5.0)
    assert told(server) == [WatchProgress(12)]


def test_progress_is_not_told_to_a_watch_that_is_behind() -> None:
    """Progress is not told to a watch that is behind, because it would say that nothing is missing (R6)."""
    server = WatchServer(10, WatchServerLimits(window_messages=1))
    begun(server, key_watch())
    for index in (11, 12):
        server.applied(index, [put(b"k")])
    assert told(server) == [Events(11, (put(b"k"),))]
    server.tick(5.0)
    assert told(server) == []


def test_a_slow_client_is_told_when_it_takes_more() -> None:
    """What is on its way to a slow client is bounded; the rest waits in the history, which all watches share (R8)."""
    server = WatchServer(10, WatchServerLimits(window_messages=2))
    begun(server, key_watch())
    for index in range(11, 16):
        server.applied(index, [put(b"k")])
    assert [reply.index for reply in told(server)] == [11, 12]
    server.request(ROUTE, b"", Seen(b"", 1), 0.0)
    assert [reply.index for reply in told(server)] == [13]
    server.request(ROUTE, b"", Seen(b"", 2), 0.0)
    assert [reply.index for reply in told(server)] == [14, 15]
    server.applied(16, [put(b"k")])
    assert told(server) == []
    server.request(ROUTE, b"", Seen(b"", 99), 0.0)
    assert [reply.index for reply in told(server)] == [16]
    server.applied(17, [put(b"k")])
    assert [reply.index for reply in told(server)] == [17]


def test_large_events_fill_the_window_alone() -> None:
    """The bytes of a large event count in the window, but one message may always be sent (R8)."""
    server = WatchServer(10, WatchServerLimits(window_bytes=1000))
    begun(server, key_watch())
    for index in (11, 12):
        server.applied(index, [put(b"k", b"x" * 5000)])
    assert [reply.index for reply in told(server)] == [11]


def test_a_client_that_is_outrun_is_told_so_and_others_are_not() -> None:
    """The watch of a client that is outrun ends with the last index that it was told, and others go on (R8)."""
    server = WatchServer(10, WatchServerLimits(window_messages=1, history_bytes=1000))
    begun(server, key_watch())
    begun(server, key_watch(b"other"), request_id=W2)
    for index in range(11, 40):
        server.applied(index, [put(b"k", b"x" * 50)])
    assert [reply.index for reply in told(server)] == [11]
    server.request(ROUTE, b"", Seen(b"", 1), 0.0)
    assert told(server) == [WatchEnded(EndReason.TOO_SLOW, 11, server.oldest)]
    server.applied(40, [put(b"other")])
    assert told(server, request_id=W2) == [Events(40, (put(b"other"),))]
    assert server.watch_count == 1


def test_cancelling_is_answered_and_nothing_follows() -> None:
    """Cancelling is answered as often as it is asked for, also for an unknown watch, and nothing follows (R9)."""
    server = WatchServer(10)
    begun(server, key_watch())
    for _ in range(2):
        server.request(ROUTE, W1, CancelWatch(b""), 0.0)
        assert told(server) == [WatchEnded(EndReason.CANCELLED, 10, 11)]
    server.applied(11, [put(b"k")])
    server.tick(100.0)
    assert server.take() == []
    assert server.next_deadline() is None


def test_watches_of_a_connection_that_is_silent_are_freed() -> None:
    """The watches of a connection that is silent for too long are freed, because a ROUTER is not told of its end
    (R10)."""
    server = WatchServer(10)
    begun(server, key_watch())
    server.request(ROUTE, b"", Seen(b"", 0), 10.0)
    server.request(OTHER, W1, key_watch(), 20.0)
    server.tick(39.9)
    assert server.watch_count == 2
    server.tick(40.0)
    assert server.watch_count == 1
    server.tick(50.0)
    assert (server.watch_count, server.next_deadline()) == (0, None)


def test_two_watches_of_one_key_are_both_told() -> None:
    """Two watches of one key, on one connection or on two, are both told (R11)."""
    server = WatchServer(10)
    for route, request_id in ((ROUTE, W1), (ROUTE, W2), (OTHER, W1)):
        server.request(route, request_id, key_watch(), 0.0)
    server.take()
    server.applied(11, [put(b"k")])
    assert {(each.route, each.request_id) for each in server.take()} == {(ROUTE, W1), (ROUTE, W2), (OTHER, W1)}


def test_a_key_that_is_not_there_can_be_watched() -> None:
    """A key that does not exist can be watched: its creation, deletion and second creation are told (R13)."""
    server = WatchServer(10)
    begun(server, key_watch())
    changes = [put(b"k"), gone(b"k"), put(b"k", b"2")]
    for index, change in enumerate(changes, 11):
        server.applied(index, [change])
    assert told(server) == [Events(index, (change,)) for index, change in enumerate(changes, 11)]


def test_a_crowd_of_watches_is_bounded() -> None:
    """Each of many watches begins with a message of its own; one too many is told so, and costs nothing (R14)."""
    server = WatchServer(10, WatchServerLimits(watches=3, watches_of_a_route=2))
    assert begun(server, key_watch()) == [Watching(10)]
    assert begun(server, key_watch(), request_id=W2) == [Watching(10)]
    assert begun(server, key_watch(), request_id=b"\x03") == [WatchEnded(EndReason.TOO_MANY, 10, 11)]
    assert begun(server, key_watch(), OTHER) == [Watching(10)]
    assert begun(server, key_watch(), OTHER, W2) == [WatchEnded(EndReason.TOO_MANY, 10, 11)]
    assert server.watch_count == 3


def test_a_watch_that_is_asked_for_again_begins_anew() -> None:
    """A watch whose client asks for it again begins again, and is not told twice of what comes."""
    server = WatchServer(10)
    begun(server, key_watch())
    assert begun(server, key_watch(b"other")) == [Watching(10)]
    server.applied(11, [put(b"k"), put(b"other")])
    assert told(server) == [Events(11, (put(b"other"),))]


def test_a_restored_snapshot_ends_every_watch() -> None:
    """A restored snapshot ends every watch, because nobody knows what it changed."""
    server = WatchServer(10)
    begun(server, key_watch())
    server.applied(11, [put(b"k")])
    told(server)
    server.restored(50)
    assert told(server) == [WatchEnded(EndReason.HISTORY_OUTRUN, 11, 51)]
    assert server.watch_count == 0
    assert begun(server, key_watch(b"k", 11)) == [WatchEnded(EndReason.HISTORY_OUTRUN, 11, 51)]
    assert begun(server, key_watch(b"k", 50)) == [Watching(50)]


def test_a_long_way_back_is_gone_in_several_turns() -> None:
    """Entries that a watch does not want are passed in several turns, since they take time although no message."""
    server = WatchServer(0)
    for index in range(1, 12_001):
        server.applied(index, [put(b"k" if index == 12_000 else b"other")])
    assert begun(server, key_watch(b"k", 0)) == [Watching(12_000)]
    turns = 0
    while server.next_deadline() == 0.0:
        server.tick(1.0)
        turns += 1
    assert turns == 2
    assert told(server) == [Events(12_000, (put(b"k"),))]


# -- any order of events -----------------------------------------------------------------------------------------------

KEYS = [b"a", b"ab", b"b"]
ROUTES = [ROUTE, OTHER]


class _Told:
    """One watch as its client sees it, and what it must have been told."""

    def __init__(self, watch: BeginWatch, after: int) -> None:
        self.watch, self.after = watch, after
        self.events: list[Events] = []
        self.ended: WatchEnded | None = None

    def wanted(self, log: list[tuple[Change, ...]]) -> list[Events]:
        chosen = [
            Events(index, tuple(change for change in changes if self.watch.wants(change.key)))
            for index, changes in enumerate(log, 1)
            if index > self.after
        ]
        return [events for events in chosen if events.changes]


class WatchesInAnyOrder(RuleBasedStateMachine):
    """Clients that watch, cancel, read slowly and come back, while entries are applied."""

    def __init__(self) -> None:
        super().__init__()
        self.server = WatchServer(0, WatchServerLimits(history_bytes=1500, window_messages=3, window_bytes=600))
        self.log: list[tuple[Change, ...]] = []
        self.watches: dict[tuple[bytes, bytes], _Told] = {}
        self.over: list[_Told] = []
        self.received = dict.fromkeys(ROUTES, 0)
        self.now = 0.0

    def deliver(self) -> None:
        for each in self.server.take():
            watch = self.watches.get((each.route, each.request_id))
            match each.reply:
                case Watching(index=index):
                    assert index == len(self.log)
                case Events() as events:
                    assert watch is not None
                    assert watch.ended is None
                    watch.events.append(events)
                    self.received[each.route] += 1
                case WatchProgress(index=index):
                    assert watch is not None
                    assert len(watch.events) == len(watch.wanted(self.log[:index]))
                case WatchEnded() as ended:
                    self.end(each.route, each.request_id, ended)

    def end(self, route: bytes, request_id: bytes, ended: WatchEnded) -> None:
        watch = self.watches.pop((route, request_id), None)
        if watch is not None:
            watch.ended = ended
            self.over.append(watch)
            if ended.reason is EndReason.TOO_SLOW:
                assert watch.events == watch.wanted(self.log[: ended.index])
                assert ended.index + 1 < ended.oldest

    @rule(changes=st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=40)), max_size=3))
    def apply(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        made = tuple(gone(key) if value is None else put(key, value) for key, value in changes)
        self.log.append(made)
        self.server.applied(len(self.log), made)
        self.deliver()

    @rule(
        route=st.sampled_from(ROUTES),
        request_id=st.sampled_from([W1, W2]),
        key=st.sampled_from([*KEYS, b""]),
        is_prefix=st.booleans(),
        back=st.none() | st.integers(-2, 12),
    )
    def watch(self, route: bytes, request_id: bytes, key: bytes, is_prefix: bool, back: int | None) -> None:
        after = None if back is None else max(0, len(self.log) - back)
        request = BeginWatch(b"", key, is_prefix, after)
        self.deliver()
        self.watches[route, request_id] = _Told(request, len(self.log) if after is None else after)
        self.server.request(route, request_id, request, self.now)
        self.deliver()

    @rule(route=st.sampled_from(ROUTES), request_id=st.sampled_from([W1, W2]))
    def cancel(self, route: bytes, request_id: bytes) -> None:
        self.server.request(route, request_id, CancelWatch(b""), self.now)
        self.deliver()
        assert (route, request_id) not in self.watches

    @precondition(lambda self: self.watches)
    @rule(route=st.sampled_from(ROUTES))
    def read(self, route: bytes) -> None:
        if any(known == route for known, _ in self.watches):
            received, self.received[route] = self.received[route], 0
            self.server.request(route, b"", Seen(b"", received), self.now)
            self.deliver()

    @rule(seconds=st.sampled_from([0.0, 1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for route in ROUTES:
            self.read(route)
        self.server.tick(self.now)
        self.deliver()

    @invariant()
    def nothing_is_told_twice_or_out_of_order(self) -> None:
        for watch in [*self.watches.values(), *self.over]:
            assert watch.events == watch.wanted(self.log)[: len(watch.events)]

    def teardown(self) -> None:
        for _ in range(200):
            for route in ROUTES:
                self.read(route)
        for watch in self.watches.values():
            assert watch.events == watch.wanted(self.log)


TestWatchesInAnyOrder = WatchesInAnyOrder.TestCase
TestWatchesInAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
