"""Time that is a number, chance that does not shift when something is left out, and the clocks of peers."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from zlib import crc32

__all__ = ["WALL_START_S", "PeerClock", "World"]

#: The wall clocks begin here: 2024-02-29 00:00 UTC.
WALL_START_S = 1_709_164_800.0


class World:
    """What the parts of a schedule share: true time, chance, and a trace for people.

    Chance comes in streams with names, so that a schedule without one of its deviations meets the same chances
    elsewhere: without that, it could not be shrunk.
    """

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.now = 0.0  # seconds
        self.digest = 0
        self.is_traced = trace
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = count()

    def stream(self, *names: object) -> Random:
        """The same numbers for the same seed and names, in any process."""
        return Random(crc32(repr(names).encode()) << 32 ^ self.seed)

    def at(self, when: float, what: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self._events, (when if when > self.now else self.now, next(self._order), what, arguments))

    def after(self, seconds: float, what: Callable[..., None], *arguments: object) -> None:
        self.at(self.now + seconds, what, *arguments)

    def run(self, until: float, stop: Callable[[], bool]) -> bool:
        """Run what was scheduled, in its order, up to a moment or until ``stop``; whether it stopped."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, what, arguments = heapq.heappop(events)
            what(*arguments)
            if stop():
                return True
        self.now = max(self.now, until)
        return False

    def note(self, who: str, *what: object) -> None:
        """A line of the trace, and of its digest: the same seed gives the same lines."""
        if self.is_traced:
            print(f"{self.now * 1000:10.3f} ms  {who:6}", *what)  # noqa: T201 - whoever replays a seed reads it


class PeerClock:
    """A monotonic clock that is a little fast or slow, and a wall clock that is wrong and jumps.

    ``rate`` is local seconds per true second; ``wall_rate`` wall seconds per true second: an hour may pass in one.
    """

    def __init__(self, world: World, name: str, *, rate: float, wall_rate: float = 1.0) -> None:
        self._world = world
        self.rate = rate
        self.wall_rate = wall_rate
        self.wall_offset_s = 0.0
        self._origin = world.stream("clock", name).uniform(0.0, 1e6)

    @property
    def now(self) -> float:
        """The monotonic clock, in seconds."""
        return self._origin + self.rate * self._world.now

    @property
    def wall_s(self) -> float:
        """Seconds since 1970."""
        return WALL_START_S + self.wall_rate * self._world.now + self.wall_offset_s

    def true_time(self, local: float) -> float:
        return (local - self._origin) / self.rate
