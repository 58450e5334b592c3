"""Up to when a peer forgets request ids, on a clock that somebody sets."""

from __future__ import annotations

from raft_client.server.runtime.request_horizon import RequestHorizon

DAY_S = 86_400.0


def test_the_horizon_follows_the_clock() -> None:
    """Every ten seconds, ids older than their time to live may be forgotten; without one, none ever is."""
    horizon = RequestHorizon(100.0)
    assert horizon.due(0.0, 5_000.0) == 4_900.0
    assert horizon.due(9.9, 5_009.9) is None
    assert horizon.due(10.0, 5_010.0) == 4_910.0
    assert RequestHorizon(None).due(0.0, 5_000.0) is None


def test_a_clock_that_is_set_forward_for_a_while_forgets_nothing_that_is_fresh_afterwards() -> None:
    """A year ahead for a minute: what was remembered is remembered when the clock is right again."""
    horizon = RequestHorizon(100.0)
    horizon.due(0.0, 5_000.0)
    for now in range(10, 70, 10):
        assert horizon.due(float(now), 5_000.0 + now + 365 * DAY_S) == 4_900.0 + now
    assert horizon.due(70.0, 5_070.0) == 4_970.0


def test_a_clock_that_is_set_back_for_a_while_costs_no_memory() -> None:
    """When the clock is right again the horizon is where it would have been."""
    horizon = RequestHorizon(100.0)
    horizon.due(0.0, 5_000.0)
    for now in range(10, 70, 10):
        assert horizon.due(float(now), 5_000.0 + now - DAY_S) == 4_900.0
    assert horizon.due(70.0, 5_070.0) == 4_970.0
