"""A schedule from its seed: a mesh, failures, calm. In the end all stores are equal, and an update costs little."""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import partial
from random import Random

import attrs
import pytest
from sites_node import AREA, Node
from sites_world import Edge, World

from statestore_client.server.kvstore import sync
from statestore_client.server.kvstore.area_store import SYNC_BYTES
from statestore_client.server.kvstore.floods import FloodRate
from statestore_client.server.kvstore.peers import PeerState

#: Seconds until stores that can reach each other are equal, when nothing fails any more. It is less than the time after
#: which stores are compared in any case, so that nothing hides behind that; four errors in a row cost 32 s.
_CALM_S = 45.0
#: What was missed without a trace is found by the next comparison.
_CHECKED_S = 75.0
#: Without new updates: the last one is on its way, or lost and repaired.
_REST_S = 8.0
#: Own keys live this long in small meshes, so that they are refreshed, and those of dead sites end, within a schedule.
_OWN_TTL_MS = 20_000
_MANY = 50
_LARGE = 41


@attrs.frozen
class Outcome:
    """What came of it."""

    seed: int
    violations: tuple[str, ...]
    sites: int
    messages: int
    calm_s: float
    faults: Counter[str]
    digest: str


def mesh(random: Random, size: int) -> list[tuple[int, int]]:
    """Pairs of the site that dials and the one that it dials."""
    shape = random.choice(["line", "ring", "star", "random"])
    if shape == "star":
        pairs = [(0, n) for n in range(1, size)]
    else:
        pairs = [(n, n + 1) for n in range(size - 1)]
        if shape == "ring" and size > 2:
            pairs.append((size - 1, 0))
        if shape == "random":
            pairs = [(random.randrange(n), n) for n in range(1, size)]
            sampled = (random.sample(range(size), 2) for _ in range(size // 2))
            pairs += [(one, other) for one, other in sampled]
    return [pair if random.random() < 0.5 else pair[::-1] for pair in dict.fromkeys(pairs)]


def size_of(random: Random) -> int:
    """Mostly a few sites, now and then many."""
    chance = random.random()
    if chance < 0.9:
        return random.randint(3, 5)
    if chance < 0.996:
        return random.randint(6, 12)
    return random.randint(13, 40) if chance < 0.9997 else random.randint(41, 200)


class Schedule:
    """One of them."""

    def __init__(self, seed: int, size: int | None = None) -> None:
        self.world = world = World(seed)
        random = world.random
        self._chance = Random(f"{seed} stands still")  # schedules in which no site does are as they were
        self.faults: Counter[str] = Counter()
        size = size or size_of(random)
        self._ttl_ms = _OWN_TTL_MS if size < _MANY else 15 * _OWN_TTL_MS
        everyone_has_ranges = random.random() < 0.7
        self.nodes = []
        for n in range(size):
            capabilities = ("ranges",) if everyone_has_ranges or random.random() < 0.5 else ("something",)
            rate = FloodRate(random.choice([10, 30]), random.choice([1, 3])) if random.random() < 0.1 else None
            rate = rate if size < _MANY else None  # refreshes alone would be more
            self.nodes.append(Node(world, f"site{n}", capabilities, rate, self._ttl_ms))
        for number, (dialer, listener) in enumerate(mesh(random, size)):
            edge = Edge(number, self.nodes[dialer], self.nodes[listener])
            world.edges.append(edge)
            edge.dialer.edges.append(edge)
            edge.listener.edges.append(edge)
        self._is_tampered = everyone_has_ranges and random.random() < 0.05
        for node in self.nodes:
            world.at(random.uniform(0.0, 0.5), node.start)

    # -- what happens --------------------------------------------------------------------------------------------------

    def trouble(self, length: float) -> None:
        """Updates and failures for some seconds."""
        world, random = self.world, self.world.random
        world.loss = random.choice([0.0, 0.0, 0.02, 0.1])
        world.longest_delay = random.choice([0.005, 0.05, 0.3])
        for _ in range(random.randint(2, 12)):
            world.at(random.uniform(0.0, length), self._update)
        for _ in range(random.randint(0, 4)):
            faults = [self._cut, self._cut, self._hold, self._reconnect, self._restart, self._isolate, self._halve]
            faults.append(self._remove_peer)
            fault = random.choice(faults)
            self.faults[fault.__name__.strip("_")] += 1
            world.at(random.uniform(0.0, length), fault)
        if len(self.nodes) >= _LARGE:
            self.faults["halve"] += 1
            world.at(random.uniform(0.0, length), self._halve)
        if random.random() < 0.05 and len(self.nodes) < _MANY:
            self.faults["death"] += 1
            world.at(random.uniform(0.0, length), self._die)
        if self._chance.random() < 0.2:
            self.faults["freeze"] += 1
            world.at(self._chance.uniform(0.0, length), self._freeze)
        world.run_until(length)

    def _alive(self) -> list[Node]:
        return [node for node in self.nodes if node.is_alive]

    def _update(self) -> None:
        random, alive = self.world.random, [node for node in self._alive() if not node.is_frozen]
        if not alive:  # all of them are just started again
            return
        node = random.choice(alive)
        for _ in range(random.choice([1, 1, 5])):
            node.set(f"key{random.randrange(6)}", random.randbytes(random.choice([0, 3, 60])))
        node.turn()

    def _mend(self, edge: Edge) -> None:
        edge.is_cut = False
        if self.world.random.random() < 0.5:
            edge.reconnect()

    def _cut(self) -> None:
        edge = self.world.random.choice(self.world.edges)
        edge.is_cut = True
        self.world.at(self.world.now + self.world.random.uniform(0.2, 8.0), lambda: self._mend(edge))

    def _isolate(self) -> None:
        node = self.world.random.choice(self.nodes)
        length = self.world.random.uniform(0.5, 8.0)
        for edge in node.edges:
            edge.is_cut = True
            self.world.at(self.world.now + length, partial(self._mend, edge))

    def _halve(self) -> None:
        """Two halves that do not reach each other, and go on by themselves."""
        half = self.world.random.sample(self.nodes, len(self.nodes) // 2)
        length = self.world.random.uniform(0.5, 8.0)
        for edge in self.world.edges:
            if (edge.dialer in half) != (edge.listener in half):
                edge.is_cut = True
                self.world.at(self.world.now + length, partial(self._mend, edge))

    def _remove_peer(self) -> None:
        """A site hangs up for good; later its operator thinks otherwise."""
        edge = self.world.random.choice(self.world.edges)
        edge.dialer.hang_up(edge)
        self.world.at(self.world.now + self.world.random.uniform(0.5, 8.0), partial(edge.dialer.dial, edge))

    def _hold(self) -> None:
        edge = self.world.random.choice(self.world.edges)
        edge.held_until = self.world.now + self.world.random.uniform(0.5, 4.0)

    def _reconnect(self) -> None:
        edge = self.world.random.choice(self.world.edges)
        old = edge.accepted
        edge.reconnect()
        if self.world.random.random() < 0.5:
            edge.listener.lost(old)

    def _restart(self) -> None:
        node = self.world.random.choice(self.nodes)
        if node.is_alive:
            node.stop()
            self.world.at(self.world.now + self.world.random.choice([0.1, 2.0, 6.0]), node.start)

    def _freeze(self) -> None:
        node = self._chance.choice(self.nodes)
        node.freeze(after_hellos=self._chance.random() < 0.5)
        self.world.at(self.world.now + self._chance.uniform(0.5, 8.0), node.wake)

    def _die(self) -> None:
        self.world.random.choice(self.nodes).stop()

    # -- calm ----------------------------------------------------------------------------------------------------------

    def calm(self) -> float:
        """Nothing fails any more. Returns the seconds until all was equal."""
        world = self.world
        world.loss, world.longest_delay = 0.0, 0.02
        world.run_until(world.now + 9.0)  # what was cut is mended, what was stopped is started
        began = world.now
        if self._is_tampered:
            self._lose_an_entry()
        limit = _CHECKED_S if self._is_tampered else _CALM_S
        if any(not node.is_alive for node in self.nodes):
            limit = max(limit, _OWN_TTL_MS / 1000 * 1.1)
        while not world.violations and not self._is_equal():
            if world.now - began > limit:
                world.complain(f"after {limit} s of calm {self._difference()}")
            world.run_until(world.now + 0.5)
        return world.now - began

    def _lose_an_entry(self) -> None:
        self.faults["entry lost"] += 1
        node = self.world.random.choice(self._alive())
        for key in [f"key{n}" for n in range(6) if node.store.get(f"key{n}")][:1]:
            del node.store._entries[key]
            node.sums.change(key, None)
            node.sent.clear()

    def rest(self) -> None:
        """Without updates everything is equal, TTL versions and sums too.

        In a long line of many sites some refresh is always on its way: there, one of each key may be missing.
        """
        world = self.world
        end = world.now + _REST_S
        while not world.violations and not self._is_equal(to_the_letter=True):
            if world.now > end:
                if self._has_missed_refreshes():
                    world.complain(f"at rest {self._difference(to_the_letter=True)}")
                return
            world.run_until(world.now + 0.5)

    def _has_missed_refreshes(self) -> bool:
        """Whether a key is older somewhere than by the last refresh, or differs in anything else."""
        return bool(self._difference()) or any(
            abs(mine.ttl_version - theirs.ttl_version) > key.startswith("own:")
            for node in self._alive()
            for other in self._component(node)
            for key in node.store
            if (mine := node.store.get(key)) is not None and (theirs := other.store.get(key)) is not None
        )

    def one_update(self) -> None:
        """A single update reaches everyone with at most two messages for each connection."""
        world, alive = self.world, self._alive()
        node = world.random.choice(alive)
        node.set("last", b"x")
        node.turn()
        world.run_until(world.now + 0.1 * len(alive) + 2.0)
        reached = self._component(node)
        if any(other.store.get("last") is None for other in reached):
            world.complain(f"an update of {node.name} has not reached everyone")
        sent = sum(n for other in alive for key, n in other.sent.items() if key[1] == "last")
        edges = sum(edge.dialer in reached and edge.listener in reached for edge in world.edges)
        if sent > 2 * edges - len(reached) + 1:
            world.complain(f"an update took {sent} messages on {edges} connections of {len(reached)} sites")

    def _component(self, node: Node) -> list[Node]:
        found, front = [node], [node]
        while front:
            for edge in front.pop().edges:
                for other in (edge.dialer, edge.listener):
                    if other.is_alive and other not in found:
                        found.append(other)
                        front.append(other)
        return found

    def _contents(self, node: Node, *, to_the_letter: bool) -> object:
        entries = [(key, entry) for key in node.store if (entry := node.store.get(key))]
        if to_the_letter:
            return sorted((key, e.version, e.originator, e.value, e.ttl_version) for key, e in entries)
        return sorted((key, e.version, e.originator, e.value) for key, e in entries)

    def _is_equal(self, *, to_the_letter: bool = False) -> bool:
        return not self._difference(to_the_letter=to_the_letter)

    def _difference(self, *, to_the_letter: bool = False) -> str:
        """Empty if there is none."""
        for node in self._alive():
            reached = self._component(node)
            mine = self._contents(node, to_the_letter=to_the_letter)
            for other in reached:
                if self._contents(other, to_the_letter=to_the_letter) != mine:
                    theirs = self._contents(other, to_the_letter=to_the_letter)
                    return f"{node.name} has {mine}, {other.name} has {theirs}"
                if to_the_letter and other.sums.total != node.sums.total:
                    return f"{node.name} and {other.name} have equal entries and other sums"
                own = other.store.get(other.own_key)
                if own is None or own.value != other.own_value:
                    return f"{other.name} keeps {other.own_value!r} alive, and has {own}"
            names = {other.own_key for other in reached}
            if any(key.startswith("own:") and key not in names for key in node.store):
                return f"{node.name} has the key of a site that is gone"
            peers = node.site.replicas[AREA].peers.values()
            near = {other.name for edge in node.edges for other in (edge.dialer, edge.listener) if other.is_alive}
            states = {peer.name: peer.status.state for peer in peers if peer.name in near}
            if len(states) < len(near - {node.name}) or any(s is not PeerState.INITIALIZED for s in states.values()):
                return f"{node.name} has peers {states}"
        return ""


def run_schedule(seed: int, size: int | None = None) -> Outcome:
    """All of it."""
    with pytest.MonkeyPatch.context() as patch:
        # Parts of a few entries, so that syncs have many of them.
        part_bytes = Random(seed).choice([150, 400, SYNC_BYTES])
        patch.setattr(sync, "SYNC_BYTES", part_bytes)
        return _run(Schedule(seed, size), seed)


def _run(schedule: Schedule, seed: int) -> Outcome:
    world = schedule.world
    schedule.trouble(world.random.uniform(4.0, 14.0))
    calm_s = schedule.calm() if not world.violations else 0.0
    if not world.violations:
        schedule.rest()
    if not world.violations:
        schedule.one_update()
    digest = hashlib.sha256(repr((world.messages, world.now, world.random.random())).encode()).hexdigest()
    return Outcome(seed, tuple(world.violations), len(schedule.nodes), world.messages, calm_s, schedule.faults, digest)
