"""One schedule: a seed decides who does what, what fails and when. Then everything heals, and has to come right.

``python sim_schedule.py SEED`` prints what happens in a schedule.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Final

import attrs
from sim_audit import Audit
from sim_process import Process
from sim_programs import LOCK, Habits, Program
from sim_server import SimulatedServer
from sim_steps import Runner
from sim_world import World

from statestore_client.server.service.response_cache import ResponseCacheLimits
from statestore_client.settings import ConnectionSettings

#: Seconds after the last fault within which everybody has had the lock, and every watcher knows the state of its key.
_COMES_RIGHT_S: Final = 60.0
#: Two clocks differ by less than the two percent of a lease that the locks allow for.
_DRIFT: Final = 0.009
_RESTART: Final = "server restart"
_STEP: Final = "clock step"


@attrs.frozen
class Outcome:
    """What came of a schedule. ``digest`` is the same whenever the same seed runs the same code."""

    seed: int
    violations: tuple[str, ...]
    digest: int
    commands: int
    grants: int
    refused_writes: int
    came_right_s: float
    faults: Counter[str]


class _Schedule:
    """The world of one seed; times are true seconds."""

    def __init__(self, seed: int, *, trace: bool, cache_limits: ResponseCacheLimits) -> None:
        self.world = World(seed, trace=trace)
        self._random = self.world.random
        self.faults: Counter[str] = Counter()
        self._kinds: dict[str, Callable[[], None]] = {
            "cut": self._cut,
            "black hole": self._black_hole,
            "slow": self._slow,
            "careless": self._be_careless,
            "pause": self._pause,
            "crash": self._crash,
            _STEP: self._step_clock,
            _RESTART: self._restart_server,
        }
        self._allowed = self._some_kinds()
        self._skew_ms = 40 if _RESTART in self._allowed else self._random.choice((0, 40, 20_000))
        self._habits = self._some_habits()
        self._settings = self._some_settings()
        self.audit = Audit(self.world, LOCK)
        self.server = SimulatedServer(self.world, self.audit, rate=self._rate(), cache_limits=cache_limits)
        self.processes: list[Process] = []
        self.programs: list[Program] = []
        self.audit.watch_over(self.server, self.processes)
        for _ in range(self._random.choice((2, 2, 3, 4))):
            self._start_process()
        self._fails_until = self._habits.idle * self._random.uniform(0.7, 3.0)
        for _ in range(self._random.randrange(1, 7)):
            self.world.time.at(self._random.uniform(0.02, self._fails_until), self._fail)
        self.world.time.at(self._fails_until, self._heal)

    # -- what the seed decides -----------------------------------------------------------------------------------------

    def _some_kinds(self) -> list[str]:
        """A new server knows the time only from its clock: if that stepped, tokens would step with it."""
        never = _STEP if self._random.random() < 0.3 else _RESTART
        return [kind for kind in self._kinds if kind != never and self._random.random() < 0.5] or ["cut"]

    def _some_habits(self) -> Habits:
        lease = self._random.choice((0.4, 1.0, 2.0))
        return Habits(
            lease=lease,
            request_timeout=self._random.choice((0.5, 2.0)),
            idle=self._random.choice((0.1, 0.3, lease)),
            counting=self._random.choice((0.2, 0.2, 0.9)),
            stalls=0.15 if "pause" in self._allowed else 0.0,
        )

    def _some_settings(self) -> ConnectionSettings:
        return ConnectionSettings(
            host="simulated",
            keep_alive=self._random.choice((2, 5)),
            session_expiry=self._random.choice((1, 300, 300)),
            connect_timeout=1.0,
            reconnect_delay=0.05,
            max_reconnect_delay=0.5,
            request_timeout=self._habits.request_timeout,
            max_in_flight=self._random.choice((1, 4, 64)),
        )

    def _rate(self) -> float:
        return 1.0 + self._random.uniform(-_DRIFT, _DRIFT)

    def _start_process(self) -> None:
        skew_ms = self._random.randint(-self._skew_ms, self._skew_ms)
        name = f"c{len(self.processes) + 1}"
        process = Process(self.world, self.server, self._settings, name, rate=self._rate(), skew_ms=skew_ms)
        program = Program(process, self.audit, self._habits)
        self.processes.append(process)
        self.programs.append(program)
        Runner(process, program.contend())
        if self._random.random() < 0.3:
            Runner(process, program.chat())
        if self._random.random() < 0.3:
            Runner(process, program.look_around())

    # -- faults --------------------------------------------------------------------------------------------------------

    def _fail(self) -> None:
        kind = self._random.choice(self._allowed)
        self.faults[kind] += 1
        self._kinds[kind]()

    def _victim(self) -> Process | None:
        """Half of the time the one that hurts most."""
        alive = [p for p in self.processes if not p.is_dead]
        holders = [p for p in alive if p.lease is not None and p.lease.is_believed]
        return self._random.choice(holders if holders and self._random.random() < 0.5 else alive) if alive else None

    def _cut(self) -> None:
        if (process := self._victim()) is not None:
            process.cut()

    def _black_hole(self) -> None:
        if (process := self._victim()) is None:
            return
        ways = self._random.choice((("up", "down"), ("up", "down"), ("up",), ("down",)))
        process.block(frozenset(ways))
        lasts = self._random.uniform(0.05, 2.0 * self._habits.lease)
        self.world.time.at(self.world.time.now + lasts, lambda: process.block(frozenset()))

    def _slow(self) -> None:
        self.world.longest_delay_s = self._random.choice((0.02, 0.2, 0.5))
        self.world.note("network", "is slow:", self.world.longest_delay_s)

    def _be_careless(self) -> None:
        def end() -> None:
            self.world.is_careless = False

        self.world.is_careless = True
        self.world.note("broker", "is careless")
        self.world.time.at(self.world.time.now + self._random.uniform(0.1, 3.0 * self._habits.lease), end)

    def _pause(self) -> None:
        if self._random.random() < 0.2:
            self.server.pause(self._random.uniform(0.01, 0.5))
        elif (process := self._victim()) is not None:
            process.pause(self._random.uniform(0.01, 2.5 * self._habits.lease))

    def _crash(self) -> None:
        if (process := self._victim()) is not None:
            process.die()
            self.world.time.at(self.world.time.now + self._random.uniform(0.0, 1.0), self._start_process)

    def _step_clock(self) -> None:
        host = self._random.choice((self.server, *self.processes))
        host.wall_offset_ms = self._random.randint(-20_000, 20_000)
        self.world.note(host.name, "wall clock off by", host.wall_offset_ms, "ms")

    def _restart_server(self) -> None:
        if self.server.is_up:
            self.server.crash()
            self.world.time.at(self.world.time.now + self._random.uniform(0.3, 1.0), self.server.start)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        world = self.world
        world.note("world", "no more faults")
        world.is_calm = True
        world.is_careless = False
        world.longest_delay_s = 0.002
        for host in (self.server, *self.processes):
            host.wall_offset_ms = 0
        for process in self.processes:
            process.block(frozenset())

    def run(self) -> float:
        """Returns how long it took to come right after the last fault, in seconds."""
        is_right = self._check_from(self._fails_until)
        if self.world.time.run(self._fails_until + _COMES_RIGHT_S, stop=is_right):
            return self.world.time.now - self._fails_until
        for program in self.programs:
            if not (program.process.is_dead or program.is_done):
                self.audit.violated(f"{program.process.name} never had the lock again")
        for name, key, seen, is_there in self._stale():
            self.audit.violated(f"{name} last saw {seen!r} at {key!r}, where {is_there!r} is")
        return _COMES_RIGHT_S

    def _check_from(self, start: float) -> Callable[[], bool]:
        looked_at = start

        def stop() -> bool:
            nonlocal looked_at
            if self.audit.violations:
                return True
            if self.world.time.now < looked_at + 0.05:
                return False
            looked_at = self.world.time.now
            return (
                self.server.is_up and all(p.is_done or p.process.is_dead for p in self.programs) and not self._stale()
            )

        return stop

    def _stale(self) -> list[tuple[str, bytes, bytes | None, bytes | None]]:
        """Watchers that do not know the state of their key."""
        stale = []
        for program in self.programs:
            for seen in program.seen:
                is_there = self._stored(seen.key)
                if not program.process.is_dead and seen.value != is_there:
                    stale.append((program.process.name, seen.key, seen.value, is_there))
        return stale

    def _stored(self, key: bytes) -> bytes | None:
        entry = self.server.store._keyspace.get(key)
        return None if entry is None else entry.value


def run_schedule(seed: int, *, trace: bool = False, cache_limits: ResponseCacheLimits | None = None) -> Outcome:
    """Run one schedule from beginning to end, or to the first violation."""
    schedule = _Schedule(seed, trace=trace, cache_limits=cache_limits or ResponseCacheLimits())
    came_right_s = schedule.run()
    audit = schedule.audit
    return Outcome(
        seed,
        tuple(audit.violations),
        audit.digest,
        audit.commands,
        audit.grants,
        audit.fenced_off,
        came_right_s,
        schedule.faults,
    )


if __name__ == "__main__":
    print(run_schedule(int(sys.argv[1]), trace=True))  # noqa: T201 - a program for people
