"""Request ids of a server whose wall clock is wrong: by the time of the log, once the peers have refused one."""

from __future__ import annotations

import pytest

from statestore_client.server.runtime.replication.request_clock import RequestClock
from statestore_client.wire.instant import Instant

MADE_S = 1_700_000_000


def at(monotonic: float, *, off_s: int = 0) -> Instant:
    """A moment, by a wall clock that is ahead by this much."""
    return Instant(monotonic, (MADE_S + off_s) * 1000 + int(monotonic * 1000))


def test_the_wall_clock_is_good_until_it_is_refused() -> None:
    """Ids are the client's own; afterwards they have the time of the newest entry, and what has passed since."""
    clock = RequestClock()
    clock.observe(MADE_S - 500, at(-500.0))
    clock.observe(MADE_S, at(0.0))
    assert clock.new_id(1, at(5.0)) is None
    clock.refused(at(5.0))
    first, second = clock.new_id(1, at(5.0)), clock.new_id(2, at(65.5))
    assert first is not None
    assert second is not None
    assert (first.seconds, second.seconds) == (MADE_S + 5, MADE_S + 65)
    assert first != clock.new_id(2, at(5.0))
    other = RequestClock()
    other.observe(MADE_S, at(0.0))
    other.refused(at(5.0))
    assert first != other.new_id(1, at(5.0)), "two lives never have the same id"


@pytest.mark.parametrize(("off_s", "text"), [(3600, "3600 s ahead of"), (-3600, "3600 s behind")])
def test_people_are_told_once(off_s: int, text: str) -> None:
    """By how much the clock is wrong, and in which direction."""
    clock = RequestClock()
    clock.observe(MADE_S, at(0.0))
    assert text in clock.refused(at(10.0, off_s=off_s))
    assert clock.refused(at(11.0, off_s=off_s)) == ""


def test_an_empty_log_has_no_time_to_go_by() -> None:
    """The clock has to be set right; as soon as an entry of another server comes there is one."""
    clock = RequestClock()
    assert "nothing in the log to go by" in clock.refused(at(0.0))
    assert clock.new_id(1, at(0.0)) is None
    clock.observe(MADE_S, at(1.0))
    assert clock.new_id(2, at(1.0)) is not None
