"""Watches on prefixes: which keys are listed, watched and let go, what is told of them, and what ends a watch."""

from __future__ import annotations

import pytest
from machine_driver import MachineDriver
from watch_driver import (
    DELETED,
    MISSING,
    OK,
    begin,
    error_of,
    get,
    keynotify,
    page,
    payloads,
    prefix_watched,
    scan,
    stop,
    told,
    ts,
    value,
    version,
    was_set,
)

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.errors import (
    ClosedError,
    InvalidArgumentError,
    NotAuthorizedError,
    QuotaExceededError,
    RequestSyntaxError,
    TooManyKeysError,
    UnexpectedReplyError,
    UnknownCommandError,
)
from statestore_client.wire.commands import Get

# -- beginning ---------------------------------------------------------------------------------------------------------


def test_a_prefix_is_listed_and_each_of_its_keys_watched(driver: MachineDriver) -> None:
    """A watch on a prefix subscribes, lists with SCAN page by page, watches and reads each key, and only then tells its
    caller; values that were there before are not reported."""
    seen = driver.watch_prefix(b"a/", "w")
    assert payloads(driver) == []
    driver.suback()
    assert payloads(driver) == [scan(b"a/*")]
    driver.answer(page([b"a/1"], b"more"))
    assert payloads(driver) == [scan(b"a/*", b"more"), keynotify(b"a/1")]
    driver.answer(page([b"a/2"]))
    assert payloads(driver) == [keynotify(b"a/1"), keynotify(b"a/2")]
    driver.answer(OK)
    driver.answer(OK)
    assert payloads(driver) == [get(b"a/1"), get(b"a/2")]
    driver.answer(value(b"0"), ts(0))
    assert driver.outcomes["w"] == []
    driver.answer(value(b"0"), ts(0))
    assert driver.outcome("w") is None
    driver.notify(b"a/2", was_set(b"x"), str(version(1)))
    driver.notify(b"a/1", DELETED, str(version(2)))
    assert seen == [told(b"a/2", 1, b"x"), told(b"a/1", 2, None)]
    assert payloads(driver) == []


@pytest.mark.parametrize(
    ("prefix", "pattern"),
    [(b"", b"*"), (b"a*b?c[d]/", b"a[*]b[?]c[[]d]/*"), ("ü!-^\\".encode(), "ü!-^\\*".encode()), (b"*", b"[*]*")],
)
def test_a_prefix_is_literal(driver: MachineDriver, prefix: bytes, pattern: bytes) -> None:
    """A prefix is literal: characters with a meaning in patterns are put into brackets."""
    driver.watch_prefix(prefix, "w")
    driver.suback()
    assert payloads(driver) == [scan(pattern)]


def test_initial_values_come_first_and_without_a_gap(driver: MachineDriver) -> None:
    """The GET for an initial value is sent when the server notifies already, and nothing is told twice."""
    seen = begin(driver, initial=True)
    driver.answer(page([b"a/1", b"a/2", b"a/3"]))
    for _ in range(3):
        driver.answer(OK)
    assert payloads(driver) == [get(b"a/1"), get(b"a/2"), get(b"a/3")]
    driver.notify(b"a/1", was_set(b"new"), str(version(5)))
    driver.answer(value(b"new"), ts(5))
    driver.answer(value(b"2"), ts(2))
    assert driver.outcomes["w"] == []
    driver.answer(MISSING)  # deleted before it was watched
    assert driver.outcome("w") is None
    assert seen == [told(b"a/1", 5, b"new"), told(b"a/2", 2, b"2")]


def test_thousands_of_keys_go_through_the_window() -> None:
    """A watch on thousands of keys keeps to the window, and users' requests overtake the keys to come."""
    driver = MachineDriver(max_in_flight=8).ready()
    seen = begin(driver, initial=True, max_keys=2_000)
    keys = [b"a/%05d" % n for n in range(2_000)]
    driver.answer(page(keys[:1_000], b"more"))
    driver.submit(Get(b"k"), "user")
    most, answered = 0, 0
    while driver.on_the_wire:
        most = max(most, len(driver.on_the_wire), driver.machine.request_table.pending)
        payload = driver.on_the_wire[0].message.payload
        if b"SCAN" in payload:
            driver.answer(page(keys[1_000:]))
        else:
            driver.answer(OK if b"KEYNOTIFY" in payload else value(b"v"), ts(1))
        answered += 1
        if not driver.outcomes["user"]:
            assert answered < 24
    assert driver.outcome("w") is None
    assert most <= 8 + 2
    assert [event.key for event in seen if isinstance(event, WatchEvent)] == keys
    driver.unwatch(b"a/", seen)
    stopped = 0
    while driver.on_the_wire:
        assert len(driver.on_the_wire) <= 8
        assert driver.on_the_wire[0].message.payload.endswith(b"STOP\r\n")
        driver.answer(OK)
        stopped += 1
    assert stopped == 2_000


# -- keys that come and go ---------------------------------------------------------------------------------------------


def test_a_new_key_is_found_by_the_next_listing(driver: MachineDriver) -> None:
    """A new key that a listing finds is marked as missed, since it may have had earlier values."""
    seen = prefix_watched(driver, b"a/1")
    driver.after(9.9)
    assert payloads(driver) == []
    driver.after(0.1)
    assert payloads(driver) == [scan(b"a/*")]
    driver.answer(page([b"a/1", b"a/2"]))
    assert payloads(driver) == [keynotify(b"a/2")]
    driver.answer(OK)
    driver.answer(value(b"x"), ts(1))
    driver.notify(b"a/2", was_set(b"y"), str(version(2)))
    assert seen == [told(b"a/2", 1, b"x", missed=True), told(b"a/2", 2, b"y")]
    driver.after(10)
    assert payloads(driver) == [scan(b"a/*")]


@pytest.mark.parametrize("order", ["notified, then read", "gone when read, then notified"])
def test_a_new_key_that_is_notified_of_as_it_is_read_is_marked_once(driver: MachineDriver, order: str) -> None:
    """A watch on a prefix without keys stands at once; a new key whose notification overtakes its GET, or that is gone
    when it is read and comes back, is told of once and marked as missed."""
    seen = prefix_watched(driver)
    driver.after(10)
    driver.answer(page([b"a/2"]))
    driver.answer(OK)
    if order.startswith("gone"):
        driver.answer(MISSING)
        assert seen == []
    driver.notify(b"a/2", was_set(b"y"), str(version(2)))
    if driver.on_the_wire:
        driver.answer(value(b"x"), ts(1))
    assert seen == [told(b"a/2", 2, b"y", missed=True)]


def test_a_deleted_key_is_let_go_by_a_listing_without_it(driver: MachineDriver) -> None:
    """A deleted key is watched until a listing comes without it, so that its return is seen at once."""
    seen = prefix_watched(driver, b"a/1", b"a/2")
    driver.notify(b"a/1", DELETED, str(version(1)))
    driver.notify(b"a/1", was_set(b"x"), str(version(2)))
    driver.notify(b"a/2", DELETED, str(version(3)))
    assert seen == [told(b"a/1", 1, None), told(b"a/1", 2, b"x"), told(b"a/2", 3, None)]
    driver.after(10)
    driver.answer(page([b"a/1"]))
    assert payloads(driver) == [stop(b"a/2")]
    driver.answer(OK)
    driver.notify(b"a/1", was_set(b"y"), str(version(4)))
    assert seen[-1] == told(b"a/1", 4, b"y")


def test_a_listing_that_contradicts_what_was_notified_makes_the_key_read(driver: MachineDriver) -> None:
    """A listing that contradicts the notifications, either way, makes the key be read."""
    seen = prefix_watched(driver, b"a/1", b"a/2")
    driver.notify(b"a/2", DELETED, str(version(1)))
    seen.clear()
    driver.after(10)
    driver.answer(page([b"a/2"]))
    assert payloads(driver) == [get(b"a/1"), get(b"a/2")]
    driver.answer(MISSING)
    driver.answer(value(b"x"), ts(2))
    assert seen == [
        WatchEvent(EventKind.DELETE, b"a/1", None, None, missed=True),
        told(b"a/2", 2, b"x", missed=True),
    ]
    driver.after(10)
    driver.answer(page([b"a/2"]))
    assert payloads(driver) == [stop(b"a/1")]


def test_a_key_that_is_found_before_the_watch_stands_is_waited_for(driver: MachineDriver) -> None:
    """A key that the second listing finds before the watch stands is watched when it stands."""
    begin(driver, rescan=5.0)
    driver.answer(page([b"a/1"]))
    driver.after(5)
    assert payloads(driver) == [keynotify(b"a/1"), scan(b"a/*")]
    driver.answer(OK)
    driver.answer(page([b"a/1", b"a/2"]))
    driver.answer(value(b"0"), ts(0))
    assert payloads(driver) == [keynotify(b"a/2")]
    assert driver.outcomes["w"] == []
    driver.answer(OK)
    driver.answer(value(b"0"), ts(0))
    assert driver.outcome("w") is None


def test_the_return_of_a_key_that_went_before_it_was_watched_is_found_without_a_notification(
    driver: MachineDriver,
) -> None:
    """A key that goes between the listing and its KEYNOTIFY is known to be absent, so that a listing finds its return
    if the notification of it is lost."""
    seen = begin(driver)
    driver.answer(page([b"a/1"]))
    driver.answer(OK)
    driver.answer(MISSING)
    assert driver.outcome("w") is None
    driver.after(10)
    driver.answer(page([b"a/1"]))
    assert payloads(driver) == [get(b"a/1")]
    driver.answer(value(b"x"), ts(1))
    assert seen == [told(b"a/1", 1, b"x", missed=True)]


def test_a_key_that_another_watch_is_on_already_is_read_as_well(driver: MachineDriver) -> None:
    """A key that has a watch of its own is read when a prefix is watched, so that a listing finds its deletion if the
    notification of it is lost."""
    driver.watch(b"a/1", "other")
    driver.suback()
    driver.answer(OK)
    seen = driver.watch_prefix(b"a/", "w")
    driver.answer(page([b"a/1"]))
    assert payloads(driver) == [get(b"a/1")]
    driver.answer(value(b"x"), ts(1))
    assert driver.outcome("w") is None
    driver.after(10)
    driver.answer(page([]))
    driver.answer(MISSING)
    assert seen == [WatchEvent(EventKind.DELETE, b"a/1", None, None, missed=True)]
    driver.after(10)
    driver.answer(page([]))
    assert payloads(driver) == []


def test_a_listing_that_is_behind_the_notifications_tells_nothing(driver: MachineDriver) -> None:
    """A listing that is older than the notifications reports nothing of its own; only what the reads find counts."""
    seen = prefix_watched(driver, b"a/1", b"a/2")
    driver.notify(b"a/1", DELETED, str(version(1)))
    driver.after(10)
    driver.notify(b"a/1", was_set(b"x"), str(version(2)))
    driver.notify(b"a/2", DELETED, str(version(3)))
    seen.clear()
    driver.answer(page([b"a/2"]))
    driver.answer(value(b"x"), ts(2))
    driver.answer(MISSING)
    assert seen == []


def test_without_a_rescan_the_keys_are_listed_once(driver: MachineDriver) -> None:
    """Without ``rescan`` the keys are listed once, and again after each reconnect."""
    prefix_watched(driver, b"a/1", rescan=None)
    driver.after(1_000)  # before the watch is renewed
    assert payloads(driver) == []
    driver.cut()
    assert payloads(driver) == [scan(b"a/*"), keynotify(b"a/1")]


def test_closing_stops_every_key_that_nobody_else_watches(driver: MachineDriver) -> None:
    """Closing lets go each key that no other watch is on, and a listing under way is not used any more."""
    seen = prefix_watched(driver, b"a/1", b"a/2")
    other = driver.watch(b"a/1", "other")
    assert driver.outcome("other") is None
    driver.after(10)
    driver.unwatch(b"a/", seen)
    assert payloads(driver) == [scan(b"a/*"), stop(b"a/2")]
    driver.answer(page([b"a/3"]))
    driver.answer(OK)
    assert payloads(driver) == []
    driver.notify(b"a/1", was_set(b"x"), str(version(1)))
    assert seen == []
    assert other == [told(b"a/1", 1, b"x")]


def test_prefixes_that_overlap_share_their_keys(driver: MachineDriver) -> None:
    """Watches on overlapping prefixes share one KEYNOTIFY for each key; both get its events."""
    one = prefix_watched(driver, b"a/1")
    two = driver.watch_prefix(b"a", "two", initial=True)
    driver.answer(page([b"a/1"]))
    assert payloads(driver) == [get(b"a/1")]
    driver.answer(value(b"x"), ts(1))
    assert driver.outcome("two") is None
    driver.notify(b"a/1", was_set(b"y"), str(version(2)))
    assert one[-1] == told(b"a/1", 2, b"y")
    assert two == [told(b"a/1", 1, b"x"), told(b"a/1", 2, b"y")]


def test_a_watch_that_is_closed_before_it_stands_tells_its_caller(driver: MachineDriver) -> None:
    """A watch that is closed before it stands lets its caller go."""
    seen = driver.watch_prefix(b"a/", "w")
    driver.unwatch(b"a/", seen)
    assert isinstance(driver.outcome("w"), ClosedError)
    driver.suback()
    assert payloads(driver) == []


# -- outages -----------------------------------------------------------------------------------------------------------


def test_after_an_outage_known_keys_are_read_and_new_ones_found() -> None:
    """After an outage a complete listing and reads tell what changed or is new, and nothing of what did not, between
    SUSPENDED and RESUMED."""
    driver = MachineDriver(max_in_flight=9).ready()
    seen = prefix_watched(driver, b"a/1", b"a/2", b"a/3", connection_events=True)
    driver.notify(b"a/1", was_set(b"1"), str(version(1)))
    driver.cut()
    assert payloads(driver) == [scan(b"a/*"), *map(keynotify, (b"a/1", b"a/2", b"a/3"))]
    driver.answer(page([b"a/1", b"a/2", b"a/3", b"a/4"]))
    for _ in range(4):
        driver.answer(OK)
    assert payloads(driver) == [get(b"a/1"), get(b"a/2"), get(b"a/3"), get(b"a/4")]
    for text, n in ((b"1", 1), (b"0", 0), (b"x", 2)):
        driver.answer(value(text), ts(n))
    changed = told(b"a/3", 2, b"x", missed=True)
    assert seen[1:] == [WatchEvent(EventKind.SUSPENDED, b"a/", None, None), changed]
    driver.answer(value(b"2"), ts(3))
    assert seen[3:] == [told(b"a/4", 3, b"2", missed=True), WatchEvent(EventKind.RESUMED, b"a/", None, None)]


def test_a_connection_that_breaks_between_scan_and_keynotify_begins_the_listing_anew(driver: MachineDriver) -> None:
    """A connection that breaks between SCAN and KEYNOTIFY makes the listing start anew."""
    seen = begin(driver, initial=True)
    driver.answer(page([b"a/1"], b"more"))
    assert payloads(driver) == [scan(b"a/*", b"more"), keynotify(b"a/1")]
    driver.cut()
    assert payloads(driver) == [scan(b"a/*"), keynotify(b"a/1")]
    driver.answer(page([b"a/2"]))
    driver.answer(OK)
    driver.answer(OK)
    driver.answer(MISSING)
    assert driver.outcomes["w"] == []
    driver.answer(value(b"2"), ts(2))
    assert driver.outcome("w") is None
    assert seen == [told(b"a/2", 2, b"2")]


def test_an_answer_of_the_old_connection_to_scan_is_not_believed(driver: MachineDriver) -> None:
    """An answer to a SCAN of the old connection is dropped, because the listing was started again."""
    prefix_watched(driver, b"a/1")
    driver.after(10)
    old = driver.on_the_wire[0]
    driver.cut()
    driver.reply(old, page([b"a/2"]))
    assert payloads(driver) == [scan(b"a/*"), keynotify(b"a/1")]


def test_a_page_that_does_not_come_is_asked_for_again(driver: MachineDriver) -> None:
    """A page that does not come is requested again while connected, and not the first page instead of it; until it
    comes the watch does not stand, although each key that is known is watched."""
    begin(driver)
    driver.answer(page([b"a/1"], b"more"))
    driver.puback()
    driver.answer(OK)
    driver.answer(value(b"0"), ts(0))
    assert driver.outcomes["w"] == []
    driver.after(10)
    assert payloads(driver) == [scan(b"a/*", b"more")]
    driver.answer(page([]))
    assert driver.outcome("w") is None


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (b"-ERR unknown command\r\n", UnknownCommandError, "cannot list keys"),
        (b"-ERR not authorized\r\n", NotAuthorizedError, "not authorized"),
        (b"-ERR syntax error\r\n", RequestSyntaxError, "syntax error"),
        (b":1\r\n", UnexpectedReplyError, "SCAN was answered with"),
        (page([b"b/1"]), UnexpectedReplyError, r"keys that begin with b'a/' was answered with b'b/1'"),
        (page([b"a/" + b"x" * 40_000]), InvalidArgumentError, "cannot be watched"),
    ],
)
def test_a_listing_that_is_refused_or_useless_ends_the_watch(
    driver: MachineDriver, answer: bytes, kind: type, text: str
) -> None:
    """A refused or useless listing ends the watch with an error for the caller and for the reader that says why."""
    seen = begin(driver)
    driver.answer(answer)
    for error in (driver.outcome("w"), error_of(seen)):
        assert isinstance(error, kind)
        with pytest.raises(kind, match=text):
            raise error
    assert payloads(driver) == []
    driver.after(1)  # that all was answered is looked at then
    assert driver.machine.next_deadline() is None


def test_a_key_that_may_not_be_watched_ends_the_watch(driver: MachineDriver) -> None:
    """A key that may not be watched ends the watch, and all its other keys are let go."""
    seen = begin(driver)
    driver.answer(page([b"a/1", b"a/2"]))
    driver.answer(OK)
    driver.answer(b"-ERR the quota has been exceeded\r\n")
    assert isinstance(driver.outcome("w"), QuotaExceededError)
    assert isinstance(error_of(seen), QuotaExceededError)
    assert payloads(driver) == [get(b"a/1"), stop(b"a/1")]


def test_more_keys_than_allowed_end_the_watch_at_the_start(driver: MachineDriver) -> None:
    """More keys than allowed end the watch at its start, and no further page is requested."""
    seen = begin(driver, max_keys=2)
    driver.answer(page([b"a/1", b"a/2", b"a/3"], b"more"))
    assert isinstance(driver.outcome("w"), TooManyKeysError)
    with pytest.raises(TooManyKeysError, match=r"more than 2 keys begin with b'a/'; raise max_keys"):
        raise error_of(seen)
    while driver.on_the_wire:
        assert driver.on_the_wire[0].message.payload.endswith(b"STOP\r\n")
        driver.answer(OK)


def test_keys_that_were_deleted_do_not_count() -> None:
    """Deleted keys do not count towards the limit: three may come after two have gone, and one more is too many."""
    driver = MachineDriver(max_in_flight=100).ready()
    seen = prefix_watched(driver, b"a/1", b"a/2", b"a/3", max_keys=3)
    for key in (b"a/1", b"a/2"):
        driver.notify(key, DELETED, str(version(1)))
    driver.after(10)
    driver.answer(page([b"a/3", b"a/4", b"a/5"]))
    assert sorted(payloads(driver)) == sorted([keynotify(b"a/4"), keynotify(b"a/5"), stop(b"a/1"), stop(b"a/2")])
    for _ in range(4):
        driver.answer(OK)
    while driver.on_the_wire:
        driver.answer(value(b"x"), ts(2))
    assert all(isinstance(event, WatchEvent) for event in seen)
    driver.after(10)
    driver.answer(page([b"a/3", b"a/4", b"a/5", b"a/6"]))
    assert isinstance(error_of(seen), TooManyKeysError)


def test_the_client_ends_its_watches_on_prefixes(driver: MachineDriver) -> None:
    """The client's end also ends its watches on prefixes, both those that stand and those that somebody waits for."""
    seen = prefix_watched(driver, b"a/1")
    waiting = driver.watch_prefix(b"b/", "b")
    driver.close()
    assert isinstance(error_of(seen), ClosedError)
    assert isinstance(error_of(waiting), ClosedError)
    assert isinstance(driver.outcome("b"), ClosedError)
