"""The heap of what is due next, and the broker's timers in it: in order, no growth, and no call takes long."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import statestore_client.server
from statestore_client.server.broker.scheduling import Timers
from statestore_client.server.timer_heap import TimerHeap
from statestore_client.wire.instant import Instant


def test_there_is_one_heap() -> None:
    """Whatever waits for its time on the server does so in this one heap."""
    package = Path(statestore_client.server.__file__).parent
    users = []
    for path in package.rglob("*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "heapq" in text else ():
            # heapq.merge makes no heap that anything waits in: it walks along sorted lists.
            is_merge = isinstance(node, ast.ImportFrom) and {alias.name for alias in node.names} == {"merge"}
            names = [node.module] if isinstance(node, ast.ImportFrom) and not is_merge else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            users += [path.name for name in names if name == "heapq"]
    # A sync's heap is of ranges of keys, which wait for no time.
    assert sorted(users) == ["sync.py", "timer_heap.py"]


def test_renewals_do_not_grow_the_queue() -> None:
    """A lease that is renewed a hundred thousand times leaves a handful of items in the queue."""
    deadlines: dict[bytes, float] = {b"other": 1e9}
    queue: TimerHeap[tuple[float, bytes]] = TimerHeap(lambda item: deadlines.get(item[1]) == item[0])
    queue.add((1e9, b"other"))
    longest = 0
    for turn in range(100_000):
        stale = b"k" in deadlines
        deadlines[b"k"] = float(turn)
        if stale:
            queue.forget_one()
        queue.add((float(turn), b"k"))
        longest = max(longest, len(queue))
    assert longest < 200
    assert queue.next_deadline() == 99_999.0
    assert queue.pop_due(99_998.0) is None
    assert queue.pop_due(99_999.0) == ((99_999.0, b"k"), True)


class Keyspace:
    """Deadlines of keys, and how often the queue has asked for one."""

    def __init__(self) -> None:
        self.deadlines: dict[bytes, float] = {}
        self.asked = 0
        self.queue: TimerHeap[tuple[float, bytes]] = TimerHeap(self.holds)

    def holds(self, item: tuple[float, bytes]) -> bool:
        self.asked += 1
        return self.deadlines.get(item[1]) == item[0]

    def set(self, key: bytes, deadline: float | None) -> None:
        replaced = self.deadlines.pop(key, None)
        if deadline is not None:
            self.deadlines[key] = deadline
        if replaced is not None:
            self.queue.forget_one()
        if deadline is not None:
            self.queue.add((deadline, key))

    def expire(self, now: float) -> list[bytes]:
        """The keys that are due, in the order in which they come."""
        found = []
        while due := self.queue.pop_due(now):
            (_, key), holds = due
            if holds:
                assert self.deadlines.pop(key) <= now
                found.append(key)
        return found


def test_no_call_looks_at_all_the_deadlines() -> None:
    """No call takes more than a few dozen steps, also if one of many renewed leases expires before many that were
    moved, and the queue stays about as long as there are keys."""
    space, most, longest = Keyspace(), 0, 0
    space.set(b"first", 0.0)
    for turn in range(1, 5):
        for number in range(3_000):
            before = space.asked
            space.set(b"%d" % number, 1_000.0 * turn + number % 7)
            space.queue.next_deadline()
            most, longest = max(most, space.asked - before), max(longest, len(space.queue))
    before = space.asked
    space.set(b"first", None)
    deadlines = [space.queue.next_deadline() for _ in range(1_000)]
    assert max(most, (space.asked - before) // 1_000) < 50
    assert longest < 3 * 3_000
    assert deadlines[-1] == 4_000.0


def test_a_deadline_that_no_longer_holds_expires_nothing() -> None:
    """If an outdated deadline is announced too early, nothing is due then."""
    space = Keyspace()
    for number in range(60):
        space.set(b"%d" % number, 5.0)
    for number in range(50):
        space.set(b"%d" % number, 50.0)
    assert space.queue.next_deadline() == 5.0
    assert sorted(space.expire(10.0)) == [b"%d" % number for number in range(50, 60)]
    assert space.queue.next_deadline() == 50.0


changes = st.lists(
    st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 40)), st.integers(0, 30)), max_size=400
)


@given(changes)
def test_the_queue_expires_what_a_sorted_list_does(steps: list[tuple[int, int | None, int]]) -> None:
    """The queue expires the key of the smallest deadline, as a sorted list does, through any number of rebuilds of its
    heap."""
    space, now = Keyspace(), 0.0
    for name, delay, pause in steps:
        for copy in range(20):  # so that there is enough for several heaps
            space.set(b"%d-%d" % (name, copy), None if delay is None else now + delay)
        if pause > 25:
            now += pause
            due = {key: deadline for key, deadline in space.deadlines.items() if deadline <= now}
            found = space.expire(now)
            assert sorted(found) == sorted(due)
            assert [due[key] for key in found] == sorted(due.values())
        announced = space.queue.next_deadline()
        assert (announced is None) <= (not space.deadlines)
        assert announced is None or not space.deadlines or announced <= min(space.deadlines.values())


# -- timers of the broker ----------------------------------------------------------------------------------------------


def at(monotonic: float) -> Instant:
    return Instant(monotonic, 0)


def test_what_is_due_is_done_in_order() -> None:
    """What is due is done in order of time, equal times in the order of asking, and the rest waits."""
    done: list[str] = []
    timers = Timers()
    for when, name in [(3.0, "c"), (1.0, "a"), (3.0, "d"), (2.0, "b"), (9.0, "z")]:
        timers.add(when, lambda _now, name=name: done.append(name))
    timers.run(at(0.5))
    assert done == []
    timers.run(at(3.0))
    assert done == ["a", "b", "c", "d"]
    assert timers.next_deadline() == 9.0


def test_cancelled_appointments_are_not_kept() -> None:
    """A cancelled appointment does not run, also if another of the same moment cancels it; cancelling twice is
    harmless."""
    done: list[str] = []
    timers = Timers()
    second = timers.add(1.0, lambda _now: done.append("second"))
    third = timers.add(2.0, lambda _now: done.append("third"))
    timers.add(0.5, lambda _now: timers.cancel(third))
    timers.cancel(second)
    timers.cancel(second)
    timers.cancel(None)
    timers.run(at(5.0))
    assert done == []
    assert len(timers) == 0
    assert timers.next_deadline() is None


def test_an_appointment_made_meanwhile_waits_for_the_next_call() -> None:
    """An appointment made while others run waits for the next call, so that one that is always due holds up nothing."""
    done: list[float] = []
    timers = Timers()

    def again(now: Instant) -> None:
        done.append(now.monotonic)
        timers.add(now.monotonic, again)

    timers.add(1.0, again)
    timers.run(at(1.0))
    timers.run(at(2.0))
    assert done == [1.0, 2.0]


def test_cancelled_appointments_do_not_pile_up() -> None:
    """Clients that come and go with long keep-alives leave a bounded number of entries."""
    timers = Timers()
    for _ in range(100_000):
        timers.cancel(timers.add(1e6, lambda _now: None))
    assert len(timers._heap) < 200
    assert len(timers) == 0


def test_one_that_fails_takes_no_other_with_it() -> None:
    """After an exception, appointments of the same moment run at the next call, each once and in order."""
    done: list[int] = []
    timers = Timers()

    def fail(_now: Instant) -> None:
        raise RuntimeError("a defect")

    timers.add(1.0, lambda _now: done.append(0))
    timers.add(1.0, fail)
    for number in range(1, 5):
        timers.add(1.0, lambda _now, number=number: done.append(number))
    cancelled = timers.add(1.0, lambda _now: done.append(5))
    timers.add(2.0, lambda _now: done.append(6))
    with pytest.raises(RuntimeError, match="a defect"):
        timers.run(at(1.0))
    assert done == [0]
    assert timers.next_deadline() == 1.0
    timers.cancel(cancelled)
    assert len(timers) == 5
    timers.run(at(1.0))
    assert done == [0, 1, 2, 3, 4]
    assert timers.next_deadline() == 2.0
