"""The quota: keys and bytes."""

from __future__ import annotations

from store_driver import Driver, refusal

from statestore_client.errors import QuotaExceededError
from statestore_client.server.store import StoreLimits
from statestore_client.server.store.keyspace import KEY_OVERHEAD_BYTES
from statestore_client.server.store.store import EXPIRIES_PER_SET
from statestore_client.wire.notifications import Operation
from statestore_client.wire.replies import COUNT_1, OK, Found


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


def test_a_full_store_still_shrinks() -> None:
    """Values may get shorter even when observations have filled the rest."""
    driver = Driver(limits=StoreLimits(max_bytes=KEY_OVERHEAD_BYTES + 300))
    driver.set(b"k", b"x" * 40)
    assert driver.notify(b"n").reply == OK
    assert refusal(driver.set(b"k", b"x" * 50)) is QuotaExceededError
    assert driver.set(b"k", b"x" * 40).reply == OK
    assert driver.set(b"k", b"x").reply == OK


def test_deleting_and_expiring_give_everything_back() -> None:
    """After deletions and expiries the counters return to zero."""
    driver = Driver()
    for number in range(20):
        driver.set(b"%d" % number, b"v" * number, expiry_ms=1_000 if number % 2 else None)
        driver.set(b"%d" % number, b"w", expiry_ms=1_000 if number % 3 else None)
    for number in range(0, 20, 3):
        driver.delete(b"%d" % number)
    driver.advance(1)
    driver.tick()
    usage = driver.store.usage
    assert (usage.keys, usage.bytes, usage.observations) == (0, 0, 0)


def test_expired_keys_make_room_before_a_set_is_refused() -> None:
    """A SET that needs room removes expired keys before any tick, as many as needed, and their observers are told."""
    driver = Driver(limits=StoreLimits(max_keys=2))
    driver.notify(b"a")
    driver.set(b"a", b"1", expiry_ms=1_000)
    driver.set(b"b", b"1", expiry_ms=2_000)
    driver.advance(5)
    outcome = driver.set(b"c", b"1")
    assert outcome.reply == OK
    assert [(change.key, change.notification.operation) for change in outcome.changes] == [(b"a", Operation.DELETE)]
    assert driver.store.usage.keys == 2


def test_a_refusal_still_tells_of_what_expired() -> None:
    """A SET that is refused still reports the keys that expired."""
    driver = Driver(limits=StoreLimits(max_bytes=KEY_OVERHEAD_BYTES * 2))
    driver.notify(b"a")
    driver.set(b"a", b"1", expiry_ms=1_000)
    driver.advance(5)
    outcome = driver.set(b"b", b"x" * 10_000)
    assert refusal(outcome) is QuotaExceededError
    assert [change.key for change in outcome.changes] == [b"a"]


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
