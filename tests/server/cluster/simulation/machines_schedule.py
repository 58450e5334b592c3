"""A schedule of failures for real servers' machines on one log, with MQTT clients; then calm, until wills are over."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import attrs
from machines_audit import MachineAudit
from machines_clients import Mortal, Receiver, Sender, Writer
from machines_process import MachineHost
from replicas_world import SimulatedLog, World

from statestore_client.server.runtime import broker_driver, fairness
from statestore_client.server.runtime.transport import connection

_FAULTS = (
    "kill", "kill", "pause", "pause", "hang", "cut_log", "cut_servers", "lose_leader", "hand_over", "snapshot",
    "snapshot_and_kill", "snapshot_and_kill", "hold_batches", "isolate", "suspend", "fill_disks", "lose_broadcasts",
)  # fmt: skip
#: Clients are awaited for five seconds, then wills go out.
_CALM_S = 7.0


class _StandingTime:
    """For what measures how long it works: never too long, so that a seed always gives the same schedule."""

    @staticmethod
    def monotonic() -> float:
        return 0.0


@attrs.frozen
class MachineOutcome:
    """What came of it."""

    seed: int
    violations: tuple[str, ...]
    messages: int
    wills: int
    epochs: int
    entries: int
    faults: Counter[str]
    digest: int


class MachineSchedule:
    """One of them."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        self.random = random = world.random
        self.audit = audit = MachineAudit(world)
        self.log = audit.log = SimulatedLog(world, audit)
        self.faults: Counter[str] = Counter()
        self.hosts: dict[str, MachineHost] = {}
        spread = random.choice([0.0, 0.01, -0.01])
        for name in "abc"[: random.choice([2, 2, 3])]:
            spread = -spread
            wall = random.choice([0, 0, -20_000, 20_000])
            host = MachineHost(world, name, 1 + spread, wall, self.log, audit, self.hosts)
            self.hosts[name] = host
            host.link.longest_delay = random.choice([0.002, 0.02])
            host.link.tail_delay = random.choice([0.002, 0.02])
            world.after(random.uniform(0.0, 0.1), host.start)
        hosts = list(self.hosts.values())
        self.sender = Sender(world, audit, "sender", hosts, think_s=random.choice([0.1, 0.3]))
        self.writer = Writer(world, audit, "writer", hosts, think_s=random.choice([0.1, 0.3]))
        self.mortals = [
            Mortal(world, audit, name, hosts, is_lasting=name == "lasting", patience=random.choice([1.0, 1.0, 20.0]))
            for name in ("lasting", "fleeting")
        ]
        receiver = Receiver(world, audit, "receiver", hosts, sender=self.sender, others=self.mortals)
        for client in (receiver, self.sender, self.writer):
            world.after(random.uniform(0.0, 0.3), client.connect)

    def run(self) -> None:
        """All of it."""
        world, random = self.world, self.random
        length = random.choice([2.0, 4.0, 6.0])
        for _ in range(random.choice([1, 2, 2, 3])):
            world.after(random.uniform(0.8, length), self._fault, random.choice(_FAULTS))
        world.run_until(length)
        if not world.violations:
            self._calm()

    # -- failures ------------------------------------------------------------------------------------------------------

    def _fault(self, name: str) -> None:
        self.faults[name] += 1
        active = [host for host in self.hosts.values() if host.is_active]
        hosts = active if active and self.random.random() < 0.8 else list(self.hosts.values())
        getattr(self, f"_{name}")(self.random.choice(hosts))

    def _kill(self, host: MachineHost) -> None:
        if host.is_alive:
            host.kill()
            self.world.after(self.random.choice([0.05, 1.0, 3.0]), self._restart, host)

    def _restart(self, host: MachineHost) -> None:
        if not host.is_alive:
            host.start()

    def _pause(self, host: MachineHost) -> None:
        if host.is_alive and not host.is_paused:
            host.pause(self.random.choice([0.3, 1.0, 3.0]))

    def _suspend(self, host: MachineHost) -> None:
        if host.is_alive and not host.is_paused:
            host.suspend(self.random.choice([0.5, 3.0]))

    def _hang(self, host: MachineHost) -> None:
        if host.is_alive and not host.is_paused:
            host.hang(self.random.choice([0.3, 2.0]))

    def _cut_log(self, host: MachineHost) -> None:
        which = self.random.choice(["both", "append", "tail"])
        host.link.is_append_cut, host.link.is_tail_cut = which != "tail", which != "append"
        self.world.after(self.random.uniform(0.2, 2.5), self._mend, host)

    def _mend(self, host: MachineHost) -> None:
        host.link.is_append_cut = host.link.is_tail_cut = False
        host.link.holds_batches_s = host.link.deafness = 0.0
        host.link.notify()

    def _cut_servers(self, host: MachineHost) -> None:
        for other in self.hosts.values():
            if other is not host:
                host.unreachable.add(other.name)
                other.unreachable.add(host.name)
        self.world.after(2.0, self._mend_servers)

    def _mend_servers(self) -> None:
        for host in self.hosts.values():
            host.unreachable.clear()

    def _isolate(self, host: MachineHost) -> None:
        self._cut_servers(host)
        self.world.after(self.random.uniform(0.0, 0.5), self._cut_log, host)

    def _hold_batches(self, host: MachineHost) -> None:
        """Others suspect it, and its batches come late."""
        host.link.holds_batches_s = self.random.uniform(0.3, 1.0)
        self._cut_servers(host)
        self.world.after(0.5, self._mend, host)
        self._snapshot(host)

    def _lose_leader(self, _host: MachineHost) -> None:
        self.log.lose_leader(self.random.choice([0.2, 0.5, 2.0]))

    def _fill_disks(self, _host: MachineHost) -> None:
        self.log.fill_up(self.random.choice([0.2, 0.7, 2.0]))

    def _lose_broadcasts(self, host: MachineHost) -> None:
        host.link.deafness = self.random.choice([0.3, 1.0])
        self.world.after(2.0, self._mend, host)

    def _hand_over(self, host: MachineHost) -> None:
        host.run(host.hand_over, self.random.choice(["", *self.hosts]))

    def _snapshot(self, host: MachineHost) -> None:
        host.run(host.snapshot)

    def _snapshot_and_kill(self, host: MachineHost) -> None:
        self._snapshot(self.random.choice([host, *self.hosts.values()]))
        self.world.after(self.random.uniform(0.1, 1.0), self._kill, self.random.choice(list(self.hosts.values())))

    # -- calm ----------------------------------------------------------------------------------------------------------

    def _calm(self) -> None:
        """Nothing fails any more; then nothing is asked any more."""
        world = self.world
        self.log.has_leader = True
        self.log.make_room()
        self._mend_servers()
        for host in self.hosts.values():
            host.link.longest_delay = host.link.tail_delay = 0.002
            self._mend(host)
            if not host.is_alive:
                host.start()
            host.resume()
        world.run_until(world.now + 2.0)
        self.sender.is_active = self.writer.is_active = False
        for mortal in self.mortals:
            mortal.is_active = False
        world.run_until(world.now + _CALM_S)
        if world.violations:
            return
        if self.writer.waits:
            world.complain("the writer gets no answer though all is calm")
        self.audit.finish()
        self._compare()

    def _compare(self) -> None:
        """All have the same rows."""
        rows = {name: host.rows() for name, host in self.hosts.items()}
        first = rows["a"]
        for name, mine in rows.items():
            different = sorted(str(each) for each in mine.keys() | first.keys() if mine.get(each) != first.get(each))
            if different:
                self.world.complain(f"a and {name} have different rows: {different[:3]}")


def run_machines(seed: int) -> MachineOutcome:
    """From its seed."""
    with (
        patch.object(broker_driver, "time", _StandingTime),
        patch.object(fairness, "time", _StandingTime),
        patch.object(connection, "time", _StandingTime),
    ):
        schedule = MachineSchedule(seed)
        schedule.run()
    world, audit = schedule.world, schedule.audit
    return MachineOutcome(
        seed,
        tuple(world.violations),
        audit.sent,
        len(audit.wills),
        audit.epochs,
        len(schedule.log.entries),
        schedule.faults,
        world.digest,
    )
