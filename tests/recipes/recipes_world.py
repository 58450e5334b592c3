"""A world for programs that take locks: a naive store, requests that arrive late or never, and time that is a number.

Programs are generators of steps, as those of ``core``. Machines have clocks that differ, jump, and go on while their
programs stand still.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
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
    """SET, GET and VDEL as the protocol has them: conditions, expiry, fencing tokens. It tells of each change."""

    def __init__(self, changed: Callable[[WatchEvent], None]) -> None:
        self._changed = changed
        self.now = 0.0
        self.keys: dict[bytes, Held] = {}
        self._versions = count(1)

    def apply(self, command: Command, token: HlcTimestamp | None) -> Any:
        """Raises what a client would."""
        assert isinstance(command, Get | Set | VDel)
        held = self.at(command.key)
        if isinstance(command, Get):
            return None if held is None else Item(held.value, held.version)
        if held is not None and held.mark is not None and (token is None or token < held.mark):
            raise FencingTokenTooOldError
        if isinstance(command, VDel):
            if held is None or held.value != command.value:
                return DeleteResult(0, None, matched=False)
            self._delete(command.key)
            return DeleteResult(1, None)
        is_other = held is not None and not (command.condition is Condition.NEX and held.value == command.value)
        if command.condition is not None and is_other:
            return SetResult(False, None)
        ends_at = float("inf") if command.expiry_ms is None else self.now + command.expiry_ms / 1000
        version = HlcTimestamp(1, next(self._versions), "S")
        self.keys[command.key] = Held(command.value, version, token or (held and held.mark), ends_at)
        self._changed(WatchEvent(EventKind.SET, command.key, command.value, version))
        return SetResult(True, version)

    def at(self, key: bytes) -> Held | None:
        """What is there now; what has expired goes."""
        held = self.keys.get(key)
        if held is not None and held.ends_at <= self.now:
            self._delete(key)
            return None
        return held

    def _delete(self, key: bytes) -> None:
        del self.keys[key]
        self._changed(WatchEvent(EventKind.DELETE, key, None, HlcTimestamp(1, next(self._versions), "S")))


@attrs.define(eq=False)
class Machine:
    """What a program runs on. ``rate``: how fast its clock goes."""

    world: World
    rate: float = 1.0
    ahead_s: float = 0.0
    stands_still_until: float = 0.0
    is_dead: bool = False
    #: Nothing reaches the store, or comes from it, until then.
    cut_until: float = 0.0
    #: Something else in its programs watches the same keys: the store tells of them also between two watches.
    watches_always: bool = False

    @property
    def now(self) -> float:
        """By its own clock."""
        return self.world.store.now * self.rate + self.ahead_s

    @property
    def is_cut(self) -> bool:
        """Whether its link is down."""
        return self.world.store.now < self.cut_until


@attrs.define(eq=False)
class Watch:
    """What one program hears, change by change in order; nothing of what comes while its link is down."""

    machine: Machine
    key: bytes = b""
    is_on: bool = False
    heard: deque[WatchEvent] = attrs.field(factory=deque)
    reader: Callable[[Any], None] | None = None  # that waits for the next
    last_told_at: float = 0.0

    def push(self, event: WatchEvent) -> None:
        if self.reader is None:
            self.heard.append(event)
        else:
            reader, self.reader = self.reader, None
            reader(event)


class World:
    """Programs, and the way of their requests to the store and back, and of what watches are told."""

    def __init__(self, seed: int, *, longest_delay_s: float, loss: float = 0.0) -> None:
        self.random = Random(seed)
        self.store = Store(self._tell)
        self.longest_delay_s = longest_delay_s
        self.loss = loss
        #: How much of what they should be told watches never hear.
        self.deafness = 0.0
        self._watches: dict[Steps, Watch] = {}
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
        if until < float("inf"):
            self.store.now = until

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
                self._request(partial(self._apply, command, token), timeout, answered, machine)
            case SendUnawaited(command=command):
                self.post(command)
                self.at(0.0, lambda: answered(None), machine)
            case StartWatch(key=key, timeout=timeout):
                self._watch(steps, key, timeout, answered, machine)
            case Pause(seconds=seconds):
                self.at(seconds / machine.rate, lambda: answered(None), machine)
            case WaitForChange(seconds=seconds):
                self._wait_for_change(self._watches.get(steps), seconds, answered, machine)

    def _watch(
        self, steps: Steps, key: bytes, timeout: float, answered: Callable[[Any], None], machine: Machine
    ) -> None:
        """Its former watch ends. What it was to hear, and comes late, is told to the new one."""
        watch = self._watches.setdefault(steps, Watch(machine))
        watch.key, watch.is_on = key, watch.is_on and machine.watches_always
        watch.heard.clear()

        def begins() -> None:
            watch.is_on = True

        if watch.is_on:
            self.at(0.0, lambda: answered(None), machine)
        else:
            self._request(begins, timeout, answered, machine)

    def _wait_for_change(
        self, watch: Watch | None, seconds: float, answered: Callable[[Any], None], machine: Machine
    ) -> None:
        once = _once(answered)
        if watch is not None and watch.heard:
            event = watch.heard.popleft()
            self.at(0.0, lambda: once(event), machine)
            return

        def in_vain() -> None:
            if watch is not None and watch.reader is once:
                watch.reader = None
            once(None)

        if watch is not None:
            watch.reader = once
        if seconds < float("inf"):
            self.at(seconds / machine.rate, in_vain, machine)

    def _tell(self, event: WatchEvent) -> None:
        """Each watch hears of it in a while, one change after the other."""
        for watch in self._watches.values():
            if watch.is_on and watch.key == event.key and self.random.random() >= self.deafness:
                watch.last_told_at = max(watch.last_told_at, self.store.now + self._delay())
                self.at(watch.last_told_at - self.store.now, partial(self._hears, watch, event), watch.machine)

    def _hears(self, watch: Watch, event: WatchEvent) -> None:
        if watch.is_on and watch.key == event.key and not watch.machine.is_cut:
            watch.push(event)

    def cut(self, machine: Machine, seconds: float) -> None:
        """Take its link away for so long. Its watches hear of that, not of what changes meanwhile."""
        machine.cut_until = max(machine.cut_until, self.store.now + seconds)
        self._connection(machine, EventKind.SUSPENDED)
        self.at(machine.cut_until - self.store.now, lambda: self._connection(machine, EventKind.RESUMED))

    def _connection(self, machine: Machine, kind: EventKind) -> None:
        if kind is EventKind.RESUMED and machine.is_cut:
            return  # it was cut again
        for watch in self._watches.values():
            if watch.machine is machine and watch.is_on:
                event = WatchEvent(kind, watch.key, None, None)
                self.at(0.0, partial(watch.push, event), machine)

    def _request(
        self, arrived: Callable[[], Any], timeout: float, answered: Callable[[Any], None], machine: Machine
    ) -> None:
        once = _once(answered)

        def arrives() -> None:
            result = arrived()
            if self.random.random() >= self.loss and not machine.is_cut:
                self.at(self._delay(), lambda: once(result), machine)

        # A process that stands still looks at its lease, and sends when it goes on: the request is as late as that.
        if self.random.random() >= self.loss and not machine.is_cut:
            self.at(self._delay(), arrives)
        error = RequestTimeoutError("no answer", may_have_been_applied=True)
        self.at(timeout / machine.rate, lambda: once(error), machine)

    def post(self, command: Command) -> None:
        """Send it without waiting for an answer."""
        self.at(self._delay(), lambda: self._apply(command, None))

    def _apply(self, command: Command, token: HlcTimestamp | None) -> Any:
        if isinstance(command, Set) and command.expiry_ms is not None:
            self.at(command.expiry_ms / 1000, lambda: self.store.at(command.key))
        try:
            return self.store.apply(command, token)
        except StateStoreError as error:
            return error


def _once(answered: Callable[[Any], None]) -> Callable[[Any], None]:
    """The first answer counts."""
    is_open = True

    def once(value: Any) -> None:
        nonlocal is_open
        if is_open:
            is_open = False
            answered(value)

    return once
