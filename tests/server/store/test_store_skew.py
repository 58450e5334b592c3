"""What is too far in the future: measured by a local clock that does not go back when the wall clock does."""

from __future__ import annotations

import pytest
from store_driver import NEX, WALL, Driver, refusal

from statestore_client.errors import FencingTokenClockSkewError, RequestClockSkewError
from statestore_client.server.store.localclock import MAX_AHEAD_MS
from statestore_client.wire.hlc import MAX_COUNTER, HlcTimestamp
from statestore_client.wire.replies import COUNT_1, OK, Found

HOUR_MS = 3_600_000


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.mark.parametrize("step_ms", [-1, -60_001, -HOUR_MS, -30 * 24 * HOUR_MS, -WALL])
def test_the_token_that_was_just_given_out_is_accepted(driver: Driver, step_ms: int) -> None:
    """A token is accepted however far the wall clock goes back, or was ahead, between the lock and the write."""
    token = driver.set(b"lock", b"me", NEX, ts=driver.stamp(60_000), expiry_ms=10_000).version
    assert token is not None
    driver.wall_ms += step_ms
    written = driver.set(b"k", b"v", ts=driver.stamp(), ft=token)
    assert written.reply == OK
    assert written.version is not None
    assert written.version > token
    assert driver.delete(b"k", ft=token).reply == COUNT_1


@pytest.mark.parametrize("quiet_s", [0, 59, 61, 7_200])
def test_a_client_whose_clock_is_right_writes_to_a_server_whose_clock_went_back(driver: Driver, quiet_s: int) -> None:
    """A client with the right clock may write after the server's went back an hour, however long nobody wrote since."""
    driver.set(b"k", b"v")
    driver.wall_ms -= HOUR_MS
    driver.advance(quiet_s)
    assert driver.set(b"k", b"w", ts=driver.stamp(HOUR_MS)).reply == OK
    assert refusal(driver.set(b"k", b"w", ts=driver.stamp(HOUR_MS + 60_001))) is RequestClockSkewError


def test_a_client_whose_clock_went_back_with_the_servers_goes_on(driver: Driver) -> None:
    """A client whose clock goes back together with the server's keeps its timestamps, which are accepted."""
    mine = driver.stamp(0, 5)
    driver.get(b"k", ts=mine)  # all that the server has seen of that time
    driver.advance(1)
    driver.wall_ms -= HOUR_MS
    assert driver.set(b"k", b"v", ts=HlcTimestamp(mine.wall_ms, 6, "CLIENT")).reply == OK
    assert driver.get(b"k", ts=HlcTimestamp(mine.wall_ms, 7, "CLIENT")).reply == Found(b"v")


def test_versions_stay_where_they_are_until_the_wall_clock_has_caught_up(driver: Driver) -> None:
    """Versions of requests from behind count on from the last one until the wall clock has caught up."""
    driver.set(b"k", b"v", ts=driver.stamp())
    driver.wall_ms -= HOUR_MS
    driver.advance(1_800)
    assert driver.set(b"k", b"v", ts=driver.stamp()).version == HlcTimestamp(WALL, 2, "StateStore")
    driver.advance(1_801)
    assert driver.set(b"k", b"v", ts=driver.stamp(-1)).version == HlcTimestamp(WALL + 1_000, 0, "StateStore")


def test_a_client_that_is_always_a_minute_ahead_gets_no_further(driver: Driver) -> None:
    """A client that goes on from each version it gets is never more than a minute ahead of the server's clock, by wall
    clock or counter."""
    ahead = driver.stamp(59_999, MAX_COUNTER)
    for turn in range(1_000):
        outcome = driver.set(b"k", b"v", ts=ahead)
        version = outcome.version or driver.clock.last
        ahead = HlcTimestamp(version.wall_ms + (59_999 if turn % 2 else 0), MAX_COUNTER, "zzz")
        assert driver.clock.last.wall_ms <= driver.wall_ms + 60_001
        driver.set(b"k", b"v", ts=HlcTimestamp(version.wall_ms, version.counter, "zzz"))
    assert refusal(driver.set(b"k", b"v", ts=driver.stamp(60_002))) is RequestClockSkewError


@pytest.mark.parametrize("step_ms", [0, -HOUR_MS, -10 * HOUR_MS])
def test_no_step_of_the_wall_clock_lifts_the_bound(driver: Driver, step_ms: int) -> None:
    """After the wall clock steps back, the minute counts from where it was, at the pace of the monotonic clock."""
    driver.set(b"k", b"v")
    driver.wall_ms += step_ms
    for _ in range(100):
        driver.advance(1)
        driver.set(b"k", b"v", ts=HlcTimestamp(driver.clock.last.wall_ms + 59_000, 0, "ahead"))
        assert driver.clock.last.wall_ms <= driver.wall_ms - step_ms + 60_000


def test_a_wall_clock_that_was_far_in_the_future_is_not_believed_for_ever(driver: Driver) -> None:
    """A step back of more than a day means that the clock was wrong before: what was given out stays good, and nothing
    later is."""
    driver.wall_ms += 365 * 24 * HOUR_MS
    token = driver.set(b"k", b"v").version
    assert token is not None
    driver.wall_ms = WALL
    assert driver.set(b"k", b"w", ft=token).reply == OK
    last = driver.clock.last
    beyond = HlcTimestamp(last.wall_ms, last.counter + 9, "CLIENT")
    assert refusal(driver.set(b"k", b"w", ft=token, ts=beyond)) is RequestClockSkewError
    assert refusal(driver.set(b"k", b"w", ft=beyond)) is FencingTokenClockSkewError
    assert driver.clock.last == last


def test_a_step_back_of_a_day_is_the_longest_that_is_bridged(driver: Driver) -> None:
    """A step back of exactly a day without a write is the longest that is bridged."""
    driver.get(b"k")
    driver.wall_ms -= MAX_AHEAD_MS + 1_000
    assert driver.set(b"k", b"w", ts=driver.stamp(MAX_AHEAD_MS + 60_000)).reply == OK
    assert refusal(driver.set(b"k", b"w", ts=driver.stamp(MAX_AHEAD_MS + 60_001))) is RequestClockSkewError
