"""Reads and edits under a lease: what is read is claimed first. Each step is answered by hand."""

from __future__ import annotations

import attrs
import pytest
from steps_by_hand import NEWER, TOKEN, HeldLease, Steps

from statestore_client.core.edits import ATTEMPTS, KEEP, Change, Claims, Edit, edit, read
from statestore_client.core.locks import LockTerms
from statestore_client.core.results import DeleteResult, Item, SetResult
from statestore_client.core.steps import Invoke
from statestore_client.errors import FencingTokenTooOldError, KeyChangedError, LeaseLostError
from statestore_client.wire.commands import Condition, Get, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp

TERMS = LockTerms(b"lock", b"me", 10.0)
CLAIM = Set(b"lock", b"me", Condition.NEX, 10_000)
CLAIMED = Set(b"key", b"1", Condition.NEX, 5000)
OLD = Item(b"1", HlcTimestamp(1, 0, "S"))


def add_one(value: bytes | None) -> str:
    return str(int(value or b"0") + 1)


def editing(change: Change, lease: HeldLease | None = None) -> Steps:
    steps = Steps(edit(TERMS, lease or HeldLease(), Edit(b"key", change, 5000, 30.0)))
    assert steps.step == Invoke(Get(b"key"), 7.0)
    return steps


@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize(("item", "value"), [(OLD, b"2"), (None, b"1")])
def test_the_new_value_is_made_from_the_old_one(item: Item | None, value: bytes, persist: bool) -> None:
    """An edit reads the value, claims the key for the token, and writes what it made of it; all is marked to persist if
    the caller asks for that. The result is the item as it is then."""
    steps = Steps(edit(TERMS, HeldLease(), Edit(b"key", add_one, 5000, 30.0, persist=persist)))
    steps.answer(item)
    condition = None if item else Condition.NX
    if item is not None:
        assert steps.step == Invoke(attrs.evolve(CLAIMED, persist=persist), 7.0, TOKEN)
        steps.answer(SetResult(True, TOKEN))
    assert steps.step == Invoke(Set(b"key", value, condition, 5000, persist=persist), 7.0, TOKEN)
    steps.answer(SetResult(True, NEWER))
    assert steps.result == Item(value, NEWER)


@pytest.mark.parametrize(
    ("change", "item"),
    [(lambda _: KEEP, OLD), (lambda _: KEEP, None), (lambda _: None, None)],
    ids=["keep", "keep nothing", "delete nothing"],
)
def test_what_changes_nothing_sends_nothing(change: Change, item: Item | None) -> None:
    """An edit that keeps what was read, or deletes a missing key, ends and sends nothing (the Go and .NET SDKs repeat
    the latter for ever: facts, 3.2)."""
    steps = editing(change)
    assert steps.answer(item) is None
    assert (steps.result, steps.error) == (item, None)


def test_none_deletes() -> None:
    """An edit whose change returns None deletes the key with the token, if it still is what was read."""
    steps = editing(lambda _value: None)
    assert steps.answer(OLD) == Invoke(VDel(b"key", b"1"), 7.0, TOKEN)
    assert steps.answer(DeleteResult(0, None, matched=False)) == Invoke(Get(b"key"), 7.0)
    steps.answer(OLD)
    steps.answer(DeleteResult(1, None))
    assert (steps.step, steps.result, steps.error) == (None, None, None)


def test_a_newer_token_of_the_same_lock_is_matched() -> None:
    """After a write with next_token() has shut out the lease's own token, the edit gets a fresh one and reads again."""
    steps = editing(add_one)
    assert steps.answer(OLD) == Invoke(CLAIMED, 7.0, TOKEN)
    assert steps.fail(FencingTokenTooOldError()) == Invoke(CLAIM, 7.0)
    assert steps.answer(SetResult(True, NEWER)) == Invoke(Get(b"key"), 7.0)
    steps.answer(OLD)
    assert steps.answer(SetResult(True, NEWER)) == Invoke(Set(b"key", b"2", None, 5000), 7.0, NEWER)
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


@pytest.mark.parametrize("item", [OLD, None])
def test_an_edit_whose_key_changes_in_between_reads_again(item: Item | None) -> None:
    """A claim, or the first value of a missing key, that was not applied: the key is read anew, and the change is made
    from what is there now. That ends, should somebody write the key all the time."""
    steps = editing(add_one)
    for _ in range(ATTEMPTS):
        assert steps.step == Invoke(Get(b"key"), 7.0)
        steps.answer(item)
        steps.answer(SetResult(False, None))
    assert isinstance(steps.error, KeyChangedError)
    assert steps.error.key == b"key"


# -- reads -------------------------------------------------------------------------------------------------------------


def test_a_read_claims_the_key_once() -> None:
    """A read is answered when the key has the lease's token; while the key keeps that version, reading is one request.
    A claim that was not applied is made anew, of what is there then."""
    claims, template = Claims(b"lock"), Set(b"key", b"", None, 5000)
    steps = Steps(read(HeldLease(), claims, template, 30.0))
    assert steps.step == Invoke(Get(b"key"), 7.0)
    assert steps.answer(Item(b"0", TOKEN)) == Invoke(attrs.evolve(CLAIMED, value=b"0"), 7.0, TOKEN)
    assert steps.answer(SetResult(False, None)) == Invoke(Get(b"key"), 7.0)
    assert steps.answer(OLD) == Invoke(CLAIMED, 7.0, TOKEN)
    steps.answer(SetResult(True, NEWER))
    assert steps.result == Item(b"1", NEWER)
    again = Steps(read(HeldLease(), claims, template, 30.0))
    again.answer(Item(b"1", NEWER))
    assert again.result == Item(b"1", NEWER)


def test_a_key_that_changes_all_the_time_is_not_read() -> None:
    """A read gives up on a key that somebody writes without the lock again and again."""
    steps = Steps(read(HeldLease(), Claims(b"lock"), Set(b"key", b""), 30.0))
    for _ in range(ATTEMPTS):
        steps.answer(OLD)
        steps.answer(SetResult(False, None))
    assert isinstance(steps.error, KeyChangedError)


def test_the_key_of_the_lock_is_read_without_a_claim() -> None:
    """A claim would take its end from it: the lock would be held for ever."""
    steps = Steps(read(HeldLease(), Claims(b"lock"), Set(b"lock", b""), 30.0))
    steps.answer(OLD)
    assert steps.result == OLD


def test_what_is_known_of_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read longest ago is forgotten; the first SET of a key that was missing lately goes with NX."""
    monkeypatch.setattr("statestore_client.core.edits._MOST_KEYS", 2)
    claims = Claims(b"lock")
    for key in (b"a", b"b", b"a", b"c"):
        claims.claim(Set(key, b""), None)
    assert [claims.to_send(Set(key, b"1")).condition for key in (b"a", b"b", b"c")] == [
        Condition.NX,
        None,
        Condition.NX,
    ]
