"""One site: the real machine on a store, a program that uses it, and what must hold at every step."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from statestore_client.server.kvstore.area import Area
from statestore_client.server.kvstore.floods import FloodRate
from statestore_client.server.kvstore.members import DOWN_S, SiteSettings
from statestore_client.server.kvstore.own_keys import OwnNameInUse
from statestore_client.server.kvstore.peers import MalformedMessage, NameInUse
from statestore_client.server.kvstore.site import Site
from statestore_client.server.kvstore.sync import RangeSums
from statestore_client.wire.kvstore.codec import decode
from statestore_client.wire.kvstore.messages import Flood
from statestore_client.wire.kvstore.value import INFINITE_TTL_MS, Value

if TYPE_CHECKING:
    from sites_world import Edge, World

AREA = "plant"
FLOOD_CODE = 5
_CLOCKS_DIFFER = 1.03


class Member:
    """A site of a mesh, which does what is due and sends what it has to say."""

    site: Site
    #: Another site of the mesh has the same name.
    has_namesake = False

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.edges: list[Edge] = []
        self.is_alive = True
        self.is_frozen = False
        #: What has come while it stood still, and when.
        self._inbox: list[tuple[float, object, bytes]] = []
        self._clock_rate, self._clock_offset = 1.0, 0.0
        self._incarnation = 0
        self._timer: float | None = None

    @property
    def now(self) -> float:
        """By its own clock."""
        return self.world.now * self._clock_rate + self._clock_offset

    def receive(self, link: object, data: bytes) -> None:
        """From the network."""
        if self.is_frozen:
            self._inbox.append((self.world.now, link, data))
        elif self.is_alive:
            self.site.receive(link, data, self.now)
            self.turn()

    def tick(self) -> None:
        """Do what is due, and look at what came of it."""
        self.site.tick(self.now)

    def sends(self, edge: Edge, data: bytes) -> None:
        """Look at what is sent."""

    def turn(self) -> None:
        """Do what is due, send what is to be sent."""
        if self.is_frozen:
            return
        self.tick()
        self.site.events.clear()
        if self.site.output:
            output, self.site.output = self.site.output, []
            ends = {edge.dialled if edge.dialer is self else edge.accepted: edge for edge in self.edges}
            for edge, data in [(ends[link], data) for link, data in output if link in ends]:
                self.sends(edge, data)
                self.world.carry(edge, data, to_listener=edge.dialer is self)
        self._set_timer()

    def _set_timer(self) -> None:
        deadline = self.site.next_deadline(self.now)
        moment = max((deadline - self._clock_offset) / self._clock_rate, self.world.now + 0.001)
        if self._timer is not None and self._timer <= moment:
            return
        self._timer = moment
        incarnation = self._incarnation

        def fire() -> None:
            if self.is_alive and incarnation == self._incarnation and self._timer == moment:
                self._timer = None
                self.turn()

        self.world.at(moment, fire)


class Node(Member):
    """A site that may be started again: its store and all that it knew are gone then."""

    def __init__(
        self, world: World, name: str, capabilities: tuple[str, ...], rate: FloodRate | None, ttl_ms: int
    ) -> None:
        super().__init__(world, name)
        self._capabilities = capabilities
        self._rate = rate
        self._ttl_ms = ttl_ms
        self._clock_rate = 1.0 + world.random.uniform(-0.02, 0.02)
        self._clock_offset = world.random.uniform(0.0, 1000.0)
        self.sent: Counter[tuple[object, ...]] = Counter()
        self.start()

    def start(self) -> None:
        """Begin with nothing."""
        self._incarnation += 1
        self.is_alive, self.is_frozen = True, False
        self._inbox.clear()
        self.area = Area(AREA, self.name, key_ttl_ms=self._ttl_ms, started_ms=int(self.world.now * 1000))
        self.store = self.area.store
        self.sent.clear()
        self._timer = None
        settings = SiteSettings(self.name, self.world.random.getrandbits(64), self._rate, self._capabilities)
        seed = Random(f"{self.world.random.random()}")
        self.site = Site(settings, [self.area], seed, self.now)
        keep = self.area.own.set if self._incarnation % 2 else self.area.own.persist
        assert keep(self.own_key, self.own_value, self.now) is None
        for edge in self.edges:
            edge.reconnect()
            if edge.dialer is self:
                self.site.members.dial(edge.dialled, self.now)
        self.turn()

    def stop(self) -> None:
        """It is gone, and nobody is told."""
        self.is_alive = self.is_frozen = False
        for edge in self.edges:
            edge.reconnect()

    def freeze(self, *, after_hellos: bool) -> None:
        """It stands still, and its clock goes on; ``after_hellos``: when it has just dialled anew."""
        if self.is_alive and after_hellos:
            for edge in self.edges:
                if edge.dialer is self and self.site.members.links.get(edge.dialled) is not None:
                    edge.reconnect()
                    self.site.members.redial(edge.dialled, self.now)
            self.turn()
        self.is_frozen = self.is_alive

    def wake(self) -> None:
        """It finds what has come meanwhile before it does what is due, and takes nothing that is too old."""
        if not self.is_frozen:  # it was started again meanwhile
            return
        self.is_frozen = False
        inbox, self._inbox = self._inbox, []
        for came, link, data in inbox:
            before = self._taken
            self.site.receive(link, data, self.now)
            age = self.world.now - came
            if self._taken > before and age > _CLOCKS_DIFFER * DOWN_S:
                self.world.complain(f"{self.name} takes what is {age:.1f} s old: {decode(data)}")
        self.turn()

    @property
    def _taken(self) -> int:
        """Entries and times to live of others."""
        return self.store.counters.replaced + self.store.counters.refreshed

    @property
    def sums(self) -> RangeSums:
        """What the site keeps of the store."""
        return self.site.replicas[AREA].sums

    # -- the site ------------------------------------------------------------------------------------------------------

    def lost(self, link: object) -> None:
        """The network says that a connection is closed."""
        if self.is_alive and not self.is_frozen:
            self.site.members.lost(link, self.now)
            self.turn()

    def hang_up(self, edge: Edge) -> None:
        """The operator does not want this peer."""
        if self.is_alive and not self.is_frozen:
            self.site.members.hang_up(edge.dialled, self.now)
            self.turn()

    def dial(self, edge: Edge) -> None:
        """The operator wants it, and the site may do it already."""
        if self.is_frozen:
            self.world.at(self.world.now + 0.5, partial(self.dial, edge))
        elif self.is_alive and self.site.members.links.get(edge.dialled) is None:
            edge.reconnect()
            self.site.members.dial(edge.dialled, self.now)
            self.turn()

    def tick(self) -> None:
        """Nothing of its own expires, and it is not confused."""
        before = set(self.store)
        super().tick()
        over = before - set(self.store)
        if over:
            self.sent = Counter({sent: n for sent, n in self.sent.items() if sent[1] not in over})
            if self.own_key in over:
                self.world.complain(f"{self.name}: its own key has expired")
        for event in self.site.events:
            if isinstance(event, MalformedMessage | NameInUse):
                self.world.complain(f"{self.name}: {event}")
        if not self.has_namesake and any(isinstance(event, OwnNameInUse) for event in self.area.own.events):
            self.world.complain(f"{self.name} takes itself for another site")

    def sends(self, edge: Edge, data: bytes) -> None:
        """No flood goes in a circle, or twice to a peer."""
        if data[1] != FLOOD_CODE:
            return
        flood = decode(data)
        assert isinstance(flood, Flood)
        peer = edge.listener if edge.dialer is self else edge.dialer
        if peer.name in flood.path:
            self.world.complain(f"{self.name} sends an update back to {peer.name}, which it came through: {flood.path}")
        if flood.path[-1] != self.name or len(set(flood.path)) < len(flood.path):
            self.world.complain(f"{self.name} sends an update in a circle: {flood.path}")
        for key, entry in flood.entries.items():
            stored = self.store.get(key)
            value = stored.value if stored and entry.value is None else entry.value
            sent = (peer.name, key, entry.version, entry.originator, value, entry.value is None, entry.ttl_version)
            self.sent[sent] += 1
            if self.sent[sent] > 1 and self._rate is None:
                self.world.complain(f"{self.name} sends {key} version {entry.version} to {peer.name} twice")

    # -- its program ---------------------------------------------------------------------------------------------------

    @property
    def own_key(self) -> str:
        """Nobody else sets it, but others remember it when this site has forgotten."""
        return f"own:{self.name}"

    @property
    def own_value(self) -> bytes:
        """Another one for each start, which the one of the start before would win against."""
        return b"%03d" % (999 - self._incarnation)

    def set(self, key: str, value: bytes, ttl_ms: int = INFINITE_TTL_MS) -> None:
        """A newer version than what is there."""
        stored = self.store.get(key)
        entry = Value(stored.version + 1 if stored else 1, self.name, value, ttl_ms)
        self.area.set({key: entry}, self.now)
