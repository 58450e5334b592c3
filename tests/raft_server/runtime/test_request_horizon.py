"""Up to when a peer forgets request ids, on a clock that somebody sets."""

from __future__ import annotations

import math

from raft_client.server.runtime.request_horizon import RequestHorizon

DAY_S = 86_400.0


def at_once() -> float:
    """Appends go on: the newest id is newer than all that is asked about."""
    return math.inf


def test_the_horizon_follows_the_clock() -> None:
    """Every ten seconds, ids older than their time to live may be forgotten; without one, none ever is."""
    horizon = RequestHorizon(100.0)
    assert horizon.due(0.0, 5_000.0, at_once) == 4_900.0
    assert horizon.due(9.9, 5_009.9, at_once) is None
    assert horizon.due(10.0, 5_010.0, at_once) == 4_910.0
    assert RequestHorizon(None).due(0.0, 5_000.0, at_once) is None


def test_a_clock_that_is_set_forward_for_a_while_forgets_nothing_that_is_fresh_afterwards() -> None:
    """A year ahead for a minute: what was remembered is remembered when the clock is right again."""
    horizon = RequestHorizon(100.0)
    horizon.due(0.0, 5_000.0, at_once)
    for now in range(10, 70, 10):
        assert horizon.due(float(now), 5_000.0 + now + 365 * DAY_S, at_once) == 4_900.0 + now
    assert horizon.due(70.0, 5_070.0, at_once) == 4_970.0


def test_a_clock_that_is_set_back_for_a_while_costs_no_memory() -> None:
    """When the clock is right again the horizon is where it would have been."""
    horizon = RequestHorizon(100.0)
    horizon.due(0.0, 5_000.0, at_once)
    for now in range(10, 70, 10):
        assert horizon.due(float(now), 5_000.0 + now - DAY_S, at_once) == 4_900.0
    assert horizon.due(70.0, 5_070.0, at_once) == 4_970.0


def test_a_machine_that_boots_with_a_wrong_clock_forgets_nothing_that_is_fresh() -> None:
    """However far ahead its clock is, a peer that starts believes the ids in its log, less what clocks may differ."""
    horizon = RequestHorizon(100.0)
    assert horizon.due(0.0, 5_000.0 + 365 * DAY_S, lambda: 5_000.0) == 5_000.0 - 900.0 - 100.0
    assert horizon.due(10.0, 5_010.0, lambda: 5_010.0) == 5_010.0 - 900.0 - 100.0


def test_a_log_without_ids_has_nothing_to_forget() -> None:
    """While no segment of the log with request ids has ended, nothing is forgotten."""
    assert RequestHorizon(100.0).due(0.0, 5_000.0, lambda: -math.inf) is None


def test_a_log_that_stood_still_catches_up() -> None:
    """A peer that was off for a week forgets the old ids as soon as new ones say which time it is."""
    horizon = RequestHorizon(100.0)
    now_s = 7 * DAY_S
    assert horizon.due(0.0, now_s, lambda: 5_000.0) == 4_000.0
    assert horizon.due(10.0, now_s + 10, lambda: now_s) == now_s - 1_000.0
