"""Requests by deadline, against a list that is sorted and searched."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from statestore_client.core.deadlines import Deadlines
from statestore_client.core.request import Request, Stage
from statestore_client.wire.commands import Get

_steps = st.lists(st.tuples(st.sampled_from(["add", "add", "finish", "due"]), st.integers(0, 40)), max_size=60)


def request(deadline: float) -> Request:
    return Request(Get(b"k"), "w", deadline, None, None)


@settings(deadline=None)  # shared machines pause
@given(_steps)
def test_they_come_up_in_order_and_once(steps: list[tuple[str, int]]) -> None:
    """The first deadline is that of a request without an answer, and each such request is handed out at its time."""
    deadlines = Deadlines()
    live: list[Request] = []
    for name, number in steps:
        if name == "add":
            live.append(request(number))
            deadlines.add(live[-1])
        elif name == "finish" and live:
            live.pop(number % len(live)).stage = Stage.DONE
        elif name == "due":
            due = deadlines.take_due(number)
            assert [one.deadline for one in due] == sorted(one.deadline for one in live if one.deadline <= number)
            live = [one for one in live if one not in due]
        assert deadlines.first() == min((one.deadline for one in live), default=None)


def test_a_request_without_a_deadline_is_not_kept() -> None:
    """A request without a deadline never comes up."""
    deadlines = Deadlines()
    deadlines.add(request(math.inf))
    assert len(deadlines) == 0
    assert deadlines.first() is None


def test_answered_ones_do_not_pile_up_behind_one_that_is_not() -> None:
    """A request with a long time limit holds about a thousand of them at most."""
    deadlines = Deadlines()
    deadlines.add(request(1.0))
    for _ in range(5000):
        done = request(2.0)
        deadlines.add(done)
        done.stage = Stage.DONE
        assert len(deadlines) < 1030
    assert deadlines.first() == 1.0
    deadlines.clear()
    assert deadlines.first() is None
