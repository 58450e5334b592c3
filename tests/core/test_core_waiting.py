"""When a waiter tries again: time is a number, and chance has a seed."""

from __future__ import annotations

from random import Random

import pytest

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.core.waiting import WaitPolicy

DELETED = WatchEvent(EventKind.DELETE, b"lock", None, None)


def held(by: bytes = b"other", *, missed: bool = False) -> WatchEvent:
    return WatchEvent(EventKind.SET, b"lock", by, None, missed)


def policy(seed: int = 1) -> WaitPolicy:
    return WaitPolicy(holder=b"me", lease=10.0, random=Random(seed))


def test_renewals_that_arrive_make_polls_needless() -> None:
    """A waiter does not poll until 3 s after a renewal by a holder that renews every 3 s, because its lease is
    longer."""
    waiter = policy()
    assert 0.5 <= waiter.after_event(held(), 0.0, 99.0) <= 1.0
    for renewed in (3.0, 6.0, 9.0):
        assert renewed + 3.5 <= waiter.after_event(held(), renewed, 99.0) <= renewed + 4.0


def test_a_dead_holder_is_asked_about_once_a_second() -> None:
    """When a holder's renewals stop, each poll comes at most a second after the one before."""
    waiter = policy()
    waiter.after_event(held(), 0.0, 99.0)
    look_at = waiter.after_event(held(), 3.0, 99.0)
    assert look_at <= 7.0
    for _ in range(5):
        before, look_at = look_at, waiter.after_refusal(look_at)
        assert before + 0.5 <= look_at <= before + 1.0


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
