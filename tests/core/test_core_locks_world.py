"""Many contenders for one lock, a bad network: only the holder believes that it holds it, and none waits in vain.

The contenders run the generators that the clients run. Their world is a store (a naive one, a few lines long), an
unreliable network, clocks that drift, and time that is a number.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from itertools import count
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.core.leases import keep_renewed
from statestore_client.core.locks import Grant, LockTerms, acquire, release
from statestore_client.core.results import DeleteResult, SetResult
from statestore_client.core.steps import Answer, Invoke, Pause, SendUnawaited, StartWatch, Step, WaitForChange
from statestore_client.errors import RequestTimeoutError, StateStoreError
from statestore_client.wire.commands import Command, Set
from statestore_client.wire.hlc import HlcTimestamp

KEY = b"lock"


@attrs.frozen
class Moods:
    """What the network and the processes do to the contenders. Probabilities, and seconds."""

    longest_delay_s: float = 0.0005
    lost: float = 0.0  # of requests, answers and notifications
    frozen: float = 0.0  # a step of a process is followed by a pause
    crashes: float = 0.0  # a holder does not release
    drift: float = 0.0  # clocks run this much faster or slower


class World:
    """Runs what was scheduled, in order of time; after each event, ``check`` is called."""

    def __init__(self, seed: int, moods: Moods, check: Callable[[], None] = lambda: None) -> None:
        self.random = Random(seed)
        self.moods = moods
        self.now = 0.0
        self.requests = 0
        self.holder: bytes | None = None
        self.expires_at = 0.0
        self.watchers: list[Contender] = []
        self._check = check
        self._version = count(1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(when, self.now), next(self._order), what))

    def run(self, until: float, *, stop: Callable[[], bool] = lambda: False) -> None:
        while self._events and self._events[0][0] <= until and not stop():
            self.now, _, what = heapq.heappop(self._events)
            what()
            self._check()

    def delay(self) -> float:
        return self.moods.longest_delay_s * self.random.random()

    def is_lost(self) -> bool:
        return self.random.random() < self.moods.lost

    # -- the store -----------------------------------------------------------------------------------------------------

    def apply(self, command: Command) -> SetResult | DeleteResult:
        """SET NEX PX and VDEL, as the state store protocol has them."""
        self.requests += 1
        version = HlcTimestamp(1, next(self._version), "S")
        if isinstance(command, Set):
            if self.holder not in (None, command.value):
                return SetResult(False, None)
            assert command.expiry_ms is not None
            self.holder, self.expires_at = command.value, self.now + command.expiry_ms / 1000
            self.at(self.expires_at, self._expire)
            self._notify(WatchEvent(EventKind.SET, KEY, command.value, version))
            return SetResult(True, version)
        if self.holder != command.value:
            return DeleteResult(0, None, matched=False)
        self._free(version)
        return DeleteResult(1, version)

    def _expire(self) -> None:
        if self.holder is not None and self.expires_at <= self.now:
            self._free(HlcTimestamp(1, next(self._version), "S"))

    def _free(self, version: HlcTimestamp) -> None:
        self.holder = None
        self._notify(WatchEvent(EventKind.DELETE, KEY, None, version))

    def _notify(self, event: WatchEvent) -> None:
        for watcher in self.watchers:
            if not self.is_lost():
                watcher.hear(event)


class Contender:
    """A process that acquires the lock, holds it for a while, and gives it back; then begins anew if it is to."""

    def __init__(self, world: World, name: str, *, lease: float, hold_s: float, rounds: int) -> None:
        self.world = world
        self.terms = LockTerms(KEY, name.encode(), lease)
        self.grants: list[Grant] = []
        self.valid_until = -1.0  # on its own clock
        self.lost = True
        self.crashed = False
        self._hold_s, self._rounds = hold_s, rounds
        self._rate = 1.0 + world.moods.drift * world.random.uniform(-1, 1)
        self._arrived_at = 0.0  # its last request: one session, one order
        self._heard_at = 0.0
        self._events: list[WatchEvent] = []
        self._wake: Callable[[], None] | None = None
        self._period = 0  # of holding; what belongs to an earlier one is stopped
        self._campaign()

    @property
    def clock(self) -> float:
        return self.world.now * self._rate

    @property
    def believes(self) -> bool:
        """Whether it holds the lock in its own opinion."""
        return not self.lost and self.clock < self.valid_until

    # -- its life ------------------------------------------------------------------------------------------------------

    def _campaign(self) -> None:
        steps = acquire(self.terms, now=self.clock, timeout=None, request_timeout=5.0, random=self.world.random)
        self._start(steps, self._hold, self._period)

    def _hold(self, grant: Grant) -> None:
        if self in self.world.watchers:
            self.world.watchers.remove(self)
        self.grants.append(grant)
        self.valid_until, self.lost = grant.valid_until, False
        period = self._period
        keeper = keep_renewed(self.terms, grant, now=self.clock, renewed=self._renewed, lost=self._lose)
        self._start(keeper, lambda _: None, period)
        self.world.at(self.world.now + self._hold_s, self._let_go)

    def _renewed(self, valid_until: float) -> None:
        self.valid_until = valid_until

    def _lose(self, _error: StateStoreError) -> None:
        self.lost = True

    def _let_go(self) -> None:
        self._period += 1
        if self.world.random.random() < self.world.moods.crashes:
            self.crashed = True  # it still believes that it holds the lock; only the clock can end that
            return
        self.lost = True
        self._rounds -= 1
        self._start(release(self.terms, 5.0), self._again, self._period)

    def _again(self, _released: object) -> None:
        if self._rounds > 0:
            self._campaign()

    # -- its steps -----------------------------------------------------------------------------------------------------

    def _start(self, steps: Generator[Step, Answer, Any], done: Callable[[Any], None], period: int) -> None:
        def resume(call: Callable[[], Step]) -> None:
            if self._period != period or self.crashed:
                return
            try:
                step = call()
            except StopIteration as end:
                done(end.value)
            except RequestTimeoutError:
                self._again(None)  # a release without an answer
            else:
                self._take(step, steps, resume)

        resume(lambda: next(steps))

    def _take(self, step: Step, steps: Generator[Step, Answer, Any], resume: Callable[..., None]) -> None:
        world, started, called_at = self.world, self.clock, self.world.now
        frozen = 3.0 * world.random.random() if world.random.random() < world.moods.frozen else 0.0

        def answer(value: object = None, after: float = 0.0) -> None:
            world.at(world.now + after + frozen, lambda: resume(lambda: steps.send(Answer(value, started, self.clock))))

        match step:
            case Invoke():
                self._invoke(step, called_at, answer, lambda: resume(lambda: steps.throw(_timed_out())))
            case SendUnawaited(command=command):
                self._send(command, lambda _result: None)
                answer()
            case Pause(seconds=seconds):
                answer(None, seconds / self._rate)
            case StartWatch():
                world.watchers.append(self)
                answer(None, 2 * world.delay())
            case WaitForChange(seconds=seconds):
                self._wait(seconds / self._rate, answer)

    def _invoke(self, step: Invoke, called_at: float, answer: Callable[..., None], fail: Callable[[], None]) -> None:
        settled = []

        def settle(result: object) -> None:
            if not settled:
                settled.append(True)
                answer(result)

        def give_up() -> None:
            if not settled:
                settled.append(True)
                fail()

        self._send(step.command, settle)
        self.world.at(called_at + step.timeout / self._rate, give_up)

    def _send(self, command: Command, answered: Callable[[object], None]) -> None:
        world = self.world
        if world.is_lost():
            return
        self._arrived_at = max(self._arrived_at, world.now + world.delay())

        def arrive() -> None:
            result = world.apply(command)
            if not world.is_lost():
                world.at(world.now + world.delay(), lambda: answered(result))

        world.at(self._arrived_at, arrive)

    def hear(self, event: WatchEvent) -> None:
        """A notification is on its way to it."""
        self._heard_at = max(self._heard_at, self.world.now + self.world.delay())
        self.world.at(self._heard_at, lambda: self._heard(event))

    def _heard(self, event: WatchEvent) -> None:
        self._events.append(event)
        if self._wake is not None:
            self._wake()

    def _wait(self, seconds: float, answer: Callable[..., None]) -> None:
        def wake() -> None:
            if self._wake is wake:
                self._wake = None
                answer(self._events.pop(0) if self._events else None)

        self._wake = wake
        if self._events:
            wake()
        else:
            self.world.at(self.world.now + seconds, wake)


def _timed_out() -> RequestTimeoutError:
    return RequestTimeoutError("no answer", may_have_been_applied=True)


# -- what holds in it --------------------------------------------------------------------------------------------------

LEASE_S = 2.0

#: Calm first: what cannot be told from a mistake of the world's is seen there.
MOODS = {
    "calm": Moods(),
    "slow": Moods(longest_delay_s=0.4),
    "lossy": Moods(longest_delay_s=0.05, lost=0.2),
    "frozen": Moods(longest_delay_s=0.05, frozen=0.1),
    "drifting": Moods(longest_delay_s=0.05, drift=0.009),
    "everything": Moods(longest_delay_s=0.3, lost=0.2, frozen=0.05, drift=0.009),
}


@pytest.mark.parametrize("moods", MOODS.values(), ids=MOODS)
@given(seed=st.integers(0, 2**32))
def test_who_believes_to_hold_the_lock_holds_it(moods: Moods, seed: int) -> None:
    """At every moment only the real holder believes that it holds the lock, each contender gets it, and tokens grow."""
    contenders: list[Contender] = []

    def check() -> None:
        for contender in contenders:
            if contender.believes:
                assert world.holder == contender.terms.holder, f"{contender.terms.holder!r} at {world.now}"
                assert world.now < world.expires_at

    world = World(seed, moods, check)
    holds_s = [world.random.uniform(0.1, 5.0) for _ in range(5)]
    contenders += (Contender(world, f"c{i}", lease=LEASE_S, hold_s=s, rounds=2) for i, s in enumerate(holds_s))
    world.run(600.0, stop=lambda: all(len(c.grants) == 2 for c in contenders))
    assert [len(c.grants) for c in contenders] == [2] * 5
    grants = [(g.fencing_token, c.terms.holder) for c in contenders for g in c.grants]
    assert len({token for token, _ in grants}) == 10


@given(seed=st.integers(0, 2**32))
def test_after_a_crash_the_next_one_follows_within_a_second_of_the_lease(seed: int) -> None:
    """After a crash the next waiter has the lock within a second of the lease's end, even if nothing is notified."""
    world = World(seed, Moods(crashes=1.0))
    first = Contender(world, "first", lease=LEASE_S, hold_s=world.random.uniform(0.1, 9.0), rounds=1)
    world.run(0.05)
    second = Contender(world, "second", lease=LEASE_S, hold_s=1.0, rounds=1)
    world.run(60.0, stop=lambda: first.crashed)
    world.watchers.clear()
    world.run(60.0, stop=lambda: bool(second.grants))
    assert second.grants
    assert world.now <= world.expires_at - LEASE_S + 1.0 + 0.01


@settings(max_examples=4)
@given(seed=st.integers(0, 2**32))
def test_a_hand_over_costs_no_more_requests_than_there_are_waiters(seed: int) -> None:
    """A hand-over among 200 waiters costs at most one attempt for each, and mostly less than half of that."""
    waiters = 200
    world = World(seed, Moods(longest_delay_s=0.002))
    contenders = [Contender(world, f"c{i}", lease=60.0, hold_s=0.3, rounds=1) for i in range(waiters + 1)]
    world.run(0.25)  # one holds it; all others tried, watch, tried again, and wait
    counts = []
    for _ in range(10):
        before, granted = world.requests, sum(len(c.grants) for c in contenders)
        world.run(60.0, stop=lambda: sum(len(c.grants) for c in contenders) > granted)  # noqa: B023 - within this round
        world.run(world.now + 0.1)
        counts.append(world.requests - before)
    assert all(count <= 1.5 * waiters for count in counts), counts  # some look again by themselves meanwhile
    assert sorted(counts)[5] <= 0.75 * waiters, counts


def test_nobody_asks_about_a_healthy_holder() -> None:
    """Once two renewals of a holder were heard, waiters send nothing, however long they wait."""
    world = World(1, Moods())
    Contender(world, "holder", lease=10.0, hold_s=1e6, rounds=1)
    world.run(0.1)
    for i in range(50):
        Contender(world, f"c{i}", lease=10.0, hold_s=1.0, rounds=1)
    world.run(20.0)
    before = world.requests
    world.run(120.0)
    assert world.requests - before == pytest.approx(100 / (10 / 3), abs=1)  # the holder's renewals


def releases_before_a_waiter_has_the_lock(seed: int) -> int:
    """Of a holder that releases and acquires without a pause. The waiter has it within a minute."""
    world = World(seed, Moods(longest_delay_s=0.002))
    greedy = Contender(world, "greedy", lease=10.0, hold_s=0.01, rounds=1_000)
    world.run(0.005)
    patient = Contender(world, "patient", lease=10.0, hold_s=0.01, rounds=1)
    world.run(60.0, stop=lambda: bool(patient.grants))
    assert patient.grants
    return len(greedy.grants)


@given(seed=st.integers(0, 2**32))
def test_a_holder_in_a_loop_does_not_starve_a_waiter(seed: int) -> None:
    """Whatever the delays are, a waiter gets the lock of a holder that releases and acquires without a pause."""
    releases_before_a_waiter_has_the_lock(seed)


def test_a_waiter_beside_a_holder_in_a_loop_waits_for_some_releases_only() -> None:
    """A waiter gets it within 60 releases. Each release is a race, won in one of four, so one waiter in 100,000 needs
    more: these seeds are always the same."""
    releases = [releases_before_a_waiter_has_the_lock(seed) for seed in range(300)]
    assert max(releases) <= 60
    assert sum(releases) / len(releases) <= 6
