"""Programs that add to one counter and stand still where it hurts: each addition that is acknowledged counts once.

They run the generators that :meth:`Lock.edit` runs, with the change of a counter, in the world of ``recipes_world``:
requests arrive late, leases end meanwhile, and answers are lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from recipes_world import Machine, Steps, World

from statestore_client.core import edits
from statestore_client.core.edits import Edit, edit
from statestore_client.core.leases import LeaseView, guarded
from statestore_client.core.locks import Grant, LockTerms, acquire
from statestore_client.core.results import Item
from statestore_client.core.steps import SendUnawaited
from statestore_client.errors import LeaseLostError, StateStoreError
from statestore_client.recipes.counting import adding, number_of
from statestore_client.wire.commands import Get, Set
from statestore_client.wire.hlc import HlcTimestamp

_KEY, _LOCK = b"count", b"count/lock"
_LEASE_S = 1.0
_SCHEDULES = 60
_ADDITIONS = 12


@attrs.define
class Lease:
    """Valid while its time lasts."""

    grant: Grant
    clock: Callable[[], float]

    @property
    def fencing_token(self) -> HlcTimestamp:
        return self.grant.fencing_token

    @property
    def store_id(self) -> None:
        return None

    @property
    def remaining(self) -> float:
        return max(0.0, self.grant.valid_until - self.clock())

    def check(self) -> None:
        if not self.remaining:
            raise LeaseLostError("over")


class Additions:
    """Programs that add one to a counter, again and again."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed, longest_delay_s=3 * _LEASE_S)
        self.acknowledged = self.unknown = 0
        for name in range(3):
            machine = Machine(self.world)
            self.world.start(self._program(LockTerms(_LOCK, b"%d" % name, _LEASE_S), machine), machine)

    def _program(self, terms: LockTerms, machine: Machine) -> Steps:
        work, random = Edit(_KEY, adding(_KEY, 1), None, 0.5), self.world.random
        for _ in range(_ADDITIONS):
            try:
                grant = yield from acquire(terms, now=machine.now, timeout=None, request_timeout=0.5, random=random)
                yield from edit(terms, Lease(grant, lambda: machine.now), work)
            except StateStoreError as error:
                self.unknown += getattr(error, "may_have_been_applied", False)
            else:
                self.acknowledged += 1
            yield SendUnawaited(terms.give_back())


def error_of(seed: int) -> int:
    """How many additions are missing in a schedule, or are too many."""
    additions = Additions(seed)
    additions.world.run()
    held = additions.world.store.keys.get(_KEY)
    total = number_of(_KEY, None if held is None else held.value)
    return max(additions.acknowledged - total, total - additions.acknowledged - additions.unknown, 0)


def test_each_acknowledged_addition_counts_once() -> None:
    """Those whose answer did not come count, or not; nothing else does."""
    assert [seed for seed in range(_SCHEDULES) if error_of(seed)] == []


def _fences_its_write_only(lease: LeaseView, work: Edit, token: HlcTimestamp) -> Any:
    item = (yield from guarded(lease, Get(work.key), work.timeout, None)).value
    value = str(work.change(None if item is None else item.value)).encode()
    answer = yield from guarded(lease, Set(work.key, value), work.timeout, token)
    return Item(value, answer.value.version)


def _without_a_token(lease: LeaseView, work: Edit, token: HlcTimestamp) -> Any:
    del token
    item = (yield from guarded(lease, Get(work.key), work.timeout, None)).value
    value = str(work.change(None if item is None else item.value)).encode()
    answer = yield from guarded(lease, Set(work.key, value), work.timeout, None)
    return Item(value, answer.value.version)


@pytest.mark.parametrize("mistake", [_fences_its_write_only, _without_a_token])
def test_a_mistake_is_seen(mistake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Some schedule loses an addition."""
    monkeypatch.setattr(edits, "_edit", mistake)
    assert any(error_of(seed) for seed in range(_SCHEDULES))
