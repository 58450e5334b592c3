"""KEYNOTIFY: who is told what, and when no longer."""

from __future__ import annotations

import pytest
from store_driver import Driver, refusal

from statestore_client.errors import QuotaExceededError
from statestore_client.server.store import Outcome, StoreLimits
from statestore_client.server.store.keyspace import Observers
from statestore_client.wire.protocol import Dialect
from statestore_client.wire.replies import COUNT_0, OK, Notification, Operation

DELETED = Notification(Operation.DELETE)


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.notify(b"SOMEKEY", client="bob")
    return driver


def told(outcome: Outcome) -> list[tuple[str, bytes, Notification]]:
    """Which observers are told what; the version must be the reply's."""
    assert all(change.version == outcome.version for change in outcome.changes)
    return [(change.client_id, change.key, change.notification) for change in outcome.changes]


def test_a_set_is_told_with_its_value_and_version(driver: Driver) -> None:
    """An observer, who need not be the writer, is told of a SET with value and version."""
    assert told(driver.set(b"SOMEKEY", b"abc")) == [("bob", b"SOMEKEY", Notification(Operation.SET, b"abc"))]


def test_the_same_value_is_told_again(driver: Driver) -> None:
    """A SET of the same bytes is reported, so that renewals are seen."""
    driver.set(b"SOMEKEY", b"abc")
    assert told(driver.set(b"SOMEKEY", b"abc")) == [("bob", b"SOMEKEY", Notification(Operation.SET, b"abc"))]


def test_deletions_are_told(driver: Driver) -> None:
    """DEL and VDEL are reported with the version of their reply."""
    driver.set(b"SOMEKEY", b"abc")
    assert told(driver.delete(b"SOMEKEY")) == [("bob", b"SOMEKEY", DELETED)]
    driver.set(b"SOMEKEY", b"abc")
    assert told(driver.vdel(b"SOMEKEY", b"abc")) == [("bob", b"SOMEKEY", DELETED)]


def test_deletions_carry_the_values_version_in_the_documents_dialect() -> None:
    """In the document's dialect a deletion is reported with the value's version ("contains the timestamp of the value
    …")."""
    driver = Driver(dialect=Dialect.DOCUMENT)
    driver.notify(b"SOMEKEY")
    stored = driver.set(b"SOMEKEY", b"abc")
    (change,) = driver.delete(b"SOMEKEY").changes
    assert change.version == stored.version


def test_what_changes_nothing_is_not_told(driver: Driver) -> None:
    """Reads, deletions of a missing key, a VDEL that does not match, and changes of other keys are not reported."""
    assert driver.delete(b"SOMEKEY").changes == ()
    driver.set(b"SOMEKEY", b"abc")
    assert driver.get(b"SOMEKEY").changes == ()
    assert driver.vdel(b"SOMEKEY", b"x").changes == ()
    assert driver.set(b"SOMEKEY2", b"abc").changes == ()
    assert driver.set(b"SOME", b"abc").changes == ()


def test_every_observer_is_told_once_in_order(driver: Driver) -> None:
    """An observer that asks twice is told once, in order, and the writer is told if it observes."""
    driver.notify(b"SOMEKEY", client="carol")
    driver.notify(b"SOMEKEY", client="bob")
    driver.notify(b"SOMEKEY", client="alice")
    assert [change.client_id for change in driver.set(b"SOMEKEY", b"abc").changes] == ["bob", "carol", "alice"]


def test_missing_keys_can_be_observed(driver: Driver) -> None:
    """KEYNOTIFY of a missing key answers OK without a version."""
    outcome = driver.notify(b"later", client="carol")
    assert (outcome.reply, outcome.version) == (OK, None)
    assert len(driver.set(b"later", b"v").changes) == 1


def test_stopping(driver: Driver) -> None:
    """STOP answers OK if this client observed the key, and zero otherwise; repeated observing needs one STOP."""
    driver.notify(b"SOMEKEY", client="bob")
    assert driver.notify(b"SOMEKEY", client="carol", stop=True).reply == COUNT_0
    assert driver.notify(b"OTHER", client="bob", stop=True).reply == COUNT_0
    assert driver.notify(b"SOMEKEY", client="bob", stop=True).reply == OK
    assert driver.notify(b"SOMEKEY", client="bob", stop=True).reply == COUNT_0
    assert driver.set(b"SOMEKEY", b"abc").changes == ()


def test_a_disconnect_ends_all_observations_of_the_client(driver: Driver) -> None:
    """A disconnect ends all observations of that client and of no other."""
    driver.notify(b"other", client="bob")
    driver.notify(b"SOMEKEY", client="carol")
    driver.store.client_disconnected("bob")
    driver.store.client_disconnected("bob")
    driver.store.client_disconnected("nobody")
    assert [change.client_id for change in driver.set(b"SOMEKEY", b"abc").changes] == ["carol"]
    assert driver.set(b"other", b"abc").changes == ()
    assert driver.store.usage.observations == 1


def test_observations_have_a_quota_of_their_own() -> None:
    """Observations count against their own quota, and STOP gives the room back; of that of keys they take nothing."""
    driver = Driver(limits=StoreLimits(max_bytes=1_000, max_observation_bytes=1_000))
    assert driver.notify(b"a" * 500).reply == OK
    assert refusal(driver.notify(b"b" * 500)) is QuotaExceededError
    assert driver.notify(b"a" * 500).reply == OK
    assert driver.notify(b"a" * 500, stop=True).reply == OK
    assert driver.store.usage.observation_bytes == 0
    assert driver.notify(b"b" * 500).reply == OK
    assert driver.store.usage.bytes == 0
    assert driver.set(b"k", b"v" * 500).reply == OK


def test_the_registry_forgets_what_it_does_not_need() -> None:
    """The registry keeps no empty sets."""
    observers = Observers(StoreLimits())
    for key in (b"a", b"b"):
        for client in ("x", "y"):
            observers.add(client, key)
    observers.remove("x", b"a")
    observers.remove("y", b"a")
    observers.remove("x", b"b")
    observers.remove_client("y")
    assert (observers.number.total, observers.bytes.total) == (0, 0)
    assert (observers.by_key, observers._by_client, observers._user_of, observers._bytes_of) == ({}, {}, {}, {})
