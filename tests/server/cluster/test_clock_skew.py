"""How far the clock of one server is from that of another, as the times of entries tell: by table."""

from __future__ import annotations

import pytest

from statestore_client.server.cluster.clock_skew import ClockNews, ClockSkew
from statestore_client.wire.instant import Instant

_MADE_S = 1_700_000_000


def _hear(skew: ClockSkew, until_s: float, ahead_s: float = 0.0, late_s: float = 0.1) -> None:
    """An entry each second that is so late, at a server whose clock is so far ahead of its writer's."""
    for second in range(round(until_s)):
        now = second + late_s
        skew.observe(_MADE_S + second, Instant(now, round((_MADE_S + now + ahead_s) * 1000)))


@pytest.mark.parametrize("late_s", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("ahead_s", [-3600.0, -7.0, 7.0, 80.0])
def test_clocks_that_differ_are_told(ahead_s: float, late_s: float) -> None:
    """Within a second, once, and again after an hour."""
    skew = ClockSkew()
    _hear(skew, 30, ahead_s, late_s)
    assert skew.ahead_s == pytest.approx(ahead_s, abs=0.6)
    assert skew.look(30.0) == ClockNews(skew.ahead_s)
    assert skew.look(31.0) is None


@pytest.mark.parametrize("late_s", [0.0, 0.9, 1.4])
def test_clocks_that_agree_are_not(late_s: float) -> None:
    """Also where the log takes a while."""
    skew = ClockSkew()
    _hear(skew, 30, 0.3, late_s)
    assert skew.ahead_s == 0.0
    assert skew.look(30.0) is None


def test_what_waited_for_the_reader_is_no_skew() -> None:
    """A server that was away for a minute reads what is a minute old, and what is new behind it."""
    skew = ClockSkew()
    now = Instant(60.0, (_MADE_S + 60) * 1000 + 300)
    for second in range(61):
        skew.observe(_MADE_S + second, now)
    skew.observe(_MADE_S + 75, Instant(75.0, (_MADE_S + 75) * 1000 + 300))
    assert skew.ahead_s == 0.0


def test_a_clock_that_is_set_right_is_told() -> None:
    """And a log that says nothing any more says nothing of clocks either."""
    skew = ClockSkew()
    _hear(skew, 30, 20.0)
    assert skew.look(30.0) is not None
    for second in range(30, 60):
        skew.observe(_MADE_S + second, Instant(second + 0.1, (_MADE_S + second) * 1000 + 100))
    assert skew.look(60.0) == ClockNews(0.0)
    assert skew.look(61.0) is None
    _hear(skew, 30, 20.0)
    skew.look(3600.0)
    assert skew.ahead_s == 0.0
