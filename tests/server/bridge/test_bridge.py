"""One state store and one area, with the bridge between them, and a clock that the test moves."""

from __future__ import annotations

from contextlib import nullcontext

from statestore_client.server.bridge.bridge import Bridge, BridgeEvent, BridgeOptions
from statestore_client.server.kvstore.admission import DEFAULT_LIMITS, AreaLimits
from statestore_client.server.kvstore.area import Area
from statestore_client.server.store import Change, RequestContext, SiteStore, StoreLimits
from statestore_client.wire.commands import Command, Del, KeyNotify, Set
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.kvstore.value import Value

__all__ = ["TTL_MS", "WALL", "BridgedPair"]

WALL = 1_696_374_425_000
TTL_MS = 8_000
_OPTIONS = BridgeOptions((b"line/",), imports=True)


class BridgedPair:
    """The site is rome. It exports ``line/``, and imports."""

    def __init__(
        self,
        options: BridgeOptions = _OPTIONS,
        *,
        store_limits: StoreLimits | None = None,
        area_limits: AreaLimits = DEFAULT_LIMITS,
    ) -> None:
        self.moment = 100.0
        self.calls = 0
        self.options = options
        self.area = Area("a", "rome", limits=area_limits, key_ttl_ms=TTL_MS, started_ms=self.now.wall_ms)
        self.store = SiteStore(
            clock=HybridLogicalClock("StateStore", guard=nullcontext()), limits=store_limits or StoreLimits()
        )
        self.bridge: Bridge | None = None

    def join(self) -> Bridge:
        """Make the bridge."""

        def count() -> None:
            self.calls += 1

        self.bridge = Bridge(self.store, self.area, "rome", self.options, count)
        return self.bridge

    @property
    def now(self) -> Instant:
        """By the clocks of the state store."""
        return Instant(self.moment, WALL + int(self.moment * 1000))

    def work(self) -> list[Change]:
        """All that there is to do. Returns what observers are told."""
        changes: list[Change] = []
        while self.bridge is not None and self.bridge.has_work:
            changes += self.bridge.step(self.now, self.moment)
        return changes

    def run(self, seconds: float) -> None:
        """Let the time pass, a tenth of a second at a time."""
        for _ in range(round(seconds * 10)):
            self.moment += 0.1
            self.area.tick(self.moment)
            self.work()

    def events(self) -> list[BridgeEvent]:
        """What the program is told."""
        return [] if self.bridge is None else self.bridge.take_events()

    # -- clients -------------------------------------------------------------------------------------------------------

    def apply(self, command: Command, token: HlcTimestamp | None = None) -> None:
        """As a client that is called alice."""
        stamp = HlcTimestamp(self.now.wall_ms, 0, "alice")
        self.store.apply(command, RequestContext("alice", stamp, token, self.now))

    def put(self, key: bytes, value: bytes = b"v", *, expiry_ms: int | None = None, fenced: bool = False) -> None:
        """A SET."""
        token = HlcTimestamp(self.now.wall_ms, 0, "alice") if fenced else None
        self.apply(Set(key, value, expiry_ms=expiry_ms), token)

    def delete(self, key: bytes) -> None:
        """A DEL."""
        self.apply(Del(key))

    def observe(self, key: bytes) -> None:
        """A KEYNOTIFY."""
        self.apply(KeyNotify(key))

    def value(self, key: bytes) -> bytes | None:
        """What a GET finds."""
        entry = self.store.entry(key, self.now)
        return None if entry is None else entry.value

    # -- other sites ---------------------------------------------------------------------------------------------------

    def arrive(self, name: str, value: bytes, originator: str, version: int = 1, ttl_ms: int = TTL_MS) -> None:
        """An entry of another site."""
        self.area.merge({name: Value(version, originator, value, ttl_ms)}, "oslo", self.moment)

    def said(self, name: str) -> tuple[bytes | None, str, int] | None:
        """What the KvStore has: value, originator, TTL."""
        entry = self.area.get(name)
        return None if entry is None else (entry.value, entry.originator, entry.ttl_ms)
