"""What waits for the reader of a watch: its queue, its state, and the acknowledgements that wait for its room."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from watch_driver import event, told

from statestore_client.core.actions import Output, WatchEvent
from statestore_client.core.event_queue import EventQueue, Overflow, WatchState
from statestore_client.errors import BusyError, ClosedError, ConnectionLostError, WatchOverflowError

# -- the queue ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["push", "pop"]), max_size=60), st.integers(1, 5), st.sampled_from(["latest", "error"]))
def test_the_queue_keeps_its_bound_and_tells_of_every_gap(script: list[str], limit: int, overflow: Overflow) -> None:
    """A bounded queue hands events out in order; each gap is marked or is the error, as an endless list confirms."""
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


@given(st.lists(st.sampled_from([b"a", b"b", b"c", None]), max_size=80), st.integers(3, 6))
def test_the_latest_event_of_each_key_gets_through(script: list[bytes | None], limit: int) -> None:
    """The queue hands out the latest event of each key and marks each gap within a key, as endless lists confirm."""
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
            queue.push(told(key, n, b"%d" % n))
            waiting[key].append(n)
        assert len(queue) <= limit
    while take() is not None:
        pass
    assert waiting == {b"a": [], b"b": [], b"c": []}


def test_events_of_more_keys_than_it_holds_end_it() -> None:
    """Events of more keys than the queue holds end it: each is the latest of its key, so none may be left out."""
    queue = EventQueue(limit=2, overflow="latest")
    for n, key in enumerate([b"a", b"b", b"b", b"c"]):
        queue.push(told(key, n, b"x"))
    assert [(event.key, event.missed) for event in (queue.pop(), queue.pop()) if event] == [(b"a", False), (b"b", True)]
    with pytest.raises(WatchOverflowError, match="more than 2 events behind"):
        queue.pop()


def test_an_error_comes_after_the_events_before_it() -> None:
    """An error comes after the events before it, at each later call as a copy; no event is accepted after it."""
    queue = EventQueue(limit=5, overflow="latest")
    error = ConnectionLostError("gone")
    for each in (event(1, b"1"), error, event(2, b"2"), ClosedError("later")):
        queue.push(each)
    assert queue.pop() == event(1, b"1")
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="gone") as caught:
            queue.pop()
        assert caught.value is not error


def test_a_blocking_queue_loses_nothing_up_to_its_own_end() -> None:
    """A blocking queue says when it is full, takes each event all the same, and ends at 65,537, as QoS 0 has no end."""
    queue = EventQueue(limit=2, overflow="block")
    for number in range(65_537):
        assert queue.has_room is (number < 2)
        queue.push(event(number, b"x"))
    assert queue.error is None
    queue.push(event(65_537, b"x"))
    assert isinstance(queue.error, WatchOverflowError)
    for number in range(65_537):
        assert queue.pop() == event(number, b"x")


# -- the state of a watch ----------------------------------------------------------------------------------------------

EVENT = event(1, b"value")


def blocking(limit: int = 2) -> WatchState:
    """One that wants to lose nothing, and has been started."""
    watch = WatchState(limit=limit, overflow="block")
    watch.is_started = True
    return watch


def test_a_watch_is_read_between_its_start_and_its_close() -> None:
    """Reading a watch that is not started or that is closed raises an error; its text says how it stands and why."""
    watch = WatchState(limit=2, overflow="latest")
    with pytest.raises(BusyError, match="was not started"):
        watch.check_started()
    assert watch.describe() == "not started"
    watch.is_started = True
    watch.check_started()
    assert watch.describe() == "started"
    watch.push(EVENT)
    watch.push(ConnectionLostError("gone"))
    assert watch.describe() == "ended: gone"
    watch.is_closed, watch.is_started = True, False
    watch.check_started()
    assert watch.describe() == "closed"
    with pytest.raises(ClosedError, match="the watch is closed"):
        watch.pop()


def test_an_attempt_that_failed_leaves_nothing_behind() -> None:
    """A failed attempt to start leaves neither events nor an error nor a full queue behind."""
    watch = blocking(1)
    assert not watch.push(EVENT)
    watch.push(ConnectionLostError("gone"))
    assert isinstance(watch.error, ConnectionLostError)
    watch.begin()
    assert watch.error is None
    assert watch.pop() is None
    assert not watch.has_room_again()


def test_full_and_room_again_are_said_once() -> None:
    """A watch reports once that it is full, at its limit, and once that it has room, when one event was taken."""
    watch = blocking()
    assert [watch.push(EVENT) for _ in range(3)] == [True, False, False]
    assert not watch.has_room_again()
    assert watch.pop() == EVENT
    assert not watch.has_room_again()
    assert watch.pop() == EVENT
    assert [watch.has_room_again(), watch.has_room_again()] == [True, False]


def test_a_watch_that_loses_events_instead_has_always_room() -> None:
    """A watch that drops events when full always has room, so it never holds anybody up."""
    watch = WatchState(limit=1, overflow="error")
    assert [watch.push(EVENT), watch.push(EVENT)] == [True, True]
    assert not watch.has_room_again()
    assert isinstance(watch.error, WatchOverflowError)


# -- acknowledgements --------------------------------------------------------------------------------------------------


class Reader:
    """A watch that is full after each event."""

    def push(self, event: object) -> bool:
        return False


class Link:
    """Keeps what is acknowledged on it."""

    heard_at = None
    url = "mqtt://b"

    def __init__(self) -> None:
        self.acknowledged: list[int] = []

    def publish(self, delivery_id: int, message: object, again: bool = False) -> None:
        raise NotImplementedError

    def acknowledge(self, ack_id: int) -> None:
        self.acknowledged.append(ack_id)

    def flush(self) -> None:
        """Nothing is held back here."""


def test_a_full_watch_holds_up_those_of_all() -> None:
    """One full watch, filled twice, holds up all acknowledgements; with room they leave together and in order."""
    output, reader = Output(), Reader()
    output.connection = link = Link()
    output.acknowledge(1)
    output.notify(reader, EVENT)
    output.notify(reader, EVENT)
    output.acknowledge(2)
    output.acknowledge(3)
    assert (link.acknowledged, output.unflushed_acks, output.unflushed) == ([1], 1, 0)
    output.caught_up(reader)
    assert (link.acknowledged, output.unflushed) == ([1, 2, 3], 2)
    output.acknowledge(4)
    assert link.acknowledged == [1, 2, 3, 4]


@given(st.lists(st.tuples(st.sampled_from(["full", "room", "ack", "ack", "reconnect"]), st.integers(0, 2))))
@example([("full", 0), ("ack", 0), ("reconnect", 0), ("ack", 0), ("room", 0), ("ack", 0)])
@example([("full", 0), ("full", 1), ("ack", 0), ("room", 0), ("ack", 0), ("room", 1)])
def test_every_one_leaves_once_and_in_order(events: list[tuple[str, int]]) -> None:
    """Acknowledgements leave at once, or in order when no watch is full any more; a reconnect forgets those that wait,
    since the broker sends their messages again, and a full watch stays so."""
    output, readers, given_out = Output(), [Reader() for _ in range(3)], 0
    output.connection = link = Link()
    full: set[int] = set()
    held: list[int] = []
    acknowledged: list[int] = []
    for what, number in events:
        if what == "full":
            output.notify(readers[number], EVENT)
            full.add(number)
        elif what == "room":
            full.discard(number)
            leaving, held = ([], held) if full else (held, [])
            acknowledged += leaving
            output.caught_up(readers[number])
        elif what == "reconnect":
            output.reconnecting()
            output.connection = link
            held = []
        else:
            given_out += 1
            output.acknowledge(given_out)
            (held if full else acknowledged).append(given_out)
        assert link.acknowledged == acknowledged
