"""The commands of the state store, their replies and versions, and the order of the checks."""

from __future__ import annotations

import pytest
from store_driver import NEX, NX, WALL, Driver, refusal

from statestore_client import errors
from statestore_client.server.store import StoreLimits
from statestore_client.wire.dialect import Dialect
from statestore_client.wire.hlc import MAX_COUNTER, HlcTimestamp
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


def test_a_set_replaces_the_value(driver: Driver) -> None:
    """The last SET wins, whatever its timestamp."""
    driver.set(b"k", b"one")
    driver.set(b"k", b"two", ts=driver.stamp(-30_000))
    assert driver.get(b"k").reply == Found(b"two")


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
