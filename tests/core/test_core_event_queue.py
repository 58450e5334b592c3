"""The queue of a watch on many keys: what it leaves out when it is full."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watch_driver import version

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.core.event_queue import EventQueue
from statestore_client.errors import WatchOverflowError


def event_of(key: bytes, n: int) -> WatchEvent:
    return WatchEvent(EventKind.SET, key, b"%d" % n, version(n))


@given(st.lists(st.sampled_from([b"a", b"b", b"c", None]), max_size=80), st.integers(3, 6))
def test_the_latest_event_of_each_key_gets_through(script: list[bytes | None], limit: int) -> None:
    """The queue hands out the latest event of each key and marks each gap within a key, as lists without a bound
    confirm."""
    queue = EventQueue(limit=limit, overflow="latest")
    waiting: dict[bytes, list[int]] = {b"a": [], b"b": [], b"c": []}  # pushed, and not handed out

    def take() -> WatchEvent | None:
        event = queue.pop()
        if event is not None:
            assert event.value is not None
            numbers = waiting[event.key]
            place = numbers.index(int(event.value))
            assert event.missed == (place > 0)
            del numbers[: place + 1]
        return event

    for n, key in enumerate(script):
        if key is None:
            take()
        else:
            queue.push(event_of(key, n))
            waiting[key].append(n)
        assert len(queue) <= limit
    while take() is not None:
        pass
    assert waiting == {b"a": [], b"b": [], b"c": []}


def test_events_of_more_keys_than_it_holds_end_it() -> None:
    """Events of more keys than the queue holds end it: each is the latest of its key, so none may be left out."""
    queue = EventQueue(limit=2, overflow="latest")
    for n, key in enumerate([b"a", b"b", b"b", b"c"]):
        queue.push(event_of(key, n))
    assert [(event.key, event.missed) for event in (queue.pop(), queue.pop()) if event] == [(b"a", False), (b"b", True)]
    with pytest.raises(WatchOverflowError, match="more than 2 events behind"):
        queue.pop()
