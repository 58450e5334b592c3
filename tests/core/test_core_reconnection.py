"""When to connect again."""

from __future__ import annotations

from random import Random

from statestore_client.core.backoff import Backoff
from statestore_client.core.reconnection import Reconnection
from statestore_client.wire.instant import Instant


def at(monotonic: float) -> Instant:
    return Instant(monotonic, 0)


def reconnection(addresses: int = 1) -> Reconnection:
    return Reconnection(Backoff(first=1.0, cap=100.0, jitter=0.0), Random(1), addresses)


def test_attempts_come_later_and_later() -> None:
    """Attempts follow each other after 1, 2 and 4 seconds, and each is due once."""
    attempts = reconnection()
    assert not attempts.is_due(at(0))
    for delay in (1, 2, 4):
        attempts.plan(at(100))
        assert attempts.retry_at == 100 + delay
        assert not attempts.is_due(at(99.9 + delay))
        assert attempts.is_due(at(100 + delay))
        assert not attempts.is_due(at(100 + delay))


def test_only_a_connection_that_lasts_starts_the_back_off_anew() -> None:
    """After a connection of five seconds the next attempt is made at once, and the back-off starts anew; after a
    shorter one, earlier attempts still count."""
    attempts = reconnection()
    attempts.plan(at(0))
    attempts.plan(at(10))
    attempts.succeeded(at(20))
    attempts.plan(at(24.9))
    assert attempts.retry_at == 24.9 + 4
    attempts.succeeded(at(40))
    for delay in (0, 1, 2):
        attempts.plan(at(45))
        assert attempts.retry_at == 45 + delay


def test_the_pauses_are_between_rounds_of_all_addresses() -> None:
    """With three addresses each is tried once before there is a pause, also for the first connection."""
    attempts = reconnection(3)
    delays, untried = [], []
    for _ in range(9):
        untried.append(attempts.has_untried_address)
        attempts.plan(at(0))
        delays.append(attempts.retry_at)
    assert delays == [0, 0, 1, 0, 0, 2, 0, 0, 4]
    assert untried == [True, True, False] * 3
    attempts.succeeded(at(10))
    delays.clear()
    for _ in range(5):  # the first is at the address after the one that was lost
        attempts.plan(at(20))
        delays.append(attempts.retry_at)
    assert delays == [20, 20, 20, 21, 20]


def test_where_the_broker_is_not_to_blame_the_next_attempt_is_at_once() -> None:
    """An attempt that is hurried is due at once, and the next one waits no longer than the first."""
    attempts = reconnection()
    for _ in range(3):
        attempts.plan(at(0))
    attempts.hurry(at(7))
    assert attempts.is_due(at(7))
    attempts.plan(at(7))
    assert attempts.retry_at == 8


def test_a_failed_attempt_may_still_arrive_for_two_minutes() -> None:
    """An attempt that failed casts its shadow for 120 seconds; before the first failure there is none."""
    attempts = reconnection()
    assert not attempts.may_have_shadow(at(0))
    attempts.failed(at(10))
    assert attempts.may_have_shadow(at(129.9))
    assert not attempts.may_have_shadow(at(130))
