"""Time that is a number, and hosts: programs with clocks of their own that stand still now and then."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random

from statestore_client.wire.instant import Instant

#: The wall clocks of a schedule begin here: 2024-02-29 00:00 UTC.
_EPOCH_MS = 1_709_164_800_000


class Timeline:
    """Runs what was scheduled, in order of time, and in the order of scheduling within a moment."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(when, self.now), next(self._order), what))

    def run(self, until: float, *, stop: Callable[[], bool]) -> bool:
        """Run up to a moment, or until ``stop``; whether it stopped."""
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
            if stop():
                return True
        self.now = max(self.now, until)
        return False


class World:
    """What all parts of one schedule share: time, chance, the network's present delay, and a trace for people."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.random = Random(seed)
        self.time = Timeline()
        self.longest_delay_s = 0.002
        self.is_calm = False  # no faults any more
        self.is_careless = False  # messages come twice, late, or not at all
        self.is_traced = trace

    def delay(self) -> float:
        """How long some bytes are on their way."""
        return self.longest_delay_s * self.random.random()

    def note(self, who: str, *what: object) -> None:
        """A line of the trace."""
        if self.is_traced:
            print(f"{self.time.now:10.6f} {who:8}", *what)  # noqa: T201 - whoever replays a seed reads it


class Host:
    """A program with a monotonic clock that is too fast or too slow, and a wall clock that is wrong and steps.

    ``rate``: local seconds per true second. While it is paused, what happens to it waits: bytes, timers, everything.
    """

    def __init__(self, world: World, name: str, *, rate: float, wall_offset_ms: int) -> None:
        self.world = world
        self.name = name
        self.rate = rate
        self.wall_offset_ms = wall_offset_ms
        self.is_dead = False
        self._origin = world.random.uniform(0.0, 1e6)
        self._paused_until = 0.0
        self._backlog: list[tuple[bool, Callable[[], None]]] = []

    # -- clocks --------------------------------------------------------------------------------------------------------

    @property
    def local(self) -> float:
        """Its monotonic clock."""
        return self._origin + self.rate * self.world.time.now

    def true_time(self, local: float) -> float:
        return (local - self._origin) / self.rate

    def instant(self) -> Instant:
        local = self.local
        return Instant(local, _EPOCH_MS + int((local - self._origin) * 1000) + self.wall_offset_ms)

    # -- what happens to it --------------------------------------------------------------------------------------------

    def at(self, local: float, what: Callable[[], None]) -> None:
        """At a moment of its monotonic clock; threads and tasks wake up a little late."""
        late = 0.002 * self.world.random.random()
        self.world.time.at(self.true_time(local) + late, lambda: self.do(what))

    def soon(self, what: Callable[[], None]) -> None:
        """In another turn of its event loop, or in another of its threads."""
        self.at(self.local, what)

    def do(self, what: Callable[[], None], *, is_input: bool = False) -> None:
        """Now, or when it goes on after a pause. Bytes of one connection keep their order."""
        if self.is_dead:
            return
        if self.is_paused:
            self._backlog.append((is_input, what))
        else:
            what()

    # -- pauses --------------------------------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        return self.world.time.now < self._paused_until

    @property
    def is_drowsy(self) -> bool:
        """Whether it stands still, or did so a moment ago, and has not seen to everything yet."""
        return self.world.time.now < self._paused_until + 0.01

    def pause(self, seconds: float) -> None:
        """SIGSTOP, a garbage collection, a busy machine."""
        self.world.note(self.name, f"stands still for {seconds:.3f} s")
        self._paused_until = max(self._paused_until, self.world.time.now + seconds)
        self.world.time.at(self._paused_until, self._go_on)

    def wake_empty(self) -> None:
        """It was ended and begun anew: what waited for it is gone."""
        self._paused_until = 0.0
        self._backlog.clear()

    def _go_on(self) -> None:
        """Which comes first, what came in or what the clock demands? Event loops and threads differ."""
        waiting, self._backlog = self._backlog, []
        match self.world.random.randrange(3):
            case 0:
                waiting.sort(key=lambda item: item[0])
            case 1:
                waiting.sort(key=lambda item: not item[0])
        for is_input, what in waiting:
            self.do(what, is_input=is_input)
