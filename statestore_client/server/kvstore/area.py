"""One area at one site: its entries, the keys that the site keeps alive in it, and who follows it.

What is taken, from wherever, is published to the subscribers at once and, if it began here, waits to be sent to peers:
:meth:`Area.take_news`. What a peer has sent is sent on by who received it. Nothing here waits, and an entry that is
refused, or a subscriber that does not keep up, changes nothing for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore_client.server.kvstore.admission import DEFAULT_LIMITS, AreaLimits
from statestore_client.server.kvstore.own_keys import DEFAULT_KEY_TTL_MS, OwnKeys
from statestore_client.server.kvstore.store import AreaStore, MergeResult
from statestore_client.server.kvstore.subscribers import AreaSubscribers
from statestore_client.wire.kvstore.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Area"]


class Area:
    """Moments are monotonic seconds. ``on_change``: see :class:`AreaStore`; ``started_ms``: the wall clock, see
    :class:`OwnKeys`.
    """

    def __init__(
        self,
        name: str,
        site: str,
        *,
        limits: AreaLimits = DEFAULT_LIMITS,
        key_ttl_ms: int = DEFAULT_KEY_TTL_MS,
        started_ms: int = 0,
        on_change: Callable[[str, Value | None], None] | None = None,
    ) -> None:
        self.name = name
        self.store: AreaStore = AreaStore(name, limits, on_change=on_change)
        self.own: OwnKeys = OwnKeys(self.store, site, self.set, key_ttl_ms=key_ttl_ms, started_ms=started_ms)
        self.subscribers: AreaSubscribers = AreaSubscribers(name)
        #: A bridge exports and imports keys here: what is below ``sites/`` is written by sites, and by no client.
        self.is_bridged: bool = False
        self._news: dict[str, Value] = {}

    def get(self, key: str) -> Value | None:
        """What is stored, with the TTL that it came with."""
        return self.store.get(key)

    def outgoing(self, keys: Iterable[str], now: float) -> dict[str, Value]:
        """The entries of these keys for a peer: :meth:`AreaStore.outgoing`."""
        return self.store.outgoing(keys, now)

    def merge(self, entries: Mapping[str, Value], sender: str | None, now: float) -> MergeResult:
        """Take what a peer has sent, and tell subscribers. What was accepted is the caller's to send on."""
        result = self.store.merge(entries, sender, now)
        self.subscribers.publish(result.accepted, (), sender, now)
        return result

    def set(self, entries: Mapping[str, Value], now: float) -> MergeResult:
        """Take what a client, or this site itself, has to say. What was accepted waits to be sent to peers."""
        result = self.merge(entries, None, now)
        for key, entry in result.accepted.items():
            # The TTL alone is not enough where the value has not been sent yet.
            self._news[key] = entry if key not in self._news else self.store.get(key) or entry
        return result

    def take_news(self) -> dict[str, Value]:
        """What began here since the last call, for the peers."""
        news, self._news = self._news, {}
        return news

    def tick(self, now: float) -> None:
        """Do what is due, some of it: call it again while :meth:`next_deadline` is not later."""
        self.subscribers.publish({}, tuple(self.store.expire(now)), None, now)
        self.own.tick(now)
        self.subscribers.tick(now)

    def next_deadline(self) -> float | None:
        """When to call :meth:`tick`; None if nothing is due ever."""
        parts = (self.store, self.own, self.subscribers)
        return min((at for part in parts if (at := part.next_deadline()) is not None), default=None)
