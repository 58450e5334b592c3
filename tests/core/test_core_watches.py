"""Watches: KEYNOTIFY, the initial value, refusals, the order of versions, and what becomes of one that missed something
in an outage or because a broker lost notifications."""

from __future__ import annotations

from typing import Any

import pytest
from machine_driver import NOTIFICATIONS, MachineDriver, Notify, Publish
from watch_driver import (
    DELETED,
    GET,
    KEYNOTIFY,
    MISSING,
    OK,
    STOP,
    answer_all,
    event,
    keynotify,
    payloads,
    ts,
    value,
    version,
    was_set,
    watched,
)

from statestore_client.core.actions import EventKind, Subscribe, WatchEvent
from statestore_client.errors import (
    ClosedError,
    InvalidArgumentError,
    NotAuthorizedError,
    StateStoreError,
    TransportError,
)
from statestore_client.wire.commands import Get
from statestore_client.wire.messages import Connected, Subscribed

# -- beginning ---------------------------------------------------------------------------------------------------------


def test_a_watch_stands_when_keynotify_is_answered(driver: MachineDriver) -> None:
    """A watch subscribes, then sends KEYNOTIFY, tells its caller when that is answered, and reports changes."""
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


def test_the_initial_value_comes_without_a_gap(driver: MachineDriver) -> None:
    """The GET for the initial value is sent when the server notifies already, and no change is reported twice."""
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


def test_an_answer_older_than_a_notification_is_not_delivered(driver: MachineDriver) -> None:
    """A GET's answer that is older than a notification is not delivered, so versions ascend."""
    seen = watched(driver, initial=True)
    driver.notify(b"k", was_set(b"5"), str(version(5)))
    driver.notify(b"k", DELETED, str(version(6)))
    driver.answer(value(b"4"), ts(4))
    assert seen == [event(5, b"5"), event(6, None)]


@pytest.mark.parametrize("there", [True, False], ids=["there", "deleted"])
def test_an_answer_without_a_version_is_not_believed_against_a_notification(driver: MachineDriver, there: bool) -> None:
    """A GET that found nothing while a SET was notified is sent again, because its answer may be older or newer; when
    nothing was notified since, the second answer counts."""
    seen = watched(driver, initial=True)
    driver.notify(b"k", was_set(b"5"), str(version(5)))
    driver.answer(MISSING)
    assert seen == [event(5, b"5")]
    assert payloads(driver) == [GET]
    driver.answer(*((value(b"5"), ts(5)) if there else (MISSING,)))
    assert driver.outcome("watch") is None
    assert [(e.kind.value, e.value) for e in seen] == [("set", b"5")] + ([] if there else [("delete", None)])
    assert payloads(driver) == []


def test_many_watches_of_one_key_cost_one_keynotify(driver: MachineDriver) -> None:
    """Many watches cost one SUBSCRIBE, and those of one key one KEYNOTIFY. A later one stands at once, or after its own
    GET if it wants the value; what that GET finds is reported to the others as well, since its notification may still
    be on the way."""
    driver.watch(b"other", "other")
    one = driver.watch(b"k", "one")
    assert len(driver.subscribing) == 1
    driver.suback()
    assert payloads(driver) == [keynotify(b"other"), KEYNOTIFY]
    driver.answer(OK)
    driver.answer(OK)
    two = driver.watch(b"k", "two")
    assert driver.outcome("two") is None
    three = driver.watch(b"k", "three", initial=True)
    assert payloads(driver) == [GET]
    driver.answer(value(b"1"), ts(1))
    driver.notify(b"k", was_set(b"2"), str(version(2)))
    assert one == two == three == [event(1, b"1"), event(2, b"2")]


@pytest.mark.parametrize("begins", ["before CONNECT", "before SUBACK"])
def test_a_watch_that_begins_before_the_client_is_connected_is_not_forgotten(begins: str) -> None:
    """A watch that is started before the client is connected begins then; before CONNACK, its topic is subscribed to
    together with the response topic."""
    for initial in (False, True):
        driver = MachineDriver()
        if begins == "before CONNECT":
            driver.watch(b"k", "w", initial=initial)
        driver.open()
        driver.receive(Connected(False))
        assert len(driver.subscribing[0].topic_filters) == (2 if begins == "before CONNECT" else 1)
        if begins == "before SUBACK":
            driver.watch(b"k", "w", initial=initial)
        driver.suback()
        driver.answer(OK)
        if initial:
            driver.answer(MISSING)  # there is no initial value
        assert driver.outcome("w") is None
        assert not any(isinstance(action, Notify) for action in driver.actions)


# -- ending ------------------------------------------------------------------------------------------------------------


def test_the_last_watch_of_a_key_stops_the_notifications(driver: MachineDriver) -> None:
    """STOP is sent when the last watch of a key ends, and later notifications are dropped."""
    one, two = watched(driver), driver.watch(b"k", "again")
    assert not any(isinstance(a, Publish) for a in driver.unwatch(b"k", one))
    driver.unwatch(b"k", two)
    assert payloads(driver) == [STOP]
    driver.notify(b"k", was_set(b"1"), str(version(1)))
    assert one == two == []
    driver.unwatch(b"k", two)
    driver.answer(b"+OK\r\n")
    assert driver.on_the_wire == []


def test_an_answer_to_an_ended_watch_does_not_begin_the_next_one(driver: MachineDriver) -> None:
    """After watch, stop and watch again, only the answer to the second KEYNOTIFY lets the watch stand."""
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
    assert isinstance(driver.outcome("first"), ClosedError), "who waited for it to begin waits no longer"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda d: d.answer(b"-ERR not authorized\r\n"), NotAuthorizedError),
        (lambda d: d.puback(reason_code=0x87), NotAuthorizedError),
        (lambda d: d.puback(reason_code=0x97), TransportError),
        (lambda d: d.answer(b"nonsense"), StateStoreError),
    ],
)
def test_a_refused_watch_ends_with_the_error(driver: MachineDriver, answer: Any, kind: type) -> None:
    """A refused watch ends with its error, for the waiting caller and every observer, and is not tried again."""
    seen = driver.watch(b"k", "w")
    driver.suback()
    answer(driver)
    assert isinstance(driver.outcome("w"), kind)
    assert [type(e) for e in seen] == [type(driver.outcome("w"))]
    assert driver.on_the_wire == []
    driver.after(100)
    assert driver.on_the_wire == []


def test_a_refused_notification_topic_ends_the_watches_only(driver: MachineDriver) -> None:
    """A refused notification topic ends the watches only: requests go on, and a later watch tries again."""
    driver.watch(b"k", "w")
    driver.receive(Subscribed(driver.subscribing.pop().subscribe_id, (0x87,)))
    assert isinstance(driver.outcome("w"), NotAuthorizedError)
    driver.submit(Get(b"k"), "get")
    driver.answer(MISSING)
    assert driver.outcome("get") is None
    driver.watch(b"k", "again")
    driver.suback()
    driver.answer(OK)
    assert driver.outcome("again") is None


def test_a_watch_that_cannot_be_sent_fails_in_place() -> None:
    """A KEYNOTIFY beyond the broker's packet limit fails its watch, also after it waited in the queue."""
    driver = MachineDriver(max_in_flight=1).ready()
    driver.cut(maximum_packet_size=1000)
    request = driver.submit(Get(b"x"), "get")
    seen = driver.watch(b"k" * 2000, "w")
    driver.suback()
    driver.machine.request_table.cancel(request, driver.now)
    driver.take()
    assert isinstance(driver.outcome("w"), InvalidArgumentError)
    assert isinstance(seen[0], InvalidArgumentError)


def test_a_watch_step_without_an_answer_is_repeated() -> None:
    """While connected, a KEYNOTIFY or GET that times out is sent again."""
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
    driver.answer(MISSING)
    assert driver.outcome("w") is None


# -- versions ----------------------------------------------------------------------------------------------------------


def test_repeated_and_outdated_notifications_are_dropped(driver: MachineDriver) -> None:
    """Each version is delivered once, in ascending order; repeated and outdated notifications are dropped."""
    seen = watched(driver)
    for n in (1, 1, 3, 2, 3, 4):
        driver.notify(b"k", was_set(b"%d" % n), str(version(n)))
    assert seen == [event(n, b"%d" % n) for n in (1, 3, 4)]


def test_notifications_without_a_version_are_handed_on(driver: MachineDriver) -> None:
    """Notifications without a version, as servers after the document's examples send them, are all handed on."""
    seen = watched(driver)
    driver.notify(b"k", was_set(b"1"))
    driver.notify(b"k", b"*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n")
    assert [(e.kind, e.version) for e in seen] == [("set", None), ("delete", None)]


@pytest.mark.parametrize(
    "payload", [b"", b"nonsense", b"*2\r\n$6\r\nNOTIFY\r\n$4\r\nMOVE\r\n", b"*1\r\n$6\r\nNOTIFY\r\n"]
)
def test_notifications_that_cannot_be_read_are_counted(driver: MachineDriver, payload: bytes) -> None:
    """Notifications that cannot be read are counted and acknowledged."""
    seen = watched(driver)
    driver.notify(b"k", payload, str(version(1)))
    driver.notify(b"k", was_set(b"1"), "no version")
    assert seen == []
    assert driver.machine.request_table.stats.late_or_unknown_replies == 2
    assert driver.acknowledged[-2:] == [9, 9]


# -- outages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "answer", "expected"),
    [
        ("set", (value(b"1"), ts(1)), []),
        ("set", (value(b"2"), ts(2)), [event(2, b"2", missed=True)]),
        ("set", (MISSING,), [WatchEvent(EventKind.DELETE, b"k", None, None, True)]),
        ("deleted", (MISSING,), [WatchEvent(EventKind.DELETE, b"k", None, None, True)]),
        ("deleted", (value(b"2"), ts(2)), [event(2, b"2", missed=True)]),
        ("nothing", (MISSING,), [WatchEvent(EventKind.DELETE, b"k", None, None, True)]),
        ("nothing", (value(b"2"), ts(2)), [event(2, b"2", missed=True)]),
    ],
)
def test_after_an_outage_the_latest_state_comes_once(
    driver: MachineDriver, known: str, answer: Any, expected: list[WatchEvent]
) -> None:
    """After an outage the latest state is reported once, as missed if it changed or nobody can know."""
    seen = watched(driver)
    if known != "nothing":
        driver.notify(b"k", was_set(b"1") if known == "set" else DELETED, str(version(1)))
    seen.clear()
    driver.cut()
    assert payloads(driver) == [KEYNOTIFY]
    driver.answer(OK)
    assert payloads(driver) == [GET]
    driver.answer(*answer)
    assert seen == expected
    driver.notify(b"k", was_set(b"9"), str(version(9)))
    assert seen[len(expected) :] == [event(9, b"9")]


def test_a_live_event_before_the_get_is_answered_is_marked_instead(driver: MachineDriver) -> None:
    """A live event that comes before the GET is answered is marked as missed, being the first after the gap."""
    seen = watched(driver)
    driver.cut()
    driver.answer(OK)
    driver.notify(b"k", was_set(b"5"), str(version(5)))
    driver.answer(value(b"5"), ts(5))
    driver.notify(b"k", was_set(b"6"), str(version(6)))
    assert seen == [event(5, b"5", missed=True), event(6, b"6")]


def test_leftovers_of_the_old_connection_do_not_hide_the_gap(driver: MachineDriver) -> None:
    """The GET after an outage is sent even if the broker delivers old notifications again after the reconnect."""
    seen = watched(driver)
    driver.cut()
    driver.notify(b"k", was_set(b"1"), str(version(1)))
    driver.answer(OK)
    assert payloads(driver) == [GET]
    driver.answer(value(b"7"), ts(7))
    assert seen == [event(1, b"1"), event(7, b"7", missed=True)]


def test_leftovers_do_not_reach_a_watch_that_begins(driver: MachineDriver) -> None:
    """A new watch with ``initial`` begins with the current value, and not with an old notification delivered again."""
    first = watched(driver)
    driver.unwatch(b"k", first)
    driver.answer(OK)
    seen = driver.watch(b"k", "second", initial=True)
    driver.notify(b"k", was_set(b"1"), str(version(1)))
    driver.answer(OK)
    driver.answer(value(b"1"), ts(1))
    assert seen == [event(1, b"1")]


def test_an_answer_from_the_old_connection_does_not_count(driver: MachineDriver) -> None:
    """An "OK" to a KEYNOTIFY of the old connection, from the session or the cache, does not count: the server forgot
    it."""
    seen = driver.watch(b"k", "w")
    driver.suback()
    old = driver.on_the_wire[0]
    driver.puback()
    driver.cut()
    driver.reply(old, OK)
    assert driver.outcomes["w"] == []
    assert payloads(driver) == [KEYNOTIFY]
    driver.answer(OK)
    driver.answer(MISSING)
    assert driver.outcome("w") is None
    assert seen == []


@pytest.mark.parametrize("lost_at", ["keynotify", "get"])
@pytest.mark.parametrize("session_present", [True, False])
def test_an_outage_in_the_middle_of_beginning_begins_anew(
    driver: MachineDriver, lost_at: str, session_present: bool
) -> None:
    """An outage while KEYNOTIFY or GET is on the way makes the watch begin again, also when the session is lost."""
    seen = driver.watch(b"k", "w", initial=True)
    driver.suback()
    if lost_at == "get":
        driver.answer(OK)
    driver.cut(session_present=session_present)
    answer_all(driver, value(b"1"), ts(1))
    assert driver.outcome("w") is None
    assert seen == [event(1, b"1")]


def test_nothing_is_watched_after_unwatching_in_an_outage(driver: MachineDriver) -> None:
    """After a watch ends in an outage, neither STOP nor KEYNOTIFY is sent: the server forgets by itself."""
    seen = watched(driver)
    driver.lose()
    driver.unwatch(b"k", seen)
    actions = driver.reconnect()
    assert not any(isinstance(a, (Publish, Subscribe)) for a in actions)


def test_a_delete_with_the_version_of_the_last_set_is_delivered(driver: MachineDriver) -> None:
    """A deletion with the version of the deleted value, as the document has it, is delivered."""
    seen = watched(driver)
    driver.notify(b"k", was_set(b"1"), str(version(1)))
    driver.notify(b"k", DELETED, str(version(1)))
    driver.notify(b"k", DELETED, str(version(1)))
    assert [e.kind for e in seen] == ["set", "delete"]


def test_who_had_an_event_before_the_watch_stood_hears_of_the_state_after_an_outage(driver: MachineDriver) -> None:
    """A watch that got an event before it stood is told after an outage what changed meanwhile."""
    seen = watched(driver, "w", initial=True)
    driver.notify(b"k", was_set(b"2"), str(version(2)))
    driver.cut(session_present=False)
    answer_all(driver, value(b"3"), ts(3))
    assert [e.value for e in seen] == [b"2", b"3"]


def test_a_leftover_after_a_gap_that_was_never_closed_is_marked(driver: MachineDriver) -> None:
    """After two outages with the GET in between lost, what the second connection left over is marked as missed."""
    seen = watched(driver)
    driver.notify(b"k", was_set(b"1"), str(version(1)))
    driver.cut()
    driver.answer(OK)
    driver.cut()
    driver.notify(b"k", was_set(b"3"), str(version(3)))
    assert [(e.value, e.missed) for e in seen] == [(b"1", False), (b"3", True)]


# -- what else a watcher may ask for -----------------------------------------------------------------------------------


def test_a_watcher_hears_of_the_connection_if_it_asks(driver: MachineDriver) -> None:
    """A watch that asks for it gets SUSPENDED, the news, then RESUMED, once for an outage."""
    plain = watched(driver)
    told = driver.watch(b"k", "told", connection_events=True)
    driver.cut()
    driver.cut()
    driver.answer(OK)
    driver.answer(value(b"2"), ts(2))
    suspended, resumed = (WatchEvent(kind, b"k", None, None) for kind in (EventKind.SUSPENDED, EventKind.RESUMED))
    assert told == [suspended, event(2, b"2", missed=True), resumed]
    assert plain == [event(2, b"2", missed=True)]


def test_a_poll_finds_what_no_notification_told(driver: MachineDriver) -> None:
    """A GET at intervals finds what no notification told; news are marked as missed, old ones not told."""
    seen = watched(driver, poll=30.0)
    driver.after(1)  # that all was answered is looked at then
    assert driver.machine.next_deadline() == driver.time + 29
    driver.after(28)
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


SET_UNTOLD = b"*2\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n"


def test_a_set_that_is_told_without_its_value_is_read(driver: MachineDriver) -> None:
    """No event has a SET without a value: the key is read, and the event may stand for several changes. One that is
    known already is not read again."""
    seen = watched(driver)
    driver.notify(b"k", SET_UNTOLD, str(version(1)))
    assert payloads(driver) == [GET]
    assert seen == []
    driver.answer(value(b"1"), ts(1))
    driver.notify(b"k", SET_UNTOLD, str(version(1)))
    assert payloads(driver) == []
    assert seen == [event(1, b"1", missed=True)]


def test_a_set_that_is_told_without_its_value_while_the_key_is_read(driver: MachineDriver) -> None:
    """The answer on its way may be older: the key is read once more. Before the watch stands, nothing is owed."""
    seen = driver.watch(b"k", "watch", initial=True)
    driver.suback()
    driver.notify(b"k", SET_UNTOLD, str(version(1)))
    driver.answer(OK)
    driver.notify(b"k", SET_UNTOLD, str(version(2)))
    driver.notify(b"k", SET_UNTOLD, str(version(3)))
    assert payloads(driver) == [GET]
    driver.answer(value(b"1"), ts(1))
    assert payloads(driver) == [GET]
    driver.answer(value(b"3"), ts(3))
    assert payloads(driver) == []
    assert seen == [event(1, b"1"), event(3, b"3", missed=True)]


def test_a_poll_waits_for_the_connection(driver: MachineDriver) -> None:
    """While the link is down no poll is sent; after the reconnect the watch is read anyway."""
    watched(driver, poll=1.0)
    driver.lose()
    driver.after(5)
    assert payloads(driver) == []
    driver.connect(session_present=True)
    assert payloads(driver) == [KEYNOTIFY]


def test_a_version_from_the_far_future_does_not_silence_a_watch(driver: MachineDriver) -> None:
    """A version from the far future, counterfeit or of a broken clock, makes the client read the key instead."""
    seen = watched(driver)
    driver.notify(b"k", was_set(b"x"), f"{2**63 - 1}:0:evil")
    assert seen == []
    assert payloads(driver) == [GET]
    driver.answer(value(b"1"), ts(1))
    driver.notify(b"k", was_set(b"2"), str(version(2)))
    assert seen == [event(1, b"1", missed=True), event(2, b"2")]
