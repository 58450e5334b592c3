"""Edits under a lock, step by step."""

from __future__ import annotations

import attrs
import pytest
from steps_by_hand import Steps

from statestore_client.core.edits import KEEP, Change, Edit, edit
from statestore_client.core.locks import LockTerms
from statestore_client.core.results import DeleteResult, Item, SetResult
from statestore_client.core.steps import Invoke
from statestore_client.errors import FencingTokenTooOldError, LeaseLostError, RequestTimeoutError
from statestore_client.wire.commands import Condition, Del, Get, Set
from statestore_client.wire.hlc import HlcTimestamp

TERMS = LockTerms(b"lock", b"me", 10.0)
CLAIM = Set(b"lock", b"me", Condition.NEX, 10_000)
TOKEN = HlcTimestamp(1, 2, "S")
NEWER = HlcTimestamp(1, 3, "S")
OLD = Item(b"1", HlcTimestamp(1, 0, "S"))


@attrs.define
class HeldLease:
    """A lease that ends when the test says so."""

    fencing_token: HlcTimestamp = TOKEN
    remaining: float = 7.0

    def check(self) -> None:
        if self.remaining <= 0:
            raise LeaseLostError("over")


def add_one(value: bytes | None) -> str:
    return str(int(value or b"0") + 1)


def editing(change: Change, lease: HeldLease | None = None) -> Steps:
    steps = Steps(edit(TERMS, lease or HeldLease(), Edit(b"key", change, 5000, 30.0)))
    assert steps.step == Invoke(Get(b"key"), 7.0)
    return steps


@pytest.mark.parametrize(("item", "value"), [(OLD, b"2"), (None, b"1")])
def test_the_new_value_is_made_from_the_old_one(item: Item | None, value: bytes) -> None:
    """An edit reads the value, changes it and writes it with the token; the result is the item as it is then."""
    steps = editing(add_one)
    assert steps.answer(item) == Invoke(Set(b"key", value, None, 5000), 7.0, TOKEN)
    steps.answer(SetResult(True, NEWER))
    assert steps.result == Item(value, NEWER)


def test_the_new_value_is_marked_if_that_is_asked_for() -> None:
    """The SET of an edit is marked to persist if the caller asks for that."""
    steps = Steps(edit(TERMS, HeldLease(), Edit(b"key", add_one, None, 30.0, persist=True)))
    assert steps.answer(OLD) == Invoke(Set(b"key", b"2", persist=True), 7.0, TOKEN)


@pytest.mark.parametrize("item", [OLD, None])
def test_keeping_writes_nothing(item: Item | None) -> None:
    """An edit whose change says "keep" writes nothing and returns what was read."""
    steps = editing(lambda _value: KEEP)
    assert steps.answer(item) is None
    assert steps.result == item


def test_none_deletes() -> None:
    """An edit whose change returns None deletes the key, with the token."""
    steps = editing(lambda _value: None)
    assert steps.answer(OLD) == Invoke(Del(b"key"), 7.0, TOKEN)
    steps.answer(DeleteResult(1, None))
    assert steps.step is None
    assert steps.result is None
    assert steps.error is None


def test_deleting_an_absent_key_ends() -> None:
    """An edit that deletes a missing key ends and sends nothing (the Go and .NET SDKs repeat it for ever: facts,
    3.2)."""
    steps = editing(lambda _value: None)
    assert steps.answer(None) is None
    assert steps.error is None


def test_a_newer_token_of_the_same_lock_is_matched() -> None:
    """After a write with next_token() has shut out the lease's own token, the edit gets a fresh one and reads again."""
    steps = editing(add_one)
    steps.answer(OLD)
    assert steps.fail(FencingTokenTooOldError()) == Invoke(CLAIM, 7.0)
    assert steps.answer(SetResult(True, NEWER)) == Invoke(Get(b"key"), 7.0)
    assert steps.answer(Item(b"7", TOKEN)) == Invoke(Set(b"key", b"8", None, 5000), 7.0, NEWER)
    steps.fail(FencingTokenTooOldError())
    assert isinstance(steps.error, FencingTokenTooOldError)


def test_nothing_is_written_after_the_loss() -> None:
    """An edit writes nothing after its lease is lost, also when the change itself took too long."""
    lease = HeldLease()

    def slow(value: bytes | None) -> bytes:
        lease.remaining = 0.0
        return b"late"

    steps = editing(slow, lease)
    steps.answer(OLD)
    assert isinstance(steps.error, LeaseLostError)
    assert not steps.error.may_have_been_applied


def test_a_write_that_outlasts_the_lease_may_have_been_applied() -> None:
    """A write that outlasts the lease is not repeated, and its error says that it may have been applied."""
    lease = HeldLease()
    steps = editing(add_one, lease)
    steps.answer(OLD)
    lease.remaining = 0.0
    steps.fail(RequestTimeoutError("slow", may_have_been_applied=True))
    assert isinstance(steps.error, LeaseLostError)
    assert steps.error.may_have_been_applied
