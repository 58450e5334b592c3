"""Which clients observe which keys.

Source: state store protocol, "KEYNOTIFY request messages" and "KEYNOTIFY notification topics and lifecycle": one
observation per client and key, forgotten when the client disconnects. They have quotas of their own, and take nothing
of what there is for keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statestore_client.server.shares import Shares

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from statestore_client.server.store.values import StoreLimits

__all__ = ["OBSERVATION_OVERHEAD_BYTES", "PER_CLIENT", "Observers"]

#: What an observation costs beside the bytes of its key: two dictionary slots, and mostly their dictionaries.
OBSERVATION_OVERHEAD_BYTES: Final = 256

#: What the names of quotas of one client end with.
PER_CLIENT: Final = "-per-client"

_Ordered = dict[str, None]  # a set that remembers the order, so that equal inputs give equal outputs


class Observers:
    """Invariant: both directions hold the same pairs; ``number`` and ``bytes`` are how many there are and what they
    cost, each pair for the user that its client had when it first observed something. (A client that comes back as
    another user has been disconnected.)
    """

    __slots__ = ("_by_client", "_by_key", "_bytes_of", "_limits", "_user_of", "bytes", "number")

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self.number: Final = Shares("observations", limits.max_observations, limits.max_observations_per_user)
        self.bytes: Final = Shares(
            "observation-bytes", limits.max_observation_bytes, limits.max_observation_bytes_per_user
        )
        self._by_key: dict[bytes, _Ordered] = {}
        self._by_client: dict[str, dict[bytes, None]] = {}
        self._bytes_of: dict[str, int] = {}  # for each client what its pairs cost
        self._user_of: dict[str, str | None] = {}  # of each client

    def lacking(self, client_id: str, key: bytes, user: str | None) -> str | None:
        """The name of the quota that does not allow this observation; None if all do, or if it is there already."""
        if self.has(client_id, key):
            return None
        cost, limits = len(key) + OBSERVATION_OVERHEAD_BYTES, self._limits
        if len(self._by_client.get(client_id, ())) >= limits.max_observations_per_client:
            return self.number.name + PER_CLIENT
        if self._bytes_of.get(client_id, 0) + cost > limits.max_observation_bytes_per_client:
            return self.bytes.name + PER_CLIENT
        user = self._user_of.get(client_id, user)
        return self.number.lacking(user, 1, 1) or self.bytes.lacking(user, cost, cost)

    def clients(self) -> Iterable[tuple[str, Collection[bytes]]]:
        """Each client that observes something, and what. Do not change them while iterating."""
        return self._by_client.items()

    def of(self, key: bytes) -> Iterable[str]:
        """The clients that observe the key, in the order in which they started to."""
        return self._by_key.get(key, ())

    def has(self, client_id: str, key: bytes) -> bool:
        """Whether the client observes the key."""
        return client_id in self._by_key.get(key, ())

    def add(self, client_id: str, key: bytes, user: str | None = None) -> None:
        """Start observing. Again for the same key changes nothing."""
        if not self.has(client_id, key):
            self._by_key.setdefault(key, {})[client_id] = None
            self._by_client.setdefault(client_id, {})[key] = None
            self._count(client_id, self._user_of.setdefault(client_id, user), key, 1)

    def remove(self, client_id: str, key: bytes) -> bool:
        """Stop observing; False when the client did not observe the key."""
        keys = self._by_client.get(client_id)
        if keys is None or key not in keys:
            return False
        del keys[key]
        self._forget(client_id, key)
        if not keys:
            del self._by_client[client_id], self._bytes_of[client_id], self._user_of[client_id]
        return True

    def remove_client(self, client_id: str) -> None:
        """Forget everything that the client observes."""
        for key in self._by_client.pop(client_id, ()):
            self._forget(client_id, key)
        self._bytes_of.pop(client_id, None)
        self._user_of.pop(client_id, None)

    def _forget(self, client_id: str, key: bytes) -> None:
        clients = self._by_key[key]
        del clients[client_id]
        if not clients:
            del self._by_key[key]
        self._count(client_id, self._user_of[client_id], key, -1)

    def _count(self, client_id: str, user: str | None, key: bytes, sign: int) -> None:
        cost = sign * (len(key) + OBSERVATION_OVERHEAD_BYTES)
        self.number.add(user, sign)
        self.bytes.add(user, cost)
        self._bytes_of[client_id] = self._bytes_of.get(client_id, 0) + cost
