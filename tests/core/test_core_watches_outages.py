"""Watches that missed something: in an outage, in a full queue, or because a broker lost notifications."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_driver import MachineDriver
from watch_driver import DELETED, GET, KEYNOTIFY, OK, event, payloads, ts, value, version, was_set, watched

from statestore_client.core.actions import EventKind, Publish, Subscribe, WatchEvent
from statestore_client.core.event_queue import EventQueue, Overflow
from statestore_client.errors import (
    ClosedError,
    ConnectionLostError,
    WatchOverflowError,
)

# -- outages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "answer", "expected"),
    [
        ("set", (value(b"1"), ts(1)), []),
        ("set", (value(b"2"), ts(2)), [event(2, b"2", missed=True)]),
        ("set", (b"$-1\r\n",), [WatchEvent(EventKind.DELETE, b"k", None, None, True)]),
        ("deleted", (b"$-1\r\n",), [WatchEvent(EventKind.DELETE, b"k", None, None, True)]),
        ("deleted", (value(b"2"), ts(2)), [event(2, b"2", missed=True)]),
        ("nothing", (b"$-1\r\n",), [WatchEvent(EventKind.DELETE, b"k", None, None, True)]),
        ("nothing", (value(b"2"), ts(2)), [event(2, b"2", missed=True)]),
    ],
)
def test_after_an_outage_the_latest_state_comes_once(known: str, answer: Any, expected: list[WatchEvent]) -> None:
    """After an outage the latest state is reported once, marked as missed if it changed or nobody can know; live events
    are not."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    if known != "nothing":
        driver.notify(b"k", was_set(b"1") if known == "set" else DELETED, str(version(1)))
    seen.clear()
    driver.lose()
    driver.reconnect()
    assert payloads(driver) == [KEYNOTIFY]
    driver.answer(OK)
    assert payloads(driver) == [GET]
    driver.answer(*answer)
    assert seen == expected
    driver.notify(b"k", was_set(b"9"), str(version(9)))
    assert seen[len(expected) :] == [event(9, b"9")]


def test_a_live_event_before_the_get_is_answered_is_marked_instead() -> None:
    """A live event that comes before the GET is answered is marked as missed, being the first after the gap."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    driver.lose()
    driver.reconnect()
    driver.answer(OK)
    driver.notify(b"k", was_set(b"5"), str(version(5)))
    driver.answer(value(b"5"), ts(5))
    driver.notify(b"k", was_set(b"6"), str(version(6)))
    assert seen == [event(5, b"5", missed=True), event(6, b"6")]


def test_leftovers_of_the_old_connection_do_not_hide_the_gap() -> None:
    """The GET after an outage is sent even if the broker delivers old notifications again after the reconnect."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    driver.lose()
    driver.reconnect()
    driver.notify(b"k", was_set(b"1"), str(version(1)))
    driver.answer(OK)
    assert payloads(driver) == [GET]
    driver.answer(value(b"7"), ts(7))
    assert seen == [event(1, b"1"), event(7, b"7", missed=True)]


def test_leftovers_do_not_reach_a_watch_that_begins() -> None:
    """A new watch with ``initial`` begins with the current value, and not with an old notification delivered again."""
    driver = MachineDriver().ready()
    first = watched(driver)
    driver.unwatch(b"k", first)
    driver.answer(OK)
    seen = driver.watch(b"k", "second", initial=True)
    driver.notify(b"k", was_set(b"1"), str(version(1)))
    driver.answer(OK)
    driver.answer(value(b"1"), ts(1))
    assert seen == [event(1, b"1")]


def test_an_answer_from_the_old_connection_does_not_count() -> None:
    """An "OK" to a KEYNOTIFY of the old connection, from the session or the cache, does not count: the server forgot
    it."""
    driver = MachineDriver().ready()
    seen = driver.watch(b"k", "w")
    driver.suback()
    old = driver.on_the_wire[0]
    driver.puback()
    driver.lose()
    driver.reconnect()
    driver.reply(old, OK)
    assert driver.outcomes["w"] == []
    assert payloads(driver) == [KEYNOTIFY]
    driver.answer(OK)
    driver.answer(b"$-1\r\n")
    assert driver.outcome("w") is None
    assert seen == []


def test_an_outage_in_the_middle_of_beginning_begins_anew() -> None:
    """An outage while KEYNOTIFY or GET is on the way makes the watch begin again, also when the session is lost."""
    for lost_at in ("keynotify", "get"):
        for session_present in (True, False):
            driver = MachineDriver().ready()
            seen = driver.watch(b"k", "w", initial=True)
            driver.suback()
            if lost_at == "get":
                driver.answer(OK)
            driver.lose()
            driver.reconnect(session_present=session_present)
            while driver.on_the_wire:
                keynotify = driver.on_the_wire[0].message.payload == KEYNOTIFY
                driver.answer(OK) if keynotify else driver.answer(value(b"1"), ts(1))
            assert driver.outcome("w") is None
            assert seen == [event(1, b"1")]


def test_nothing_is_watched_after_unwatching_in_an_outage() -> None:
    """After a watch ends in an outage, neither STOP nor KEYNOTIFY is sent: the server forgets by itself."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    driver.lose()
    driver.unwatch(b"k", seen)
    actions = driver.reconnect()
    assert not any(isinstance(a, (Publish, Subscribe)) for a in actions)


# -- the queue ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["push", "pop"]), max_size=60), st.integers(1, 5), st.sampled_from(["latest", "error"]))
def test_the_queue_keeps_its_bound_and_tells_of_every_gap(script: list[str], limit: int, overflow: Overflow) -> None:
    """A bounded queue hands events out in order, and each gap is marked or is the error, as a list without a bound
    confirms."""
    queue = EventQueue(limit=limit, overflow=overflow)
    pushed, expected_next, failed = 0, 0, False
    for step in script:
        if step == "push":
            failed = failed or (overflow == "error" and len(queue) == limit)
            queue.push(event(pushed, b"%d" % pushed))
            pushed += 1
            assert len(queue) <= limit
            continue
        try:
            popped = queue.pop()
        except WatchOverflowError:
            assert failed
            assert len(queue) == 0
            continue
        if popped is None:
            assert not failed
            assert expected_next == pushed
            continue
        n = int(popped.value or b"")
        assert popped.missed == (n > expected_next)
        expected_next = n + 1
    if overflow == "latest" and pushed:
        while (popped := queue.pop()) is not None:
            last = popped
        assert pushed - expected_next == 0 or last.value == b"%d" % (pushed - 1)


def test_an_error_comes_after_the_events_before_it() -> None:
    """An error comes after the events before it, and again at each later call as a copy; no event is accepted after
    it."""
    queue = EventQueue(limit=5, overflow="latest")
    error = ConnectionLostError("gone")
    queue.push(event(1, b"1"))
    queue.push(error)
    queue.push(event(2, b"2"))
    queue.push(ClosedError("later"))
    assert queue.pop() == event(1, b"1")
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="gone") as caught:
            queue.pop()
        assert caught.value is not error


def test_a_delete_with_the_version_of_the_last_set_is_delivered() -> None:
    """A deletion with the version of the deleted value, as the document has it, is delivered."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    driver.notify(b"k", was_set(b"1"), str(version(1)))
    driver.notify(b"k", DELETED, str(version(1)))
    driver.notify(b"k", DELETED, str(version(1)))
    assert [e.kind for e in seen] == ["set", "delete"]


def test_who_had_an_event_before_the_watch_stood_hears_of_the_state_after_an_outage() -> None:
    """A watch that got an event before it stood is told after an outage what changed meanwhile."""
    driver = MachineDriver().ready()
    seen = driver.watch(b"k", "w", initial=True)
    driver.suback()
    driver.answer(OK)
    driver.notify(b"k", was_set(b"2"), str(version(2)))
    driver.lose()
    driver.reconnect(session_present=False)
    while driver.on_the_wire:
        if b"KEYNOTIFY" in driver.on_the_wire[0].message.payload:
            driver.answer(OK)
        else:
            driver.answer(value(b"3"), ts(3))
    assert [e.value for e in seen] == [b"2", b"3"]


def test_a_leftover_after_a_gap_that_was_never_closed_is_marked() -> None:
    """After two outages with the GET in between lost, what the second connection left over is marked as missed."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    driver.notify(b"k", was_set(b"1"), str(version(1)))
    driver.lose()
    driver.reconnect()
    driver.answer(OK)
    driver.lose()
    driver.reconnect()
    driver.notify(b"k", was_set(b"3"), str(version(3)))
    assert [(e.value, e.missed) for e in seen] == [(b"1", False), (b"3", True)]


# -- what else a watcher may ask for -----------------------------------------------------------------------------------


def test_a_watcher_hears_of_the_connection_if_it_asks() -> None:
    """A watch that asks for it gets SUSPENDED, the news, then RESUMED, once for an outage; the others get only the
    news."""
    driver = MachineDriver().ready()
    plain = watched(driver)
    told = driver.watch(b"k", "told", connection_events=True)
    driver.lose()
    driver.reconnect()
    driver.lose()
    driver.reconnect()
    driver.answer(OK)
    driver.answer(value(b"2"), ts(2))
    suspended, resumed = (WatchEvent(kind, b"k", None, None) for kind in (EventKind.SUSPENDED, EventKind.RESUMED))
    assert told == [suspended, event(2, b"2", missed=True), resumed]
    assert plain == [event(2, b"2", missed=True)]


def test_a_poll_finds_what_no_notification_told() -> None:
    """A GET at intervals finds what no notification told; news are marked as missed, and a known value is not
    repeated."""
    driver = MachineDriver().ready()
    seen = driver.watch(b"k", "watch", poll=30.0)
    driver.suback()
    driver.answer(OK)
    assert driver.machine.next_deadline() == driver.time + 30
    driver.after(29)
    assert payloads(driver) == []
    driver.after(1)
    driver.answer(value(b"1"), ts(1))
    assert seen == [event(1, b"1", missed=True)]
    driver.after(30)
    driver.answer(value(b"1"), ts(1))
    driver.notify(b"k", was_set(b"2"), str(version(2)))
    assert seen == [event(1, b"1", missed=True), event(2, b"2")]
    driver.unwatch(b"k", seen)
    driver.answer(OK)
    driver.after(60)
    assert payloads(driver) == []


def test_a_poll_waits_for_the_connection() -> None:
    """While the link is down no poll is sent; after the reconnect the watch is read anyway."""
    driver = MachineDriver().ready()
    driver.watch(b"k", "watch", poll=1.0)
    driver.suback()
    driver.answer(OK)
    driver.lose()
    driver.after(5)
    assert payloads(driver) == []
    driver.connect(session_present=True)
    assert payloads(driver) == [KEYNOTIFY]


def test_a_blocking_queue_loses_nothing() -> None:
    """A blocking queue accepts every event and says when it is full and when it has room."""
    queue = EventQueue(limit=2, overflow="block")
    for n in range(3):
        assert queue.has_room is (n < 2)
        queue.push(event(n, b"x"))
    assert not queue.has_room
    assert [queue.pop() for _ in range(2)] == [event(0, b"x"), event(1, b"x")]
    assert queue.has_room
    assert queue.pop() == event(2, b"x")


def test_a_version_from_the_far_future_does_not_silence_a_watch() -> None:
    """A version from the far future, counterfeit or of a broken clock, is not delivered and makes the client read the
    key."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    driver.notify(b"k", was_set(b"x"), f"{2**63 - 1}:0:evil")
    assert seen == []
    assert payloads(driver) == [GET]
    driver.answer(value(b"1"), ts(1))
    driver.notify(b"k", was_set(b"2"), str(version(2)))
    assert seen == [event(1, b"1", missed=True), event(2, b"2")]


def test_a_blocked_queue_has_an_end_as_well() -> None:
    """A blocking queue ends at its own limit, because with QoS 0 a broker can send without end."""
    queue = EventQueue(limit=2, overflow="block")
    for number in range(65_537):
        queue.push(event(number, b"x"))
    assert queue.error is None
    queue.push(event(65_537, b"x"))
    assert isinstance(queue.error, WatchOverflowError)
    assert len(queue) == 65_537
