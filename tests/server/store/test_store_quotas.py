"""Attacks on the store's quotas: what one user can do to the others."""

from __future__ import annotations

import pytest
from store_driver import Driver, refusal

from statestore_client.errors import QuotaExceededError
from statestore_client.server.store import Outcome, StoreLimits
from statestore_client.wire.replies import COUNT_1, OK, ErrorReply

#: Small, and large enough for an eighth more.
LIMITS = StoreLimits(max_keys=64, max_bytes=64 * 4_096, max_observations=64)


def quota_of(outcome: Outcome) -> str | None:
    """The name of the quota that was used up; None if the command was carried out."""
    if outcome.reply == OK:
        return None
    assert isinstance(outcome.reply, ErrorReply)
    assert isinstance(outcome.reply.error, QuotaExceededError)
    assert outcome.reply.error.quota is not None
    name, _, rest = outcome.reply.error.quota.partition(": at most ")
    assert rest.endswith(f"; --max-{name} raises that")
    return name


def a_lock_goes_round(driver: Driver) -> None:
    """One takes it, another waits for it, the holder renews it, it is released, and the other one has it."""
    assert driver.set(b"lock", b"1", client="one", user="active", expiry_ms=1_000).reply == OK
    assert driver.notify(b"lock", client="two", user="standby").reply == OK
    assert driver.set(b"lock", b"1", client="one", user="active", expiry_ms=1_000).reply == OK
    driver.advance(1)
    assert [change.client_id for change in driver.tick()] == ["two"]
    assert driver.set(b"lock", b"2", client="two", user="standby", expiry_ms=1_000).reply == OK
    assert driver.vdel(b"lock", b"2", client="two", user="standby").reply == COUNT_1


@pytest.mark.attack("MQTT", "use up the room that others need for a lock")
@pytest.mark.parametrize("user", ["watcher", None])
def test_a_watcher_with_many_clients_blocks_no_lock(user: str | None) -> None:
    """Who may only watch fills the observations with many clients; keys have room, and others may watch a few."""
    driver = Driver(limits=LIMITS)
    quotas = {quota_of(driver.notify(b"k%d" % n, client=f"c{n}", user=user)) for n in range(500)}
    assert quotas == {None, "observations"}
    assert driver.store.usage.observations == 64
    a_lock_goes_round(driver)


@pytest.mark.parametrize("user", ["watcher", None])
def test_a_watcher_of_long_keys_blocks_no_lock(user: str | None) -> None:
    """The same with bytes."""
    driver = Driver(limits=StoreLimits(max_observation_bytes=64 * 1_024, max_bytes=64 * 1_024))
    quotas = {quota_of(driver.notify(b"x" * 20_000 + b"%d" % n, client=f"c{n}", user=user)) for n in range(50)}
    quotas |= {quota_of(driver.notify(b"x" * 10 + b"%d" % n, client=f"c{n}", user=user)) for n in range(500)}
    assert quotas == {None, "observation-bytes"}
    a_lock_goes_round(driver)


@pytest.mark.attack("MQTT", "use up the room that others need for a lock")
@pytest.mark.parametrize("user", ["writer", None])
@pytest.mark.parametrize(("value", "quota"), [(b"", "keys"), (b"v" * 10_000, "bytes")])
def test_a_writer_blocks_no_lock(user: str | None, value: bytes, quota: str) -> None:
    """Who may write somewhere fills the store with many keys, or large ones; others may still write a few."""
    driver = Driver(limits=LIMITS)
    quotas = {quota_of(driver.set(b"k%d" % n, value, client=f"c{n}", user=user)) for n in range(200)}
    for n in range(2_000, 2_200):
        quotas.add(quota_of(driver.set(b"k%d" % n, b"", client="c", user=user)))
    assert quota in quotas
    assert quotas <= {None, "keys", "bytes"}
    assert refusal(driver.set(b"more", b"v" * 5_000, user=user)) is QuotaExceededError
    a_lock_goes_round(driver)


def test_each_quota_has_its_name() -> None:
    """Errors name the quota: that of all, of one user, of one client."""
    limits = StoreLimits(
        max_keys=3,
        max_bytes=4_096,
        max_keys_per_user=2,
        max_bytes_per_user=2_048,
        max_observations=5,
        max_observations_per_user=3,
        max_observations_per_client=2,
        max_observation_bytes=4_600,
        max_observation_bytes_per_user=2_900,
        max_observation_bytes_per_client=2_300,
    )
    driver = Driver(limits=limits)
    assert quota_of(driver.set(b"a", b"v" * 4_000)) == "bytes"
    assert quota_of(driver.set(b"a", b"v" * 2_000, user="u")) == "bytes-per-user"
    assert [quota_of(driver.set(key, b"", user="u")) for key in (b"a", b"b", b"c")] == [None, None, "keys-per-user"]
    assert [quota_of(driver.set(key, b"", user="w")) for key in (b"c", b"d")] == [None, "keys"]
    assert quota_of(driver.notify(b"x" * 2_100, client="1", user="u")) == "observation-bytes-per-client"
    assert quota_of(driver.notify(b"x" * 1_700, client="1", user="u")) is None
    assert quota_of(driver.notify(b"x" * 1_700, client="2", user="u")) == "observation-bytes-per-user"
    assert quota_of(driver.notify(b"x" * 1_700, client="3", user="w")) is None
    assert quota_of(driver.notify(b"y" * 1_000, client="4")) == "observation-bytes"
    assert [quota_of(driver.notify(key, client="1", user="u")) for key in (b"a", b"b")] == [
        None,
        "observations-per-client",
    ]
    driver.store.client_disconnected("3")
    assert [quota_of(driver.notify(key, client="2", user="u")) for key in (b"a", b"b")] == [
        None,
        "observations-per-user",
    ]
    assert [quota_of(driver.notify(b"a", client=name)) for name in "567"] == [None, None, "observations"]


def test_a_key_is_its_last_writers() -> None:
    """A key that another user writes counts for him from then on, and the one before has its room back."""
    driver = Driver(limits=StoreLimits(max_keys_per_user=1))
    assert quota_of(driver.set(b"a", b"", user="u")) is None
    assert quota_of(driver.set(b"b", b"", user="w")) is None
    assert quota_of(driver.set(b"b", b"", user="u")) == "keys-per-user"
    assert quota_of(driver.set(b"a", b"1", user=None)) is None
    assert quota_of(driver.set(b"b", b"", user="u")) is None
    assert quota_of(driver.set(b"c", b"", user="w")) is None


def test_what_of_a_user_has_expired_makes_room_for_him() -> None:
    """A user with as much as he may have gets the room of his keys that have expired, without a tick."""
    driver = Driver(limits=StoreLimits(max_keys_per_user=1))
    driver.set(b"a", b"", user="u", expiry_ms=10)
    assert quota_of(driver.set(b"b", b"", user="u")) == "keys-per-user"
    driver.advance(0.01)
    assert quota_of(driver.set(b"b", b"", user="u")) is None
