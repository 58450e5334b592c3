"""Programs that add to one counter and stand still where it hurts: each addition that is acknowledged counts once.

They run the generators that :meth:`Lock.edit` runs, with the change of a counter. Their world is a naive store,
requests that arrive late, leases that end meanwhile, answers that are lost, and time that is a number.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from itertools import count
from random import Random
from typing import Any

import attrs
import pytest

from statestore_client.core import edits
from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.core.edits import Edit, edit
from statestore_client.core.leases import LeaseView, guarded
from statestore_client.core.locks import Grant, LockTerms, acquire
from statestore_client.core.results import DeleteResult, Item, SetResult
from statestore_client.core.steps import Answer, Invoke, Pause, SendUnawaited, StartWatch, WaitForChange
from statestore_client.errors import FencingTokenTooOldError, LeaseLostError, RequestTimeoutError, StateStoreError
from statestore_client.recipes.counting import adding, number_of
from statestore_client.wire.commands import Command, Condition, Get, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp

_KEY, _LOCK = b"count", b"count/lock"
_LEASE_S = 1.0
_SCHEDULES = 60
_ADDITIONS = 12


@attrs.define
class Held:
    """What the store has under a key."""

    value: bytes
    version: HlcTimestamp
    mark: HlcTimestamp | None
    ends_at: float


class Store:
    """SET, GET and VDEL as the protocol has them: conditions, expiry, fencing tokens."""

    def __init__(self) -> None:
        self.now = 0.0
        self.keys: dict[bytes, Held] = {}
        self._versions = count(1)

    def apply(self, command: Command, token: HlcTimestamp | None) -> Any:
        """Raises what a client would."""
        assert isinstance(command, Get | Set | VDel)
        held = self.keys.get(command.key)
        if held is not None and held.ends_at <= self.now:
            del self.keys[command.key]
            held = None
        if isinstance(command, Get):
            return None if held is None else Item(held.value, held.version)
        if held is not None and held.mark is not None and (token is None or token < held.mark):
            raise FencingTokenTooOldError
        if isinstance(command, VDel):
            if held is None or held.value != command.value:
                return DeleteResult(0, None, matched=False)
            del self.keys[command.key]
            return DeleteResult(1, None)
        is_other = held is not None and not (command.condition is Condition.NEX and held.value == command.value)
        if command.condition is not None and is_other:
            return SetResult(False, None)
        ends_at = float("inf") if command.expiry_ms is None else self.now + command.expiry_ms / 1000
        version = HlcTimestamp(1, next(self._versions), "S")
        self.keys[command.key] = Held(command.value, version, token or (held and held.mark), ends_at)
        return SetResult(True, version)


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


class World:
    """Programs, and the way of their requests to the store and back."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = Store()
        self.acknowledged = self.unknown = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        for name in range(3):
            self._run(self._program(LockTerms(_LOCK, b"%d" % name, _LEASE_S)))

    def run(self) -> None:
        """To the end of all."""
        while self._events:
            self.store.now, _, what = heapq.heappop(self._events)
            what()

    def _at(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.store.now + seconds, next(self._order), what))

    def _delay(self) -> float:
        """Mostly short; now and then a lease ends, and another one, before a request arrives."""
        return self.random.uniform(0.0, 3 * _LEASE_S) if self.random.random() < 0.1 else self.random.uniform(0, 0.01)

    def _program(self, terms: LockTerms) -> Generator[Any, Answer, None]:
        def clock() -> float:
            return self.store.now

        work = Edit(_KEY, adding(_KEY, 1), None, 0.5)
        for _ in range(_ADDITIONS):
            try:
                grant = yield from acquire(terms, now=clock(), timeout=None, request_timeout=0.5, random=self.random)
                yield from edit(terms, Lease(grant, clock), work)
            except StateStoreError as error:
                self.unknown += getattr(error, "may_have_been_applied", False)
            else:
                self.acknowledged += 1
            yield SendUnawaited(terms.give_back())

    def _run(self, steps: Generator[Any, Answer, None]) -> None:
        self._advance(steps, lambda: next(steps))

    def _advance(self, steps: Generator[Any, Answer, None], resume: Callable[[], Any]) -> None:
        try:
            step = resume()
        except StopIteration:
            return
        started = self.store.now

        def answered(value: Any) -> None:
            if isinstance(value, StateStoreError):
                self._advance(steps, lambda: steps.throw(value))
            else:
                self._advance(steps, lambda: steps.send(Answer(value, started, self.store.now)))

        match step:
            case Invoke(command=command, timeout=timeout, fencing_token=token):
                self._invoke(command, token, timeout, answered)
            case SendUnawaited(command=command):
                self._at(self._delay(), lambda: self._apply(command, None))
                self._at(0.0, lambda: answered(None))
            case StartWatch():
                self._at(0.0, lambda: answered(None))
            case Pause(seconds=seconds):
                self._at(seconds, lambda: answered(None))
            case WaitForChange():
                self._at(0.05, lambda: answered(WatchEvent(EventKind.DELETE, _LOCK, None, None)))

    def _invoke(
        self, command: Command, token: HlcTimestamp | None, timeout: float, answered: Callable[[Any], None]
    ) -> None:
        is_open = True

        def once(value: Any) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                answered(value)

        def arrives() -> None:
            result = self._apply(command, token)
            self._at(self._delay(), lambda: once(result))

        # A process that stands still looks at its lease, and sends when it goes on: the request is as late as that.
        self._at(self._delay(), arrives)
        self._at(timeout, lambda: once(RequestTimeoutError("no answer", may_have_been_applied=True)))

    def _apply(self, command: Command, token: HlcTimestamp | None) -> Any:
        try:
            return self.store.apply(command, token)
        except StateStoreError as error:
            return error


def error_of(seed: int) -> int:
    """How many additions are missing in a schedule, or are too many."""
    world = World(seed)
    world.run()
    held = world.store.keys.get(_KEY)
    total = number_of(_KEY, None if held is None else held.value)
    return max(world.acknowledged - total, total - world.acknowledged - world.unknown, 0)


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
