"""Elections and the states of a lock: pure values."""

from __future__ import annotations

from random import Random

import pytest
from steps_by_hand import Steps

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.core.elections import ElectionTerms
from statestore_client.core.holders import HolderView, LockState
from statestore_client.core.locks import acquire
from statestore_client.core.results import SetResult
from statestore_client.core.steps import Invoke
from statestore_client.errors import (
    ConnectionLostError,
    InvalidArgumentError,
    LockNotAcquiredError,
    RequestTimeoutError,
)
from statestore_client.wire.hlc import HlcTimestamp

V1, V2, V3 = (HlcTimestamp(1, i, "S") for i in (1, 2, 3))


def test_an_election_is_a_lock_in_other_words() -> None:
    """An election uses a lock's key and command, so other SDKs' candidates can take part; its errors say "term" and
    "candidate"."""
    terms = ElectionTerms(b"leader", b"me", 10.0)
    assert terms.claim().encode() == (
        b"*6\r\n$3\r\nSET\r\n$6\r\nleader\r\n$2\r\nme\r\n$3\r\nNEX\r\n$2\r\nPX\r\n$5\r\n10000\r\n"
    )
    with pytest.raises(InvalidArgumentError, match="term must be seconds"):
        ElectionTerms(b"leader", b"me", 0.0)
    with pytest.raises(InvalidArgumentError, match="candidate is empty"):
        ElectionTerms(b"leader", b"", 10.0)


def test_a_lost_campaign_says_so() -> None:
    """The error of a lost campaign names the election and the time it took."""
    terms = ElectionTerms(b"leader", b"me", 10.0)
    steps = Steps(acquire(terms, now=0.0, timeout=2.0, request_timeout=5.0, random=Random(1)))
    while steps.step is not None:
        steps.answer(SetResult(False, None) if isinstance(steps.step, Invoke) else None, took=0.5)
    assert isinstance(steps.error, LockNotAcquiredError)
    assert "the election leader was not won within 2 s: another one leads" in str(steps.error)


def test_a_candidate_without_an_answer_does_not_know_who_leads() -> None:
    """The error of a candidate that got no answer says that it does not know the leader, and blames no other
    candidate."""
    terms = ElectionTerms(b"leader", b"me", 10.0)
    steps = Steps(acquire(terms, now=0.0, timeout=2.0, request_timeout=5.0, random=Random(1)))
    while steps.step is not None:
        steps.fail_and_wait(ConnectionLostError("cut"), took=0.5)
    assert isinstance(steps.error, RequestTimeoutError)
    assert str(steps.error) == "the election leader was not won within 2 s, and who leads is not known: cut"


def event(kind: EventKind, value: bytes | None, version: HlcTimestamp, *, missed: bool = False) -> WatchEvent:
    return WatchEvent(kind, b"lock", value, version, missed)


def test_renewals_are_no_news() -> None:
    """Each new holder is reported once and a free lock once; renewals and connection events are not reported."""
    view = HolderView()
    assert view.first(event(EventKind.SET, b"a", V1)) == LockState(b"a", V1)
    assert view.changed(event(EventKind.SET, b"a", V2)) is None
    assert view.changed(event(EventKind.SUSPENDED, None, V2)) is None
    assert view.changed(event(EventKind.SET, b"b", V2)) == LockState(b"b", V2)
    assert view.changed(event(EventKind.DELETE, None, V3, missed=True)) == LockState(None, V3, missed=True)
    assert view.changed(event(EventKind.DELETE, None, V3)) is None
    assert view.changed(event(EventKind.SET, b"b", V3)) == LockState(b"b", V3)


def test_a_lock_without_a_key_is_free() -> None:
    """A lock whose key is missing is reported as free, also as the first state."""
    view = HolderView()
    assert view.first(None) == LockState(None)
    assert view.first(None).free
    assert not LockState(b"").free
    assert view.changed(event(EventKind.DELETE, None, V1)) is None
