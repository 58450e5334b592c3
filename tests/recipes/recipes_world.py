"""A world for programs that take locks: a naive store, requests that arrive late or never, and time that is a number.

Programs are generators of steps, as those of ``core``. Machines have clocks that differ, jump, and go on while their
programs stand still.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from itertools import count
from random import Random
from typing import Any

import attrs

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.core.results import DeleteResult, Item, SetResult
from statestore_client.core.steps import Answer, Invoke, Pause, SendUnawaited, StartWatch, WaitForChange
from statestore_client.errors import FencingTokenTooOldError, RequestTimeoutError, StateStoreError
from statestore_client.wire.commands import Command, Condition, Get, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp

Steps = Generator[Any, Any, Any]


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


@attrs.define(eq=False)
class Machine:
    """What a program runs on. ``rate``: how fast its clock goes."""

    world: World
    rate: float = 1.0
    ahead_s: float = 0.0
    stands_still_until: float = 0.0
    is_dead: bool = False

    @property
    def now(self) -> float:
        """By its own clock."""
        return self.world.store.now * self.rate + self.ahead_s


class World:
    """Programs, and the way of their requests to the store and back."""

    def __init__(self, seed: int, *, longest_delay_s: float, loss: float = 0.0) -> None:
        self.random = Random(seed)
        self.store = Store()
        self.longest_delay_s = longest_delay_s
        self.loss = loss
        self._events: list[tuple[float, int, Callable[[], None], Machine | None]] = []
        self._order = count()

    def run(self, until: float = float("inf")) -> None:
        """To the end of all, or to this time. What a machine does that stands still, it does later."""
        while self._events and self._events[0][0] <= until:
            self.store.now, _, what, machine = heapq.heappop(self._events)
            if machine is None or self.store.now >= machine.stands_still_until:
                if machine is None or not machine.is_dead:
                    what()
            else:
                self.at(machine.stands_still_until - self.store.now, what, machine)

    def at(self, seconds: float, what: Callable[[], None], machine: Machine | None = None) -> None:
        """Do it in so many seconds; it is a machine that does it, or the world."""
        heapq.heappush(self._events, (self.store.now + seconds, next(self._order), what, machine))

    def _delay(self) -> float:
        """Mostly short; now and then a lease ends, and another one, before a request arrives."""
        is_long = self.random.random() < 0.1
        return self.random.uniform(0.0, self.longest_delay_s if is_long else min(0.01, self.longest_delay_s))

    def start(self, steps: Steps, machine: Machine) -> None:
        """Run a program."""
        self._advance(steps, machine, lambda: next(steps))

    def _advance(self, steps: Steps, machine: Machine, resume: Callable[[], Any]) -> None:
        try:
            step = resume()
        except StopIteration:
            return
        started = machine.now

        def answered(value: Any) -> None:
            if isinstance(value, StateStoreError):
                self._advance(steps, machine, lambda: steps.throw(value))
            else:
                self._advance(steps, machine, lambda: steps.send(Answer(value, started, machine.now)))

        match step:
            case Invoke(command=command, timeout=timeout, fencing_token=token):
                self._invoke(command, token, timeout, answered, machine)
            case SendUnawaited(command=command):
                self.post(command)
                self.at(0.0, lambda: answered(None), machine)
            case StartWatch():
                self.at(0.0, lambda: answered(None), machine)
            case Pause(seconds=seconds):
                self.at(seconds / machine.rate, lambda: answered(None), machine)
            case WaitForChange():
                self.at(0.05, lambda: answered(WatchEvent(EventKind.DELETE, b"", None, None)), machine)

    def _invoke(
        self,
        command: Command,
        token: HlcTimestamp | None,
        timeout: float,
        answered: Callable[[Any], None],
        machine: Machine,
    ) -> None:
        is_open = True

        def once(value: Any) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                answered(value)

        def arrives() -> None:
            result = self._apply(command, token)
            if self.random.random() >= self.loss:
                self.at(self._delay(), lambda: once(result), machine)

        # A process that stands still looks at its lease, and sends when it goes on: the request is as late as that.
        if self.random.random() >= self.loss:
            self.at(self._delay(), arrives)
        error = RequestTimeoutError("no answer", may_have_been_applied=True)
        self.at(timeout / machine.rate, lambda: once(error), machine)

    def post(self, command: Command) -> None:
        """Send it without waiting for an answer."""
        self.at(self._delay(), lambda: self._apply(command, None))

    def _apply(self, command: Command, token: HlcTimestamp | None) -> Any:
        try:
            return self.store.apply(command, token)
        except StateStoreError as error:
            return error
