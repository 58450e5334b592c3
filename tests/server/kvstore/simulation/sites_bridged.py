"""Sites with a state store and a bridge, in the simulated network."""

from __future__ import annotations

from contextlib import nullcontext

from sites_node import Node
from sites_world import World

from statestore_client.server.bridge.bridge import Bridge, BridgeOptions
from statestore_client.server.bridge.names import RESERVED_BYTES
from statestore_client.server.store import RequestContext, SiteStore
from statestore_client.wire.commands import Command, Condition, Del, Set
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant

__all__ = ["TTL_MS", "BridgedNode"]

TTL_MS = 5_000
_WALL_MS = 1_696_374_425_000
_LEASE_MS = 600_000


class BridgedNode(Node):
    """Its state store survives a restart, or does not, as the test says."""

    def __init__(self, world: World, name: str, options: BridgeOptions) -> None:
        self._options = options
        self.bridge: Bridge | None = None
        self.state = self._empty()
        super().__init__(world, name, ("ranges",), None, TTL_MS)

    def _empty(self) -> SiteStore:
        return SiteStore(clock=HybridLogicalClock("StateStore", guard=nullcontext()))

    def start(self) -> None:
        """A new incarnation of the site, and a new bridge to its state store."""
        if self.bridge is not None:
            self.bridge.close()
            self.bridge = None
        super().start()
        self.bridge = Bridge(self.state, self.area, self.name, self._options, lambda: None)
        self.turn()

    def lose_everything(self) -> None:
        """What the state store has, as if there were no disk. For the time while it is stopped."""
        self.state = self._empty()

    def lose_imports(self) -> None:
        """As a durable server does that starts again."""
        for key in self.keys():
            if key.startswith(RESERVED_BYTES):
                self.state.drop_import(key, self.instant)

    def turn(self) -> None:
        """The bridge between what the site has received and what it sends."""
        self._work()
        super().turn()
        if self._work():
            self._set_timer()

    def _work(self) -> bool:
        has_worked = False
        while self.bridge is not None and self.bridge.has_work:
            self.bridge.step(self.instant, self.now)
            has_worked = True
        return has_worked

    # -- clients of the state store ------------------------------------------------------------------------------------

    @property
    def instant(self) -> Instant:
        """By the clocks of the state store."""
        return Instant(self.world.now, _WALL_MS + int(self.world.now * 1000))

    def _apply(self, command: Command, *, token: bool = False) -> None:
        stamp = HlcTimestamp(self.instant.wall_ms, 0, "client")
        self.state.apply(command, RequestContext("client", stamp, stamp if token else None, self.instant))
        if self.is_alive:
            self.turn()

    def put(self, key: bytes, value: bytes, *, token: bool = False) -> None:
        """A plain value, or one with a fencing mark."""
        self._apply(Set(key, value), token=token)

    def lock(self, key: bytes) -> None:
        """As the clients' locks do it."""
        self._apply(Set(key, b"holder", Condition.NX, _LEASE_MS))

    def delete(self, key: bytes) -> None:
        """If no mark protects it."""
        self._apply(Del(key))

    def keys(self) -> list[bytes]:
        """All of the state store."""
        return list(self.state.keys_from(b"", inclusive=True))

    def contents(self, *, imports: bool) -> dict[bytes, bytes]:
        """What clients read: imports, or what crosses to other sites."""
        found = {}
        for key in self.keys():
            entry = self.state.entry(key, self.instant)
            if entry is None or key.startswith(RESERVED_BYTES) is not imports:
                continue
            is_plain = entry.expires_at is None and entry.fence is None
            if imports or (key.startswith(self._options.exports) and is_plain):
                found[key] = entry.value
        return found
