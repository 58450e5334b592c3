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
from replicas_faults import Faults
from replicas_machine import NEWEST, releases
from replicas_process import Process
from replicas_world import SimulatedLog, World

from statestore_client.server.cluster.entries import Life
from statestore_client.server.cluster.interface import ClusterSettings, Role

#: Seconds of trouble. A process that stands still for ten is the longest of it.
_LENGTHS_S = (2.0, 2.0, 4.0, 4.0, 7.0, 7.0, 7.0, 12.0)
#: Seconds of calm until somebody is active and all clients are answered.
_CALM_S = 2.0
#: A server has this long to become active on a slow log; a client's answer has its own batch and others before it to
#: wait for. A batch whose pieces come in another order is sent again, each time for another 1.5 s: with four pieces and
#: more that happens six times in one of some thousand schedules (2078600068 is one).
_SLOW_START_S = 6.0
_SLOW_ANSWER_S = 15.0
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
        self.log = audit.log = SimulatedLog(world, audit)
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
            knows = random.choice([NEWEST, NEWEST, NEWEST - 1])
            process = Process(world, name, rate, wall, self.log, audit, self.processes, settings, knows)
            self.processes[name] = process
            world.after(random.uniform(0.0, 0.2), process.start)
        think_s = random.choice([0.03, 0.1, 0.3])
        servers = list(self.processes.values())
        self.clients = [
            Client(world, self.audit, f"c{n}", servers, think_s, reads, keys) for n in range(random.choice([1, 2, 3]))
        ]
        for client in self.clients:
            world.after(random.uniform(0.0, 0.5), client.act)
        self.faults = Faults(world, audit, self.log, self.processes, self.clients)

    def trouble(self, length: float) -> None:
        """Failures for some seconds."""
        world, random = self.world, self.random
        self.log.forgets_ids = random.random() < 0.3
        delay = random.choice([0.002, 0.002, 0.005, 0.05, 0.3])
        loss = random.choice([0.0, 0.0, 0.05])
        self.faults.is_fast = delay < 0.01 and not loss
        for process in self.processes.values():
            link = process.link
            link.longest_delay, link.loss, link.doubles = delay, loss, random.choice([0.0, 0.1])
            link.tail_delay = random.choice([0.002, 0.002, 0.05, 0.3])
        for _ in range(random.choice([1, 1, 2, 3])):
            world.after(random.uniform(0.7, length), self.faults.burst)
        world.run_until(length)

    def calm(self) -> None:
        """Nothing fails any more."""
        world = self.world
        self.faults.end()
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

    def outcome(self) -> Outcome:
        """What came of it."""
        world, audit = self.world, self.audit
        return Outcome(
            world.seed,
            tuple(world.violations),
            audit.answers,
            len(self.log.entries),
            audit.fence.epoch,
            self.faults.counts,
            world.digest,
        )

    def slowness(self, length: float) -> None:
        """No failures, and a log on disks that are slow for ever: an entry takes up to 1.5 s until it comes back."""
        world = self.world
        sync_s = self.random.choice([0.2, 0.4, 0.7, 1.5])
        for process in self.processes.values():
            process.link.sync_s = sync_s
        world.run_until(_SLOW_START_S)
        epoch, answers = self.audit.fence.epoch, self.audit.answers
        while world.now < length and not world.violations:
            world.run_until(world.now + 0.1)
            for client in self.clients:
                if world.now - max(client.waits_since, _SLOW_START_S) > _SLOW_ANSWER_S:
                    world.complain(f"{client.name} gets no answer, though the log is only slow: {client.request}")
        if self.audit.fence.epoch != epoch:
            world.complain("a server is deposed, though its log is only slow")
        if self.audit.answers - answers < length / _SLOW_ANSWER_S:
            world.complain("hardly anything is answered, though the log is only slow")


def run_slow(seed: int, length: float = 30.0) -> Outcome:
    """Servers that are well, on a log that is slow."""
    with releases():
        schedule = Schedule(seed)
        schedule.slowness(length)
    return schedule.outcome()


def run_schedule(seed: int, *, compares: bool = True) -> Outcome:
    """All of it."""
    with releases():
        schedule = Schedule(seed, compares=compares)
        schedule.trouble(schedule.random.choice(_LENGTHS_S))
        # Later events of the trouble are over with it.
        if not schedule.world.violations:
            schedule.calm()
    return schedule.outcome()
