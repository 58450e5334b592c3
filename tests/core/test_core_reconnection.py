"""When to connect again: how long to wait before the next attempt, and what starts the waiting anew."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.core.connection import Backoff, Reconnection
from statestore_client.wire.instant import Instant


class Extreme(Random):
    """A random source at one end of its range."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def random(self) -> float:
        return self._value


def test_delays_double_up_to_the_cap() -> None:
    """Without jitter the delays are 0.1 s, 0.2 s, 0.4 s … 30 s."""
    delays = [Backoff(jitter=0.0).delay(n, Random(1)) for n in range(12)]
    assert delays[:9] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6])
    assert delays[9:] == [30.0, 30.0, 30.0]


def test_jitter_takes_away_and_never_adds() -> None:
    """Jitter shortens a delay by at most its part and never lengthens it, so that the cap holds."""
    backoff = Backoff(first=1.0, cap=8.0, jitter=0.25)
    for attempt, full in enumerate([1.0, 2.0, 4.0, 8.0, 8.0]):
        assert backoff.delay(attempt, Extreme(0.0)) == full
        assert backoff.delay(attempt, Extreme(1.0)) == pytest.approx(0.75 * full)


@given(st.integers(0, 10**9), st.integers(0, 2**32), st.floats(0.001, 10), st.floats(10, 100), st.floats(0, 1))
def test_delays_stay_within_their_bounds(attempt: int, seed: int, first: float, cap: float, jitter: float) -> None:
    """A delay never exceeds the cap and never falls below what jitter may leave, also after years of trying."""
    delay = Backoff(first, cap, jitter).delay(attempt, Random(seed))
    full = min(cap, first * 2 ** min(attempt, 64))
    assert full * (1 - jitter) * 0.999 <= delay <= full


def test_a_thousand_clients_spread_over_half_the_delay() -> None:
    """After a broker's restart, each tenth of the second half of the delay gets its share of a thousand clients."""
    delays = [Backoff().delay(0, Random(seed)) for seed in range(1000)]
    shares = [sum(0.05 + 0.005 * i <= d < 0.055 + 0.005 * i for d in delays) for i in range(10)]
    assert min(shares) > 50


def at(monotonic: float) -> Instant:
    return Instant(monotonic, 0)


def reconnection() -> Reconnection:
    return Reconnection(Backoff(first=1.0, cap=100.0, jitter=0.0), Random(1))


def test_attempts_come_later_and_later() -> None:
    """Attempts follow each other after 1, 2 and 4 seconds, and each is due once."""
    attempts = reconnection()
    assert not attempts.is_due(at(0))
    for delay in (1, 2, 4):
        attempts.plan(at(100), is_round_over=True)
        assert attempts.retry_at == 100 + delay
        due = [attempts.is_due(at(when + delay)) for when in (99.9, 100, 100)]
        assert due == [False, True, False]


def test_only_a_connection_that_lasts_starts_the_back_off_anew() -> None:
    """After a connection of five seconds the next attempt is made at once, and the back-off starts anew; after a
    shorter one, earlier attempts still count."""
    attempts = reconnection()
    attempts.plan(at(0), is_round_over=True)
    attempts.plan(at(10), is_round_over=True)
    attempts.succeeded(at(20))
    attempts.plan(at(24.9), is_round_over=True)
    assert attempts.retry_at == 24.9 + 4
    attempts.succeeded(at(40))
    for delay in (0, 1, 2):
        attempts.plan(at(45), is_round_over=True)
        assert attempts.retry_at == 45 + delay


def test_the_pauses_are_between_rounds() -> None:
    """Within a round the next attempt is made at once. After a stable connection a new one begins without a pause."""
    attempts = reconnection()
    delays, begins = [], []
    for _ in range(3):
        for is_round_over in (False, False, True):
            attempts.plan(at(0), is_round_over=is_round_over)
            delays.append(attempts.retry_at)
            begins.append(attempts.begins_round)
    assert delays == [0, 0, 1, 0, 0, 2, 0, 0, 4]
    assert begins == [False, False, True] * 3
    attempts.succeeded(at(10))
    delays.clear()
    for is_round_over in (False, False, False, True, False):
        attempts.plan(at(20), is_round_over=is_round_over)
        delays.append(attempts.retry_at)
        begins.append(attempts.begins_round)
    assert delays == [20, 20, 20, 21, 20]
    assert begins[-5:] == [True, False, False, True, False]


def test_where_the_broker_is_not_to_blame_the_next_attempt_is_at_once() -> None:
    """An attempt that is hurried is due at once, and the next one waits no longer than the first."""
    attempts = reconnection()
    for _ in range(3):
        attempts.plan(at(0), is_round_over=True)
    attempts.retry_now(at(7))
    assert attempts.is_due(at(7))
    attempts.plan(at(7), is_round_over=True)
    assert attempts.retry_at == 8


def test_a_failed_attempt_may_still_arrive_for_two_minutes() -> None:
    """An attempt that failed casts its shadow for 120 seconds; before the first failure there is none."""
    attempts = reconnection()
    assert not attempts.may_have_stale_attempt(at(0))
    attempts.failed(at(10))
    assert attempts.may_have_stale_attempt(at(129.9))
    assert not attempts.may_have_stale_attempt(at(130))
