"""Held locks, step by step: renewal, loss, and newer tokens. Each step is answered by hand, and time is a number."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps_by_hand import Steps

from statestore_client.core.leases import check_after, keep_renewed, next_token, outlive
from statestore_client.core.locks import Grant, LockTerms
from statestore_client.core.results import SetResult
from statestore_client.core.steps import Invoke, Pause, Post
from statestore_client.errors import (
    BatchError,
    ClosedError,
    ConnectionLostError,
    LeaseLostError,
    RequestTimeoutError,
    TransportError,
    UnexpectedReplyError,
)
from statestore_client.wire.commands import Condition, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp

TERMS = LockTerms(b"lock", b"me", 10.0)
CLAIM = Set(b"lock", b"me", Condition.NEX, 10_000)
TOKEN = HlcTimestamp(1, 2, "S")
NEWER = HlcTimestamp(1, 3, "S")
GRANTED = SetResult(True, TOKEN)
HELD = SetResult(False, None)


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
                now=0.0,
                renewed=self.renewals.append,
                lost=lambda error: self.losses.append((self.now, error)),
            )
        )


def test_a_lease_is_renewed_when_a_third_is_used_up() -> None:
    """A lease is renewed whenever a third of it has passed since the last renewal was sent."""
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


def test_a_renewal_leaves_time_for_another() -> None:
    """A renewal waits for a third of the lease or what is left of it, so that a dead link leaves time for another
    attempt."""
    keeper = Keeper()
    first = keeper.wait()
    assert isinstance(first, Invoke)
    assert first.timeout == pytest.approx(10 / 3)
    second = keeper.fail_and_wait(RequestTimeoutError("slow"), took=first.timeout)
    assert isinstance(second, Invoke)
    assert second.timeout == pytest.approx(9.8 - 20 / 3 - 0.1)
    keeper.fail(RequestTimeoutError("slow"), took=second.timeout)
    keeper.answer()
    assert keeper.step is None
    assert keeper.losses[0][0] == pytest.approx(9.8)


def test_transport_errors_are_tried_again_until_the_lease_ends() -> None:
    """After a transport error a renewal is tried ten times a second until the lease ends, and only then is the loss
    reported."""
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
    """A renewal that succeeds before the lease ends keeps it, whatever errors came before."""
    keeper = Keeper()
    keeper.wait()
    for _ in range(20):
        keeper.fail_and_wait(ConnectionLostError("down"))
    keeper.answer(GRANTED)
    assert keeper.renewals == [pytest.approx(keeper.now + 9.8)]
    assert isinstance(keeper.step, Pause)


def test_a_late_renewal_loses_the_lock() -> None:
    """A renewal that is answered too late may have taken the lock anew: the loss is reported first, then it is given
    back."""
    keeper = Keeper()
    keeper.wait()
    step = keeper.answer(GRANTED, took=6.5)
    assert len(keeper.losses) == 1
    assert step == Post(VDel(b"lock", b"me"))
    keeper.answer()
    assert keeper.step is None
    assert keeper.renewals == []
    assert len(keeper.losses) == 1


def test_a_refused_renewal_loses_the_lock() -> None:
    """A refused renewal loses the lock, because somebody else holds it."""
    keeper = Keeper()
    keeper.wait()
    keeper.answer(HELD)
    assert "somebody else" in str(keeper.losses[0][1])


def test_a_process_that_slept_through_its_lease_loses_the_lock() -> None:
    """After a pause that outlasts the lease no renewal is sent any more, and the lock is lost."""
    keeper = Keeper()
    keeper.answer(took=3600)
    assert keeper.step is None
    assert len(keeper.losses) == 1


def test_other_errors_end_the_renewal() -> None:
    """Any other error ends the renewal, and the shell turns it into a loss."""
    keeper = Keeper()
    keeper.wait()
    keeper.fail(ClosedError("closed"))
    assert isinstance(keeper.error, ClosedError)
    assert keeper.losses == []


def test_the_end_of_a_lease_is_told_in_time() -> None:
    """A lease's end counts from when it was requested, 2 s ago, even if the pause was a tick short or a renewal
    came."""
    losses: list[LeaseLostError] = []
    ends = [9.8]
    steps = Steps(outlive(lambda: ends[0], now=2.0, why="over", lost=losses.append), now=2.0)
    assert steps.step == Pause(pytest.approx(7.8))
    assert steps.answer(took=7.79) == Pause(pytest.approx(0.01))
    ends[0] = 13.0
    assert steps.answer(took=0.01) == Pause(pytest.approx(3.2))
    steps.wait()
    assert [str(error) for error in losses] == ["over"]


@given(st.data())
def test_a_lease_is_never_called_valid_when_another_may_have_the_lock(data: st.DataObject) -> None:
    """For any mix of answers, errors and delays a lease is never called valid when somebody else may have the lock. The
    server, whose clock has the same speed, holds the key for a lease from when it carried out the last claim: any
    moment between its sending and its answer or, after an error, never."""
    keeper = Keeper()
    valid_until, holds_until = TERMS.valid_until(0.0), 10.0
    for _ in range(data.draw(st.integers(1, 12))):
        if keeper.step is None:
            break
        if isinstance(keeper.step, Pause):
            keeper.answer(took=keeper.step.seconds + data.draw(st.floats(0, 3)))
        elif isinstance(keeper.step, Post):
            # The lock is given back: from now on anybody may have it, and the loss was told before.
            assert keeper.losses
            keeper.answer(took=data.draw(st.floats(0, 3)))
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


def test_a_renewal_answered_as_the_lease_ends_is_given_back_after_the_loss() -> None:
    """A renewal whose answer takes all the time that was left is given back after the loss is reported."""
    keeper = Keeper()
    for _ in range(100):
        if isinstance(keeper.step, Pause):
            keeper.wait()
        elif isinstance(keeper.step, Invoke) and keeper.now + keeper.step.timeout < TERMS.valid_until(0.0):
            keeper.fail(ConnectionLostError("down"), took=keeper.step.timeout)
        else:
            break
    assert isinstance(keeper.step, Invoke)
    assert keeper.answer(GRANTED, took=keeper.step.timeout) == Post(TERMS.give_back())
    assert len(keeper.losses) == 1
    assert keeper.renewals == []
    keeper.answer()
    assert keeper.step is None


# -- newer tokens ------------------------------------------------------------------------------------------------------


@attrs.define
class HeldLease:
    """A lease that ends when the test says so."""

    fencing_token: HlcTimestamp = TOKEN
    remaining: float = 7.0

    def check(self) -> None:
        if self.remaining <= 0:
            raise LeaseLostError("over")


def test_a_newer_token_is_the_version_of_the_key_set_again() -> None:
    """A newer token is the version of a claim that is sent again as a renewal and waits no longer than the lease
    lasts."""
    steps = Steps(next_token(TERMS, HeldLease(), 30.0))
    assert steps.step == Invoke(CLAIM, 7.0)
    steps.answer(SetResult(True, NEWER))
    assert steps.result == NEWER


@pytest.mark.parametrize("answer", [HELD, SetResult(True, None)])
def test_a_refusal_is_no_token(answer: SetResult) -> None:
    """A refused claim, or one answered without a version, gives no newer token."""
    steps = Steps(next_token(TERMS, HeldLease(), 30.0))
    steps.answer(answer)
    assert isinstance(steps.error, UnexpectedReplyError if answer.applied else LeaseLostError)


def test_a_lost_lease_gives_no_token() -> None:
    """A lease that is lost before a newer token is requested or answered gives none: the claim may have taken the lock
    anew."""
    assert isinstance(Steps(next_token(TERMS, HeldLease(remaining=0.0), 30.0)).error, LeaseLostError)
    lease = HeldLease()
    steps = Steps(next_token(TERMS, lease, 30.0))
    lease.remaining = 0.0
    steps.answer(SetResult(True, NEWER))
    assert isinstance(steps.error, LeaseLostError)


def test_a_request_that_outlasts_the_lease_fails_with_its_loss() -> None:
    """A request that outlasts the lease fails with the lease's loss, and keeps whether it may have been applied."""
    lease = HeldLease()
    steps = Steps(next_token(TERMS, lease, 30.0))
    lease.remaining = 0.0
    steps.fail(RequestTimeoutError("slow", may_have_been_applied=True))
    assert isinstance(steps.error, LeaseLostError)
    assert steps.error.may_have_been_applied
    steps = Steps(next_token(TERMS, HeldLease(), 30.0))
    steps.fail(ConnectionLostError("down"))
    assert isinstance(steps.error, TransportError)


def test_a_batch_that_failed_with_the_lease_may_have_been_applied() -> None:
    """A batch that fails with the lease may have been applied in part, as the cause tells; before that its own error
    counts."""
    failed = BatchError("1 of 2 items failed", results=(None, RequestTimeoutError("slow")))
    with pytest.raises(LeaseLostError) as caught:
        check_after(failed, HeldLease(remaining=0.0))
    assert caught.value.may_have_been_applied
    assert caught.value.__cause__ is failed
    check_after(failed, HeldLease())
