"""Locks and elections, step by step: each step is answered by hand, time is a number, and chance has a seed."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from steps_by_hand import TOKEN, Steps

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.core.locks import (
    ElectionTerms,
    Grant,
    HolderView,
    LockKnowledge,
    LockState,
    LockTerms,
    WaitPolicy,
    acquire,
    holder,
    release,
    try_acquire,
)
from statestore_client.core.results import DeleteResult, Item, SetResult
from statestore_client.core.steps import Invoke, SendUnawaited, StartWatch, WaitForChange
from statestore_client.errors import (
    ClosedError,
    ConnectionLostError,
    InvalidArgumentError,
    LockNotAcquiredError,
    NotAuthorizedError,
    QuotaExceededError,
    RequestTimeoutError,
    StateStoreError,
    TransportError,
    UnexpectedReplyError,
)
from statestore_client.wire.commands import Condition, Get, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp

TERMS = LockTerms(b"lock", b"me", 10.0)
CLAIM = Set(b"lock", b"me", Condition.NEX, 10_000)
GRANTED = SetResult(True, TOKEN)
HELD = SetResult(False, None)
FREE = VDel(b"lock", b"me")
ATTEMPT = Invoke(CLAIM, 5.0, undo=FREE)
DELETED = WatchEvent(EventKind.DELETE, b"lock", None, TOKEN)
RENEWED = WatchEvent(EventKind.SET, b"lock", b"other", TOKEN)
MISSED = WatchEvent(EventKind.SET, b"lock", b"other", TOKEN, missed=True)


def acquiring(timeout: float | None = 60.0) -> Steps:
    return Steps(acquire(TERMS, now=0.0, timeout=timeout, request_timeout=5.0, random=Random(1)))


# -- terms -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lease", [0, -1, 0.009, 86_401, float("nan"), float("inf"), True, "10", None])
def test_a_lease_has_its_bounds(lease: Any) -> None:
    """A lease, or the term of an election, lasts from 10 ms to a day; the error says which of the two it is."""
    with pytest.raises(InvalidArgumentError, match="lease must be seconds"):
        LockTerms(b"lock", b"me", lease)
    with pytest.raises(InvalidArgumentError, match="term must be seconds"):
        ElectionTerms(b"leader", b"me", lease)


def test_a_holder_has_a_name() -> None:
    """The name of a holder or candidate may not be empty: it could not be told from another's."""
    with pytest.raises(InvalidArgumentError, match="holder"):
        LockTerms(b"lock", b"", 1.0)
    with pytest.raises(InvalidArgumentError, match="candidate"):
        ElectionTerms(b"leader", b"", 1.0)


@pytest.mark.parametrize("terms", [LockTerms, ElectionTerms])
def test_a_claim_is_set_nex_px(terms: type[LockTerms]) -> None:
    """A claim is SET key holder NEX PX lease (state store protocol, "Locking"), also in an election, so that other
    SDKs' candidates can take part; a lock may mark it to persist."""
    assert terms(b"lock", b"me", 10.0).claim().encode() == (
        b"*6\r\n$3\r\nSET\r\n$4\r\nlock\r\n$2\r\nme\r\n$3\r\nNEX\r\n$2\r\nPX\r\n$5\r\n10000\r\n"
    )
    claim = terms(b"lock", b"me", 10.0, persist=True).claim()
    assert claim == Set(b"lock", b"me", Condition.NEX, 10_000, persist=True)


# -- acquiring ---------------------------------------------------------------------------------------------------------


def test_a_free_lock_takes_one_request() -> None:
    """A free lock takes one request and no watch; the lease counts from its sending, less a margin."""
    steps = acquiring()
    assert steps.step == ATTEMPT
    steps.answer(GRANTED, took=0.5)
    assert steps.result == Grant(TOKEN, 0.0, 9.8)


def test_a_single_attempt_does_not_wait() -> None:
    """A single attempt returns None when somebody else has the lock, and does not wait."""
    steps = Steps(try_acquire(TERMS, 3.0))
    assert steps.step == Invoke(CLAIM, 3.0, undo=FREE)
    steps.answer(HELD)
    assert steps.step is None
    assert steps.result is None


def test_a_held_lock_is_watched_and_tried_again_before_waiting() -> None:
    """A held lock is watched and then tried again before waiting, so that a release in between is not missed."""
    steps = acquiring()
    assert steps.answer(HELD) == StartWatch(b"lock", 5.0)
    assert steps.answer() == ATTEMPT
    assert isinstance(steps.answer(HELD), WaitForChange)


def waiting(seed: int = 1) -> Steps:
    """A contender that found the lock held, watches it, and waits."""
    steps = Steps(acquire(TERMS, now=0.0, timeout=None, request_timeout=5.0, random=Random(seed)))
    steps.answer(HELD)
    steps.answer()
    steps.answer(HELD)
    assert isinstance(steps.step, WaitForChange)
    return steps


def test_a_release_is_followed_by_an_attempt_at_once() -> None:
    """A lone waiter answers a release with an attempt at once."""
    steps = waiting()
    assert steps.answer(DELETED, took=0.1) == ATTEMPT
    steps.answer(GRANTED)
    assert steps.result.fencing_token == TOKEN


def test_a_claim_that_was_given_up_and_granted_is_found() -> None:
    """A claim that was given up but granted is found by the next one, as the key holds our own name."""
    steps = waiting()
    assert steps.answer(WatchEvent(EventKind.SET, b"lock", b"me", TOKEN), took=0.1) == ATTEMPT


def test_acquiring_ends_at_its_timeout() -> None:
    """Attempts and waits are cut to the time that is left, and acquiring ends exactly at its time-out."""
    steps = acquiring(timeout=2.5)
    assert steps.step == Invoke(CLAIM, 2.5, undo=FREE)
    while steps.step is not None:
        if isinstance(steps.step, Invoke):
            steps.answer(HELD, took=0.01)
        elif isinstance(steps.step, StartWatch):
            steps.answer(took=0.01)
        else:
            steps.wait()
    assert isinstance(steps.error, LockNotAcquiredError)
    assert "within 2.5 s" in str(steps.error)
    assert steps.now == pytest.approx(2.5, abs=0.02)


def test_acquiring_goes_on_through_transport_errors() -> None:
    """Acquiring goes on through transport errors of requests and of the watch; its end has the last as cause."""
    steps = acquiring(timeout=20)
    assert steps.fail_and_wait(ConnectionLostError("down"), took=0.01) == ATTEMPT
    assert steps.answer(HELD) == StartWatch(b"lock", 5.0)
    assert steps.fail_and_wait(RequestTimeoutError("slow"), took=5.0) == ATTEMPT
    assert steps.answer(HELD) == StartWatch(b"lock", 5.0)
    steps.answer()
    while steps.step is not None:
        steps.fail_and_wait(RequestTimeoutError("slow"), took=steps.step.timeout)
    assert isinstance(steps.error, RequestTimeoutError)
    assert str(steps.error).startswith(
        "the lock lock was not acquired within 20 s, and whether it is free is not known:"
    )
    assert isinstance(steps.error.__cause__, RequestTimeoutError)
    assert steps.now == pytest.approx(20, abs=0.2)


@pytest.mark.parametrize(
    "error",
    [ConnectionLostError("down"), RequestTimeoutError("unsent"), RequestTimeoutError("", may_have_been_applied=True)],
)
def test_no_answer_at_all_is_not_somebody_else(error: TransportError) -> None:
    """A waiter that gets no answer from the server says that it does not know who has the lock."""
    steps = acquiring(timeout=2)
    while steps.step is not None:
        steps.fail_and_wait(error, took=0.7)
    assert isinstance(steps.error, RequestTimeoutError)
    assert not isinstance(steps.error, LockNotAcquiredError)
    assert steps.error.may_have_been_applied is error.may_have_been_applied


UNANSWERED = RequestTimeoutError("no answer", may_have_been_applied=True)
SUSPENDED = WatchEvent(EventKind.SUSPENDED, b"lock", None, None)
RESUMED = WatchEvent(EventKind.RESUMED, b"lock", None, None)


@pytest.mark.parametrize(
    ("events", "failure", "missing"),
    [
        ((), None, None),
        ((), UNANSWERED, None),
        ((2.5,), UNANSWERED, "no answer; it was held 2.5 s ago"),
        ((2.5, RENEWED), UNANSWERED, None),
        ((), RequestTimeoutError("not sent"), "not sent; it was held 0.0 s ago"),
        ((), ConnectionLostError("cut"), "cut; it was held 0.0 s ago"),
        ((0.5, SUSPENDED), None, "the connection is down; it was held 0.5 s ago"),
        ((0.5, SUSPENDED), UNANSWERED, "no answer; it was held 0.5 s ago"),
        ((0.5, SUSPENDED, RESUMED), None, None),
        ((0.5, SUSPENDED, MISSED), None, None),
    ],
)
def test_not_free_is_said_if_it_is_known(
    events: tuple[float | WatchEvent, ...], failure: TransportError | None, missing: str | None
) -> None:
    """The error says "not free" only if the server said so, nothing failed since and the link is up; a recent answer
    counts too."""
    word, now = LockKnowledge(), 100.0
    word.answered(now, held=True)
    for event in events:
        if isinstance(event, float):
            now += event
        else:
            word.heard(event, now)
    if failure is not None:
        word.failed(failure)
    assert word.what_is_missing(now) == missing
    word.answered(now, held=True)
    assert word.what_is_missing(now) is None


def test_a_cut_while_waiting_is_no_refusal() -> None:
    """If the link goes down after a refusal and the time ends before it is back, the error does not say "not free"."""
    steps = acquiring(timeout=0.4)
    steps.answer(HELD)
    steps.answer()
    assert isinstance(steps.answer(HELD), WaitForChange)
    steps.answer(SUSPENDED, took=0.1)
    steps.wait()
    assert isinstance(steps.error, RequestTimeoutError)
    assert not steps.error.may_have_been_applied
    assert "the connection is down; it was held 0.4 s ago" in str(steps.error)


def test_a_grant_that_comes_too_late_is_claimed_again_or_given_back() -> None:
    """A grant that arrives after its lease is over is claimed again, and the next answer counts; it is given back where
    nobody would use it: the waiting time is over, too, or only one attempt was wanted."""
    again, waited, single = acquiring(), acquiring(timeout=9.9), Steps(try_acquire(TERMS, 30.0))
    assert again.answer(GRANTED, took=9.9) == ATTEMPT
    again.answer(GRANTED, took=0.1)
    assert again.result.valid_until == pytest.approx(9.9 + 9.8)
    for steps in (waited, single):
        assert steps.answer(GRANTED, took=9.9) == SendUnawaited(FREE)
        steps.answer()
    assert isinstance(waited.error, RequestTimeoutError)
    assert "the lease had ended when its grant arrived" in str(waited.error)
    assert (single.step, single.result, single.error) == (None, None, None)


@pytest.mark.parametrize("error", [ClosedError("closed"), QuotaExceededError(), NotAuthorizedError()])
def test_other_errors_end_acquiring(error: StateStoreError) -> None:
    """Any other error ends acquiring, because repeating would not help."""
    steps = acquiring()
    steps.fail(error)
    assert steps.error is error


def test_without_the_right_to_watch_waiting_is_polling() -> None:
    """When the server refuses KEYNOTIFY, a waiter asks about once a second."""
    steps = acquiring()
    steps.answer(HELD)
    assert steps.fail(NotAuthorizedError()) == ATTEMPT
    assert isinstance(steps.answer(HELD), WaitForChange)
    assert steps.wait() == ATTEMPT
    steps.answer(GRANTED)
    assert steps.result.fencing_token == TOKEN


@pytest.mark.parametrize(("lease", "margin"), [(10.0, 0.2), (60.0, 1.2), (1.0, 0.05), (0.3, 0.03)])
def test_a_lease_is_trusted_a_little_less_long(lease: float, margin: float) -> None:
    """A lease is trusted for 2 % less because of clocks, and at least 50 ms (or a tenth) for late threads."""
    assert LockTerms(b"lock", b"me", lease).valid_until(100.0) == pytest.approx(100.0 + lease - margin)


def test_a_grant_without_a_version_is_no_grant() -> None:
    """A grant without a version is an error, because there would be no fencing token."""
    steps = acquiring()
    steps.answer(SetResult(True, None))
    assert isinstance(steps.error, UnexpectedReplyError)
    steps = acquiring()
    steps.answer(DeleteResult(1, None))
    assert isinstance(steps.error, UnexpectedReplyError)


# -- releasing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "was_ours"), [(DeleteResult(1, None), True), (DeleteResult(0, None, matched=False), False)]
)
def test_releasing_deletes_only_our_own_claim(result: DeleteResult, was_ours: bool) -> None:
    """A release is VDEL with the holder's name, so it deletes only our own claim."""
    steps = Steps(release(TERMS, 3.0))
    assert steps.step == Invoke(VDel(b"lock", b"me"), 3.0, lasting=True)
    steps.answer(result)
    assert steps.result is was_ours


@pytest.mark.parametrize(("item", "name"), [(Item(b"other", TOKEN), b"other"), (None, None)])
def test_the_holder_stands_in_the_key(item: Item | None, name: bytes | None) -> None:
    """The holder of a lock is the value of its key, and a missing key means that there is none."""
    steps = Steps(holder(b"lock", 3.0))
    assert steps.step == Invoke(Get(b"lock"), 3.0)
    steps.answer(item)
    assert steps.result == name


# -- elections and holders ---------------------------------------------------------------------------------------------


def test_a_lost_campaign_says_what_is_known() -> None:
    """The error of a lost campaign names the election, the time, and another leader only if there is one."""
    terms = ElectionTerms(b"leader", b"me", 10.0)
    lost, cut = (Steps(acquire(terms, now=0.0, timeout=2.0, request_timeout=5.0, random=Random(1))) for _ in range(2))
    while lost.step is not None:
        lost.answer(HELD if isinstance(lost.step, Invoke) else None, took=0.5)
    assert isinstance(lost.error, LockNotAcquiredError)
    assert "the election leader was not won within 2 s: another one leads" in str(lost.error)
    while cut.step is not None:
        cut.fail_and_wait(ConnectionLostError("cut"), took=0.5)
    assert isinstance(cut.error, RequestTimeoutError)
    assert str(cut.error) == "the election leader was not won within 2 s, and who leads is not known: cut"


V1, V2, V3 = (HlcTimestamp(1, i, "S") for i in (1, 2, 3))


def news(kind: EventKind, value: bytes | None, version: HlcTimestamp, *, missed: bool = False) -> WatchEvent:
    return WatchEvent(kind, b"lock", value, version, missed)


def test_renewals_are_no_news() -> None:
    """Each new holder is reported once and a free lock once, also as the first state; renewals and connection events
    are not reported."""
    view = HolderView()
    assert view.first(news(EventKind.SET, b"a", V1)) == LockState(b"a", V1)
    assert view.changed(news(EventKind.SET, b"a", V2)) is None
    assert view.changed(news(EventKind.SUSPENDED, None, V2)) is None
    assert view.changed(news(EventKind.SET, b"b", V2)) == LockState(b"b", V2)
    assert view.changed(news(EventKind.DELETE, None, V3, missed=True)) == LockState(None, V3, missed=True)
    assert view.changed(news(EventKind.DELETE, None, V3)) is None
    assert view.changed(news(EventKind.SET, b"b", V3)) == LockState(b"b", V3)
    empty = HolderView()
    assert empty.first(None) == LockState(None)
    assert empty.changed(news(EventKind.DELETE, None, V1)) is None
    assert LockState(None).free
    assert not LockState(b"").free


# -- when a waiter tries again -----------------------------------------------------------------------------------------


def held(by: bytes = b"other", *, missed: bool = False) -> WatchEvent:
    return WatchEvent(EventKind.SET, b"lock", by, None, missed)


def policy(seed: int = 1) -> WaitPolicy:
    return WaitPolicy(holder=b"me", lease=10.0, random=Random(seed))


def test_renewals_that_arrive_make_polls_needless() -> None:
    """A waiter does not poll until 3 s after a renewal by a holder that renews every 3 s."""
    waiter = policy()
    assert 0.5 <= waiter.after_event(held(), 0.0, 99.0) <= 1.0
    for renewed in (3.0, 6.0, 9.0):
        assert renewed + 3.5 <= waiter.after_event(held(), renewed, 99.0) <= renewed + 4.0


def test_a_dead_holder_is_asked_about_once_a_second() -> None:
    """When a holder's renewals stop, each poll comes at most a second after the one before, at times that differ."""
    waiter = policy()
    waiter.after_event(held(), 0.0, 99.0)
    look_at = waiter.after_event(held(), 3.0, 99.0)
    assert look_at <= 7.0
    waits = []
    for _ in range(20):
        before, look_at = look_at, waiter.after_refusal(look_at)
        waits.append(look_at - before)
    assert all(0.5 <= wait <= 1.0 for wait in waits)
    assert len(set(waits)) == 20


@pytest.mark.parametrize("between", [held(b"third"), held(missed=True), DELETED])
def test_a_gap_between_different_holders_says_nothing(between: WatchEvent) -> None:
    """Only two SETs in a row by the same holder, with nothing missed in between, count as a renewal."""
    waiter = policy()
    waiter.after_event(held(), 0.0, 99.0)
    waiter.after_event(between, 2.0, 99.0)
    last = held(missed=True) if between.missed else held()
    assert 5.5 <= waiter.after_event(last, 5.0, 99.0) <= 6.0


def test_a_long_gap_is_not_believed() -> None:
    """A gap counts for our own lease at most, because a lost notification of a release would make it meaningless."""
    waiter = policy()
    waiter.after_event(held(), 0.0, 99.0)
    assert waiter.after_event(held(), 500.0, 99.0) <= 500.0 + 10.0 + 1.0


def test_a_first_release_is_answered_at_once() -> None:
    """A waiter that never lost a race answers a first release at once."""
    assert all(policy(seed).after_event(DELETED, 5.0, 99.0) == 5.0 for seed in range(50))


@pytest.mark.parametrize("how", ["refused", "told"])
def test_who_lost_a_race_mostly_lets_others_go_first(how: str) -> None:
    """A waiter that lost a race mostly waits a few random milliseconds, and in one case of four tries at once."""
    delays = []
    for seed in range(400):
        waiter = policy(seed)
        waiter.after_event(DELETED, 1.0, 99.0)
        if how == "refused":
            waiter.after_refusal(1.01)
        else:
            waiter.after_event(held(), 1.01, 99.0)
        delays.append(waiter.after_event(DELETED, 2.0, 99.0) - 2.0)
    assert 60 < sum(d == 0.0 for d in delays) < 140
    assert all(0.0 <= d <= 0.02 for d in delays)
    assert len(set(delays)) > 250


def test_an_outage_in_between_changes_nothing() -> None:
    """Events about the connection do not move the next attempt."""
    assert policy().after_event(WatchEvent(EventKind.SUSPENDED, b"lock", None, None), 1.0, 99.0) == 99.0
