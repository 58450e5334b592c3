"""Timers: order, cancelling, and no growth."""

from __future__ import annotations

from typing import Any

import pytest

from statestore_client.server.broker.timers import Timer, Timers
from statestore_client.wire.instant import Instant


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


def test_no_call_looks_at_all_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """When ten thousand clients go one after the other, no call makes a new list of all timers."""
    looked_at, slot = 0, Timer.__dict__["due"]

    class Counting:
        def __get__(self, timer: Timer, owner: type) -> Any:
            nonlocal looked_at
            looked_at += 1
            return slot.__get__(timer, owner)

        def __set__(self, timer: Timer, value: Any) -> None:
            slot.__set__(timer, value)

    timers = Timers()
    each = [timers.add(1e6 + number, lambda _now: None) for number in range(10_000)]
    monkeypatch.setattr(Timer, "due", Counting())
    most = 0
    for timer in reversed(each):
        before = looked_at
        timers.cancel(timer)
        timers.next_deadline()
        most = max(most, looked_at - before)
    assert most < 50
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
