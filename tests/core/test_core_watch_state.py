"""The life of a watch: begun, started, full, ended, closed. No network, and no reader but the test."""

from __future__ import annotations

import pytest

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.core.watch_state import WatchState
from statestore_client.errors import BusyError, ClosedError, ConnectionLostError, WatchOverflowError

EVENT = WatchEvent(EventKind.SET, b"key", b"value", None)


def blocking(limit: int = 2) -> WatchState:
    """One that wants to lose nothing, and has been started."""
    watch = WatchState(limit=limit, overflow="block")
    watch.is_started = True
    return watch


def test_a_reader_that_comes_too_early_is_told() -> None:
    """Reading a watch that is not started, started twice or closed raises an error that says so."""
    watch = WatchState(limit=2, overflow="latest")
    with pytest.raises(BusyError, match="was not started"):
        watch.check_started()
    watch.is_started = True
    watch.check_started()
    other = WatchState(limit=2, overflow="latest")
    other.is_closed = True
    other.check_started()
    with pytest.raises(ClosedError, match="the watch is closed"):
        other.pop()


def test_an_attempt_that_failed_leaves_nothing_behind() -> None:
    """A failed attempt to start leaves neither events nor an error nor a full queue behind."""
    watch = blocking(1)
    assert not watch.push(EVENT)
    watch.push(ConnectionLostError("gone"))
    watch.begin()
    assert watch.error is None
    assert watch.pop() is None
    assert not watch.has_room_again()


def test_full_and_room_again_are_said_once() -> None:
    """A watch reports once that it is full, at its limit, and once that it has room, when one event was taken."""
    watch = blocking()
    assert watch.push(EVENT)
    assert not watch.push(EVENT)
    assert not watch.push(EVENT)
    assert not watch.has_room_again()
    assert watch.pop() == EVENT
    assert not watch.has_room_again()
    assert watch.pop() == EVENT
    assert watch.has_room_again()
    assert not watch.has_room_again()


def test_a_watch_that_loses_events_instead_has_always_room() -> None:
    """A watch that drops events when full always has room, so it never holds anybody up."""
    watch = WatchState(limit=1, overflow="error")
    assert watch.push(EVENT)
    assert watch.push(EVENT)
    assert not watch.has_room_again()
    assert isinstance(watch.error, WatchOverflowError)


def test_what_ended_it_comes_after_the_last_event() -> None:
    """The error that ended a watch comes after its last event, though a caller may ask for it before; a closed watch
    gives no event."""
    watch = blocking()
    watch.push(EVENT)
    watch.push(ConnectionLostError("gone"))
    assert isinstance(watch.error, ConnectionLostError)
    assert watch.pop() == EVENT
    with pytest.raises(ConnectionLostError, match="gone"):
        watch.pop()
    watch.is_closed = True
    with pytest.raises(ClosedError):
        watch.pop()


def test_people_read_how_it_stands() -> None:
    """The text of a watch says whether it is not started, started, ended (and why) or closed."""
    watch = WatchState(limit=1, overflow="latest")
    assert watch.describe() == "not started"
    watch.is_started = True
    assert watch.describe() == "started"
    watch.push(ConnectionLostError("gone"))
    assert watch.describe() == "ended: gone"
    watch.is_closed = True
    assert watch.describe() == "closed"
