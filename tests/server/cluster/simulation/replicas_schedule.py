"""A schedule from its seed: two or three servers on a log, clients, failures, then calm.

When it is calm a server is active within two seconds and stays it, clients are answered, and all have the same rows.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random

import attrs
from replicas_audit import Audit
from replicas_clients import Client
from replicas_process import Process
from replicas_world import SimulatedLog, World

from statestore_client.server.cluster.entries import Life
from statestore_client.server.cluster.roles import ClusterSettings, Role

__all__ = ["Outcome", "run_schedule"]

#: Faults that meet one server, mostly the active one.
_BURSTS = (
    ("kill",), ("pause",), ("cut_log",), ("cut_servers",), ("lose_leader",), ("hand_over",), ("promote",),
    ("snapshot_and_kill",), ("snapshot_and_kill",), ("snapshot_and_kill", "slow_tail"), ("force_over",),
    ("snapshot", "trim"), ("set_wall", "kill"), ("pause", "kill"), ("lose_leader", "kill"), ("cut_log", "pause"),
    ("isolate",), ("isolate",), ("isolate",), ("slow_tail", "isolate"), ("slow_tail", "cut_servers"),
    ("slow_appends", "cut_servers"), ("slow_tail", "hand_over"), ("hand_over_unseen",), ("hand_over_unseen",),
    ("slow_tail", "promote"), ("cut_log_alone",), ("force_over",),
    ("snapshot", "lose_appends", "pause"), ("lose_appends", "cut_servers"),
)  # fmt: skip

#: Seconds of calm until somebody is active and all clients are answered.
_CALM_S = 2.0
#: A log client gives up after 1.8 s, and a time to live that began before is over after 1.5 s.
_WATCHED_S = 1.2


@attrs.frozen
class Outcome:
    """What came of it."""

    seed: int
    violations: tuple[str, ...]
    answers: int
    entries: int
    epochs: int
    faults: Counter[str]
    digest: int


def _settings(life: Life, *, lease_s: float, small: bool) -> ClusterSettings:
    sizes = {"piece_bytes": 150, "part_bytes": 60} if small else {}
    return ClusterSettings(life, f"tcp://{life.id}", lease_s=lease_s, **sizes)  # type: ignore[arg-type]


class Schedule:
    """One of them."""

    def __init__(self, seed: int, *, compares: bool = True) -> None:
        self.world = world = World(seed)
        self.random: Random = world.random
        random = world.random
        self.audit = audit = Audit(world, compares=compares)
        self.log = SimulatedLog(world, self.audit)
        self.faults: Counter[str] = Counter()
        self._is_calm = False
        self._is_fast = False
        self.processes: dict[str, Process] = {}
        audit.processes = self.processes
        spread = random.choice([0.0, 0.01, 0.01, 0.08])
        self.audit.drift = 2.2 * spread
        spread *= random.choice([-1, 1])
        wall_ms = random.choice([0, 3_600_000])
        is_small = random.random() < 0.7
        longest_lease_s = random.choice([0.25, 0.25, 0.6])
        reads, keys = random.choice([0.25, 0.9]), random.choice([3, 30])
        for name in "abc"[: random.choice([2, 2, 3])]:
            lease_s = random.choice([0.25, longest_lease_s])
            settings = partial(_settings, lease_s=lease_s, small=is_small)
            spread = -spread  # one is slow, the next one is fast
            rate = 1 + spread
            wall = random.choice([-wall_ms, 0, wall_ms])
            process = Process(world, self.log, self.audit, name, self.processes, settings, rate, wall)
            self.processes[name] = process
            world.after(random.uniform(0.0, 0.2), process.start)
        think_s = random.choice([0.03, 0.1, 0.3])
        servers = list(self.processes.values())
        self.clients = [
            Client(world, self.audit, f"c{n}", servers, think_s, reads, keys) for n in range(random.choice([1, 2, 3]))
        ]
        for client in self.clients:
            world.after(random.uniform(0.0, 0.5), client.act)

    # -- what happens --------------------------------------------------------------------------------------------------

    def trouble(self, length: float) -> None:
        """Failures for some seconds."""
        world, random = self.world, self.random
        self.log.forgets_ids = random.random() < 0.3
        delay = random.choice([0.002, 0.005, 0.05, 0.3])
        loss = random.choice([0.0, 0.0, 0.05])
        self._is_fast = delay < 0.01 and not loss
        for process in self.processes.values():
            link = process.link
            link.longest_delay, link.loss, link.doubles = delay, loss, random.choice([0.0, 0.1])
            link.tail_delay = random.choice([0.002, 0.002, 0.05, 0.3])
        for _ in range(random.choice([1, 1, 2, 3])):
            world.after(random.uniform(0.7, length), self._burst)
        world.run_until(length)

    def _burst(self) -> None:
        """One failure, or some of one server at about the same time."""
        random = self.random
        victim = self._any()
        first = random.choice(_BURSTS)
        for number, fault in enumerate(first):
            self.world.after(number and random.uniform(0.0, 0.3), self._fault, fault, victim)

    def _fault(self, name: str, victim: Process) -> None:
        if self._is_calm:
            return
        self.faults[name] += 1
        getattr(self, f"_{name}")(victim)

    def _any(self) -> Process:
        """Mostly the active one: it matters most."""
        active = [each for each in self.processes.values() if each.is_alive and each.member.role is Role.ACTIVE]
        if active and self.random.random() < 0.7:
            return active[0]
        return self.random.choice(list(self.processes.values()))

    def _kill(self, victim: Process) -> None:
        if victim.is_alive and not self._is_calm:
            victim.kill(with_host=self.random.random() < 0.2)
            seconds = self.random.choice([0.05, 1.0, 3.0])
            victim.is_ill_for(seconds)
            self.world.after(seconds, self._restart, victim)

    def _restart(self, process: Process) -> None:
        if not process.is_alive:
            process.start()

    def _pause(self, victim: Process) -> None:
        if victim.is_alive and not victim.is_paused:
            seconds = self.random.choice([0.2, self.random.uniform(0.5, 1.0), 4.0])
            victim.is_ill_for(seconds)
            victim.pause(seconds)

    def _cut_log(self, victim: Process) -> None:
        self._cut(victim, self.random.uniform(0.2, 4.0))

    def _cut(self, victim: Process, seconds: float) -> None:
        if not victim.is_alive or self._is_calm:
            return
        which = self.random.choice(["both", "both", "append", "append", "tail"])
        victim.link.is_append_cut, victim.link.is_tail_cut = which != "tail", which != "append"
        victim.is_ill_for(seconds)
        self.world.after(seconds, self._mend_log, victim)

    def _isolate(self, victim: Process) -> None:
        """Others suspect it, and it cannot answer any more."""
        self._cut_servers(victim)
        self.world.after(self.random.choice([self.random.uniform(0.3, 0.5), 1.0]), self._cut, victim, 2.0)

    def _cut_log_alone(self, victim: Process) -> None:
        """If nothing else happens meanwhile, another server takes over."""
        fence = self.audit.fence
        if fence.owner is not None and fence.owner.id == victim.name and self._is_well_but(victim):
            self._cut(victim, 4.0)
            faults = self.faults.total()
            self.world.after(3.8, self._check_taken_over, fence.epoch, faults, victim)

    def _is_well_but(self, victim: Process) -> bool:
        others = [process for process in self.processes.values() if process is not victim]
        return self._is_fast and all(process.is_well for process in others)

    def _check_taken_over(self, epoch: int, faults: int, victim: Process) -> None:
        waits = any(client.waits_since < self.world.now - 3.4 for client in self.clients)
        if waits and faults == self.faults.total() and epoch == self.audit.fence.epoch and self._is_well_but(victim):
            self.world.complain(f"nobody takes over from {victim.name}, whose log is cut off")

    def _mend_log(self, process: Process) -> None:
        process.link.is_append_cut = process.link.is_tail_cut = False
        process.link.notify()

    def _cut_servers(self, victim: Process) -> None:
        for other in self.processes.values():
            if other is not victim:
                victim.unreachable.add(other.name)
                if self.random.random() < 0.8:
                    other.unreachable.add(victim.name)
        self.world.after(self.random.uniform(0.5, 4.0), self._mend_servers)

    def _mend_servers(self) -> None:
        for process in self.processes.values():
            process.unreachable.clear()

    def _lose_leader(self, victim: Process) -> None:
        del victim
        seconds = self.random.choice([0.2, 0.5, 2.5])
        self.log.lose_leader(seconds)
        for process in self.processes.values():
            process.is_ill_for(seconds + 1.0)

    def _hand_over(self, _victim: Process) -> None:
        for process in self.processes.values():
            if process.is_alive and not process.is_paused and process.member.role is Role.ACTIVE:
                process.hand_over_to = self.random.choice(["", *self.processes])
                process.run(process.turn)

    def _hand_over_unseen(self, victim: Process) -> None:
        """The owner hears of the next one late."""
        self._slow_tail(victim)
        self._hand_over(victim)

    def _promote(self, victim: Process) -> None:
        others = [process for process in self.processes.values() if process is not victim]
        process = self.random.choice(others)
        process.run(lambda: process.member.promote(process.now))

    def _force_over(self, victim: Process) -> None:
        """A server claims regardless, and hands over as soon as it can; the owner hears of that late."""
        process = self.random.choice([each for each in self.processes.values() if each is not victim])
        self._slow_tail(victim)
        process.run(lambda: process.member.promote(process.now))
        process.hand_over_to = self.random.choice(["", *self.processes])

    def _snapshot_and_kill(self, victim: Process) -> None:
        """By one that may lag, or be deposed meanwhile; somebody begins with it."""
        writer = self.random.choice([victim, *self.processes.values()])
        self._snapshot(writer, writer)
        if self.random.random() < 0.7:
            self._slow(writer, "tail_delay", 0.06)
        if self.random.random() < 0.3:
            self._promote(writer)
        self.world.after(self.random.uniform(0.3, 2.0), self._kill, self.random.choice(list(self.processes.values())))

    def _snapshot(self, victim: Process, writer: Process | None = None) -> None:
        process = writer or self.random.choice([victim, *self.processes.values()])
        process.run(process.begin_snapshot)

    def _trim(self, victim: Process) -> None:
        if self.audit.fence.base_index:
            self.log.trim(self.audit.fence.base, self.audit.fence.base_index)
            self._kill(victim)

    def _slow_tail(self, victim: Process) -> None:
        self._slow(victim, "tail_delay")

    def _slow_appends(self, victim: Process) -> None:
        self._slow(victim, "longest_delay")

    def _slow(self, victim: Process, which: str, delay: float | None = None) -> None:
        before, seconds = getattr(victim.link, which), self.random.uniform(0.5, 3.0)
        setattr(victim.link, which, delay or self.random.choice([0.1, 0.2, 0.4, 0.9]))
        victim.is_ill_for(seconds + 1.0)
        self.world.after(seconds, self._set, victim, which, before)

    def _set(self, victim: Process, which: str, value: float) -> None:
        if not self._is_calm:
            setattr(victim.link, which, value)

    def _lose_appends(self, victim: Process) -> None:
        victim.link.loss = 0.5
        victim.is_ill_for(3.0)
        self.world.after(self.random.uniform(0.5, 2.0), self._set, victim, "loss", 0.0)

    def _set_wall(self, victim: Process) -> None:
        victim.wall_offset_ms = self.random.choice([-3_600_000, 0, 3_600_000])

    # -- calm ----------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Nothing fails any more."""
        world = self.world
        self._is_calm = True
        self.log.has_leader = True
        self._mend_servers()
        for process in self.processes.values():
            link = process.link
            link.longest_delay, link.loss, link.doubles, link.tail_delay = 0.003, 0.0, 0.0, 0.002
            self._mend_log(process)
            if not process.is_alive:
                process.start()
            process._resume()
        world.run_until(world.now + _CALM_S)
        began, epoch = world.now, self.audit.fence.epoch
        world.run_until(began + _WATCHED_S)
        if world.violations:
            return
        if self.audit.fence.epoch != epoch:
            world.complain("a server that is well is deposed")
        for client in self.clients:
            if client.answered_at < client.invoked_at[0] < world.now - 1.0:
                world.complain(f"{client.name} gets no answer though all is calm: {client.request}")
            client.is_active = False
        roles = Counter(process.member.role for process in self.processes.values())
        if roles[Role.ACTIVE] != 1:
            world.complain(f"in the end the roles are {roles}")
        world.run_until(world.now + 2.0)
        for process in self.processes.values():
            self.audit.compare_rows(process, self.audit.rows)
            if any(True for _ in process.machine.deadlines()):
                world.complain(f"{process.name} keeps a key for too long")


def run_schedule(seed: int, *, compares: bool = True) -> Outcome:
    """All of it."""
    schedule = Schedule(seed, compares=compares)
    schedule.trouble(schedule.random.choice([2.0, 4.0, 7.0]))
    # Later events of the trouble are over with it.
    if not schedule.world.violations:
        schedule.calm()
    world, audit = schedule.world, schedule.audit
    return Outcome(
        seed, tuple(world.violations), audit.answers, len(schedule.log.entries), audit.fence.epoch, schedule.faults,
        world.digest,
    )  # fmt: skip
