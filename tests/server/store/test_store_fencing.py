"""Fencing tokens: the decision table, and the document's story of two clients and a lock."""

from __future__ import annotations

import pytest
from store_driver import NEX, NX, WALL, Driver, refusal

from statestore_client.errors import FencingTokenRequiredError, FencingTokenTooOldError
from statestore_client.server.store.store import pass_fence
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.replies import COUNT_0, COUNT_1, NOT_APPLIED, OK, Found

OLD = HlcTimestamp(WALL, 1, "StateStore")
NEW = HlcTimestamp(WALL, 2, "StateStore")


def test_the_decision_table() -> None:
    """Each row of the table at the top of ``fencing.py`` holds."""
    assert pass_fence(None, None) is None
    assert pass_fence(None, NEW) is NEW
    assert pass_fence(OLD, NEW) == NEW
    assert pass_fence(NEW, NEW) == NEW
    with pytest.raises(FencingTokenRequiredError):
        pass_fence(NEW, None)
    with pytest.raises(FencingTokenTooOldError):
        pass_fence(NEW, OLD)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def take_lock(driver: Driver, owner: bytes) -> HlcTimestamp:
    """SET LockName owner NEX PX 10000, as the document acquires a lock."""
    outcome = driver.set(b"LockName", owner, NEX, expiry_ms=10_000)
    assert outcome.reply == OK
    assert outcome.version is not None
    return outcome.version


def test_the_documents_story(driver: Driver) -> None:
    """Client1 hangs, Client2 takes over, and Client1's late write is refused, as the document tells."""
    first = take_lock(driver, b"Client1")
    assert driver.set(b"ProtectedKey", b"1", ft=first).reply == OK
    assert driver.set(b"LockName", b"Client2", NEX, expiry_ms=10_000).reply == NOT_APPLIED
    driver.advance(10)
    second = take_lock(driver, b"Client2")
    assert second > first
    assert driver.set(b"ProtectedKey", b"2", ft=second).reply == OK
    assert refusal(driver.set(b"ProtectedKey", b"late", ft=first)) is FencingTokenTooOldError
    assert driver.get(b"ProtectedKey").reply == Found(b"2")


def test_an_unmarked_key_takes_any_token_and_is_marked(driver: Driver) -> None:
    """A SET with a token marks a key that existed without one."""
    driver.set(b"k", b"v")
    assert driver.set(b"k", b"w", ft=OLD).reply == OK
    assert refusal(driver.set(b"k", b"x")) is FencingTokenRequiredError


def test_the_mark_rises_and_never_falls(driver: Driver) -> None:
    """An equal token passes and changes nothing, and a newer one becomes the mark."""
    for token in (OLD, OLD, NEW, NEW):
        assert driver.set(b"k", b"v", ft=token).reply == OK
    assert refusal(driver.set(b"k", b"v", ft=OLD)) is FencingTokenTooOldError


def test_a_token_taken_before_the_lock_is_too_old(driver: Driver) -> None:
    """A client's timestamp from before the acquisition is too old for SET and DEL, as in the SDKs' tests."""
    before = driver.stamp(-5)
    token = take_lock(driver, b"Client1")
    driver.set(b"k", b"v", ft=token)
    assert refusal(driver.set(b"k", b"w", ft=before)) is FencingTokenTooOldError
    assert refusal(driver.delete(b"k", ft=before)) is FencingTokenTooOldError
    assert refusal(driver.vdel(b"k", b"v", ft=before)) is FencingTokenTooOldError


def test_the_version_of_the_key_itself_is_a_valid_token(driver: Driver) -> None:
    """The version of the key itself is a valid token, as in the Rust SDK's tests."""
    outcome = driver.set(b"k", b"v", ft=OLD)
    assert outcome.version is not None
    assert driver.set(b"k", b"w", ft=outcome.version).reply == OK


def test_deleting_a_marked_key_needs_a_token(driver: Driver) -> None:
    """DEL and VDEL of a marked key need a token, equal or newer."""
    for token in (OLD, NEW):
        driver.set(b"k", b"v", ft=OLD)
        assert refusal(driver.delete(b"k")) is FencingTokenRequiredError
        assert refusal(driver.vdel(b"k", b"v")) is FencingTokenRequiredError
        assert driver.delete(b"k", ft=token).reply == COUNT_1
        driver.set(b"k", b"v", ft=OLD)
        assert driver.vdel(b"k", b"v", ft=token).reply == COUNT_1


def test_a_vdel_of_another_value_must_pass_the_fence_first(driver: Driver) -> None:
    """VDEL without a valid token is refused whatever the value, so that its sender learns nothing."""
    driver.set(b"k", b"v", ft=NEW)
    assert refusal(driver.vdel(b"k", b"x")) is FencingTokenRequiredError
    assert refusal(driver.vdel(b"k", b"x", ft=OLD)) is FencingTokenTooOldError
    assert driver.vdel(b"k", b"x", ft=NEW).reply == NOT_APPLIED


def test_deleting_does_not_store_the_token(driver: Driver) -> None:
    """DEL of an unmarked key with a token deletes it and stores no mark."""
    driver.set(b"k", b"v")
    assert driver.delete(b"k", ft=NEW).reply == COUNT_1
    assert driver.set(b"k", b"v").reply == OK
    assert driver.delete(b"missing", ft=NEW).reply == COUNT_0
    assert driver.set(b"missing", b"v").reply == OK


@pytest.mark.parametrize("how", ["DEL", "VDEL", "expiry"])
def test_the_mark_disappears_with_the_key(driver: Driver, how: str) -> None:
    """A key that was deleted or has expired starts again without a mark."""
    driver.set(b"k", b"v", ft=NEW, expiry_ms=1_000)
    if how == "DEL":
        driver.delete(b"k", ft=NEW)
    elif how == "VDEL":
        driver.vdel(b"k", b"v", ft=NEW)
    else:
        driver.advance(1)
    assert driver.set(b"k", b"w", ft=OLD).reply == OK


def test_conditions_do_not_pass_by_the_fence(driver: Driver) -> None:
    """SET NX and SET NEX of a marked key are refused before their condition is checked."""
    driver.set(b"k", b"v", ft=NEW)
    for condition in (NX, NEX):
        for value in (b"v", b"x"):
            assert refusal(driver.set(b"k", value, condition)) is FencingTokenRequiredError
            assert refusal(driver.set(b"k", value, condition, ft=OLD)) is FencingTokenTooOldError
    assert driver.set(b"k", b"x", NX, ft=NEW).reply == NOT_APPLIED
    assert driver.set(b"k", b"v", NEX, ft=NEW).reply == OK


def test_a_set_that_was_not_applied_leaves_the_mark(driver: Driver) -> None:
    """A newer token on a SET NX that is not applied does not become the mark."""
    driver.set(b"k", b"v", ft=OLD)
    assert driver.set(b"k", b"x", NX, ft=NEW).reply == NOT_APPLIED
    assert driver.set(b"k", b"w", ft=OLD).reply == OK


def test_reading_and_observing_need_no_token(driver: Driver) -> None:
    """GET, KEYNOTIFY and SCAN of marked keys need no token."""
    driver.set(b"k", b"v", ft=NEW)
    assert driver.get(b"k").reply == Found(b"v")
    assert driver.get(b"k", ft=OLD).reply == Found(b"v")
    assert driver.notify(b"k").reply == OK
