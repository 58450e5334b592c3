"""A schedule from its seed: requests and failures, then calm. In the end all requests are answered, each took effect
once, and what is stored is what the answers say.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import partial
from random import Random

import attrs
import pytest
from host_world import KEYS, World

from statestore_client.server.host import host

_CLIENTS = ("one", "two", "three")
#: Steps without failures after which everything must be answered.
_CALM = 4_000
_IDLE = 10


@attrs.frozen
class Outcome:
    """What came of it."""

    seed: int
    violations: tuple[str, ...]
    requests: int
    steps: int
    faults: Counter[str]
    digest: str


class Schedule:
    """One of them."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        random = world.random
        self._fault_rate = random.choice([0.0, 0.01, 0.05, 0.15])
        self._unclocked = random.choice([*_CLIENTS, ""])
        self._values = 0
        self._returning: list[tuple[str, bytes]] = []  # what clients observe again that had left

    def trouble(self, steps: int) -> None:
        """Requests and failures."""
        world, random = self.world, self.world.random
        for _ in range(steps):
            if world.violations:
                return
            if random.random() < self._fault_rate:
                self._fault()
            elif random.random() < 0.12:
                self._ask()
            else:
                self.step()

    def change_all(self) -> None:
        """Who observes a key is to hear of it."""
        for number, key in enumerate(KEYS):
            self.world.ask("one", b"SET", key, b"last %d" % number)

    def calm(self) -> None:
        """Nothing fails any more."""
        world, idle = self.world, 0
        for _ in range(_CALM):
            idle = 0 if self.step() else idle + 1
            if world.violations or idle > _IDLE * world.has_log:  # a lease has to end
                break
        waiting = [each.parts for each in world.requests.values() if each.answer is None]
        if waiting and not world.violations:
            world.complain(f"{len(waiting)} requests were never answered: {waiting[:3]}")

    def step(self) -> bool:
        """One thing that somebody can do. False if there is none but that time passes."""
        world = self.world
        world.steps += 1
        able = []
        for life in world.lives:
            if life.unloaded:
                able.append(life.load)
            if life.may_connect:
                able.append(partial(world.connect, life))
        if world.may_deliver:
            able.append(world.deliver)
        if world.to_host:
            able.append(world.host_step)
        if world.to_broker:
            able.append(world.broker_step)
        if self._returning:
            able.append(self._return)
        if world.decided:
            able.append(world.puback)
        able += [life.loop_step for life in world.lives if life.loop.soon or life.loop.later]
        if world.disk.waiting:
            able.append(world.disk_step)
        if world.has_log:
            able += world.log_steps()
        if not able or world.random.random() < 0.05:
            world.tick()
        if able:
            world.random.choice(able)()
        return bool(able)

    def _return(self) -> None:
        client, key = self._returning.pop()
        self.world.ask(client, b"KEYNOTIFY", key)

    def _fault(self) -> None:
        world, random = self.world, self.world.random
        fault = random.choice(["crash", "connection", "connection", "session", "resend", "leave"])
        if world.to_broker and random.random() < 0.3:
            fault = "connection"  # what is on its way is lost
        if world.has_log and random.random() < 0.3 and world.may_claim and not world.is_vacant:
            world.faults["claim"] += 1
            world.claim()
        elif fault == "crash":
            world.crash()
        elif fault == "connection":
            world.lose_connection()
        elif fault == "session" and random.random() < 0.3:
            world.lose_session()
        elif fault == "resend":
            world.faults["resend"] += 1
            world.resend(random.choice(_CLIENTS))
        elif fault == "leave":
            world.faults["leave"] += 1
            client = random.choice(_CLIENTS)
            keys = [key for name, key in world.observed if name == client]
            if keys and random.random() < 0.5:  # it comes too late for what is on its way
                self._values += 1
                world.ask(client, b"SET", random.choice(keys), f"{client} {self._values}".encode())
            world.leave(client)
            if random.random() < 0.7:  # and comes back
                self._returning += [(client, key) for key in keys]

    def _ask(self) -> None:
        world, random = self.world, self.world.random
        client, key = random.choice(_CLIENTS), random.choice(KEYS)
        self._values += 1
        value = f"{client} {self._values}".encode()
        sets = [each for each in world.requests.values() if each.verb == b"SET" and each.key == key]
        has_clock = True
        match random.choice(["set", "set", "nx", "del", "vdel", "get", "get", "observe", "observe", "stop"]):
            case "set":
                parts: tuple[bytes, ...] = (b"SET", key, value)
            case "nx":
                parts = (b"SET", key, value, b"NX")
            case "del":
                parts, has_clock = (b"DEL", key), client != self._unclocked
            case "vdel":
                parts = (b"VDEL", key, sets[-1].parts[2] if sets else b"?")
                has_clock = client != self._unclocked
            case "observe":
                parts = (b"KEYNOTIFY", key)
            case "stop":
                parts = (b"KEYNOTIFY", key, b"STOP")
            case _:
                parts = (b"GET", key)
        world.ask(client, *parts, has_clock=has_clock)

    # -- in the end ----------------------------------------------------------------------------------------------------

    def audit(self) -> None:
        """The answers are those of one store, which carried each request out once."""
        self._check_once()
        self._check_order()
        self._replay()
        self._check_observers()

    def _check_once(self) -> None:
        executed = Counter(self.world.disk.executions)
        for request in self.world.requests.values():
            if request.verb == b"SET" and request.answer is not None:
                times, wanted = executed[request.parts[2]], request.answer[0] == b"+OK\r\n"
                if times != wanted:
                    self.world.complain(f"{request.parts} took effect {times} times, answered {request.answer}")

    def _check_order(self) -> None:
        number_of = {each.parts[2]: each for each in self.world.requests.values() if each.verb == b"SET"}
        last: dict[str, int] = {}
        for value in self.world.disk.executions:
            request = number_of[value]
            if request.number < last.get(request.client, 0):
                self.world.complain(f"{request.parts} was carried out after a later request of its client")
            last[request.client] = request.number

    def _replay(self) -> None:
        """What was applied, in the order of the versions, is possible and leads to what is stored."""
        world = self.world
        values: dict[bytes, bytes] = {}
        for version in sorted(world.versions):
            request = world.versions[version]
            key, had = request.key, values.get(request.key)
            if request.verb == b"SET":
                if request.parts[3:] and had is not None:
                    world.complain(f"{request.parts} was applied although {had!r} was there")
                values[key] = request.parts[2]
            elif had is None or (request.verb == b"VDEL" and had != request.parts[2]):
                world.complain(f"{request.parts} was applied to {had!r}")
            else:
                del values[key]
        stored = {key: entry.value for key in KEYS if (entry := world.store.entry(key, world.instant)) is not None}
        if stored != values:
            world.complain(f"the store has {stored}, by the answers it is {values}")

    def _check_observers(self) -> None:
        """Who observes a key has heard of each of its changes, whichever host was to tell it."""
        world = self.world
        is_there = world.tells or world.lifetime_s > world.now
        for (client, key), observed in world.observed.items() if is_there else ():
            changes = [version for version, each in world.versions.items() if each.key == key]
            for version in sorted(changes):
                is_known = observed.since is not None and version <= observed.since
                if not (is_known or version in observed.heard):
                    world.complain(f"{client} has not heard of {key!r} with version {version}")


def run_schedule(seed: int) -> Outcome:
    """All of it."""
    with pytest.MonkeyPatch.context() as patch:
        # Few, so that requests wait for room.
        patch.setattr(host, "MOST_OUTPUTS", Random(seed).choice([2, 10, host.MOST_OUTPUTS]))
        return _run(Schedule(seed), seed)


def _run(schedule: Schedule, seed: int) -> Outcome:
    world = schedule.world
    schedule.trouble(world.random.randint(100, 600))
    if not world.violations:
        schedule.calm()
    if not world.violations and world.random.random() < 0.5:
        schedule.change_all()
        schedule.calm()
    if not world.violations:
        schedule.audit()
    digest = hashlib.sha256(repr((world.steps, world.versions.keys(), world.random.random())).encode()).hexdigest()
    return Outcome(seed, tuple(world.violations), len(world.requests), world.steps, world.faults, digest)
