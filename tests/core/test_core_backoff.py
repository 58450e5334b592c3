"""How long to wait before the next attempt: doubling, a cap, and jitter from the random source that is handed in."""

from __future__ import annotations

from random import Random

import pytest

from statestore_client.core.backoff import Backoff


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


def test_a_long_outage_does_not_overflow() -> None:
    """The delay of a client that has been trying for years is still the cap."""
    assert Backoff(jitter=0.0).delay(10**9, Random(1)) == 30.0
    assert Backoff(first=1e-9, cap=1e9, jitter=0.0).delay(10**9, Random(1)) == pytest.approx(2**32 / 1e9)


def test_the_same_seed_gives_the_same_delays() -> None:
    """The same seed gives the same delays and another seed others, so that a thousand clients do not return in one
    instant."""
    of_seed = [[Backoff().delay(n, random) for n in range(20)] for random in (Random(1), Random(1), Random(2))]
    assert of_seed[0] == of_seed[1]
    assert all(a != b for a, b in zip(of_seed[0], of_seed[2], strict=True))


def test_a_thousand_clients_spread_over_half_the_delay() -> None:
    """After a broker's restart, each tenth of the second half of the delay gets its share of a thousand clients."""
    delays = [Backoff().delay(0, Random(seed)) for seed in range(1000)]
    shares = [sum(0.05 + 0.005 * i <= d < 0.055 + 0.005 * i for d in delays) for i in range(10)]
    assert min(shares) > 50
