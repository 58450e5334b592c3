"""Watches on prefixes: connections that break, and what ends a watch."""

from __future__ import annotations

import pytest
from machine_driver import MachineDriver
from prefix_frames import error_of, get, keynotify, page, scan, stop, told, watched
from watch_driver import DELETED, OK, payloads, ts, value, version, was_set

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

# -- outages -----------------------------------------------------------------------------------------------------------


def test_after_an_outage_known_keys_are_read_and_new_ones_found() -> None:
    """After an outage a complete listing and reads bring the watch up to date, with the changes between SUSPENDED and
    RESUMED."""
    driver = MachineDriver().ready()
    seen = watched(driver, b"a/1", connection_events=True)
    driver.notify(b"a/1", was_set(b"1"), str(version(1)))
    driver.lose()
    driver.reconnect()
    assert payloads(driver) == [scan(b"a/*"), keynotify(b"a/1")]
    driver.answer(page([b"a/1", b"a/2"]))
    driver.answer(OK)
    driver.answer(OK)
    assert payloads(driver) == [get(b"a/1"), get(b"a/2")]
    driver.answer(value(b"1"), ts(1))
    assert seen[1:] == [WatchEvent(EventKind.SUSPENDED, b"a/", None, None)]
    driver.answer(value(b"2"), ts(2))
    assert seen[2:] == [told(b"a/2", 2, b"2", missed=True), WatchEvent(EventKind.RESUMED, b"a/", None, None)]


def test_after_an_outage_a_key_that_did_not_change_is_not_reported() -> None:
    """After an outage the reads tell what changed, also of keys that have had no event."""
    driver = MachineDriver().ready()
    seen = watched(driver, b"a/1", b"a/2")
    driver.lose()
    driver.reconnect()
    driver.answer(page([b"a/1", b"a/2"]))
    driver.answer(OK)
    driver.answer(OK)
    driver.answer(value(b"0"), ts(0))
    driver.answer(value(b"x"), ts(1))
    assert seen == [told(b"a/2", 1, b"x", missed=True)]


def test_a_connection_that_breaks_between_scan_and_keynotify_begins_the_listing_anew() -> None:
    """A connection that breaks between SCAN and KEYNOTIFY makes the listing start again without its old token, and
    keeps its keys."""
    driver = MachineDriver().ready()
    seen = driver.watch_prefix(b"a/", "w", initial=True)
    driver.suback()
    driver.answer(page([b"a/1"], b"more"))
    assert payloads(driver) == [scan(b"a/*", b"more"), keynotify(b"a/1")]
    driver.lose()
    driver.reconnect()
    assert payloads(driver) == [scan(b"a/*"), keynotify(b"a/1")]
    driver.answer(page([b"a/2"]))
    driver.answer(OK)
    driver.answer(OK)
    driver.answer(b"$-1\r\n")
    assert driver.outcomes["w"] == []
    driver.answer(value(b"2"), ts(2))
    assert driver.outcome("w") is None
    assert seen == [told(b"a/2", 2, b"2")]


def test_an_answer_of_the_old_connection_to_scan_is_not_believed() -> None:
    """An answer to a SCAN of the old connection is dropped, because the listing was started again."""
    driver = MachineDriver().ready()
    watched(driver, b"a/1")
    driver.after(10)
    old = driver.on_the_wire[0]
    driver.lose()
    driver.reconnect()
    driver.reply(old, page([b"a/2"]))
    assert payloads(driver) == [scan(b"a/*"), keynotify(b"a/1")]


def test_a_page_that_does_not_come_is_asked_for_again() -> None:
    """A page that does not come is requested again while connected, and not the first page instead of it."""
    driver = MachineDriver().ready()
    driver.watch_prefix(b"a/", "w")
    driver.suback()
    driver.answer(page([], b"more"))
    driver.puback()
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
def test_a_listing_that_is_refused_or_useless_ends_the_watch(answer: bytes, kind: type, text: str) -> None:
    """A refused or useless listing ends the watch with an error for the caller and for the reader that says why."""
    driver = MachineDriver().ready()
    seen = driver.watch_prefix(b"a/", "w")
    driver.suback()
    driver.answer(answer)
    for error in (driver.outcome("w"), error_of(seen)):
        assert isinstance(error, kind)
        with pytest.raises(kind, match=text):
            raise error
    assert payloads(driver) == []
    assert driver.machine.next_deadline() is None


def test_a_key_that_may_not_be_watched_ends_the_watch() -> None:
    """A key that may not be watched ends the watch, and all its other keys are let go."""
    driver = MachineDriver().ready()
    seen = driver.watch_prefix(b"a/", "w")
    driver.suback()
    driver.answer(page([b"a/1", b"a/2"]))
    driver.answer(OK)
    driver.answer(b"-ERR the quota has been exceeded\r\n")
    assert isinstance(driver.outcome("w"), QuotaExceededError)
    assert isinstance(error_of(seen), QuotaExceededError)
    assert payloads(driver) == [get(b"a/1"), stop(b"a/1")]


def test_more_keys_than_allowed_end_the_watch_at_the_start() -> None:
    """More keys than allowed end the watch at its start, and no further page is requested."""
    driver = MachineDriver().ready()
    seen = driver.watch_prefix(b"a/", "w", max_keys=2)
    driver.suback()
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
    seen = watched(driver, b"a/1", b"a/2", b"a/3", max_keys=3)
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


def test_the_client_ends_its_watches_on_prefixes() -> None:
    """The client's end also ends its watches on prefixes, both those that stand and those that somebody waits for."""
    driver = MachineDriver().ready()
    seen = watched(driver, b"a/1")
    waiting = driver.watch_prefix(b"b/", "b")
    driver.close()
    assert isinstance(error_of(seen), ClosedError)
    assert isinstance(error_of(waiting), ClosedError)
    assert isinstance(driver.outcome("b"), ClosedError)
