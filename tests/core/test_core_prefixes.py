"""Watches on prefixes: which keys are listed, watched and let go, and what is told of them."""

from __future__ import annotations

from typing import Any

import pytest
from machine_driver import MachineDriver
from prefix_frames import get, keynotify, page, scan, stop, told, watched
from watch_driver import DELETED, OK, payloads, ts, value, version, was_set

from statestore_client.core import calls
from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.errors import (
    ClosedError,
    InvalidArgumentError,
)
from statestore_client.wire.commands import Get

# -- beginning ---------------------------------------------------------------------------------------------------------


def test_a_prefix_is_listed_and_each_of_its_keys_watched() -> None:
    """A watch on a prefix subscribes, lists with SCAN page by page, watches and reads each key, and only then tells its
    caller; values that were there before are not reported."""
    driver = MachineDriver().ready()
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


def test_a_prefix_without_keys_is_watched_at_once() -> None:
    """A watch on a prefix without keys stands at once, because keys may come later."""
    driver = MachineDriver().ready()
    assert watched(driver) == []


@pytest.mark.parametrize(
    ("prefix", "pattern"),
    [(b"", b"*"), (b"a*b?c[d]/", b"a[*]b[?]c[[]d]/*"), ("ü!-^\\".encode(), "ü!-^\\*".encode()), (b"*", b"[*]*")],
)
def test_a_prefix_is_literal(prefix: bytes, pattern: bytes) -> None:
    """A prefix is literal: characters with a meaning in patterns are put into brackets."""
    driver = MachineDriver().ready()
    driver.watch_prefix(prefix, "w")
    driver.suback()
    assert payloads(driver) == [scan(pattern)]


def test_initial_values_come_first_and_without_a_gap() -> None:
    """The GET for an initial value is sent when the server notifies already, and what was notified meanwhile is not
    told twice."""
    driver = MachineDriver().ready()
    seen = driver.watch_prefix(b"a/", "w", initial=True)
    driver.suback()
    driver.answer(page([b"a/1", b"a/2", b"a/3"]))
    for _ in range(3):
        driver.answer(OK)
    assert payloads(driver) == [get(b"a/1"), get(b"a/2"), get(b"a/3")]
    driver.notify(b"a/1", was_set(b"new"), str(version(5)))
    driver.answer(value(b"new"), ts(5))
    driver.answer(value(b"2"), ts(2))
    assert driver.outcomes["w"] == []
    driver.answer(b"$-1\r\n")  # deleted before it was watched
    assert driver.outcome("w") is None
    assert seen == [told(b"a/1", 5, b"new"), told(b"a/2", 2, b"2")]


def test_ten_thousand_keys_go_through_the_window() -> None:
    """A watch on ten thousand keys keeps to the window, and users' requests overtake the keys that are still to
    come."""
    driver = MachineDriver(max_in_flight=8).ready()
    seen = driver.watch_prefix(b"a/", "w", initial=True, max_keys=10_000)
    driver.suback()
    keys = [b"a/%05d" % n for n in range(10_000)]
    driver.answer(page(keys[:5_000], b"more"))
    driver.submit(Get(b"k"), "user")
    most, answered = 0, 0
    while driver.on_the_wire:
        most = max(most, len(driver.on_the_wire), driver.machine.exchange.pending)
        payload = driver.on_the_wire[0].message.payload
        if b"SCAN" in payload:
            driver.answer(page(keys[5_000:]))
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
    assert stopped == 10_000


# -- keys that come and go ---------------------------------------------------------------------------------------------


def test_a_new_key_is_found_by_the_next_listing() -> None:
    """A new key that a listing finds is marked as missed, since it may have had earlier values; its next events are
    not."""
    driver = MachineDriver().ready()
    seen = watched(driver, b"a/1")
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


def test_a_new_key_that_is_notified_of_before_it_is_read_is_marked_as_well() -> None:
    """A new key that is notified before it is read is marked as missed once."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    driver.after(10)
    driver.answer(page([b"a/2"]))
    driver.answer(OK)
    driver.notify(b"a/2", was_set(b"y"), str(version(2)))
    driver.answer(value(b"x"), ts(1))
    assert seen == [told(b"a/2", 2, b"y", missed=True)]


def test_a_new_key_that_is_gone_when_it_is_read_is_not_told_of() -> None:
    """A new key that is gone when it is read is not reported, and if it comes back at once, that is seen."""
    driver = MachineDriver().ready()
    seen = watched(driver)
    driver.after(10)
    driver.answer(page([b"a/2"]))
    driver.answer(OK)
    driver.answer(b"$-1\r\n")
    assert seen == []
    driver.notify(b"a/2", was_set(b"y"), str(version(2)))
    assert seen == [told(b"a/2", 2, b"y", missed=True)]


def test_a_deleted_key_is_let_go_by_a_listing_without_it() -> None:
    """A deleted key is watched until a listing comes without it, so that its return is seen at once."""
    driver = MachineDriver().ready()
    seen = watched(driver, b"a/1", b"a/2")
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


def test_a_listing_that_contradicts_what_was_notified_makes_the_key_read() -> None:
    """A listing that contradicts the notifications, by leaving a key out or naming a deleted one, makes the key be
    read."""
    driver = MachineDriver().ready()
    seen = watched(driver, b"a/1", b"a/2")
    driver.notify(b"a/2", DELETED, str(version(1)))
    seen.clear()
    driver.after(10)
    driver.answer(page([b"a/2"]))
    assert payloads(driver) == [get(b"a/1"), get(b"a/2")]
    driver.answer(b"$-1\r\n")
    driver.answer(value(b"x"), ts(2))
    assert seen == [
        WatchEvent(EventKind.DELETE, b"a/1", None, None, missed=True),
        told(b"a/2", 2, b"x", missed=True),
    ]
    driver.after(10)
    driver.answer(page([b"a/2"]))
    assert payloads(driver) == [stop(b"a/1")]


def test_a_key_that_is_found_before_the_watch_stands_is_waited_for() -> None:
    """A key that the second listing finds before the watch stands is watched when it stands: its later changes cannot
    be missed."""
    driver = MachineDriver().ready()
    driver.watch_prefix(b"a/", "w", rescan=5.0)
    driver.suback()
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


def test_the_return_of_a_key_that_went_before_it_was_watched_is_found_without_a_notification() -> None:
    """A key that goes between the listing and its KEYNOTIFY is known to be absent, so that a listing finds its return
    if the notification of it is lost."""
    driver = MachineDriver().ready()
    seen = driver.watch_prefix(b"a/", "w")
    driver.suback()
    driver.answer(page([b"a/1"]))
    driver.answer(OK)
    driver.answer(b"$-1\r\n")
    assert driver.outcome("w") is None
    driver.after(10)
    driver.answer(page([b"a/1"]))
    assert payloads(driver) == [get(b"a/1")]
    driver.answer(value(b"x"), ts(1))
    assert seen == [told(b"a/1", 1, b"x", missed=True)]


def test_a_key_that_another_watch_is_on_already_is_read_as_well() -> None:
    """A key that has a watch of its own is read when a prefix is watched, so that a listing finds its deletion if the
    notification of it is lost."""
    driver = MachineDriver().ready()
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
    driver.answer(b"$-1\r\n")
    assert seen == [WatchEvent(EventKind.DELETE, b"a/1", None, None, missed=True)]
    driver.after(10)
    driver.answer(page([]))
    assert payloads(driver) == []


def test_a_listing_that_is_behind_the_notifications_tells_nothing() -> None:
    """A listing that is older than the notifications reports nothing of its own; only what the reads find counts."""
    driver = MachineDriver().ready()
    seen = watched(driver, b"a/1", b"a/2", initial=False)
    driver.notify(b"a/1", DELETED, str(version(1)))
    driver.after(10)
    driver.notify(b"a/1", was_set(b"x"), str(version(2)))
    driver.notify(b"a/2", DELETED, str(version(3)))
    seen.clear()
    driver.answer(page([b"a/2"]))
    driver.answer(value(b"x"), ts(2))
    driver.answer(b"$-1\r\n")
    assert seen == []


def test_without_a_rescan_the_keys_are_listed_once() -> None:
    """Without ``rescan`` the keys are listed once, and again after each reconnect."""
    driver = MachineDriver().ready()
    watched(driver, b"a/1", rescan=None)
    driver.after(1_000_000)
    assert payloads(driver) == []
    driver.lose()
    driver.reconnect()
    assert payloads(driver) == [scan(b"a/*"), keynotify(b"a/1")]


def test_closing_stops_every_key_that_nobody_else_watches() -> None:
    """Closing lets go each key that no other watch is on, and a listing under way is not used any more."""
    driver = MachineDriver().ready()
    seen = watched(driver, b"a/1", b"a/2")
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


def test_prefixes_that_overlap_share_their_keys() -> None:
    """Watches on overlapping prefixes share one KEYNOTIFY for each key; both get its events, and the second its initial
    values."""
    driver = MachineDriver().ready()
    one = watched(driver, b"a/1")
    two = driver.watch_prefix(b"a", "two", initial=True)
    driver.answer(page([b"a/1"]))
    assert payloads(driver) == [get(b"a/1")]
    driver.answer(value(b"x"), ts(1))
    assert driver.outcome("two") is None
    driver.notify(b"a/1", was_set(b"y"), str(version(2)))
    assert one[-1] == told(b"a/1", 2, b"y")
    assert two == [told(b"a/1", 1, b"x"), told(b"a/1", 2, b"y")]


def test_a_watch_that_is_closed_before_it_stands_tells_its_caller() -> None:
    """A watch that is closed before it stands lets its caller go."""
    driver = MachineDriver().ready()
    seen = driver.watch_prefix(b"a/", "w")
    driver.unwatch(b"a/", seen)
    assert isinstance(driver.outcome("w"), ClosedError)
    driver.suback()
    assert payloads(driver) == []


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "text"), [(b"\xff", "not UTF-8"), ("ü".encode()[:1], "not UTF-8"), (7, "bytes or text")]
)
def test_prefixes_that_cannot_be_listed(prefix: Any, text: str) -> None:
    """A prefix that cannot be listed is refused, and nothing is sent."""
    with pytest.raises(InvalidArgumentError, match=text):
        calls.watched_prefix(prefix)


@pytest.mark.parametrize(
    ("rescan", "max_keys", "text"),
    [(0, 1, "rescan"), (-1, 1, "rescan"), (float("nan"), 1, "rescan"), ("1", 1, "rescan"), (1, 0, "max_keys")]
    + [(1, wrong, "max_keys") for wrong in (True, 1.5, None, "7")],
)
def test_terms_that_cannot_be(rescan: Any, max_keys: Any, text: str) -> None:
    """The message about impossible terms names the argument."""
    with pytest.raises(InvalidArgumentError, match=text):
        calls.prefix_terms(rescan, max_keys)
