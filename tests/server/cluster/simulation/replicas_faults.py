"""Failures, of processes, of what connects them, and of the log.

Those that end in ``_alone`` know what has to come of it if nothing else happens meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
from replicas_machine import NEWEST

from statestore_client.server.cluster.interface import Role

if TYPE_CHECKING:
    from random import Random

    from replicas_audit import Audit
    from replicas_clients import Client
    from replicas_process import Process
    from replicas_world import SimulatedLog, World

#: Faults that meet one server, mostly the active one.
_BURSTS = (
    ("kill",), ("pause",), ("suspend",), ("cut_log",), ("cut_servers",), ("lose_leader",), ("hand_over",), ("promote",),
    ("snapshot_and_kill",), ("snapshot_and_kill",), ("snapshot_and_kill", "slow_tail"), ("force_over",),
    ("snapshot", "trim"), ("set_wall", "kill"), ("pause", "kill"), ("lose_leader", "kill"), ("cut_log", "pause"),
    ("isolate",), ("isolate",), ("isolate",), ("slow_tail", "isolate"), ("slow_tail", "cut_servers"),
    ("slow_appends", "cut_servers"), ("slow_tail", "hand_over"), ("hand_over_unseen",), ("hand_over_unseen",),
    ("slow_tail", "promote"), ("cut_log_alone",), ("force_over",),
    ("snapshot", "lose_appends", "pause"), ("lose_appends", "cut_servers"),
    ("fill_disks",), ("fill_disks", "kill"), ("overload",), ("overload", "kill"), ("overload_alone",), ("hang_alone",),
    ("lose_broadcasts",), ("lose_broadcasts", "kill"), ("snapshot", "trim_while_it_reads"),
    ("hold_batches", "snapshot_and_kill"), ("isolate", "suspend"), ("cut_log_alone",),
    ("rest", "kill_another"), ("rest", "kill_another"), ("rest", "kill_another"),
    ("cut_log_alone",), ("cut_log_alone",), ("cut_log_alone",), ("hang_alone",), ("hang_alone",), ("overload_alone",),
    ("raise_format",), ("raise_format", "kill"), ("raise_format", "promote"), ("slow_tail", "raise_format", "promote"),
)  # fmt: skip

#: A busy owner gives signs of life for half a second; as long after the last one it is suspected, and asked.
_LONGEST_HANG_S = 0.75


@attrs.define(eq=False)
class Faults:
    """``counts``: how many there have been."""

    world: World
    audit: Audit
    log: SimulatedLog
    processes: dict[str, Process]
    clients: list[Client]
    #: All links are, but for what happens here.
    is_fast: bool = False
    #: Nothing fails any more.
    is_over: bool = False
    counts: Counter[str] = attrs.field(factory=Counter)

    @property
    def _random(self) -> Random:
        return self.world.random

    def burst(self) -> None:
        """One failure, or some of one server at about the same time."""
        random = self._random
        victim = self._any()
        first = random.choice(_BURSTS)
        for number, fault in enumerate(first):
            self.world.after(number and random.uniform(0.0, 0.3), self._fault, fault, victim)

    def _fault(self, name: str, victim: Process) -> None:
        if self.is_over:
            return
        self.counts[name] += 1
        getattr(self, f"_{name}")(victim)

    @property
    def _happened(self) -> int:
        """Failures, and starts of processes."""
        return self.counts.total() + sum(process.starts for process in self.processes.values())

    def _any(self) -> Process:
        """Mostly the active one: it matters most."""
        active = [each for each in self.processes.values() if each.is_alive and each.member.role is Role.ACTIVE]
        if active and self._random.random() < 0.7:
            return active[0]
        return self._one()

    def _one(self) -> Process:
        return self._random.choice(list(self.processes.values()))

    # -- processes -----------------------------------------------------------------------------------------------------

    def _kill(self, victim: Process) -> None:
        if victim.is_alive and not self.is_over:
            victim.kill(with_host=self._random.random() < 0.2)
            seconds = self._random.choice([0.05, 1.0, 3.0])
            victim.is_ill_for(seconds)
            self.world.after(seconds, self._restart, victim)

    def _restart(self, process: Process) -> None:
        if not process.is_alive:
            process.start()

    def _pause(self, victim: Process) -> None:
        self._stand_still(victim, victim.pause, self._random.choice([0.2, self._random.uniform(0.5, 1.0), 4.0, 10.0]))

    def _suspend(self, victim: Process) -> None:
        self._stand_still(victim, victim.suspend, self._random.choice([0.3, self._random.uniform(0.5, 1.0), 4.0]))

    def _stand_still(self, victim: Process, stop: Callable[[float], None], seconds: float) -> None:
        if victim.is_alive and not victim.is_paused:
            victim.is_ill_for(seconds)
            stop(seconds)

    def _overload(self, victim: Process) -> None:
        """It has time for what is due now and then only."""
        seconds = self._random.uniform(0.5, 2.0)
        victim.is_ill_for(seconds + 0.5)
        self._hang_again(victim, self.world.now + seconds, 0.02, 0.4)

    def _hang_again(self, victim: Process, until: float, shortest: float, longest: float) -> None:
        if self.world.now < until and victim.is_alive and not self.is_over:
            seconds = self._random.uniform(shortest, longest)
            if not victim.is_paused:
                victim.hang(seconds)
            self.world.after(
                seconds + self._random.uniform(0.0, 0.02), self._hang_again, victim, until, shortest, longest
            )

    def _overload_alone(self, victim: Process) -> None:
        """If nothing else happens, it stays the active one: its pulses tell that it lives."""
        if self._is_owner(victim) and victim.is_well and self._are_others_well(victim):
            epoch, faults, ill_until = self.audit.fence.epoch, self._happened, victim.ill_until
            self._hang_again(victim, self.world.now + 2.0, 0.65, _LONGEST_HANG_S)
            self.world.after(2.0, self._check_stays, epoch, faults, victim, ill_until)

    def _check_stays(self, epoch: int, faults: int, victim: Process, ill_until: float) -> None:
        is_alone = faults == self._happened and self._are_others_well(victim) and victim.ill_until == ill_until
        if is_alone and victim.is_alive and epoch != self.audit.fence.epoch:
            self.world.complain(f"{victim.name} is deposed, though it is busy only")

    def _hang_alone(self, victim: Process) -> None:
        """If nothing else happens, another server takes over."""
        if self._is_owner(victim) and not victim.is_paused and self._are_others_well(victim):
            victim.is_ill_for(3.0)
            victim.hang(3.0)
            self.world.after(2.0, self._check_taken_over, self.audit.fence.epoch, self._happened, victim, 1.5)

    # -- between servers, and to the log -------------------------------------------------------------------------------

    def _cut_log(self, victim: Process) -> None:
        self._cut(victim, self._random.uniform(0.2, 4.0))

    def _cut(self, victim: Process, seconds: float) -> None:
        if not victim.is_alive or self.is_over:
            return
        which = self._random.choice(["both", "both", "append", "append", "tail"])
        victim.link.is_append_cut, victim.link.is_tail_cut = which != "tail", which != "append"
        victim.is_ill_for(seconds)
        self.world.after(seconds, self._mend_log, victim)

    def _isolate(self, victim: Process) -> None:
        """Others suspect it, and it cannot answer any more."""
        self._cut_servers(victim)
        self.world.after(self._random.choice([self._random.uniform(0.3, 0.5), 1.0]), self._cut, victim, 2.0)

    def _cut_log_alone(self, victim: Process) -> None:
        """If nothing else happens meanwhile, another server takes over."""
        if self._is_owner(victim) and self._are_others_well(victim):
            self._cut(victim, 4.0)
            self.world.after(3.8, self._check_taken_over, self.audit.fence.epoch, self._happened, victim, 3.4)

    def _is_owner(self, victim: Process) -> bool:
        owner = self.audit.fence.owner
        return owner is not None and owner.id == victim.name and victim.is_alive

    def _are_others_well(self, victim: Process) -> bool:
        processes = self.processes.values()
        are_apart = any(process.unreachable for process in processes)
        return self.is_fast and not are_apart and all(each.is_well for each in processes if each is not victim)

    def _check_taken_over(self, epoch: int, faults: int, victim: Process, wait_s: float) -> None:
        waits = any(client.waits_since < self.world.now - wait_s for client in self.clients)
        is_alone = faults == self._happened and self._are_others_well(victim)
        if waits and is_alone and epoch == self.audit.fence.epoch and not self.is_over:
            self.world.complain(f"nobody takes over from {victim.name}, which cannot go on")

    def _mend_log(self, process: Process) -> None:
        process.link.is_append_cut = process.link.is_tail_cut = False
        process.link.notify()

    def _cut_servers(self, victim: Process) -> None:
        for other in self.processes.values():
            if other is not victim:
                victim.unreachable.add(other.name)
                if self._random.random() < 0.8:
                    other.unreachable.add(victim.name)
        self.world.after(self._random.uniform(0.5, 4.0), self._mend_servers)

    def _mend_servers(self) -> None:
        for process in self.processes.values():
            process.unreachable.clear()

    def _slow_tail(self, victim: Process) -> None:
        self._slow(victim, "tail_delay")

    def _slow_appends(self, victim: Process) -> None:
        self._slow(victim, "longest_delay")

    def _slow(self, victim: Process, which: str, delay: float | None = None) -> None:
        self._set(victim, which, delay or self._random.choice([0.1, 0.2, 0.4, 0.9]), self._random.uniform(0.5, 3.0))

    def _lose_appends(self, victim: Process) -> None:
        self._set(victim, "loss", 0.5, self._random.uniform(0.5, 2.0))

    def _lose_broadcasts(self, victim: Process) -> None:
        self._set(victim, "deafness", self._random.choice([0.3, 1.0]), self._random.uniform(0.5, 3.0))

    def _hold_batches(self, victim: Process) -> None:
        """Of what is appended, only what is not a batch comes through in time."""
        self._set(victim, "holds_batches_s", self._random.uniform(0.5, 1.5), 0.5)
        self._cut_servers(victim)

    def _set(self, victim: Process, which: str, value: float, seconds: float) -> None:
        """A property of its link, for a while."""
        before = getattr(victim.link, which)
        setattr(victim.link, which, value)
        victim.is_ill_for(seconds + 1.5)
        self.world.after(seconds, self._unset, victim, which, before)

    def _unset(self, victim: Process, which: str, value: float) -> None:
        if not self.is_over:
            setattr(victim.link, which, value)

    # -- the log -------------------------------------------------------------------------------------------------------

    def _lose_leader(self, _victim: Process) -> None:
        seconds = self._random.choice([0.2, 0.5, 2.5])
        self.log.lose_leader(seconds)
        self._all_ill(seconds)

    def _fill_disks(self, _victim: Process) -> None:
        seconds = self._random.choice([0.2, 0.7, 2.5])
        self.log.fill_up(seconds)
        self._all_ill(seconds)

    def _all_ill(self, seconds: float) -> None:
        for process in self.processes.values():
            process.is_ill_for(seconds + 1.0)

    def _snapshot_and_kill(self, victim: Process) -> None:
        """By one that may lag, or be deposed meanwhile; somebody begins with it."""
        writer = self._random.choice([victim, *self.processes.values()])
        self._snapshot(writer, writer)
        if self._random.random() < 0.7:
            self._slow(writer, "tail_delay", 0.06)
        if self._random.random() < 0.3:
            self._promote(writer)
        self.world.after(self._random.uniform(0.3, 2.0), self._kill, self._one())

    def _snapshot(self, victim: Process, writer: Process | None = None) -> None:
        process = writer or self._random.choice([victim, *self.processes.values()])
        process.run(process.begin_snapshot)

    def _trim(self, victim: Process) -> None:
        if self.audit.fence.base_index:
            self.log.trim(self.audit.fence.base, self.audit.fence.base_index)
            self._kill(victim)

    def _trim_while_it_reads(self, victim: Process) -> None:
        """It has found where to begin, and that is gone when it comes there."""
        if victim.is_alive and self.audit.fence.base_index:
            victim.kill()
            victim.start()
            victim.is_ill_for(0.5)
            self.log.trim(self.audit.fence.base, self.audit.fence.base_index)

    # -- clients -------------------------------------------------------------------------------------------------------

    def _rest(self, _victim: Process) -> None:
        """Nothing is written for a while, but by the owner when it has been idle for long, or has to expire keys."""
        for client in self.clients:
            client.rests_until = self.world.now + 5.0

    def _kill_another(self, victim: Process) -> None:
        self._kill(self._random.choice([each for each in self.processes.values() if each is not victim]))

    # -- people --------------------------------------------------------------------------------------------------------

    def _hand_over(self, _victim: Process) -> None:
        for process in self.processes.values():
            if process.is_alive and not process.is_paused and process.member.role is Role.ACTIVE:
                process.hand_over_to = self._random.choice(["", *self.processes])
                process.run(process.turn)

    def _hand_over_unseen(self, victim: Process) -> None:
        """The owner hears of the next one late."""
        self._slow_tail(victim)
        self._hand_over(victim)

    def _promote(self, victim: Process) -> None:
        process = self._random.choice([each for each in self.processes.values() if each is not victim])
        process.run(lambda: process.member.promote(process.now))

    def _force_over(self, victim: Process) -> None:
        """A server claims regardless, and hands over as soon as it can; the owner hears of that late."""
        process = self._random.choice([each for each in self.processes.values() if each is not victim])
        self._slow_tail(victim)
        process.run(lambda: process.member.promote(process.now))
        process.hand_over_to = self._random.choice(["", *self.processes])

    def _raise_format(self, _victim: Process) -> None:
        """Though a server may be there that does not know the new one, and stops."""
        for process in self.processes.values():
            if process.is_alive and process.member.role is Role.ACTIVE and process.knows == NEWEST:
                process.run(process.raise_format)

    def _set_wall(self, victim: Process) -> None:
        victim.set_wall(self._random.choice([-3_600_000, 0, 3_600_000]))

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Nothing fails any more."""
        self.is_over = True
        self.log.has_leader = True
        self.log.make_room()
        self._mend_servers()
        for client in self.clients:
            client.rests_until = 0.0
        for process in self.processes.values():
            link = process.link
            process.is_ill_for(0.5)  # what was lost before is not repeated at once
            link.longest_delay, link.loss, link.doubles, link.tail_delay = 0.003, 0.0, 0.0, 0.002
            link.deafness = link.holds_batches_s = 0.0
            self._mend_log(process)
            if not process.is_alive:
                process.knows = NEWEST
                process.start()
            process.resume()
