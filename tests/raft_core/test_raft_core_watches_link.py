"""Watches: whether quiet is cut off, what was there before, and how much may wait; R3, R7, R8, R10."""

from __future__ import annotations

from typing import Any

from model_peer import ModelPeer
from model_shell import Shell
from model_watches import history, seen, start, take, watch, write

from raft_client.core.calls import GetLogInfo
from raft_client.core.selectors import Key, Prefix, Tree, Where
from raft_client.core.stream_actions import Freshness
from raft_client.core.watch_events import Resumed, Suspended, WatchCounts, WatchEvent
from raft_client.errors import SubscriberOverflowError
from raft_client.wire.key_changes import Previous
from raft_client.wire.log_entry import Position


def kinds(items: list[Any]) -> list[Any]:
    """Indexes of events, and the classes of the others."""
    return [item.index if isinstance(item, WatchEvent) else type(item) for item in items]


# -- quiet or cut off (R7) ---------------------------------------------------------------------------------------------


def test_a_watch_is_told_when_no_leader_is_heard_and_when_it_is_up_to_date_again() -> None:
    """A watch that asks is told when no leader is heard and, after what happened meanwhile, when it is up to date
    again."""
    shell = start()
    told, other = watch(shell, Prefix(b""), connection_events=True), watch(shell, Prefix(b""))
    write(shell, b"a=1")
    shell.advance(0.9)
    assert kinds(take(shell, told)) == [1]
    assert shell.machine.state_of(told).freshness is Freshness.FRESH
    shell.fail_over(ModelPeer(shell.leader.log, name="2"))
    shell.advance(1.1)
    assert take(shell, told) == [Suspended(told.id, Position(1, 1))]
    assert shell.machine.state_of(told).freshness is Freshness.SILENT
    write(shell, b"b=1", lost=True)
    shell.settle()
    shell.heartbeat()
    assert kinds(take(shell, told)) == [2, Resumed]
    assert shell.machine.state_of(told).freshness is Freshness.FRESH
    assert kinds(take(shell, other)) == [1, 2]
    assert shell.states == [Freshness.FRESH, Freshness.SILENT, Freshness.STALE, Freshness.FRESH]


def test_heartbeats_keep_a_quiet_watch_from_being_suspended() -> None:
    """Heartbeats keep a watch from being suspended while nothing happens."""
    shell = start()
    w = watch(shell, Prefix(b""), connection_events=True)
    for _ in range(20):
        shell.heartbeat()
        shell.advance(0.9)
    assert take(shell, w) == []


def test_a_watch_that_never_found_a_leader_is_told_so() -> None:
    """A watch is told that no leader is heard, also while it waits for the answer where the log ends."""
    shell = start()
    w = shell.machine.watch(Prefix(b""), connection_events=True)
    question = next(a.call for a in shell.machine.take_actions() if isinstance(a.call, GetLogInfo))
    assert shell.machine.next_item(w, 0.0) is None
    shell.advance(0.9)
    assert shell.machine.state_of(w).freshness is Freshness.STALE
    shell.advance(0.2)
    assert isinstance(shell.machine.next_item(w, shell.now), Suspended)
    assert shell.machine.state_of(w).freshness is Freshness.SILENT
    assert shell.machine.next_deadline() is None
    shell.machine.finished(question, question.receive(log_info(shell)).result, shell.now)
    shell.act()
    shell.settle()
    shell.heartbeat()
    assert kinds(take(shell, w)) == [Resumed]


def log_info(shell: Shell) -> list[bytes]:
    return shell.leader.receive(b"x", [b"\x25", b"test"])[0][1:]


def test_a_watch_that_is_behind_is_stale_until_it_has_caught_up() -> None:
    """A watch that is still reading history is stale, and is told when it is up to date."""
    shell = start(watch_bytes=1)
    quick, slow = watch(shell, Prefix(b"")), watch(shell, Prefix(b""), connection_events=True)
    for n in range(10):
        write(shell, b"k=%d" % n)
        take(shell, quick)
    assert shell.machine.state_of(quick).freshness is Freshness.FRESH
    assert shell.machine.state_of(slow).freshness is Freshness.STALE
    assert shell.machine.state_of(slow).missing > 0
    shell.fail_over(ModelPeer(shell.leader.log, name="2"))
    shell.advance(1.1)
    shell.settle()
    shell.heartbeat()
    items = kinds(take(shell, slow))
    assert [item for item in items if isinstance(item, int)] == list(range(1, 11))
    assert [item for item in items if not isinstance(item, int)] == [Suspended, Resumed]
    assert items[-1] is Resumed


# -- what was there before (R3) ----------------------------------------------------------------------------------------


def previous(items: list[Any]) -> list[tuple[bytes, bytes | None, Previous | None]]:
    return [(c.key, c.value, c.previous) for item in items if isinstance(item, WatchEvent) for c in item.changes]


def test_events_tell_what_a_key_had_before() -> None:
    """An event tells what the key had before: a value, nothing, or unknown; also within one entry."""
    shell = start(history(1))
    w = watch(shell, Prefix(b""), previous=True)
    write(shell, b"a=1", b"a=2;a;a=3", b"a", b"b", b"a=4")
    assert previous(take(shell, w)) == [
        (b"a", b"1", None),
        (b"a", b"2", Previous(b"1")),
        (b"a", None, Previous(b"2")),
        (b"a", b"3", Previous()),
        (b"a", None, Previous(b"3")),
        (b"b", None, None),
        (b"a", b"4", Previous()),
    ]


def test_a_watch_from_the_first_entry_on_knows_what_never_was() -> None:
    """A watch from the first entry on knows which keys never existed, and keeps nothing of deleted ones."""
    shell = start()
    write(shell, b"a=1", b"b=1", b"b")
    w = watch(shell, Prefix(b""), after=0, previous=True)
    write(shell, b"a=2", b"c=1")
    assert [before for _, _, before in previous(take(shell, w))] == [
        Previous(), Previous(), Previous(b"1"), Previous(b"1"), Previous(),
    ]  # fmt: skip
    assert w.values == {b"a": b"2", b"c": b"1"}


def test_a_condition_hides_no_change_from_what_is_kept() -> None:
    """A condition is given what the key had before, which includes changes that it did not select."""
    shell = start()
    w = watch(shell, Where(lambda change: change.value == b"off"), previous=True)
    rises = watch(shell, Where(lambda c: c.previous is not None and c.value > c.previous.value), previous=True)
    write(shell, b"a=off", b"a=on", b"a=off")
    assert [before for _, _, before in previous(take(shell, w))] == [None, Previous(b"on")]
    assert kinds(take(shell, rises)) == [2]


def test_a_slow_reader_is_told_the_same() -> None:
    """A slow reader is told the same previous values: each change is noted once, wherever it comes from."""
    for watch_bytes in (1, 10_000):
        shell = start(watch_bytes=watch_bytes)
        w = watch(shell, Tree(b"k"), previous=True)
        for n in range(30):
            write(shell, b"k=%d" % n)
        expected = [None, *(Previous(b"%d" % n) for n in range(29))]
        assert [before for _, _, before in previous(take(shell, w))] == expected


def test_a_snapshot_makes_what_was_there_unknown() -> None:
    """After a snapshot the previous values are unknown, because it stands for entries that the watch did not see."""
    shell = start(history(20))
    shell.leader.compacted = 10
    w = watch(shell, Prefix(b""), after=0, relist=True, previous=True)
    write(shell, b"k3=9", b"k15=9")
    found = {key: before for key, _, before in previous(take(shell, w))}
    assert found[b"k3"] is None
    assert found[b"k15"] == Previous(b"15")


# -- bounds and counts (R8, R10) ---------------------------------------------------------------------------------------


def test_an_overflow_ends_the_watch_with_its_reason_and_no_other() -> None:
    """An overflow ends the watch after what was queued, always with its reason, and the next watch misses nothing."""
    shell = start(watch_bytes=1000)
    slow, other = watch(shell, Prefix(b""), overflow="error"), watch(shell, Prefix(b""))
    for n in range(100):
        write(shell, b"k=%d" % n)
    assert isinstance(slow.error, SubscriberOverflowError)
    assert "queue_bytes=1000" in str(slow.error)
    first = [index for index, _ in seen(take(shell, slow))]
    again = watch(shell, Prefix(b""), after=shell.machine.resume_after(slow), queue_bytes=10**6)
    assert first + [index for index, _ in seen(take(shell, again))] == list(range(1, 101))
    assert len(seen(take(shell, other))) == 100


def test_all_watches_together_are_bounded() -> None:
    """Each watch has its share of the client's limit, and one that reads takes nothing from the others."""
    shell = start(total_bytes=20_000)
    watches = [watch(shell, Prefix(b""), queue_bytes=10**6) for _ in range(20)]
    for n in range(200):
        write(shell, b"k=%d" % n)
        counts = shell.machine.counts
        assert counts.queued_bytes <= 20_000 + 20 * 200
    assert [len(seen(take(shell, w))) for w in watches] == [200] * 20
    unlucky = watch(shell, Prefix(b""), queue_bytes=10**6, overflow="error")
    for n in range(200):
        write(shell, b"k=%d" % n)
    assert "share of the 20000 bytes for the 21 watches" in str(unlucky.error)


def test_watches_are_counted() -> None:
    """The client counts the watches that have not ended, and what waits for their readers; counts are added up."""
    shell = start(history(3), watch_bytes=1)
    assert shell.machine.counts == WatchCounts()
    live, behind = watch(shell, Key(b"x")), watch(shell, Prefix(b"k"))
    write(shell, b"k=1", b"k=2", b"k=3")
    counts = shell.machine.counts
    assert (counts.open, counts.live, counts.queued_events) == (2, 1, behind.waiting)
    assert counts.queued_bytes == behind.size > 0
    shell.machine.cancel(live)
    shell.machine.cancel(behind)
    assert shell.machine.counts == WatchCounts()
    assert WatchCounts(1, 1, 0, 2) + WatchCounts(2, 0, 3, 4) == WatchCounts(3, 1, 3, 6)
