"""The commands of the state store, their replies and versions, and the order of the checks."""

from __future__ import annotations

import pytest
from store_driver import NEX, NX, WALL, Driver, refusal

from statestore_client import errors
from statestore_client.errors import FencingTokenClockSkewError, QuotaExceededError, RequestClockSkewError
from statestore_client.server.store import StoreLimits
from statestore_client.server.store.durability import MAX_AHEAD_MS
from statestore_client.server.store.keyspace import KEY_OVERHEAD_BYTES
from statestore_client.server.store.store import EXPIRIES_PER_SET
from statestore_client.wire.hlc import MAX_COUNTER, HlcTimestamp
from statestore_client.wire.protocol import Dialect
from statestore_client.wire.replies import COUNT_0, COUNT_1, MISSING, NOT_APPLIED, OK, Found


@pytest.fixture
def driver() -> Driver:
    return Driver()


# -- SET and GET ------------------------------------------------------------------------------------------------------


def test_what_was_set_is_got(driver: Driver) -> None:
    """SET answers OK, and GET the value with the same version."""
    stored = driver.set(b"SETKEY2", b"VALUE5")
    assert stored.reply == OK
    found = driver.get(b"SETKEY2")
    assert found.reply == Found(b"VALUE5")
    assert found.version == stored.version


@pytest.mark.parametrize("value", [b"", b"\x00\r\n$-1\r\n\xff", b"x" * 100_000])
def test_values_are_arbitrary_bytes(driver: Driver, value: bytes) -> None:
    """Empty, binary and long values come back, and an empty value is not a missing key."""
    driver.set(b"k" * 7000, value)
    assert driver.get(b"k" * 7000).reply == Found(value)


def test_a_missing_key_has_no_version(driver: Driver) -> None:
    """A missing key has no version, which the official Go SDK would take for existence."""
    outcome = driver.get(b"nothing", ts=driver.stamp())
    assert outcome.reply == MISSING
    assert outcome.version is None


def test_nx_sets_only_a_missing_key(driver: Driver) -> None:
    """The second SET NX is not applied, even with the same value, and its reply has the standing version."""
    first = driver.set(b"k", b"v", NX)
    assert first.reply == OK
    for value in (b"v", b"other"):
        second = driver.set(b"k", value, NX)
        assert second.reply == NOT_APPLIED
        assert second.version == first.version
    assert driver.get(b"k").reply == Found(b"v")


def test_nex_sets_a_missing_key_or_the_same_value(driver: Driver) -> None:
    """NEX renews for the owner with a greater version, and is not applied for anyone else."""
    first = driver.set(b"LockName", b"Client1", NEX, expiry_ms=10_000)
    renewed = driver.set(b"LockName", b"Client1", NEX, expiry_ms=10_000)
    stranger = driver.set(b"LockName", b"Client2", NEX, expiry_ms=10_000)
    assert (first.reply, renewed.reply, stranger.reply) == (OK, OK, NOT_APPLIED)
    assert first.version is not None
    assert renewed.version is not None
    assert renewed.version > first.version
    assert stranger.version == renewed.version
    assert driver.get(b"LockName").reply == Found(b"Client1")


def test_nex_with_an_expected_value_compares_with_that() -> None:
    """``NEX <value>`` of the document's list of options compares with that value and swaps."""
    driver = Driver(dialect=Dialect.DOCUMENT)
    assert driver.set(b"k", b"a", NEX, expected=b"anything").reply == OK
    assert driver.set(b"k", b"b", NEX, expected=b"a").reply == OK
    assert driver.set(b"k", b"c", NEX, expected=b"a").reply == NOT_APPLIED
    assert driver.get(b"k").reply == Found(b"b")


# -- DEL and VDEL -----------------------------------------------------------------------------------------------------


def test_del_counts_what_it_deletes(driver: Driver) -> None:
    """DEL counts one for a key that exists, and zero, without a version or an error, for one that does not."""
    stored = driver.set(b"k", b"v")
    deleted = driver.delete(b"k")
    assert deleted.reply == COUNT_1
    assert deleted.version is not None
    assert stored.version is not None
    assert deleted.version > stored.version
    again = driver.delete(b"k")
    assert (again.reply, again.version) == (COUNT_0, None)
    assert driver.get(b"k").reply == MISSING


def test_vdel_deletes_only_the_value(driver: Driver) -> None:
    """VDEL of another value is not applied, with the standing version; of a missing key it counts zero."""
    stored = driver.set(b"SETKEY2", b"ABC")
    kept = driver.vdel(b"SETKEY2", b"AB")
    assert (kept.reply, kept.version) == (NOT_APPLIED, stored.version)
    assert driver.get(b"SETKEY2").reply == Found(b"ABC")
    assert driver.vdel(b"SETKEY2", b"ABC").reply == COUNT_1
    assert driver.vdel(b"SETKEY2", b"ABC").reply == COUNT_0


def test_deletions_return_the_deleted_version_in_the_documents_dialect() -> None:
    """In the document's dialect deletions return the deleted version ("… also returned on successful GET, DEL, and VDEL
    requests.")."""
    driver = Driver(dialect=Dialect.DOCUMENT)
    stored = driver.set(b"k", b"v")
    assert driver.delete(b"k").version == stored.version
    stored = driver.set(b"k", b"v")
    assert driver.vdel(b"k", b"v").version == stored.version


# -- versions ---------------------------------------------------------------------------------------------------------


def test_the_documents_example_of_setting_a_version(driver: Driver) -> None:
    """A request of 1696374425000:0:CLIENT at equal clocks gets version 1696374425000:1:StateStore, on GET as well."""
    stored = driver.set(b"keyName", b"value", ts=HlcTimestamp.parse("1696374425000:0:CLIENT"))
    assert stored.version is not None
    assert stored.version.unpadded() == "1696374425000:1:StateStore"
    assert driver.get(b"keyName").version == stored.version


def test_a_timestamp_in_the_past_gives_the_servers_clock(driver: Driver) -> None:
    """A timestamp in the past gets the server's clock ("… to its local clock because it's greater.")."""
    stored = driver.set(b"k", b"v", ts=driver.stamp(-3_600_000, counter=9))
    assert stored.version == HlcTimestamp(WALL, 0, "StateStore")


def test_a_timestamp_in_the_future_is_exceeded(driver: Driver) -> None:
    """A timestamp of up to a minute ahead is accepted, and the version follows it."""
    stored = driver.set(b"k", b"v", ts=driver.stamp(60_000, counter=7))
    assert stored.version == HlcTimestamp(WALL + 60_000, 8, "StateStore")


def test_versions_increase_over_all_keys(driver: Driver) -> None:
    """Versions increase over all keys, also when the server's clock stands still or steps back."""
    versions = []
    for step_ms in (0, 0, -5_000, 3_000, -600_000, 0):
        driver.wall_ms += step_ms
        for key in (b"a", b"b"):
            outcome = driver.set(key, b"v")
            assert outcome.version is not None
            versions.append(outcome.version)
    assert versions == sorted(set(versions))


@pytest.mark.parametrize("node_id", ["StateStore", "zzz"])
def test_a_version_exceeds_its_request_whatever_the_node(driver: Driver, node_id: str) -> None:
    """A version exceeds its request's timestamp also for a client with the server's node name, and the greatest
    counter."""
    for counter in (0, 5, MAX_COUNTER):
        timestamp = driver.stamp(10_000, counter, node_id)
        outcome = driver.set(b"k", b"v", ts=timestamp)
        assert outcome.version is not None
        assert outcome.version > timestamp


def test_reading_does_not_advance_the_clock(driver: Driver) -> None:
    """GET, SCAN and KEYNOTIFY issue no versions."""
    driver.set(b"k", b"v")
    last = driver.clock.last
    driver.get(b"k", ts=driver.stamp(30_000))
    driver.notify(b"k", ts=driver.stamp(30_000))
    driver.scan(b"*")
    assert driver.clock.last == last


# -- checks and their order -------------------------------------------------------------------------------------------


def test_keys_cannot_be_empty(driver: Driver) -> None:
    """Every command with a key refuses an empty one."""
    outcomes = [
        driver.set(b"", b"v"),
        driver.get(b""),
        driver.delete(b""),
        driver.vdel(b"", b"v"),
        driver.notify(b""),
        driver.notify(b"", stop=True),
    ]
    assert {refusal(outcome) for outcome in outcomes} == {errors.EmptyKeyError}


def test_only_set_needs_a_timestamp(driver: Driver) -> None:
    """Only SET is refused without a timestamp ("missing timestamp")."""
    assert refusal(driver.set(b"k", b"v", ts=None)) is errors.MissingTimestampError
    assert driver.get(b"k").reply == MISSING
    driver.set(b"k", b"v")
    assert driver.vdel(b"k", b"v").reply == COUNT_1
    assert driver.delete(b"k").reply == COUNT_0
    assert driver.notify(b"k").reply == OK


def test_timestamps_may_be_a_minute_ahead_and_no_more(driver: Driver) -> None:
    """A timestamp of exactly 60 s ahead passes, and one a millisecond later is refused, in every command."""
    assert driver.set(b"k", b"v", ts=driver.stamp(60_000, counter=3)).reply == OK
    ahead = driver.stamp(60_001)
    outcomes = [
        driver.set(b"k", b"v", ts=ahead),
        driver.get(b"k", ts=ahead),
        driver.delete(b"k", ts=ahead),
        driver.vdel(b"k", b"v", ts=ahead),
        driver.notify(b"k", ts=ahead),
    ]
    assert {refusal(outcome) for outcome in outcomes} == {errors.RequestClockSkewError}


def test_a_client_whose_clock_is_ahead_is_noted(driver: Driver) -> None:
    """From more than 10 s on, also if it is refused; one that repeats the time of a version is not; and nobody is
    after ten minutes.
    """
    clocks = driver.store.clocks
    driver.set(b"k", b"v", ts=driver.stamp(10_000))
    assert clocks.furthest_s(driver.monotonic) == 0
    driver.set(b"k", b"v", ts=driver.stamp(30_000), client="fast")
    driver.set(b"k", b"v", ts=driver.stamp(30_000, counter=9), client="right")
    assert refusal(driver.set(b"k", b"v", ts=driver.stamp(80_000), client="faster")) is errors.RequestClockSkewError
    assert [(each.client_id, each.ahead_ms) for each in clocks.news] == [("fast", 30_000), ("faster", 80_000)]
    driver.advance(301)
    assert clocks.furthest_s(driver.monotonic) == 80
    driver.advance(300)
    assert clocks.furthest_s(driver.monotonic) == 0


def test_timestamps_may_be_arbitrarily_old(driver: Driver) -> None:
    """A timestamp may be arbitrarily old ("The state store accepts a __ts that is behind the state store local
    clock.")."""
    assert driver.set(b"k", b"v", ts=HlcTimestamp(0, 0, "CLIENT")).reply == OK


def test_fencing_tokens_may_be_a_minute_ahead_and_no_more(driver: Driver) -> None:
    """A fencing token of 60 s ahead passes, and one of 60.001 s or ten years is refused."""
    ten_years_ms = 315_576_000_000
    assert refusal(driver.set(b"k", b"v", ft=driver.stamp(ten_years_ms))) is errors.FencingTokenClockSkewError
    assert refusal(driver.set(b"k", b"v", ft=driver.stamp(60_001))) is errors.FencingTokenClockSkewError
    assert refusal(driver.delete(b"k", ft=driver.stamp(60_001))) is errors.FencingTokenClockSkewError
    assert driver.set(b"k", b"v", ft=driver.stamp(60_000)).reply == OK


def test_the_order_of_the_checks() -> None:
    """A request with every mistake is told of one after the other as it mends them, in a fixed order."""
    driver = Driver(limits=StoreLimits(max_keys=1))
    driver.set(b"k", b"v", ft=driver.stamp())
    ahead, old = driver.stamp(60_001), driver.stamp(-1)
    full = driver.set
    assert refusal(full(b"", b"x", NX, ts=None, ft=ahead)) is errors.EmptyKeyError
    assert refusal(full(b"k", b"x", NX, ts=None, ft=ahead)) is errors.MissingTimestampError
    assert refusal(full(b"k", b"x", NX, ts=ahead, ft=ahead)) is errors.RequestClockSkewError
    assert refusal(full(b"k", b"x", NX, ft=ahead)) is errors.FencingTokenClockSkewError
    assert refusal(full(b"k", b"x", NX, ft=old)) is errors.FencingTokenTooOldError
    assert full(b"k", b"x", NX, ft=driver.stamp()).reply == NOT_APPLIED
    assert refusal(full(b"k2", b"x", NX)) is errors.QuotaExceededError


def test_a_condition_that_fails_is_no_matter_of_quota() -> None:
    """A SET NX that would not be applied is answered so even when the store is full."""
    driver = Driver(limits=StoreLimits(max_bytes=400))
    driver.set(b"k", b"v")
    assert driver.set(b"k", b"x" * 1000, NX).reply == NOT_APPLIED


def test_refused_commands_change_nothing() -> None:
    """A refused command changes neither keys, fencing marks, expiries, observers nor the clock."""
    driver = Driver(limits=StoreLimits(max_keys=1))
    driver.notify(b"k")
    driver.set(b"k", b"v", expiry_ms=5_000, ft=driver.stamp(5))
    driver.advance(1)
    ahead, old = driver.stamp(60_001), driver.stamp(-10_000)
    before = driver.state()
    for outcome in (
        driver.set(b"", b"v"),
        driver.set(b"k", b"x", ts=None, ft=driver.stamp()),
        driver.set(b"k", b"x", ts=ahead, ft=driver.stamp()),
        driver.set(b"k", b"x", ft=ahead),
        driver.set(b"k", b"x", ft=old),
        driver.set(b"k", b"x"),
        driver.set(b"new", b"x"),
        driver.delete(b"k"),
        driver.delete(b"k", ft=old),
        driver.vdel(b"k", b"v"),
        driver.notify(b"k", ts=ahead),
        driver.scan(b"["),
    ):
        refusal(outcome)
        assert outcome.changes == ()
        assert driver.state() == before
    for outcome in (driver.set(b"k", b"x", NX, ft=driver.stamp()), driver.vdel(b"k", b"x", ft=driver.stamp())):
        assert outcome.reply == NOT_APPLIED
        assert driver.state() == before


# -- the quota ---------------------------------------------------------------------------------------------------------


def test_the_number_of_keys_is_bounded() -> None:
    """A new key too many is refused, while overwriting and deleting go on."""
    driver = Driver(limits=StoreLimits(max_keys=2))
    driver.set(b"a", b"1")
    driver.set(b"b", b"1")
    assert refusal(driver.set(b"c", b"1")) is QuotaExceededError
    assert driver.set(b"a", b"2").reply == OK
    assert driver.delete(b"b").reply == COUNT_1
    assert driver.set(b"c", b"1").reply == OK


def test_bytes_count_keys_values_and_overhead() -> None:
    """Bytes count keys, values and overhead, and exactly the limit fits."""
    driver = Driver(limits=StoreLimits(max_bytes=KEY_OVERHEAD_BYTES + 10))
    assert refusal(driver.set(b"kk", b"123456789")) is QuotaExceededError
    assert driver.set(b"kk", b"12345678").reply == OK
    assert (driver.store.usage.keys, driver.store.usage.bytes) == (1, KEY_OVERHEAD_BYTES + 10)


def test_overwriting_counts_the_difference() -> None:
    """Overwriting counts the difference: a longer value may be refused, leaving the old one, and a shorter one frees
    bytes."""
    driver = Driver(limits=StoreLimits(max_bytes=KEY_OVERHEAD_BYTES + 10))
    driver.set(b"k", b"12345")
    assert refusal(driver.set(b"k", b"1234567890")) is QuotaExceededError
    assert driver.get(b"k").reply == Found(b"12345")
    assert driver.set(b"k", b"123456789").reply == OK
    assert driver.set(b"k", b"").reply == OK
    assert driver.store.usage.bytes == KEY_OVERHEAD_BYTES + 1


def test_making_room_is_bounded() -> None:
    """A SET with thousands of expired keys removes some of them and is refused; a later one fits."""
    each = KEY_OVERHEAD_BYTES + 5
    count = 2 * EXPIRIES_PER_SET + 1
    driver = Driver(limits=StoreLimits(max_bytes=count * each))
    for number in range(count):
        driver.set(b"%05d" % number, b"", expiry_ms=1)
    driver.advance(0.001)
    value = b"x" * (count * each - KEY_OVERHEAD_BYTES - 5)
    left = []
    while (outcome := driver.set(b"large", value)).reply != OK:
        assert refusal(outcome) is QuotaExceededError
        left.append(driver.store.usage.keys)
    assert left == [EXPIRIES_PER_SET + 1, 1]
    assert driver.store.usage.keys == 1
    assert driver.get(b"large").reply == Found(value)


def test_observations_of_one_client_are_bounded() -> None:
    """A client that observes too many keys, or too many bytes of them, is refused, and others may go on."""
    limits = StoreLimits(max_observations_per_client=3, max_observation_bytes_per_client=2_000)
    driver = Driver(limits=limits)
    for key in (b"a", b"b", b"c"):
        assert driver.notify(key).reply == OK
    assert driver.notify(b"a").reply == OK
    assert refusal(driver.notify(b"d")) is QuotaExceededError
    assert driver.notify(b"d", client="other").reply == OK
    assert refusal(driver.notify(b"x" * 1_800, client="other")) is QuotaExceededError
    assert driver.notify(b"b", stop=True).reply == OK
    assert driver.notify(b"d").reply == OK
    driver.store.client_disconnected("alice")
    assert driver.store.usage.observations == 1


# -- what is too far in the future -------------------------------------------------------------------------------------

HOUR_MS = 3_600_000


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
