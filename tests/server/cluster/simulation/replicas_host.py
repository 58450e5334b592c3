"""A process that can stand still, its clocks, and its timer; without anything that it does."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from replicas_world import World

from statestore_client.wire.instant import Instant

__all__ = ["WALL_MS", "Host"]

WALL_MS = 1_700_000_000_000


@attrs.define(eq=False)
class Host:
    """``rate``: how fast its monotonic clock is."""

    world: World
    name: str
    rate: float
    wall_offset_ms: int
    is_alive: bool = attrs.field(default=False, kw_only=True)
    #: Its event loop stands still; with ``is_stopped`` all of it does.
    is_paused: bool = attrs.field(default=False, kw_only=True)
    is_stopped: bool = attrs.field(default=False, kw_only=True)
    ill_until: float = attrs.field(default=0.0, kw_only=True)
    _origin: float = attrs.field(init=False)
    _clock: tuple[float, Instant] = attrs.field(default=(-1.0, Instant(0.0, 0)), init=False)
    _backlog: list[tuple[Callable[..., object], tuple[object, ...]]] = attrs.field(factory=list, init=False)
    _timer: float | None = attrs.field(default=None, init=False)
    _timer_at: float = attrs.field(default=0.0, init=False)  # by its clock

    def __attrs_post_init__(self) -> None:
        self._origin = self.world.random.uniform(0.0, 1e5)

    # -- clocks --------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> Instant:
        """By its own clocks. The monotonic one goes on while the machine sleeps."""
        true = self.world.now
        if self._clock[0] != true:
            wall_ms = WALL_MS + int(true * 1000) + self.wall_offset_ms
            self._clock = true, Instant(self._origin + self.rate * true, wall_ms)
        return self._clock[1]

    def set_wall(self, offset_ms: int) -> None:
        """By people."""
        self.wall_offset_ms = offset_ms
        self._clock = (-1.0, Instant(0.0, 0))

    def set_timer(self, at: float) -> None:
        """For the next turn. One that is set for an earlier moment stays."""
        if at == float("inf") or (self._timer is not None and self._timer_at <= at):
            return
        self._timer_at = at
        self._timer = max((at - self._origin) / self.rate, self.world.now + 0.0005)
        self.world.after(self._timer - self.world.now, self._fire, self._timer)

    def _fire(self, timer: float) -> None:
        if timer == self._timer:
            self._timer = None
            self.run(_nothing)

    # -- standing still ------------------------------------------------------------------------------------------------

    def is_ill_for(self, seconds: float) -> None:
        """Something is wrong from now on."""
        self.ill_until = max(self.ill_until, self.world.now + seconds)

    def pause(self, seconds: float) -> None:
        """It stands still, and does not know it."""
        self.is_stopped = True
        self.hang(seconds)

    def suspend(self, seconds: float) -> None:
        """So does its machine. Timers of an event loop do not go on meanwhile, and are late by that."""
        if self._timer is not None:
            self._timer += seconds
            self.world.after(self._timer - self.world.now, self._fire, self._timer)
        self.pause(seconds)

    def hang(self, seconds: float) -> None:
        """Its event loop is busy with something; the thread that gives signs of life is not."""
        self.is_paused = True
        self.world.after(seconds, self.resume)

    def resume(self) -> None:
        """It goes on, with all that came meanwhile."""
        if self.is_paused:
            self.is_paused = self.is_stopped = False
            backlog, self._backlog = self._backlog, []
            self.mix(backlog)
            if self.is_alive and self.world.random.random() < 0.5:
                self.turn()
            for what, arguments in backlog:
                self.run(what, *arguments)

    def mix(self, backlog: list[tuple[Callable[..., object], tuple[object, ...]]]) -> None:
        """Into the order in which it gets to what came meanwhile."""
        self.world.random.shuffle(backlog)

    def run(self, what: Callable[..., object], *arguments: object) -> None:
        """Something happens to it."""
        if self.is_paused:
            self._backlog.append((what, arguments))
        elif self.is_alive:
            what(*arguments)
            self.turn()

    def turn(self) -> None:
        """What it does after everything that happens."""
        raise NotImplementedError


def _nothing() -> None:
    """The turn itself is what is due."""
