"""What is known of a lease: its end and the reason, and who is told of it. Time is a number."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.core.lease_state import LeaseState, LossListener
from statestore_client.errors import LeaseLostError


def granted(*, renew: bool = True) -> LeaseState:
    """A lease that is good until 10."""
    return LeaseState(10.0, threading.Event(), renew=renew)


def told(_error: LeaseLostError) -> None:
    raise NotImplementedError


def test_time_runs_out() -> None:
    """The remaining time shrinks, a renewal extends it, and a lease is over only when somebody says so."""
    lease = granted()
    assert lease.remaining(4.0) == 6.0
    lease.renewed(14.0)
    assert lease.remaining(4.0) == 10.0
    assert lease.remaining(15.0) == -1.0
    assert not lease.ended.is_set()


@pytest.mark.parametrize(("renew", "why"), [(True, "could be renewed"), (False, "was not to be renewed")])
def test_the_reason_of_an_end_in_time(renew: bool, why: str) -> None:
    """A lease that ends in time gives another reason if nobody wanted to renew it."""
    assert why in granted(renew=renew).ending


def test_an_ended_lease_stays_so() -> None:
    """A lease keeps the first reason for its end, and a renewal that is answered after the end was noticed changes
    nothing."""
    lease = granted()
    lease.end(LeaseLostError("first"))
    lease.end(LeaseLostError("second"))
    assert lease.ended.is_set()
    assert str(lease.error) == "first"
    assert lease.remaining(1.0) == 0.0
    with pytest.raises(LeaseLostError, match="before it could be renewed"):
        lease.renewed(99.0)
    assert lease.valid_until == 10.0


def test_who_wants_to_know_of_the_loss_is_told_once() -> None:
    """A listener is told of the loss once, with the first reason, also when the end was noticed earlier without being
    told."""
    lease = granted()
    assert lease.on_lost(told) is None
    lease.end(LeaseLostError("first"))
    assert lease.on_lost(print) is None  # it is told with the others
    reason, listeners = lease.lose(LeaseLostError("second")) or (None, [])
    assert str(reason) == "first"
    assert listeners == [told, print]
    assert lease.lose(LeaseLostError("third")) is None


def test_who_comes_after_the_loss_is_told_at_once() -> None:
    """A listener that is added after the loss is told at once."""
    lease = granted()
    assert lease.lose(LeaseLostError("gone")) is not None
    assert str(lease.on_lost(told)) == "gone"
    assert lease.lose(LeaseLostError("again")) is None


def test_nobody_is_told_of_a_release() -> None:
    """A release is not reported to any listener, whether added before or after it, and neither is a loss noticed
    later."""
    lease = granted()
    assert lease.on_lost(told) is None
    assert lease.release()
    assert lease.ended.is_set()
    assert lease.lose(LeaseLostError("late")) is None
    assert lease.on_lost(told) is None
    assert not lease.release()
    assert str(lease.error) == "the lock was released"


def test_people_read_how_it_stands() -> None:
    """The text of a lease says whether it is valid, lost or released."""
    lease = granted()
    assert lease.describe(4.0) == "valid for 6.0 s"
    assert lease.describe(10.0) == "lost"
    lease.end(LeaseLostError("gone"))
    assert lease.describe(4.0) == "lost"
    lease.release()
    assert lease.describe(4.0) == "released"


@given(st.lists(st.tuples(st.sampled_from(["end", "lose", "release", "on_lost"]), st.integers())))
def test_listeners_are_told_once_or_never(events: list[tuple[str, int]]) -> None:
    """In any order of events each listener is called at most once, never after a release, and all get the same
    reason."""
    lease, count, reasons, numbers = granted(), 0, set(), []
    for event, number in events:
        if event == "end":
            lease.end(LeaseLostError(str(number)))
        elif event == "release":
            lease.release()
        elif event == "on_lost":
            count += 1
            listener = listener_number(count)
            if (reason := lease.on_lost(listener)) is not None:
                numbers.append(count)
                reasons.add(str(reason))
        elif (news := lease.lose(LeaseLostError(str(number)))) is not None:
            reasons.add(str(news[0]))
            numbers += [listener(news[0]) for listener in news[1]]
        assert lease.ended.is_set() == (lease.error is not None)
    assert len(numbers) == len(set(numbers))
    assert len(reasons) <= 1
    kinds = [event for event, _ in events if event in ("lose", "release")]
    if kinds[:1] == ["release"] or not kinds:
        assert not numbers


def listener_number(number: int) -> LossListener:
    return lambda _error: number
