"""Watches: KEYNOTIFY, the initial value, refusals, and the order of versions."""

from __future__ import annotations

from typing import Any

import pytest
from machine_driver import NOTIFICATIONS, MachineDriver, Seen
from watch_driver import DELETED, GET, KEYNOTIFY, OK, STOP, event, payloads, ts, value, version, was_set, watched

from statestore_client.core.actions import Publish
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


def test_a_watch_stands_when_keynotify_is_answered() -> None:
    """A watch subscribes, then sends KEYNOTIFY, and tells its caller when that is answered; then it reports every
    change."""
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
    """The GET for the initial value is sent when the server notifies already, and no change is reported twice."""
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
    """A GET's answer that is older than a notification is not delivered, so versions ascend."""
    driver = MachineDriver().ready()
    seen = watched(driver, initial=True)
    driver.notify(b"k", was_set(b"5"), str(version(5)))
    driver.notify(b"k", DELETED, str(version(6)))
    driver.answer(value(b"4"), ts(4))
    assert seen == [event(5, b"5"), event(6, None)]


def test_an_answer_without_a_version_is_not_believed_against_a_notification() -> None:
    """A GET that found nothing while a SET was notified is sent again, because its answer may be older or newer."""
    driver = MachineDriver().ready()
    seen = watched(driver, initial=True)
    driver.notify(b"k", was_set(b"5"), str(version(5)))
    driver.answer(b"$-1\r\n")
    assert seen == [event(5, b"5")]
    assert payloads(driver) == [GET]
    driver.answer(value(b"5"), ts(5))
    assert driver.outcome("watch") is None
    assert seen == [event(5, b"5")]


def test_a_key_that_was_deleted_behind_a_notification_is_gone() -> None:
    """The second answer that a key is missing, with no notification since its question, is reported as a deletion."""
    driver = MachineDriver().ready()
    seen = watched(driver, initial=True)
    driver.notify(b"k", was_set(b"5"), str(version(5)))
    driver.answer(b"$-1\r\n")
    driver.answer(b"$-1\r\n")
    assert driver.outcome("watch") is None
    assert [(e.kind.value, e.value) for e in seen] == [("set", b"5"), ("delete", None)]
    assert payloads(driver) == []


def test_a_missing_key_has_no_initial_value() -> None:
    """A watch on a missing key stands and delivers nothing."""
    driver = MachineDriver().ready()
    seen = watched(driver, initial=True)
    driver.answer(b"$-1\r\n")
    assert driver.outcome("watch") is None
    assert seen == []


def test_many_watches_of_one_key_cost_one_keynotify() -> None:
    """Many watches of one key cost one KEYNOTIFY. A later one stands at once, or after its own GET if it wants the
    value; what that GET finds is reported to the others as well, since its notification may still be on the way."""
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
    """Watches that begin together share one SUBSCRIBE, and each key has one KEYNOTIFY."""
    driver = MachineDriver(max_in_flight=100).ready()
    for i in range(10):
        driver.watch(b"%d" % i, i)
    assert len(driver.subscribing) == 1
    driver.suback()
    assert len(driver.on_the_wire) == 10


def test_a_watch_that_begins_while_subscribing_is_not_forgotten() -> None:
    """A watch that is started between CONNACK and SUBACK begins as soon as the client is connected."""
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
    """A watch started while not connected begins later: its topic is subscribed to together with the response topic."""
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
    """STOP is sent when the last watch of a key ends, and later notifications are dropped."""
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
    """After watch, stop and watch again, only the answer to the second KEYNOTIFY lets the watch stand."""
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
def test_a_refused_watch_ends_with_the_error(answer: Any, kind: type) -> None:
    """A refused watch ends with its error, for the waiting caller and every observer, and is not tried again."""
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
    """A refused notification topic ends the watches only: requests go on, and a later watch tries again."""
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
    """A KEYNOTIFY beyond the broker's packet limit fails its watch, also after it waited in the queue."""
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
    driver.answer(b"$-1\r\n")
    assert driver.outcome("w") is None


def test_closing_ends_every_watch() -> None:
    """Closing ends every watch: waiting callers are rejected, and all observers are told."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    waiting = driver.watch(b"other", "waiting")
    driver.close()
    assert isinstance(driver.outcome("waiting"), ClosedError)
    assert isinstance(seen[0], ClosedError)
    assert isinstance(waiting[0], ClosedError)


# -- versions ----------------------------------------------------------------------------------------------------------


def test_repeated_and_outdated_notifications_are_dropped() -> None:
    """Each version is delivered once, in ascending order; repeated and outdated notifications are dropped."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    for n in (1, 1, 3, 2, 3, 4):
        driver.notify(b"k", was_set(b"%d" % n), str(version(n)))
    assert seen == [event(n, b"%d" % n) for n in (1, 3, 4)]


def test_notifications_without_a_version_are_handed_on() -> None:
    """Notifications without a version, as servers after the document's examples send them, are all handed on."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    driver.notify(b"k", was_set(b"1"))
    driver.notify(b"k", b"*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n")
    assert [(e.kind, e.version) for e in seen] == [("set", None), ("delete", None)]


@pytest.mark.parametrize(
    "payload", [b"", b"nonsense", b"*2\r\n$6\r\nNOTIFY\r\n$4\r\nMOVE\r\n", b"*1\r\n$6\r\nNOTIFY\r\n"]
)
def test_notifications_that_cannot_be_read_are_counted(payload: bytes) -> None:
    """Notifications that cannot be read are counted and acknowledged."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    driver.notify(b"k", payload, str(version(1)))
    driver.notify(b"k", was_set(b"1"), "no version")
    assert seen == []
    assert driver.machine.exchange.stats.late_or_unknown_replies == 2
    assert driver.acknowledged[-2:] == [9, 9]
