"""Locks, step by step: each step is answered by hand, and time is a number."""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.core.locks import (
    Answer,
    Grant,
    Invoke,
    LockTerms,
    Observe,
    Pause,
    Step,
    WaitForChange,
    acquire,
    keep_renewed,
    outlive,
    release,
    try_acquire,
)
from statestore_client.core.results import DeleteResult, SetResult
from statestore_client.errors import (
    ClosedError,
    ConnectionLostError,
    InvalidArgumentError,
    LeaseLostError,
    LockNotAcquiredError,
    NotAuthorizedError,
    QuotaExceededError,
    RequestTimeoutError,
    StateStoreError,
    UnexpectedReplyError,
)
from statestore_client.wire.commands import Condition, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp

TERMS = LockTerms(b"lock", b"me", 10.0)
CLAIM = Set(b"lock", b"me", Condition.NEX, 10_000)
TOKEN = HlcTimestamp(1, 2, "S")
GRANTED = SetResult(True, TOKEN)
HELD = SetResult(False, None)
DELETED = WatchEvent(EventKind.DELETE, b"lock", None, TOKEN)
RENEWED = WatchEvent(EventKind.SET, b"lock", b"other", TOKEN)
MISSED = WatchEvent(EventKind.SET, b"lock", b"other", TOKEN, missed=True)


class Steps:
    """Runs a generator of steps by hand. ``step`` is what it wants now; ``result`` what it came to."""

    def __init__(self, steps: Generator[Step, Answer, Any], now: float = 0.0) -> None:
        self._steps = steps
        self.now = now
        self.step: Step | None = None
        self.result: Any = None
        self.error: StateStoreError | None = None
        self._advance(lambda: next(steps))

    def answer(self, value: Any = None, *, took: float = 0.0) -> Step | None:
        started = self.now
        self.now += took
        return self._advance(lambda: self._steps.send(Answer(value, started, self.now)))

    def fail(self, error: StateStoreError, *, took: float = 0.0) -> Step | None:
        self.now += took
        return self._advance(lambda: self._steps.throw(error))

    def wait(self) -> Step | None:
        """Let the pause that it wants, or the wait for a change, pass."""
        assert isinstance(self.step, (Pause, WaitForChange))
        return self.answer(took=self.step.seconds)

    def fail_and_wait(self, error: StateStoreError, *, took: float = 0.0) -> Step | None:
        """An error, and the pauses after it."""
        self.fail(error, took=took)
        while isinstance(self.step, Pause):
            self.wait()
        return self.step

    def _advance(self, resume: Any) -> Step | None:
        try:
            self.step = resume()
        except StopIteration as end:
            self.step, self.result = None, end.value
        except StateStoreError as error:
            self.step, self.error = None, error
        return self.step


def acquiring(timeout: float | None = 60.0) -> Steps:
    return Steps(acquire(TERMS, now=0.0, timeout=timeout, request_timeout=5.0, random=Random(1)))


# -- terms -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lease", [0, -1, 0.009, 86_401, float("nan"), float("inf"), True, "10", None])
def test_a_lease_has_its_bounds(lease: Any) -> None:
    """From 10 ms to a day."""
    with pytest.raises(InvalidArgumentError, match="lease"):
        LockTerms(b"lock", b"me", lease)


def test_a_holder_has_a_name() -> None:
    """An empty one could not be told from anybody else's."""
    with pytest.raises(InvalidArgumentError, match="holder"):
        LockTerms(b"lock", b"", 1.0)


def test_a_claim_is_set_nex_px() -> None:
    """State store protocol, "Locking": SET key holder NEX PX lease."""
    assert TERMS.claim().encode() == (
        b"*6\r\n$3\r\nSET\r\n$4\r\nlock\r\n$2\r\nme\r\n$3\r\nNEX\r\n$2\r\nPX\r\n$5\r\n10000\r\n"
    )


# -- acquiring ---------------------------------------------------------------------------------------------------------


def test_a_free_lock_takes_one_request() -> None:
    """No watch; the lease counts from when the request was sent, with a margin for slow clocks."""
    steps = acquiring()
    assert steps.step == Invoke(CLAIM, 5.0)
    steps.answer(GRANTED, took=0.5)
    assert steps.result == Grant(TOKEN, 0.0, 9.8)


def test_a_single_attempt_does_not_wait() -> None:
    """None when somebody else has it."""
    steps = Steps(try_acquire(TERMS, 3.0))
    assert steps.step == Invoke(CLAIM, 3.0)
    steps.answer(HELD)
    assert steps.step is None
    assert steps.result is None


def test_a_held_lock_is_watched_and_tried_again_before_waiting() -> None:
    """A release between the first attempt and the watch cannot be missed."""
    steps = acquiring()
    assert steps.answer(HELD) == Observe(b"lock", 5.0)
    assert steps.answer() == Invoke(CLAIM, 5.0)
    assert isinstance(steps.answer(HELD), WaitForChange)


@pytest.mark.parametrize("change", [DELETED, MISSED])
def test_a_change_that_may_have_freed_the_lock_is_followed_by_an_attempt(change: WatchEvent) -> None:
    """A delete, and anything after a gap."""
    steps = acquiring()
    steps.answer(HELD)
    steps.answer()
    steps.answer(HELD)
    assert steps.answer(change, took=0.1) == Invoke(CLAIM, 5.0)
    steps.answer(GRANTED)
    assert steps.result.fencing_token == TOKEN


def test_a_renewal_of_the_holder_is_no_reason_to_try() -> None:
    """The wait goes on for the rest of its time."""
    steps = acquiring()
    steps.answer(HELD)
    steps.answer()
    first = steps.answer(HELD)
    second = steps.answer(RENEWED, took=0.25)
    assert isinstance(first, WaitForChange)
    assert isinstance(second, WaitForChange)
    assert second.seconds == pytest.approx(first.seconds - 0.25)


def test_a_lost_notification_costs_a_second_or_so() -> None:
    """It looks again by itself, at times that differ from waiter to waiter."""
    steps = acquiring(timeout=None)
    steps.answer(HELD)
    steps.answer()
    waits = []
    for _ in range(20):
        step = steps.answer(HELD)
        assert isinstance(step, WaitForChange)
        waits.append(step.seconds)
        assert steps.wait() == Invoke(CLAIM, 5.0)
    assert all(0.75 <= w <= 1.25 for w in waits)
    assert len(set(waits)) == 20


def test_acquiring_ends_at_its_timeout() -> None:
    """Attempts and waits are cut to what is left, and the end is exactly there."""
    steps = acquiring(timeout=2.5)
    assert steps.step == Invoke(CLAIM, 2.5)
    while steps.step is not None:
        if isinstance(steps.step, Invoke):
            steps.answer(HELD, took=0.01)
        elif isinstance(steps.step, Observe):
            steps.answer(took=0.01)
        else:
            steps.wait()
    assert isinstance(steps.error, LockNotAcquiredError)
    assert "within 2.5 s" in str(steps.error)
    assert steps.now == pytest.approx(2.5, abs=0.02)


def test_acquiring_goes_on_through_transport_errors() -> None:
    """From the request and from the watch, until its time is over; the last error is the cause."""
    steps = acquiring(timeout=20)
    assert steps.fail_and_wait(ConnectionLostError("down"), took=0.01) == Invoke(CLAIM, 5.0)
    assert steps.answer(HELD) == Observe(b"lock", 5.0)
    assert steps.fail_and_wait(RequestTimeoutError("slow"), took=5.0) == Invoke(CLAIM, 5.0)
    assert steps.answer(HELD) == Observe(b"lock", 5.0)
    steps.answer()
    while steps.step is not None:
        steps.fail_and_wait(RequestTimeoutError("slow"), took=steps.step.timeout)
    assert isinstance(steps.error, LockNotAcquiredError)
    assert isinstance(steps.error.__cause__, RequestTimeoutError)
    assert steps.now == pytest.approx(20, abs=0.2)


@pytest.mark.parametrize("error", [ClosedError("closed"), QuotaExceededError(), NotAuthorizedError()])
def test_other_errors_end_acquiring(error: StateStoreError) -> None:
    """Repeating would not help."""
    steps = acquiring()
    steps.fail(error)
    assert steps.error is error


def test_without_the_right_to_watch_waiting_is_polling() -> None:
    """A server that refuses KEYNOTIFY is asked about once a second."""
    steps = acquiring()
    steps.answer(HELD)
    assert steps.fail(NotAuthorizedError()) == Invoke(CLAIM, 5.0)
    assert isinstance(steps.answer(HELD), WaitForChange)
    assert steps.wait() == Invoke(CLAIM, 5.0)
    steps.answer(GRANTED)
    assert steps.result.fencing_token == TOKEN


def test_a_grant_that_came_too_late_is_not_taken() -> None:
    """A request that waited out an outage may be answered when its lease is over: try again."""
    steps = acquiring()
    steps.answer(GRANTED, took=9.9)
    assert steps.result is None
    while not isinstance(steps.step, Invoke):
        steps.answer(took=0.1)
    steps.answer(GRANTED)
    assert steps.result.valid_until == pytest.approx(steps.now + 9.8)


def test_a_grant_without_a_version_is_no_grant() -> None:
    """There would be no fencing token."""
    steps = acquiring()
    steps.answer(SetResult(True, None))
    assert isinstance(steps.error, UnexpectedReplyError)
    steps = acquiring()
    steps.answer(DeleteResult(1, None))
    assert isinstance(steps.error, UnexpectedReplyError)


# -- renewing ----------------------------------------------------------------------------------------------------------


class Keeper(Steps):
    """A lease that was granted at 0 for 10 seconds, and what became of it."""

    def __init__(self) -> None:
        self.renewals: list[float] = []
        self.losses: list[tuple[float, LeaseLostError]] = []
        self.now = 0.0
        grant = Grant(TOKEN, 0.0, TERMS.valid_until(0.0))
        super().__init__(
            keep_renewed(
                TERMS,
                grant,
                renewed=self.renewals.append,
                lost=lambda error: self.losses.append((self.now, error)),
            )
        )


def test_a_lease_is_renewed_when_a_third_is_used_up() -> None:
    """Again and again, each time counted from when the renewal was sent."""
    keeper = Keeper()
    for _ in range(5):
        assert isinstance(keeper.step, Pause)
        step = keeper.wait()
        assert isinstance(step, Invoke)
        assert step.command == CLAIM
        sent = keeper.now
        keeper.answer(GRANTED, took=0.5)
        assert keeper.renewals[-1] == pytest.approx(sent + 9.8)
    assert keeper.now == pytest.approx(5 * 10 / 3 + 0.5)
    assert keeper.losses == []


def test_a_renewal_waits_no_longer_than_the_lease() -> None:
    """Its timeout is what is left, so that the loss is told in time."""
    keeper = Keeper()
    step = keeper.wait()
    assert isinstance(step, Invoke)
    assert step.timeout == pytest.approx(9.8 - 10 / 3)
    keeper.fail(RequestTimeoutError("slow"), took=step.timeout)
    keeper.answer()
    assert keeper.step is None
    assert keeper.losses[0][0] == pytest.approx(9.8)


def test_transport_errors_are_tried_again_until_the_lease_ends() -> None:
    """Ten times a second; the loss is told when the lease ends, not later."""
    keeper = Keeper()
    keeper.wait()
    attempts = 0
    while keeper.step is not None:
        attempts += 1
        keeper.fail_and_wait(ConnectionLostError("down"))
    assert 60 < attempts < 70
    ((when, error),) = keeper.losses
    assert when == pytest.approx(9.8)
    assert "ended before it could be renewed" in str(error)


def test_a_renewal_after_errors_keeps_the_lease() -> None:
    """An outage shorter than the rest of the lease is bridged."""
    keeper = Keeper()
    keeper.wait()
    for _ in range(20):
        keeper.fail_and_wait(ConnectionLostError("down"))
    keeper.answer(GRANTED)
    assert keeper.renewals == [pytest.approx(keeper.now + 9.8)]
    assert isinstance(keeper.step, Pause)


def test_a_late_renewal_loses_the_lock() -> None:
    """It may have taken the lock anew after somebody else had it; the loss is told first, then it is given back."""
    keeper = Keeper()
    keeper.wait()
    step = keeper.answer(GRANTED, took=6.5)
    assert len(keeper.losses) == 1
    assert step == Invoke(VDel(b"lock", b"me"), 10.0)
    keeper.answer(DeleteResult(1, None))
    assert keeper.step is None
    assert keeper.renewals == []
    assert len(keeper.losses) == 1


def test_a_refused_renewal_loses_the_lock() -> None:
    """Somebody else holds it."""
    keeper = Keeper()
    keeper.wait()
    keeper.answer(HELD)
    assert "somebody else" in str(keeper.losses[0][1])


def test_a_process_that_slept_through_its_lease_loses_the_lock() -> None:
    """A pause that took an hour: no renewal is sent any more."""
    keeper = Keeper()
    keeper.answer(took=3600)
    assert keeper.step is None
    assert len(keeper.losses) == 1


def test_other_errors_end_the_renewal() -> None:
    """The shell turns them into a loss."""
    keeper = Keeper()
    keeper.wait()
    keeper.fail(ClosedError("closed"))
    assert isinstance(keeper.error, ClosedError)
    assert keeper.losses == []


def test_a_lease_without_renewal_is_told_when_it_ends() -> None:
    """Also when the pause was short by a tick."""
    losses: list[LeaseLostError] = []
    steps = Steps(outlive(Grant(TOKEN, 0.0, 9.8), lost=losses.append))
    assert steps.step == Pause(9.8)
    assert steps.answer(took=9.79) == Pause(pytest.approx(0.01))
    steps.wait()
    assert "not to be renewed" in str(losses[0])


@given(st.data())
def test_a_lease_is_never_called_valid_when_another_may_have_the_lock(data: st.DataObject) -> None:
    """Against a server with a clock of the same speed: any mix of answers, errors and delays.

    The server holds the key for a lease from the moment at which it carried out the last claim: any moment between its
    sending and its answer or, after an error, never.
    """
    keeper = Keeper()
    valid_until, holds_until = TERMS.valid_until(0.0), 10.0
    for _ in range(data.draw(st.integers(1, 12))):
        if keeper.step is None:
            break
        if isinstance(keeper.step, Pause):
            keeper.answer(took=keeper.step.seconds + data.draw(st.floats(0, 3)))
        elif data.draw(st.booleans()):
            took = data.draw(st.floats(0, keeper.step.timeout))
            carried_out = keeper.now + took * data.draw(st.floats(0, 1))
            ours = carried_out < holds_until
            if ours:
                holds_until = max(holds_until, carried_out + 10.0)
            keeper.answer(GRANTED if ours else HELD, took=took)
        else:
            keeper.fail(ConnectionLostError("down"), took=data.draw(st.floats(0, 3)))
        if keeper.renewals:
            valid_until = keeper.renewals[-1]
        assert valid_until <= holds_until


# -- releasing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "was_ours"), [(DeleteResult(1, None), True), (DeleteResult(0, None, matched=False), False)]
)
def test_releasing_deletes_only_our_own_claim(result: DeleteResult, was_ours: bool) -> None:
    """VDEL with the holder's name."""
    steps = Steps(release(TERMS, 3.0))
    assert steps.step == Invoke(VDel(b"lock", b"me"), 3.0)
    steps.answer(result)
    assert steps.result is was_ours
