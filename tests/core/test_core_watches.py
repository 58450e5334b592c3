"""Watches: KEYNOTIFY, the initial value, what is missed in an outage, and the bounded queue."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_driver import NOTIFICATIONS, MachineDriver, Seen

from statestore_client.core.actions import EventKind, Publish, Subscribe, WatchEvent
from statestore_client.core.watches import EventQueue, Overflow
from statestore_client.errors import (
    ClosedError,
    ConnectionLostError,
    InvalidArgumentError,
    NotAuthorizedError,
    StateStoreError,
    TransportError,
    WatchOverflowError,
)
from statestore_client.wire.commands import Get
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.messages import Connected, Subscribed

# State store protocol, "KEYNOTIFY": the bytes of the commands and of the notifications.
KEYNOTIFY = b"*2\r\n$9\r\nKEYNOTIFY\r\n$1\r\nk\r\n"
STOP = b"*3\r\n$9\r\nKEYNOTIFY\r\n$1\r\nk\r\n$4\r\nSTOP\r\n"
GET = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
DELETED = b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"
OK = b"+OK\r\n"


def version(n: int) -> HlcTimestamp:
    return HlcTimestamp(1_700_000_000_000 + n, 0, "S")


def ts(n: int) -> tuple[str, str]:
    return ("__ts", str(version(n)))


def value(text: bytes) -> bytes:
    """The answer to a GET."""
    return b"$%d\r\n%s\r\n" % (len(text), text)


def was_set(text: bytes) -> bytes:
    """The notification of a SET."""
    return b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$%d\r\n%s\r\n" % (len(text), text)


def event(n: int, text: bytes | None, *, missed: bool = False) -> WatchEvent:
    kind = EventKind.DELETE if text is None else EventKind.SET
    return WatchEvent(kind, b"k", text, version(n), missed)


def payloads(driver: MachineDriver) -> list[bytes]:
    return [p.message.payload for p in driver.on_the_wire]


def watched(driver: MachineDriver, waiter: str = "watch", *, initial: bool = False) -> Seen:
    """A watch that stands; with ``initial``, its GET is still on the way."""
    seen = driver.watch(b"k", waiter, initial=initial)
    driver.suback()
    driver.answer(OK)
    return seen


# -- beginning ---------------------------------------------------------------------------------------------------------


def test_a_watch_stands_when_keynotify_is_answered() -> None:
    """First the topic, then KEYNOTIFY, then the caller is told; every change is handed on."""
    driver = MachineDriver().ready()
    seen = driver.watch(b"k", "w")
    assert driver.subscribing[0].topic_filters == (NOTIFICATIONS + "+",)
    assert payloads(driver) == []
    driver.suback()
    assert payloads(driver) == [KEYNOTIFY]
    assert driver.outcomes["w"] == []
    driver.answer(OK)
    assert driver.outcome("w") is None
    driver.notify(b"k", was_set(b"1"), str(version(1)))
    driver.notify(b"k", DELETED, str(version(2)))
    assert seen == [event(1, b"1"), event(2, None)]


def test_the_initial_value_comes_without_a_gap() -> None:
    """GET is sent when the server notifies already; a change in between is not delivered twice."""
    driver = MachineDriver().ready()
    seen = driver.watch(b"k", "w", initial=True)
    driver.suback()
    driver.answer(OK)
    assert payloads(driver) == [GET]
    assert driver.outcomes["w"] == []
    driver.notify(b"k", was_set(b"2"), str(version(2)))
    driver.answer(value(b"2"), ts(2))
    assert driver.outcome("w") is None
    driver.notify(b"k", was_set(b"3"), str(version(3)))
    assert seen == [event(2, b"2"), event(3, b"3")]


def test_an_answer_older_than_a_notification_is_not_delivered() -> None:
    """A broker may deliver the GET's answer late: versions still ascend."""
    driver = MachineDriver().ready()
    seen = watched(driver, initial=True)
    driver.notify(b"k", was_set(b"5"), str(version(5)))
    driver.notify(b"k", DELETED, str(version(6)))
    driver.answer(value(b"4"), ts(4))
    assert seen == [event(5, b"5"), event(6, None)]


def test_a_missing_key_has_no_initial_value() -> None:
    """The watch stands; nothing is delivered."""
    driver = MachineDriver().ready()
    seen = watched(driver, initial=True)
    driver.answer(b"$-1\r\n")
    assert driver.outcome("watch") is None
    assert seen == []


def test_many_watches_of_one_key_cost_one_keynotify() -> None:
    """Those that come later stand at once, or after a GET of their own if they want the value.

    What the GET finds is new to the others as well: its own notification may be on the way behind it.
    """
    driver = MachineDriver().ready()
    one = watched(driver)
    two = driver.watch(b"k", "two")
    assert driver.outcome("two") is None
    three = driver.watch(b"k", "three", initial=True)
    assert payloads(driver) == [GET]
    driver.answer(value(b"1"), ts(1))
    driver.notify(b"k", was_set(b"2"), str(version(2)))
    assert one == two == three == [event(1, b"1"), event(2, b"2")]


def test_watches_that_begin_together_share_the_subscription() -> None:
    """One SUBSCRIBE, one KEYNOTIFY for each key."""
    driver = MachineDriver(max_in_flight=100).ready()
    for i in range(10):
        driver.watch(b"%d" % i, i)
    assert len(driver.subscribing) == 1
    driver.suback()
    assert len(driver.on_the_wire) == 10


def test_a_watch_that_begins_while_subscribing_is_not_forgotten() -> None:
    """Asked for between CONNACK and SUBACK, it begins as soon as the client is connected."""
    for initial in (False, True):
        driver = MachineDriver()
        driver.open()
        driver.receive(Connected(False))
        driver.watch(b"k", "w", initial=initial)
        driver.suback()
        driver.answer(OK)
        if initial:
            driver.answer(b"$-1\r\n")
        assert driver.outcome("w") is None


def test_a_watch_of_a_client_that_is_not_connected_begins_later() -> None:
    """The notification topic is subscribed to together with the response topic."""
    driver = MachineDriver()
    driver.watch(b"k", "w")
    driver.open()
    driver.receive(Connected(False))
    assert len(driver.subscribing[0].topic_filters) == 2
    driver.suback()
    driver.answer(OK)
    assert driver.outcome("w") is None


# -- ending ------------------------------------------------------------------------------------------------------------


def test_the_last_watch_of_a_key_stops_the_notifications() -> None:
    """STOP is sent for the last one only; what still comes is dropped."""
    driver = MachineDriver().ready()
    one, two = watched(driver), watched_again(driver)
    assert not any(isinstance(a, Publish) for a in driver.unwatch(b"k", one))
    driver.unwatch(b"k", two)
    assert payloads(driver) == [STOP]
    driver.notify(b"k", was_set(b"1"), str(version(1)))
    assert one == two == []
    driver.unwatch(b"k", two)
    driver.answer(b"+OK\r\n")
    assert driver.on_the_wire == []


def watched_again(driver: MachineDriver) -> Seen:
    return driver.watch(b"k", "again")


def test_an_answer_to_an_ended_watch_does_not_begin_the_next_one() -> None:
    """Watch, stop, watch again: only the second KEYNOTIFY's answer means that no change can be missed."""
    driver = MachineDriver().ready()
    first = driver.watch(b"k", "first")
    driver.suback()
    driver.unwatch(b"k", first)
    driver.watch(b"k", "second")
    assert payloads(driver) == [KEYNOTIFY, STOP, KEYNOTIFY]
    driver.answer(OK)
    driver.answer(OK)
    assert driver.outcomes["second"] == []
    driver.answer(OK)
    assert driver.outcome("second") is None
    assert driver.outcomes["first"] == []


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda d: d.answer(b"-ERR not authorized\r\n"), NotAuthorizedError),
        (lambda d: d.puback(reason_code=0x87), NotAuthorizedError),
        (lambda d: d.puback(reason_code=0x97), TransportError),
        (lambda d: d.answer(b"nonsense"), StateStoreError),
    ],
)
def test_a_refused_watch_ends_with_the_error(answer: Any, kind: type) -> None:
    """For the caller who waits, and for every observer; it is not tried again."""
    driver = MachineDriver().ready()
    seen = driver.watch(b"k", "w")
    driver.suback()
    answer(driver)
    assert isinstance(driver.outcome("w"), kind)
    assert [type(e) for e in seen] == [type(driver.outcome("w"))]
    assert driver.on_the_wire == []
    driver.after(100)
    assert driver.on_the_wire == []


def test_a_refused_notification_topic_ends_the_watches_only() -> None:
    """The client goes on with requests, and a later watch asks again."""
    driver = MachineDriver().ready()
    driver.watch(b"k", "w")
    driver.receive(Subscribed(driver.subscribing.pop().subscribe_id, (0x87,)))
    assert isinstance(driver.outcome("w"), NotAuthorizedError)
    driver.submit(Get(b"k"), "get")
    driver.answer(b"$-1\r\n")
    assert driver.outcome("get") is None
    driver.watch(b"k", "again")
    driver.suback()
    driver.answer(OK)
    assert driver.outcome("again") is None


def test_a_watch_that_cannot_be_sent_fails_in_place() -> None:
    """KEYNOTIFY beyond the broker's packet limit, also when it waited in the queue."""
    driver = MachineDriver(max_in_flight=1).ready()
    driver.lose()
    driver.reconnect(maximum_packet_size=1000)
    request = driver.submit(Get(b"x"), "get")
    seen = driver.watch(b"k" * 2000, "w")
    driver.suback()
    driver.machine.cancel(request, driver.now)
    driver.take()
    assert isinstance(driver.outcome("w"), InvalidArgumentError)
    assert isinstance(seen[0], InvalidArgumentError)


def test_a_watch_step_without_an_answer_is_repeated() -> None:
    """While connected, KEYNOTIFY and GET are sent again when they time out."""
    driver = MachineDriver(request_timeout=2.0).ready()
    driver.watch(b"k", "w", initial=True)
    driver.suback()
    driver.puback()
    driver.after(2)
    assert payloads(driver) == [KEYNOTIFY]
    driver.answer(OK)
    driver.puback()
    driver.after(2)
    assert payloads(driver) == [GET]
    driver.answer(b"$-1\r\n")
    assert driver.outcome("w") is None


def test_closing_ends_every_watch() -> None:
    """Those that wait are rejected, all are told."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    waiting = driver.watch(b"other", "waiting")
    driver.close()
    assert isinstance(driver.outcome("waiting"), ClosedError)
    assert isinstance(seen[0], ClosedError)
    assert isinstance(waiting[0], ClosedError)


# -- versions ----------------------------------------------------------------------------------------------------------


def test_repeated_and_outdated_notifications_are_dropped() -> None:
    """Each version once, in ascending order."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    for n in (1, 1, 3, 2, 3, 4):
        driver.notify(b"k", was_set(b"%d" % n), str(version(n)))
    assert seen == [event(n, b"%d" % n) for n in (1, 3, 4)]


def test_notifications_without_a_version_are_handed_on() -> None:
    """Servers written from the document's examples leave it away; nothing can be told apart then."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    driver.notify(b"k", was_set(b"1"))
    driver.notify(b"k", b"*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n")
    assert [(e.kind, e.version) for e in seen] == [("set", None), ("delete", None)]


@pytest.mark.parametrize(
    "payload", [b"", b"nonsense", b"*2\r\n$6\r\nNOTIFY\r\n$4\r\nMOVE\r\n", b"*1\r\n$6\r\nNOTIFY\r\n"]
)
def test_notifications_that_cannot_be_read_are_counted(payload: bytes) -> None:
    """And acknowledged."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    driver.notify(b"k", payload, str(version(1)))
    driver.notify(b"k", was_set(b"1"), "no version")
    assert seen == []
    assert driver.machine.exchange.stats.late_or_unknown_replies == 2
    assert driver.acknowledged[-2:] == [9, 9]


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
    """Marked as missed, if it changed or if nobody can know; live events are not marked."""
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
    """It is the first event after the gap."""
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
    """What the broker delivers again after a reconnect is older than the outage: the GET is still needed."""
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
    """A new watch with ``initial`` begins with the current value, not with what an earlier one left behind."""
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
    """The server forgot that KEYNOTIFY, although its answer, from the session or the cache, says OK."""
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
    """Whether KEYNOTIFY or GET was on the way; also when the session is lost."""
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
    """The server forgets by itself: no STOP, no KEYNOTIFY."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    driver.lose()
    driver.unwatch(b"k", seen)
    actions = driver.reconnect()
    assert not any(isinstance(a, (Publish, Subscribe)) for a in actions)


# -- the queue ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["push", "pop"]), max_size=60), st.integers(1, 5), st.sampled_from(["latest", "error"]))
def test_the_queue_keeps_its_bound_and_tells_of_every_gap(script: list[str], limit: int, overflow: Overflow) -> None:
    """Against a list without a bound: what comes out is in order, and each gap is marked or is the error."""
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
    """And again each time, as a copy; nothing is taken in any more."""
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
    """A server that follows the document notifies of a deletion with the version of the deleted value."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    driver.notify(b"k", was_set(b"1"), str(version(1)))
    driver.notify(b"k", DELETED, str(version(1)))
    driver.notify(b"k", DELETED, str(version(1)))
    assert [e.kind for e in seen] == ["set", "delete"]


def test_who_had_an_event_before_the_watch_stood_hears_of_the_state_after_an_outage() -> None:
    """A live event overtakes the first GET, the link breaks: the next GET tells what changed meanwhile."""
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
    """Two outages, the GET in between lost: what the second connection left over is marked as missed."""
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
    """SUSPENDED when the link breaks, the news, then RESUMED; nobody else hears of it, and an outage is told once."""
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
    """Every so many seconds a GET; news are marked as missed, the known is not repeated."""
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
    """While the link is down nothing is read; after it the watch is read anyway."""
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
    """It takes what comes and says when it is full and when it has room."""
    queue = EventQueue(limit=2, overflow="block")
    for n in range(3):
        assert queue.has_room is (n < 2)
        queue.push(event(n, b"x"))
    assert not queue.has_room
    assert [queue.pop() for _ in range(2)] == [event(0, b"x"), event(1, b"x")]
    assert queue.has_room
    assert queue.pop() == event(2, b"x")


def test_a_version_from_the_far_future_does_not_silence_a_watch() -> None:
    """Such a notification, counterfeit or from a broken clock, makes the client read the key instead."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    driver.notify(b"k", was_set(b"x"), f"{2**63 - 1}:0:evil")
    assert seen == []
    assert payloads(driver) == [GET]
    driver.answer(value(b"1"), ts(1))
    driver.notify(b"k", was_set(b"2"), str(version(2)))
    assert seen == [event(1, b"1", missed=True), event(2, b"2")]
