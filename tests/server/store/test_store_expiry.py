"""Expiry: on time, once, and cheap."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from store_driver import NEX, NX, Driver

from statestore_client.server.journal import Journal, Stream
from statestore_client.server.store import Outcome
from statestore_client.server.store.store import CHANGES_AT_ONCE, EXPIRIES_PER_TICK
from statestore_client.wire.protocol import Dialect
from statestore_client.wire.replies import COUNT_0, MISSING, OK, Found, Keys, Notification, Operation

DELETED = Notification(Operation.DELETE)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_a_key_expires_on_time(driver: Driver) -> None:
    """A key is there until a millisecond before its deadline, which is announced, and gone at it."""
    driver.set(b"k", b"v", expiry_ms=10_000)
    assert driver.store.next_deadline() == driver.monotonic + 10
    driver.advance(9.999)
    assert driver.tick() == ()
    assert driver.get(b"k").reply == Found(b"v")
    driver.advance(0.001)
    driver.tick()
    assert driver.store.usage.keys == 0
    assert driver.store.next_deadline() is None


def test_an_expired_key_is_missing_before_any_tick(driver: Driver) -> None:
    """A key that has expired is missing for every command before any tick."""
    for key in (b"get", b"del", b"vdel", b"nx", b"nex", b"scan"):
        driver.set(key, b"v", expiry_ms=1)
    driver.advance(0.001)
    assert driver.scan(b"*").reply == Keys(())
    assert driver.get(b"get").reply == MISSING
    assert driver.delete(b"del").reply == COUNT_0
    assert driver.vdel(b"vdel", b"v").reply == COUNT_0
    assert driver.set(b"nx", b"new", NX).reply == OK
    assert driver.set(b"nex", b"new", NEX).reply == OK


@pytest.mark.parametrize(
    "read",
    [
        lambda driver: driver.get(b"k"),
        lambda driver: driver.scan(b"*"),
        lambda driver: driver.delete(b"k"),
        lambda driver: driver.vdel(b"k", b"v"),
        lambda driver: driver.set(b"k", b"w", ts=None),
        lambda driver: driver.set(b"k", b"w", ts=driver.stamp(120_000)),
    ],
    ids=["GET", "SCAN", "DEL", "VDEL", "refused SET", "SET from the future"],
)
def test_what_writes_nothing_expires_nothing(read: Callable[[Driver], Outcome]) -> None:
    """A read of an expired key writes nothing; the tick removes it, notifies and records it."""
    journal = Journal()
    driver = Driver(journal=journal)
    driver.notify(b"k", client="bob")
    driver.set(b"k", b"v", expiry_ms=1_000)
    driver.advance(1)
    journal.cut(driver.now)
    before = driver.state()
    assert read(driver).changes == ()
    assert driver.state() == before
    assert not journal
    assert [change.notification for change in driver.tick()] == [DELETED]
    assert [changes.stream for changes in journal.cut(driver.now).changes] == [Stream.KEYS, Stream.CLOCK]


def test_expiry_notifies_once_with_a_new_version(driver: Driver) -> None:
    """At the tick an expiry notifies once of a DELETE with a version greater than the value's."""
    driver.notify(b"k", client="bob")
    stored = driver.set(b"k", b"v", expiry_ms=1_000)
    driver.advance(1)
    (change,) = driver.tick()
    assert (change.client_id, change.key, change.notification) == ("bob", b"k", DELETED)
    assert stored.version is not None
    assert change.version > stored.version
    assert driver.tick() == ()


def test_a_command_that_comes_before_the_tick_brings_the_notification(driver: Driver) -> None:
    """A command before the tick notifies of the DELETE first, then of its own change, and the tick does not repeat
    it."""
    driver.notify(b"k", client="bob")
    driver.set(b"k", b"v", expiry_ms=1_000)
    driver.advance(1)
    outcome = driver.set(b"k", b"w", NX)
    assert [change.notification for change in outcome.changes] == [DELETED, Notification(Operation.SET, b"w")]
    first, second = outcome.changes
    assert first.version < second.version == outcome.version
    assert driver.tick() == ()
    assert driver.get(b"k").reply == Found(b"w")


def test_the_documents_dialect_notifies_with_the_values_version() -> None:
    """In the document's dialect an expiry notifies with the value's version ("… contains the timestamp of the
    value")."""
    driver = Driver(dialect=Dialect.DOCUMENT)
    driver.notify(b"k")
    stored = driver.set(b"k", b"v", expiry_ms=1_000)
    driver.advance(1)
    (change,) = driver.tick()
    assert change.version == stored.version


def test_a_set_without_px_removes_the_expiry(driver: Driver) -> None:
    """A SET without PX removes the expiry."""
    driver.set(b"k", b"v", expiry_ms=1_000)
    driver.set(b"k", b"v")
    assert driver.store.next_deadline() is None
    driver.advance(3600)
    driver.tick()
    assert driver.get(b"k").reply == Found(b"v")


def test_a_renewal_moves_the_deadline(driver: Driver) -> None:
    """NEX with PX, as a lease's renewal, makes the deadline later or earlier."""
    driver.set(b"k", b"me", NEX, expiry_ms=10_000)
    driver.advance(9)
    driver.set(b"k", b"me", NEX, expiry_ms=10_000)
    driver.advance(9)
    driver.tick()
    assert driver.get(b"k").reply == Found(b"me")
    driver.set(b"k", b"me", NEX, expiry_ms=1)
    driver.advance(0.001)
    assert driver.get(b"k").reply == MISSING


def test_a_set_that_is_not_applied_leaves_the_expiry(driver: Driver) -> None:
    """A SET that is not applied leaves the expiry, so that a stranger cannot prolong a lease."""
    driver.set(b"k", b"me", NEX, expiry_ms=1_000)
    driver.set(b"k", b"you", NEX, expiry_ms=100_000)
    driver.advance(1)
    assert driver.get(b"k").reply == MISSING


def test_wall_clocks_do_not_matter(driver: Driver) -> None:
    """A wall clock that jumps neither hastens nor delays an expiry, which counts monotonic seconds."""
    driver.set(b"k", b"v", expiry_ms=10_000)
    driver.wall_ms += 3_600_000
    driver.tick()
    assert driver.get(b"k").reply == Found(b"v")
    driver.wall_ms -= 7_200_000
    driver.monotonic += 10
    assert driver.get(b"k").reply == MISSING


def test_the_longest_expiry_is_no_overflow(driver: Driver) -> None:
    """The longest expiry, 2^63-1 milliseconds, does not overflow."""
    driver.set(b"k", b"v", expiry_ms=2**63 - 1)
    driver.advance(10**9)
    driver.tick()
    assert driver.get(b"k").reply == Found(b"v")


def test_a_tick_is_bounded(driver: Driver) -> None:
    """Many keys with one deadline go in several ticks, and ``next_deadline`` stays due until all are gone."""
    count = 2 * EXPIRIES_PER_TICK + 1
    for number in range(count):
        driver.set(b"%d" % number, b"v", expiry_ms=1_000)
    driver.advance(5)
    ticks = 0
    while (deadline := driver.store.next_deadline()) is not None:
        assert deadline <= driver.monotonic
        driver.tick()
        ticks += 1
    assert ticks == 3
    assert driver.store.usage.keys == 0


def test_keys_that_many_observe_expire_in_slices() -> None:
    """A tick ends when enough observers are to be told; the next is due at once, and nobody sees the other keys
    meanwhile."""
    driver = Driver()
    for number in range(30):
        driver.set(b"%02d" % number, b"v", expiry_ms=1_000)
        for client in range(500):
            driver.notify(b"%02d" % number, client=f"c{client}")
    driver.advance(1)
    told = []
    while (deadline := driver.store.next_deadline()) is not None:
        assert deadline <= driver.monotonic
        assert driver.get(b"29").reply == MISSING
        told.append(len(driver.tick()))
    assert sum(told) == 30 * 500
    assert max(told) == CHANGES_AT_ONCE


def test_the_store_forgets_old_deadlines(driver: Driver) -> None:
    """However a key loses its deadline (renewal, SET without PX, DEL, VDEL, a late command), the store forgets it."""
    for turn in range(2_000):
        driver.set(b"k", b"v", expiry_ms=10_000)
        driver.set(b"k", b"v", NEX, expiry_ms=20_000)
        if turn % 4 == 0:
            driver.set(b"k", b"v")
        elif turn % 4 == 1:
            driver.delete(b"k")
        elif turn % 4 == 2:
            driver.vdel(b"k", b"v")
        else:
            driver.advance(20)
            driver.get(b"k")
        assert len(driver.store._expiries) < 200


@pytest.mark.parametrize("between", ["nothing", "delete", "no PX", "another PX"])
def test_a_moment_full_of_sets_does_not_grow_the_queue(driver: Driver, between: str) -> None:
    """Many SETs at one moment of the clock, all with one deadline, do not grow the queue."""
    most = 0
    for _ in range(2_000):
        driver.set(b"k", b"v", expiry_ms=10_000)
        if between == "delete":
            driver.delete(b"k")
        elif between == "no PX":
            driver.set(b"k", b"v")
        elif between == "another PX":
            driver.set(b"k", b"v", expiry_ms=20_000)
        most = max(most, len(driver.store._expiries))
    assert most <= (1 if between == "nothing" else 100)
    driver.set(b"k", b"v", expiry_ms=10_000)
    driver.advance(10)
    driver.tick()
    assert driver.store.usage.keys == 0
