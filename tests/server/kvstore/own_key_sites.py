"""Two or more sites whose areas are joined by perfect connections, with a clock that jumps."""

from __future__ import annotations

from collections.abc import Mapping

from statestore_client.server.kvstore.area import Area
from statestore_client.server.kvstore.area_store import slices
from statestore_client.wire.kvstore.value import Value

KEY_TTL_MS = 8000


class Mesh:
    """Every site is a peer of each other one. ``cut`` names those that hear nothing for now."""

    def __init__(self, *names: str, key_ttl_ms: int = KEY_TTL_MS) -> None:
        self.now = 100.0
        self.areas = {name: Area("0", name, key_ttl_ms=key_ttl_ms) for name in names}
        self.cut: set[str] = set()
        self.resyncs: list[tuple[str, str]] = []
        #: What was sent: time, sender, key, entry.
        self.sent: list[tuple[float, str, str, Value]] = []

    def settle(self) -> None:
        """Send what is new until nothing is."""
        busy = True
        while busy:
            busy = False
            for name, area in self.areas.items():
                entries = area.store.leaving(area.take_local_changes(), self.now)
                self.sent += [(self.now, name, key, entry) for key, entry in entries.items()]
                busy = busy or bool(entries)
                for other in self.areas:
                    if other != name and not {name, other} & self.cut:
                        self._deliver(name, other, entries)

    def _deliver(self, sender: str, receiver: str, entries: Mapping[str, Value]) -> None:
        for part in slices(entries):
            if self.areas[receiver].merge(part, sender, self.now).is_inconsistent:
                self.resyncs.append((receiver, sender))

    def sync(self, one: str, other: str) -> None:
        """Both send all that they have."""
        for sender, receiver in ((one, other), (other, one)):
            store = self.areas[sender].store
            self._deliver(sender, receiver, store.outgoing(list(store), self.now))
        self.settle()

    def run(self, seconds: float) -> None:
        """Let the time pass, from deadline to deadline."""
        end = self.now + seconds
        self.settle()
        while True:
            due = [at for area in self.areas.values() if (at := area.next_deadline()) is not None]
            if not due or min(due) > end:
                break
            self.now = max(self.now, min(due))
            for area in self.areas.values():
                area.tick(self.now)
            self.settle()
        self.now = end

    def at(self, name: str, key: str) -> tuple[int, str, bytes | None, int] | None:
        """What is stored at a site."""
        entry = self.areas[name].get(key)
        return None if entry is None else (entry.version, entry.originator, entry.value, entry.ttl_version)

    def ttl_ms(self, name: str, key: str) -> int:
        """That of a stored entry."""
        return self.areas[name].store._entries[key].ttl_ms

    def times(self, name: str, key: str, *, with_value: bool) -> list[float]:
        """When a site sent a key, from its beginning on."""
        return [
            round(at - 100.0, 3)
            for at, sender, sent, entry in self.sent
            if (sender, sent, entry.value is not None) == (name, key, with_value)
        ]
