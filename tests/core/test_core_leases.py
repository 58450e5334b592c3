"""Held locks: renewal, loss, and newer tokens. Each step is answered by hand, and time is a number."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps_by_hand import NEWER, TOKEN, HeldLease, Steps

from statestore_client.core.leases import (
    LeaseState,
    LossListener,
    check_after,
    keep_renewed,
    next_token,
    watch_expiry,
)
from statestore_client.core.locks import Grant, LockTerms
from statestore_client.core.results import SetResult
from statestore_client.core.steps import Invoke, Pause, SendUnawaited
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

TERMS = LockTerms(b"lock", b"me", 10.0)
CLAIM = Set(b"lock", b"me", Condition.NEX, 10_000)
GRANTED = SetResult(True, TOKEN)
HELD = SetResult(False, None)


class Keeper(Steps):
    """A lease that was granted at 0 for 10 seconds, and what became of it."""

    def __init__(self, store_id: str | None = None) -> None:
        self.renewals: list[float] = []
        self.losses: list[tuple[float, LeaseLostError]] = []
        self.now = 0.0
        grant = Grant(TOKEN, 0.0, TERMS.valid_until(0.0), store_id)
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


def test_a_renewal_in_another_store_is_none() -> None:
    """In a store that began empty the claim is granted anew, after somebody else may have held the lock: it is given
    back after the loss. Without the names of both stores nothing is known."""
    for before, after in ((None, "b"), ("a", None), ("a", "a")):
        keeper = Keeper(before)
        keeper.wait()
        keeper.answer(SetResult(True, TOKEN, after))
        assert (len(keeper.renewals), keeper.losses) == (1, [])
    keeper = Keeper("a")
    keeper.wait()
    assert keeper.answer(SetResult(True, NEWER, "b")) == SendUnawaited(VDel(b"lock", b"me"))
    assert keeper.renewals == []
    assert "empty store" in str(keeper.losses[0][1])


def test_another_store_gives_no_newer_token() -> None:
    """A token of another store says nothing of what this lease protects."""
    lease = HeldLease()
    lease.store_id = "a"
    steps = Steps(next_token(TERMS, lease, 30.0))
    steps.answer(SetResult(True, NEWER, "b"))
    assert isinstance(steps.error, LeaseLostError)


def test_a_renewal_leaves_time_for_another() -> None:
    """A renewal waits for a third of the lease or what is left of it, which leaves time for another attempt."""
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
    """After a transport error a renewal is tried ten times a second until one is granted or the lease ends; only then
    is the loss reported."""
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
    lucky = Keeper()
    lucky.wait()
    for _ in range(20):
        lucky.fail_and_wait(ConnectionLostError("down"))
    lucky.answer(GRANTED)
    assert lucky.renewals == [pytest.approx(lucky.now + 9.8)]
    assert isinstance(lucky.step, Pause)


def test_the_end_of_a_lease_is_told_in_time() -> None:
    """A lease's end counts from when it was requested, 2 s ago, even if a pause is short or a renewal came."""
    losses: list[LeaseLostError] = []
    ends = [9.8]
    steps = Steps(watch_expiry(lambda: ends[0], now=2.0, why="over", lost=losses.append), now=2.0)
    assert steps.step == Pause(pytest.approx(7.8))
    assert steps.answer(took=7.79) == Pause(pytest.approx(0.01))
    ends[0] = 13.0
    assert steps.answer(took=0.01) == Pause(pytest.approx(3.2))
    steps.wait()
    assert [str(error) for error in losses] == ["over"]


def test_what_ends_a_lease_early() -> None:
    """A refused renewal, and a pause that outlasts the lease, lose the lock at once; for any other error that is left
    to the shell."""
    refused, slept, closed = Keeper(), Keeper(), Keeper()
    refused.wait()
    assert refused.answer(HELD) is None
    assert "somebody else" in str(refused.losses[0][1])
    assert slept.answer(took=3600) is None
    assert len(slept.losses) == 1
    closed.wait()
    closed.fail(ClosedError("closed"))
    assert isinstance(closed.error, ClosedError)
    assert closed.losses == []


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
        elif isinstance(keeper.step, SendUnawaited):
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
    assert keeper.answer(GRANTED, took=keeper.step.timeout) == SendUnawaited(TERMS.give_back())
    assert len(keeper.losses) == 1
    assert keeper.renewals == []
    keeper.answer()
    assert keeper.step is None


# -- newer tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "came"),
    [(SetResult(True, NEWER), NEWER), (HELD, LeaseLostError), (SetResult(True, None), UnexpectedReplyError)],
)
def test_a_newer_token_is_the_version_of_the_key_set_again(answer: SetResult, came: object) -> None:
    """A newer token is the version of a claim that is sent again as a renewal, for as long as the lease lasts; a
    refused claim, or one answered without a version, gives none."""
    steps = Steps(next_token(TERMS, HeldLease(), 30.0))
    assert steps.step == Invoke(CLAIM, 7.0)
    steps.answer(answer)
    assert came in (steps.result, type(steps.error))


def test_a_lost_lease_gives_no_token() -> None:
    """A lease that is lost before a newer token is requested or answered gives none: another may have it."""
    assert isinstance(Steps(next_token(TERMS, HeldLease(remaining=0.0), 30.0)).error, LeaseLostError)
    lease = HeldLease()
    steps = Steps(next_token(TERMS, lease, 30.0))
    lease.remaining = 0.0
    steps.answer(SetResult(True, NEWER))
    assert isinstance(steps.error, LeaseLostError)


def test_a_batch_that_failed_with_the_lease_may_have_been_applied() -> None:
    """A batch that fails with the lease may have been applied in part, as the cause tells."""
    failed = BatchError("1 of 2 items failed", results=(None, RequestTimeoutError("slow")))
    with pytest.raises(LeaseLostError) as caught:
        check_after(failed, HeldLease(remaining=0.0))
    assert caught.value.may_have_been_applied
    assert caught.value.__cause__ is failed
    check_after(failed, HeldLease())


# -- the state of a lease ----------------------------------------------------------------------------------------------


def granted(*, renew: bool = True) -> LeaseState:
    """A lease that is good until 10."""
    return LeaseState(10.0, threading.Event(), renew=renew)


@pytest.mark.parametrize(("renew", "why"), [(True, "before it could be renewed"), (False, "was not to be renewed")])
def test_a_lease_is_over_when_somebody_says_so(renew: bool, why: str) -> None:
    """The remaining time shrinks, a renewal extends it, and after the end, with its first reason, none is accepted."""
    lease = granted(renew=renew)
    assert lease.remaining(4.0) == 6.0
    lease.renewed(14.0)
    assert [lease.remaining(now) for now in (4.0, 15.0)] == [10.0, -1.0]
    assert [lease.describe(now) for now in (8.0, 14.0)] == ["valid for 6.0 s", "lost"]
    assert not lease.ended.is_set()
    lease.end(LeaseLostError("first"))
    lease.end(LeaseLostError("second"))
    assert lease.ended.is_set()
    assert (str(lease.error), lease.remaining(1.0), lease.describe(4.0)) == ("first", 0.0, "lost")
    with pytest.raises(LeaseLostError, match=why):
        lease.renewed(99.0)
    assert lease.valid_until == 14.0


def test_nobody_is_told_of_a_release() -> None:
    """A release is not reported to any listener, whether added before or after it, and neither is a later loss."""
    lease = granted()
    assert lease.on_lost(print) is None
    assert [lease.release(), lease.release()] == [True, False]
    assert lease.lose(LeaseLostError("late")) is None
    assert lease.on_lost(print) is None
    assert (str(lease.error), lease.describe(4.0)) == ("the lock was released", "released")


@given(st.lists(st.sampled_from(["end", "lose", "release", "on_lost", "on_lost"])))
def test_listeners_are_told_once_or_never(events: list[str]) -> None:
    """In any order of events each listener is told of a loss once, at the loss or at once when it is added after it,
    with the first reason of an end; after a release none is told."""
    lease, waiting, reason, is_told, is_released = granted(), list[LossListener](), None, False, False
    for number, event in enumerate(events):
        error = LeaseLostError(str(number))
        if event == "on_lost":
            listener = partial(print, number)
            assert lease.on_lost(listener) is (reason if is_told and not is_released else None)
            waiting += [] if is_told else [listener]
        elif event == "release":
            assert lease.release() is not is_released
            is_told = is_released = True
            reason = reason or lease.error
        elif event == "end":
            lease.end(error)
            reason = reason or error
        else:
            reason = reason or error
            assert lease.lose(error) == (None if is_told else (reason, waiting))
            is_told = True
        assert lease.error is reason
        assert lease.ended.is_set() == (reason is not None)


def test_a_request_that_outlasts_the_lease_fails_with_its_loss() -> None:
    """A request that outlasts the lease is not repeated and fails with the lease's loss, which says that it may have
    been applied; before that its own error counts."""
    lease = HeldLease()
    steps = Steps(next_token(TERMS, lease, 30.0))
    lease.remaining = 0.0
    steps.fail(RequestTimeoutError("slow", may_have_been_applied=True))
    assert isinstance(steps.error, LeaseLostError)
    assert steps.error.may_have_been_applied
    early = Steps(next_token(TERMS, HeldLease(), 30.0))
    early.fail(ConnectionLostError("down"))
    assert isinstance(early.error, TransportError)
