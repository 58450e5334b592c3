"""Which clients observe which keys.

Source: state store protocol, "KEYNOTIFY request messages" and "KEYNOTIFY notification topics and lifecycle": one
observation per client and key, forgotten when the client disconnects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["OBSERVATION_OVERHEAD_BYTES", "Observers"]

#: What an observation costs beside the bytes of its key: two dictionary slots, and mostly their dictionaries.
OBSERVATION_OVERHEAD_BYTES: Final = 256

_Ordered = dict[str, None]  # a set that remembers the order, so that equal inputs give equal outputs


class Observers:
    """Invariant: both directions hold the same pairs, and ``used_bytes`` is what all pairs cost."""

    __slots__ = ("_by_client", "_by_key", "_bytes_of", "count", "used_bytes")

    def __init__(self) -> None:
        self._by_key: dict[bytes, _Ordered] = {}
        self._by_client: dict[str, dict[bytes, None]] = {}
        self._bytes_of: dict[str, int] = {}  # for each client what its pairs cost
        self.count: int = 0
        self.used_bytes: int = 0

    def cost_of(self, client_id: str, key: bytes) -> int:
        """The bytes that ``add`` would use: none when the client observes the key already."""
        return 0 if self.has(client_id, key) else len(key) + OBSERVATION_OVERHEAD_BYTES

    def used_by(self, client_id: str) -> tuple[int, int]:
        """How many keys the client observes, and what they cost."""
        return len(self._by_client.get(client_id, ())), self._bytes_of.get(client_id, 0)

    def clients(self) -> Iterable[tuple[str, Collection[bytes]]]:
        """Each client that observes something, and what. Do not change them while iterating."""
        return self._by_client.items()

    def of(self, key: bytes) -> Iterable[str]:
        """The clients that observe the key, in the order in which they started to."""
        return self._by_key.get(key, ())

    def has(self, client_id: str, key: bytes) -> bool:
        """Whether the client observes the key."""
        return client_id in self._by_key.get(key, ())

    def add(self, client_id: str, key: bytes) -> None:
        """Start observing. Again for the same key changes nothing."""
        cost = self.cost_of(client_id, key)
        if cost:
            self._by_key.setdefault(key, {})[client_id] = None
            self._by_client.setdefault(client_id, {})[key] = None
            self.count += 1
            self.used_bytes += cost
            self._bytes_of[client_id] = self._bytes_of.get(client_id, 0) + cost

    def remove(self, client_id: str, key: bytes) -> bool:
        """Stop observing; False when the client did not observe the key."""
        keys = self._by_client.get(client_id)
        if keys is None or key not in keys:
            return False
        del keys[key]
        self._bytes_of[client_id] -= len(key) + OBSERVATION_OVERHEAD_BYTES
        if not keys:
            del self._by_client[client_id], self._bytes_of[client_id]
        self._forget(client_id, key)
        return True

    def remove_client(self, client_id: str) -> None:
        """Forget everything that the client observes."""
        self._bytes_of.pop(client_id, None)
        for key in self._by_client.pop(client_id, ()):
            self._forget(client_id, key)

    def _forget(self, client_id: str, key: bytes) -> None:
        clients = self._by_key[key]
        del clients[client_id]
        if not clients:
            del self._by_key[key]
        self.count -= 1
        self.used_bytes -= len(key) + OBSERVATION_OVERHEAD_BYTES
