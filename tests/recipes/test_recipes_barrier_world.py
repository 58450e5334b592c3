"""Programs that wait at a barrier: who comes through saw it open, and an opening that lasts lets all of them through.

They run the steps of :meth:`Barrier.wait`, as the two shells do, in the world of ``recipes_world``: requests and what a
watch is told come late or never, links break, machines stand still.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from recipes_world import Machine, Steps, World

from statestore_client.core.actions import EventKind
from statestore_client.core.results import Item
from statestore_client.core.steps import Answer, Pause
from statestore_client.errors import StateStoreError
from statestore_client.recipes import gate
from statestore_client.wire.commands import Set, VDel

_KEY = b"gate"
_REQUEST_S = 0.3
_OPENINGS, _SCHEDULES = 30, 40
#: From an opening that lasts on, or from when the link is back: so soon all are told and through.
_SOON_S = 1.0
#: So long it may take to look where a watch was told nothing.
_AGAIN_S = gate.AGAIN_S


class Gate:
    """A barrier that opens and closes, programs that wait at it, and what must hold.

    Until half of the openings are over, anything may fail. From then on messages are fast, and only links break; in
    every other schedule, watches go on missing some of what they should be told.
    """

    def __init__(self, seed: int) -> None:
        self.world = World(seed, longest_delay_s=1.5, loss=0.03)
        self.is_deaf = seed % 2 == 1
        self.world.deafness = 0.2 if self.is_deaf else 0.0
        self.violations: list[str] = []
        self._opened_at, self._closed_at = 0.0, -1.0
        self._began: dict[Machine, float] = {}  # of those that wait
        random = self.world.random
        self._machines = [
            Machine(self.world, rate=random.uniform(0.992, 1.008), watches_always=random.random() < 0.5)
            for _ in range(3)
        ]
        for machine in self._machines:
            self.world.start(self._program(machine), machine)

    def _program(self, machine: Machine) -> Steps:
        random = self.world.random
        while True:
            timeout = random.choice((None, None, random.uniform(0.0, 2.0)))
            began = self._began[machine] = self.world.store.now
            began_by_its_clock = machine.now
            steps = gate.pass_through(_KEY, now=machine.now, timeout=timeout, request_timeout=_REQUEST_S)
            try:
                is_through = yield from steps
            except StateStoreError:  # it could not begin to wait
                continue
            finally:
                del self._began[machine]
            self._check(is_through, began)
            if not is_through and (timeout is None or machine.now < began_by_its_clock + timeout):
                self.violations.append(f"gave up at {self.world.store.now:.3f} s, before its time")
            yield Pause(random.uniform(0.0, 0.5))

    def _check(self, is_through: bool, began: float) -> None:
        is_open = self._closed_at < self._opened_at
        if is_through and not is_open and self._closed_at < began:
            self.violations.append(f"came through at {self.world.store.now:.3f} s, closed since {self._closed_at:.3f}")
        if not is_through and is_open and self._opened_at < began:
            self.violations.append(f"kept at {self.world.store.now:.3f} s, open since {self._opened_at:.3f}")

    def _close(self) -> None:
        self.world.store.apply(Set(_KEY, b"closed"), None)
        self._closed_at = self.world.store.now

    def _open(self) -> None:
        self.world.store.apply(VDel(_KEY, b"closed"), None)
        self._opened_at = self.world.store.now

    def run(self) -> list[str]:
        """What was violated."""
        for opening in range(_OPENINGS):
            if opening == _OPENINGS // 2:
                self._come_right()
            self._open_once(is_right=opening >= _OPENINGS // 2)
        return self.violations

    def _open_once(self, *, is_right: bool) -> None:
        """Close it, open it, and see that all come through; when all may fail, it is not open for long."""
        world, random = self.world, self.world.random
        self._close()
        machine = random.choice(self._machines)
        if not is_right and random.random() < 0.3:
            machine.stands_still_until = world.store.now + random.uniform(0.0, 3.0)
        world.run(world.store.now + random.uniform(0.0, 0.4))
        if random.random() < 0.5:
            world.cut(machine, random.uniform(0.0, 1.0))
        world.run(world.store.now + random.uniform(0.0, 0.2))
        self._open()
        since = max(self._opened_at, machine.cut_until)
        if not is_right:
            world.run(world.store.now + random.choice((0.0, random.uniform(0.0, 2.0))))
            return
        world.run(since + (_AGAIN_S if self.is_deaf else 0.0) + _SOON_S)
        for began in self._began.values():
            if began <= self._opened_at:
                self.violations.append(f"waits since {began:.3f} s, open since {self._opened_at:.3f}")

    def _come_right(self) -> None:
        self.world.longest_delay_s, self.world.loss = 0.1, 0.0
        self.world.run(self.world.store.now + 3.0)


def violations(seed: int) -> list[str]:
    """Of a schedule."""
    return Gate(seed).run()


def test_who_comes_through_saw_it_open_and_all_come_through_in_the_end() -> None:
    """Also where links break, machines stand still, and messages are late or lost."""
    assert {seed: found for seed in range(_SCHEDULES) if (found := violations(seed))} == {}


# -- the checker sees mistakes -----------------------------------------------------------------------------------------


_correct = gate.pass_through


def _looks_and_then_watches(*given: Any, **terms: Any) -> Steps:
    steps = _correct(*given, **terms)
    watch = next(steps)
    answer = yield steps.send(Answer(None, 0.0, 0.0))
    yield watch
    return (yield from _go_on(steps, answer))


def _looks_later_only(*given: Any, **terms: Any) -> Steps:
    steps = _correct(*given, **terms)
    answer = yield next(steps)
    steps.send(answer)
    return (yield from _go_on(steps, attrs.evolve(answer, value=Item(b"closed", None))))


def _go_on(steps: Steps, answer: Answer) -> Steps:
    try:
        step = steps.send(answer)
        while True:
            try:
                answer = yield step
            except StateStoreError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value


def _is_impatient(*given: Any, timeout: float | None, **terms: Any) -> Steps:
    return _correct(*given, timeout=0.5 if timeout is None else timeout / 2, **terms)


@pytest.mark.parametrize(
    ("name", "mistake", "complaint"),
    [
        ("_opens", lambda *_: True, "came through"),
        ("_opens", lambda event, _: event.kind is EventKind.DELETE, "came through"),
        ("_opens", lambda *_: False, "waits since"),
        ("_is_back", lambda _: False, "waits since"),
        ("AGAIN_S", float("inf"), "waits since"),
        ("pass_through", _looks_and_then_watches, "waits since"),
        ("pass_through", _looks_later_only, "kept"),
        ("pass_through", _is_impatient, "gave up"),
    ],
    ids=[
        "any_event",
        "an_old_deletion",
        "hears_nothing",
        "not_after_an_outage",
        "looks_once",
        "watches_too_late",
        "looks_later_only",
        "is_impatient",
    ],
)
def test_a_mistake_is_seen(name: str, mistake: object, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some schedule complains of it."""
    monkeypatch.setattr(gate, name, mistake)
    assert any(complaint in found for seed in range(_SCHEDULES) for found in violations(seed))
