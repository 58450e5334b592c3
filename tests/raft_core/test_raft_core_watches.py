"""Watches over the log: selection, where they start, what they tell, how they end; R1 to R14."""

from __future__ import annotations

import pytest
from model_peer import ModelPeer
from model_watches import history, seen, start, take, watch, write

from raft_client.core.freshness import Freshness
from raft_client.core.selectors import Key, Prefix, Tree, Where
from raft_client.core.watch_events import Progress
from raft_client.core.watch_state import WatchReady
from raft_client.errors import ClientClosedError, InvalidArgumentError, OutOfDateLogError, ProtocolError
from raft_client.wire.key_changes import Change, ChangeKind
from raft_client.wire.positions import Position

# -- what is handed out -----------------------------------------------------------------------------------------------


def test_a_change_of_a_key_is_an_event() -> None:
    """A change, also a deletion and what follows it, is an event with watch id, index, kind, key and value (R3,
    R13)."""
    shell = start()
    w = watch(shell, Key(b"a"))
    write(shell, b"a=1", b"b=1", b"a", b"a=2")
    events = take(shell, w)
    assert [(e.watch_id, e.index, e.changes) for e in events] == [
        (w.id, 1, (Change(ChangeKind.SET, b"a", b"1"),)),
        (w.id, 3, (Change(ChangeKind.DELETE, b"a"),)),
        (w.id, 4, (Change(ChangeKind.SET, b"a", b"2"),)),
    ]


def test_all_changes_of_one_entry_are_one_event() -> None:
    """All changes of one entry that a watch selects are one event, so that a transaction is not split (R1)."""
    shell = start()
    w = watch(shell, Prefix(b"a/"))
    write(shell, b"a/1=x;b=y;a/2=z;a/1")
    (event,) = take(shell, w)
    assert [(c.kind, c.key) for c in event.changes] == [("set", b"a/1"), ("set", b"a/2"), ("delete", b"a/1")]


def test_every_watcher_of_a_key_is_served() -> None:
    """Several watches on a key, its parent and a condition all see its change, which is decoded once (R11)."""
    shell = start()
    selectors = [
        Key(b"servers/1"),
        Key(b"servers/1"),
        Prefix(b"serv"),
        Tree(b"servers"),
        Where(lambda c: c.value == b"up"),
    ]
    watches = [watch(shell, selector) for selector in selectors]
    other = watch(shell, Tree(b"server"))
    decoded = shell.codec.decoded
    write(shell, b"servers/1=up")
    assert [seen(take(shell, w)) for w in watches] == [[(1, [b"servers/1"])]] * 5
    assert take(shell, other) == []
    assert shell.codec.decoded == decoded + 1


def test_entries_of_others_are_passed_over() -> None:
    """Entries of other applications in the same log are ignored."""
    shell = start()
    w = watch(shell, Prefix(b""))
    write(shell, b"-x", b"a=1", b"-y")
    assert seen(take(shell, w)) == [(2, [b"a"])]
    assert shell.machine.resume_after(w).index == 3


# -- where a watch starts ---------------------------------------------------------------------------------------------


def test_a_watch_starts_at_the_end_unless_told_otherwise() -> None:
    """A watch starts at the end of the log unless told otherwise, and knows its start as soon as it has started
    (R2)."""
    shell = start(history(5))
    w = watch(shell, Prefix(b""))
    assert w.started_after.index == 5
    assert w.is_live
    write(shell, b"a=1")
    assert seen(take(shell, w)) == [(6, [b"a"])]


@pytest.mark.parametrize("after", [0, 3, 5])
def test_a_watch_resumes_after_an_index(after: int) -> None:
    """A watch that resumes gets everything after the index, under a prefix too, and is then live (R4)."""
    shell = start(history(5))
    w = watch(shell, Prefix(b"k"), after=after)
    write(shell, b"k9=1")
    assert [index for index, _ in seen(take(shell, w))] == [*range(after + 1, 6), 6]
    assert w.is_live


def test_watches_resume_from_different_places_at_once() -> None:
    """Watches that resume from different places share one subscription once they have caught up (R4, R14)."""
    shell = start(history(40))
    watches = [watch(shell, Prefix(b"k"), after=after) for after in range(0, 40, 5)]
    write(shell, b"k=live")
    for after, w in zip(range(0, 40, 5), watches, strict=True):
        assert [index for index, _ in seen(take(shell, w))] == list(range(after + 1, 42))
    assert shell.listened == ["tcp://pub/1"]
    assert not shell.conversations


def test_what_was_seen_lately_is_resumed_from_memory() -> None:
    """A watch that is made again while others go on resumes from memory, without a request to the cluster."""
    shell = start()
    watch(shell, Key(b"other"))
    write(shell, b"a=1", b"a=2", b"a=3")
    asked = shell.ids
    w = watch(shell, Key(b"a"), after=1)
    assert seen(take(shell, w)) == [(2, [b"a"]), (3, [b"a"])]
    assert shell.ids == asked


def test_a_watch_starts_where_the_log_ended_after_it_was_made() -> None:
    """An answer to an earlier question about the log's end does not make a watch start before it was made."""
    shell = start(history(5))
    first = shell.machine.watch(Prefix(b""))
    shell.act()
    write(shell, b"a=1")
    second = shell.machine.watch(Prefix(b""))
    shell.act()
    shell.settle()
    assert (first.started_after.index, second.started_after.index) == (5, 6)
    assert seen(take(shell, first)) == [(6, [b"a"])]
    assert take(shell, second) == []


def test_a_watch_may_start_in_the_future_only_if_it_exists() -> None:
    """A watch that starts at an index beyond the log ends with the error that data was lost or the cluster is another
    (R5)."""
    shell = start(history(5))
    w = watch(shell, Prefix(b""), after=9)
    assert isinstance(w.error, OutOfDateLogError)
    assert shell.machine.count == 0


def test_a_leader_that_lags_does_not_fail_a_watch() -> None:
    """A watch whose start the former leader has told is not failed by a new leader that lags."""
    shell = start(history(9))
    shell.leader.applied = 5
    w = shell.machine.watch(Prefix(b""), after=8)
    shell.act()
    for _ in range(5):
        for call in list(shell.conversations):
            if shell.conversations[call].inbox:
                shell.deliver(call)
    assert w.error is None
    shell.leader.applied = None
    shell.settle()
    assert seen(take(shell, w)) == [(9, [b"k9"])]


# -- progress and state -----------------------------------------------------------------------------------------------


def test_an_idle_watch_hears_of_progress() -> None:
    """An idle watch is told its progress, from which it can resume, and progress never overtakes an event (R6)."""
    shell = start(progress_s=10.0)
    idle, busy = watch(shell, Key(b"never")), watch(shell, Key(b"a"))
    write(shell, b"a=1", b"b=1")
    shell.advance(10.5)
    assert take(shell, idle) == [Progress(idle.id, Position(2, 1))]
    assert [item.index for item in take(shell, busy)] == [1]
    shell.advance(10)
    assert take(shell, idle) == []
    assert take(shell, busy) == [Progress(busy.id, Position(2, 1))]


def test_silence_and_recovery_are_visible() -> None:
    """A live watch has the state of the subscription, so that silence and recovery are visible (R7)."""
    shell = start()
    w = watch(shell, Prefix(b""))
    write(shell, b"a=1")
    assert shell.machine.state.freshness is Freshness.FRESH
    shell.fail_over(ModelPeer(shell.leader.log, name="2"))
    shell.advance(1.1)
    write(shell, b"b=1", lost=True)
    shell.settle()
    write(shell, b"c=1")
    assert [index for index, _ in seen(take(shell, w))] == [1, 2, 3]
    assert shell.states == [Freshness.FRESH, Freshness.SILENT, Freshness.FRESH]


def test_the_resume_point_is_what_was_handed_out() -> None:
    """The position of a watch is the last event taken, or the end of the log if nothing is queued."""
    shell = start(history(3))
    w = shell.machine.watch(Prefix(b"a"))
    assert shell.machine.resume_after(w) is None
    shell.act()
    shell.settle()
    assert shell.machine.resume_after(w).index == 3
    write(shell, b"a=1", b"b=1", b"a=2", b"b=2")
    assert shell.machine.resume_after(w).index == 3
    shell.machine.next_item(w, 0.0)
    assert shell.machine.resume_after(w).index == 4
    shell.machine.next_item(w, 0.0)
    assert shell.machine.resume_after(w).index == 7


def test_a_cancelled_watch_says_where_to_resume() -> None:
    """The position of a cancelled watch is before what was queued, so that the next watch gets it."""
    shell = start()
    w = watch(shell, Prefix(b""))
    write(shell, b"a=1", b"a=2", b"a=3")
    shell.machine.next_item(w, 0.0)
    shell.machine.cancel(w)
    assert shell.machine.resume_after(w).index == 1
    again = watch(shell, Prefix(b""), after=shell.machine.resume_after(w))
    assert [index for index, _ in seen(take(shell, again))] == [2, 3]


# -- mistakes ---------------------------------------------------------------------------------------------------------


def test_an_entry_that_cannot_be_read_ends_the_watches() -> None:
    """An unreadable entry ends the watches, which could not tell what they missed, after the events before it."""
    shell = start()
    w = watch(shell, Prefix(b""))
    write(shell, b"a=1", b"!", b"b=1")
    assert seen(take(shell, w)) == [(1, [b"a"])]
    assert isinstance(w.error, ProtocolError)
    assert "entry 2: ValueError: broken" in w.error.message
    behind = watch(shell, Prefix(b""), after=0)
    assert seen(take(shell, behind)) == [(1, [b"a"])]
    assert isinstance(behind.error, ProtocolError)


def test_an_unreadable_entry_in_the_middle_of_history_stops_the_reader() -> None:
    """An unreadable entry in history stops the reader: the peer is told, and nothing after the entry is handed out."""
    log = history(30)
    log.frames[9] = log.frames[9][:20] + b"!"
    shell = start(log)
    w = watch(shell, Prefix(b""), after=0)
    assert [index for index, _ in seen(take(shell, w))] == list(range(1, 10))
    assert isinstance(w.error, ProtocolError)
    assert not shell.conversations
    assert not shell.leader.streams
    assert shell.machine.position == 0


def test_a_predicate_that_fails_ends_its_watch_alone() -> None:
    """An exception of a predicate ends its own watch and is its error (R12)."""
    shell = start(history(1))
    bad = watch(shell, Where(lambda c: c.value.startswith(b"x")))  # fails for deletions
    bad_behind = shell.machine.watch(Where(lambda c: c.value // 0), after=0)
    good = watch(shell, Prefix(b""))
    write(shell, b"a=x", b"a", b"a=y")
    assert seen(take(shell, bad)) == [(2, [b"a"])]
    assert isinstance(bad.error, AttributeError)
    assert isinstance(bad_behind.error, TypeError)
    assert len(take(shell, good)) == 3


@pytest.mark.parametrize("after", [-1, 2**53])
def test_impossible_starts_are_refused(after: int) -> None:
    """A watch refuses a negative start, and one of more than 53 bits."""
    with pytest.raises(InvalidArgumentError):
        start().machine.watch(Prefix(b""), after=after)


# -- the end ----------------------------------------------------------------------------------------------------------


def test_cancelling_is_final() -> None:
    """A cancelled watch hands out nothing more, not even what was queued, and cancelling again does nothing (R9)."""
    shell = start()
    w, other = watch(shell, Prefix(b"")), watch(shell, Prefix(b""))
    write(shell, b"a=1")
    shell.machine.cancel(w)
    shell.machine.cancel(w)
    write(shell, b"b=1")
    assert take(shell, w) == []
    assert isinstance(w.error, ClientClosedError)
    assert len(take(shell, other)) == 2
    assert shell.machine.count == 1


@pytest.mark.parametrize("progress", range(6))
def test_without_watches_nothing_is_left(progress: int) -> None:
    """The last watch ends the subscription at whatever point it is, and the next watch starts a new one (R10)."""
    shell = start(history(100))
    w = shell.machine.watch(Prefix(b""), after=0)
    shell.act()
    for _ in range(progress):
        shell.deliver(next(c for c, conversation in shell.conversations.items() if conversation.inbox))
    shell.machine.cancel(w)
    shell.act()
    assert not shell.conversations
    assert shell.sub is None
    assert shell.machine.count == 0
    assert shell.machine.next_deadline() is None
    assert not shell.leader.streams
    again = watch(shell, Prefix(b""), after=98)
    assert len(take(shell, again)) == 2


def test_closing_ends_all_watches() -> None:
    """Closing ends each watch and tells it, and later watches are refused."""
    shell = start()
    watches = [watch(shell, Prefix(b"")), watch(shell, Key(b"a"))]
    shell.others.clear()
    shell.machine.close()
    shell.act()
    assert shell.others == [WatchReady(w) for w in watches]
    assert all(isinstance(w.error, ClientClosedError) for w in watches)
    with pytest.raises(ClientClosedError):
        shell.machine.watch(Prefix(b""))


def test_a_question_that_fails_ends_the_watches_that_wait_for_it() -> None:
    """When the question for the log's end fails, the watches that wait for it end with its error."""
    shell = start()
    w = shell.machine.watch(Prefix(b""))
    shell.act()
    (call,) = shell.conversations
    del shell.conversations[call]
    shell.machine.failed(call, ProtocolError("broken"), 0.0)
    shell.act()
    assert isinstance(w.error, ProtocolError)
