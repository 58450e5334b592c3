"""When to connect again."""

from __future__ import annotations

from random import Random

from statestore_client.core.backoff import Backoff
from statestore_client.core.reconnection import Reconnection
from statestore_client.wire.instant import Instant


def at(monotonic: float) -> Instant:
    return Instant(monotonic, 0)


def reconnection() -> Reconnection:
    return Reconnection(Backoff(first=1.0, cap=100.0, jitter=0.0), Random(1))


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
    """A connection of five seconds starts it anew; after a shorter one, earlier attempts still count."""
    attempts = reconnection()
    attempts.plan(at(0))
    attempts.plan(at(10))
    attempts.succeeded(at(20))
    attempts.plan(at(24.9))
    assert attempts.retry_at == 24.9 + 4
    attempts.succeeded(at(40))
    attempts.plan(at(45))
    assert attempts.retry_at == 45 + 1


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
