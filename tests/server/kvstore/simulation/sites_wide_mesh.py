"""A wide mesh of sites that hold little: how long an update takes to get everywhere, and what it costs.

The sites and the network are those of the schedules. Some of them keep a key alive, whose time to live is over many
times while updates go out.
"""

from __future__ import annotations

from random import Random

import attrs
from sites_node import AREA, FLOOD_CODE, Member
from sites_world import Edge, World

from statestore_client.server.kvstore.area import Area
from statestore_client.server.kvstore.members import SiteSettings
from statestore_client.server.kvstore.site import Site
from statestore_client.wire.kvstore.value import INFINITE_TTL_MS, Value

#: Seconds in which peers say hello and compare their empty stores.
_WARM_UP_S = 15.0
#: Of the keys that sites keep alive; they are sent again four times as often.
_KEY_TTL_MS = 60_000
#: Seconds for one update: several heartbeats, which find what was lost.
_WINDOW_S = 5.0
#: A site without the update after so long will not get it.
_GIVE_UP_S = 120.0


@attrs.frozen
class Spread:
    """What became of one update."""

    #: Seconds until each of the other sites had it, in order.
    reached_s: tuple[float, ...]
    #: Those in which it was.
    flood_messages: int
    flood_bytes: int
    #: All that was sent meanwhile, heartbeats and repairs too, and for how long.
    all_bytes: int
    seconds: float


class _Member(Member):
    """One that counts what it sends."""

    def __init__(self, mesh: WideMesh, name: str) -> None:
        super().__init__(mesh.world, name)
        self._mesh = mesh
        random = mesh.world.random
        self.area = Area(AREA, name, key_ttl_ms=_KEY_TTL_MS)
        settings = SiteSettings(name, random.getrandbits(64))
        self.site = Site(settings, [self.area], Random(random.random()), self.now)

    def join(self) -> None:
        """Dial what it dials."""
        for edge in self.edges:
            if edge.dialer is self:
                self.site.members.dial(edge.dialled, self.now)
        self.turn()

    def set(self, key: str, value: bytes) -> None:
        """A new entry, which never expires."""
        self.area.set({key: Value(1, self.name, value, INFINITE_TTL_MS)}, self.now)
        self.turn()

    def keep_alive(self, key: str) -> None:
        """Advertise it, and again and again."""
        self.area.own.persist(key, b"alive", self.now)
        self.turn()

    def tick(self) -> None:
        super().tick()
        self._mesh.look_at(self)

    def sends(self, edge: Edge, data: bytes) -> None:
        self._mesh.count(data)


class WideMesh:
    """``size`` sites on two rings in random order: everyone has four peers, or hardly fewer. The first ``own_keys`` of
    them keep a key alive each.
    """

    def __init__(self, size: int, loss: float, seed: int = 1, *, own_keys: int = 0) -> None:
        self.world = World(seed)
        self.world.loss = loss
        random = self.world.random
        self._key = ""
        self._began = 0.0
        self._reached: dict[str, float] = {}
        self._flood_messages = self._flood_bytes = self._all_bytes = 0
        self.members = [_Member(self, f"site{number}") for number in range(size)]
        pairs: dict[frozenset[int], None] = {}
        for _ in range(2):
            order = random.sample(range(size), size)
            pairs.update(dict.fromkeys(map(frozenset, zip(order, [*order[1:], order[0]], strict=True))))
        for number, (one, other) in enumerate(pairs):
            edge = Edge(number, self.members[one], self.members[other])
            self.members[one].edges.append(edge)
            self.members[other].edges.append(edge)
        self.edges = len(pairs)
        for member in self.members:
            self.world.at(random.uniform(0.0, 1.0), member.join)
        self.world.run_until(_WARM_UP_S)
        self._own_keys = [f"own/{number}" for number in range(own_keys)]
        for member, key in zip(self.members, self._own_keys, strict=False):
            member.keep_alive(key)
        self.world.run_until(_WARM_UP_S + _WINDOW_S)

    @property
    def lacking(self) -> int:
        """How many of the keys that are kept alive are not where they should be: everywhere."""
        return sum(member.area.store.get(key) is None for member in self.members for key in self._own_keys)

    @property
    def expired(self) -> int:
        """How many keys have expired so far, at all sites together."""
        return sum(member.area.store.counters.expired for member in self.members)

    def look_at(self, member: _Member) -> None:
        """Note when the update came there."""
        if self._key and member.name not in self._reached and member.area.store.get(self._key) is not None:
            self._reached[member.name] = self.world.now - self._began

    def count(self, data: bytes) -> None:
        """One message that is sent, whether it arrives or not."""
        self._all_bytes += len(data)
        if data[1] == FLOOD_CODE and self._key.encode() in data:
            self._flood_messages += 1
            self._flood_bytes += len(data)

    def update(self, value: bytes) -> Spread:
        """One site sets a key; what became of it when everyone has it, or nobody can be expected to get it any more."""
        world = self.world
        self._began, self._reached = world.now, {}
        self._key = f"update at {world.now:.1f}"
        self._flood_messages = self._flood_bytes = self._all_bytes = 0
        world.random.choice(self.members).set(self._key, value)
        world.run_until(world.now + _WINDOW_S)
        while len(self._reached) < len(self.members) and world.now - self._began < _GIVE_UP_S:
            world.run_until(world.now + 1.0)
        return Spread(
            tuple(sorted(self._reached.values())[1:]),
            self._flood_messages,
            self._flood_bytes,
            self._all_bytes,
            world.now - self._began,
        )
