"""Whatever happens, each watch is told each change of its keys once and in order, or that it missed some."""

from __future__ import annotations

from collections import Counter

import pytest
from watch_model import Schedule

from raft_client.server.machines import watch_server


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few steps that a turn ends in the middle of an entry."""
    monkeypatch.setattr(watch_server, "_TURN_STEPS", 14)
    monkeypatch.setattr(watch_server, "_ROUND_STEPS", 5)
    monkeypatch.setattr(watch_server, "_MOST_PASSES", 2)


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_nothing_is_missed_and_nothing_told_twice(first: int) -> None:
    """In any schedule each watch is told everything once and in order, or that it is not."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + 50):
        seen.update(Schedule(seed).run())
    for what in ("Events", "WatchProgress", "NoSession", "TOO_SLOW", "HISTORY_OUTRUN", "OTHER_LOG", "TOO_MANY"):
        assert seen[what], f"the schedules do not lead to {what}"
