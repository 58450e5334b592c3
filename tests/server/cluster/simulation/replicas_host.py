"""A process that can stand still, its clocks, its timer, and its signs of life; without anything else that it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from replicas_world import LogClient, SimulatedLog, World

from statestore_client.server.cluster.entries import LogEntry
from statestore_client.wire.instant import Instant

WALL_MS = 1_700_000_000_000
#: A pulse ends when the event loop has not come by for as long.
HUNG_S = 0.5
#: Entries of the log that are read at once.
CHUNK = 40
_PULSE_S = 0.15
_TAIL = 256


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


def _nothing() -> None:
    """The turn itself is what is due."""


@attrs.define(eq=False)
class LogUser(Host):
    """A server with a link to the log, until it is killed; then, perhaps, the next one with the same id."""

    log: SimulatedLog
    audit: Any
    others: dict[str, Any]
    link: LogClient = attrs.field(init=False)
    unreachable: set[str] = attrs.field(factory=set, init=False)
    starts: int = attrs.field(default=0, init=False)
    lives: int = attrs.field(default=0, init=False)
    _pulse_epoch: int | None = attrs.field(default=None, init=False)  # for the thread that gives signs of life
    _looked_at: float = attrs.field(default=0.0, init=False)
    _position: int = attrs.field(default=0, init=False)
    _end: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.link = LogClient(self.world, self.log, self)
        self.log.processes.append(self)

    @property
    def base(self) -> tuple[int, LogEntry] | None:
        """Where a new life begins to read."""
        at = max([self.log.base, *(entry.base for entry in self.log.decoded[-_TAIL:])])
        return (at, self.log.decoded[at - 1]) if at else None

    def append_answered(self, life: int, ticket: int, index: int, data: bytes) -> None:
        """Means nothing: that it is in the log does not make it valid."""

    def _pulse(self, start: int) -> None:
        if self.is_alive and start == self.starts:
            if not self.is_stopped:
                self._give_signs()
                self.run(self.look)
            self.world.after(_PULSE_S, self._pulse, start)

    def _give_signs(self) -> None:
        """In a thread of its own, so that a busy event loop does not keep it from that."""
        if self._pulse_epoch is not None and self.world.now < self._looked_at + HUNG_S:
            for other in self.others.values():
                if other.name not in self.unreachable:
                    self.world.after(0.001, other.run, other.hear, self._pulse_epoch)

    def look(self) -> None:
        """In the event loop: whether to give signs of life, and whether others are there."""
        raise NotImplementedError
