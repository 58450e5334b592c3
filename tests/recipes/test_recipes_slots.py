"""Simulated contenders for a semaphore: who waits gets what is free, and hears when the time is over."""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import Any

import attrs
import pytest

from statestore_client.errors import (
    InvalidArgumentError,
    LockNotAcquiredError,
    NoStateStoreError,
    RequestTimeoutError,
    StateStoreError,
)
from statestore_client.recipes import slots
from statestore_client.recipes.slots import WAIT_S, Attempt, Failed, check_permits, search

_TAKEN = LockNotAcquiredError("taken")
_REQUEST_S = 0.01
_SCHEDULES = 40


@attrs.define(eq=False)
class Contender:
    """Who waits for a permit, where, and until when its attempt lasts."""

    name: int
    attempts: Generator[Attempt, Failed, None]
    slot: int = -1
    ends_at: float = 0.0
    has: int | None = None


class Semaphore:
    """A model: slots that are free or not. Of those who wait at a slot that becomes free, one has it at once."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.permits = self.random.randint(1, 5)
        self.now = 0.0
        self.holders: dict[int, tuple[Contender, float]] = {}
        #: Since when a slot is free and somebody waits.
        self.idle_since: float | None = None
        self.longest_idle_s = 0.0
        self.contenders = [self._new(number) for number in range(self.random.randint(1, 9))]

    def _new(self, number: int) -> Contender:
        contender = Contender(number, search("s", self.permits, now=self.now, timeout=None, random=self.random))
        self._attempt(contender, next(contender.attempts))
        return contender

    def _attempt(self, contender: Contender, attempt: Attempt) -> None:
        contender.slot = attempt.slot
        contender.ends_at = self.now + _REQUEST_S + attempt.seconds

    def run(self, seconds: float) -> None:
        """Let time pass, in steps of a request."""
        while self.now < seconds:
            self.now += _REQUEST_S
            for slot, (contender, until) in list(self.holders.items()):
                if until <= self.now:
                    del self.holders[slot]
                    contender.has = None
                    self.contenders[contender.name] = self._new(contender.name)
            for contender in self.random.sample(self.contenders, len(self.contenders)):
                if contender.has is not None:
                    continue
                if contender.slot not in self.holders:
                    contender.has = contender.slot
                    self.holders[contender.slot] = contender, self.now + self.random.uniform(0.0, 6.0)
                elif contender.ends_at <= self.now:
                    self._attempt(contender, contender.attempts.send((self.now, _TAKEN)))
            self._look()

    def _look(self) -> None:
        is_idle = len(self.holders) < self.permits and any(each.has is None for each in self.contenders)
        if not is_idle:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = self.now
        if self.idle_since is not None:
            self.longest_idle_s = max(self.longest_idle_s, self.now - self.idle_since)


def longest_idle_s(seed: int) -> float:
    """For how long a permit was free at most while somebody waited."""
    semaphore = Semaphore(seed)
    semaphore.run(20.0)
    return semaphore.longest_idle_s - (WAIT_S + (2 + semaphore.permits) * _REQUEST_S)


def test_nobody_waits_while_a_permit_is_free() -> None:
    """For longer than it takes to look at all of them again."""
    assert max(map(longest_idle_s, range(_SCHEDULES))) <= 0.0


def _stays(name: str, permits: int, *, now: float, timeout: float | None, random: Random) -> Any:
    """A contender that waits at one slot for ever."""
    del name, now, timeout
    while True:
        yield Attempt(random.randrange(permits), 3600.0)


def _goes_to_the_first(name: str, permits: int, *, now: float, timeout: float | None, random: Random) -> Any:
    """A contender that never looks at the last slot."""
    del name, now, timeout, random
    while True:
        for slot in range(max(1, permits - 1)):
            yield Attempt(slot, 0.0)


@pytest.mark.parametrize("mistake", [_stays, _goes_to_the_first])
def test_a_mistake_is_seen(mistake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Some schedule shows it."""
    monkeypatch.setitem(globals(), "search", mistake)
    assert any(longest_idle_s(seed) > 0.0 for seed in range(_SCHEDULES))


def _ends(timeout: float | None, failure: StateStoreError, *, took: float = 0.0) -> list[Attempt]:
    """The attempts of a contender whose attempts fail, until it gives up, and raises what it ends with."""
    made: list[Attempt] = []
    attempts = search("s", 3, now=100.0, timeout=timeout, random=Random(1))
    now, attempt = 100.0, next(attempts)
    while True:
        made.append(attempt)
        now += took + attempt.seconds
        try:
            attempt = attempts.send((now, failure))  # type: ignore[arg-type]  # of the kinds that a lock raises
        except StateStoreError as error:
            _ended.append(error)
            return made


_ended: list[StateStoreError] = []


def test_without_time_each_slot_is_tried_once() -> None:
    """And then it is known that all are taken."""
    made = _ends(0.0, _TAKEN)
    assert sorted(attempt.slot for attempt in made) == [0, 1, 2]
    assert {attempt.seconds for attempt in made} == {0.0}
    assert str(_ended[-1]) == "no permit of s was free at once"


def test_the_time_is_kept() -> None:
    """The last wait is as long as what is left."""
    made = _ends(2.5, _TAKEN)
    assert [attempt.seconds for attempt in made if attempt.seconds] == [WAIT_S, WAIT_S, 0.5]
    assert isinstance(_ended[-1], LockNotAcquiredError)


def test_an_outage_is_waited_out_and_told_at_the_end() -> None:
    """After one request without an answer the others of the round are not sent."""
    failure = RequestTimeoutError("no answer")
    made = _ends(2.0, failure)
    assert [attempt.seconds for attempt in made] == [0.0, WAIT_S, 0.0, WAIT_S]
    assert _ended[-1] is failure


def test_a_broker_without_a_store_is_not_waited_for() -> None:
    """It would never answer."""
    failure = NoStateStoreError("no store")
    assert len(_ends(None, failure)) == 1
    assert _ended[-1] is failure


@pytest.mark.parametrize("permits", [0, -1, True, 1.5, "2", slots.MOST_PERMITS + 1])
def test_permits_are_a_number(permits: Any) -> None:
    """Of at least one."""
    with pytest.raises(InvalidArgumentError, match="permits must be from 1 to 1000"):
        check_permits(permits)
