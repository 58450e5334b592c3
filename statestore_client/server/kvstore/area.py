"""One area at one site: its entries, the keys that the site keeps alive in it, and who follows it.

What is taken, from wherever, is published to the subscribers at once and, if it began here, waits to be sent to peers:
:meth:`Area.take_local_changes`. What a peer has sent is sent on by who received it. Nothing here waits, and an entry
that is refused, or a subscriber that does not keep up, changes nothing for the others.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.server.kvstore.area_store import (
    DEFAULT_LIMITS,
    AreaLimits,
    AreaStore,
    MergeResult,
    entry_bytes,
    slices,
)
from statestore_client.server.kvstore.own_keys import DEFAULT_KEY_TTL_MS, OwnKeys
from statestore_client.server.kvstore.patterns import ALL_KEYS, KeyFilter
from statestore_client.wire.kvstore.value import Publication, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# -- subscribers -------------------------------------------------------------------------------------------------------
#
# Those that follow an area: all of them read one history of its publications. (facts §6.4)
#
# A publication has a number; a large one is cut, and each part has a number. A subscriber that begins gets the number
# of the last one. It reads a snapshot after that, in pages: what changes meanwhile is in the history, so nothing is
# lost in between, and some of it may come twice. The history is bounded: a subscriber whose next publication is not
# there any more has fallen behind, and begins again with a snapshot. The others notice nothing.
#
# While nobody follows, nothing is kept, and publications are counted only.


#: What a key, its entry and its place in the history take besides their bytes, roughly.
_OVERHEAD: Final = 256
#: So long after the last request of a client the history is kept for the next one.
KEPT_S: Final = 60.0


@attrs.frozen
class HistoryLimits:
    """How far subscribers of an area may fall behind."""

    max_publications: int = 10_000
    max_bytes: int = 16 << 20


@attrs.frozen
class SubscriberOptions:
    """What a subscriber wants."""

    key_filter: KeyFilter = ALL_KEYS
    #: Leave out entries without a value, which are about TTLs only.
    ignore_ttl: bool = True
    #: Hashes in place of values.
    omit_values: bool = False

    def wanted(self, publication: Publication) -> Publication | None:
        """The part of it that passes; None if nothing does."""
        if self.key_filter.is_open and not self.ignore_ttl and not self.omit_values:
            return publication
        entries = {
            key: entry.without_value() if self.omit_values else entry
            for key, entry in publication.entries.items()
            if not (self.ignore_ttl and entry.is_ttl_only) and self.key_filter.matches(key, entry)
        }
        expired = tuple(key for key in publication.expired_keys if self.key_filter.matches_key(key))
        if not entries and not expired:
            return None
        return attrs.evolve(publication, entries=entries, expired_keys=expired)


class AreaSubscription:
    """One subscriber's place in the history: all up to number ``at`` was looked at."""

    __slots__ = ("_history", "at", "options")

    def __init__(self, history: AreaSubscribers, at: int, options: SubscriberOptions) -> None:
        self._history = history
        self.at: int = at
        self.options: SubscriberOptions = options

    @property
    def is_at_end(self) -> bool:
        """Whether there is nothing that was not looked at."""
        return self.at >= self._history.number

    @property
    def has_fallen_behind(self) -> bool:
        """The next publication is not there any more: subscribe again, with a snapshot."""
        return not self._history.has_all_after(self.at)

    def next(self) -> Publication:
        """The next publication, all of it; it must be there. Raise ``at`` once it was looked at."""
        return self._history.after(self.at)

    def take(self) -> Publication | None:
        """The next one that is wanted; None if there is none now, or if the subscription has fallen behind."""
        while not self.is_at_end and not self.has_fallen_behind:
            wanted = self.options.wanted(self.next())
            self.at += 1
            if wanted is not None:
                return wanted
        return None


class AreaSubscribers:
    """Numbers the publications of an area, and keeps the last ones while somebody follows them."""

    def __init__(self, area: str, limits: HistoryLimits = HistoryLimits()) -> None:
        self._area = area
        self._limits = limits
        self._pieces: deque[tuple[Publication, int]] = deque()
        self._bytes = 0
        self._subscriptions: set[AreaSubscription] = set()
        self._kept_until = float("-inf")
        #: Of the last publication; 0 before the first.
        self.number: int = 0

    def __len__(self) -> int:
        """Subscriptions inside the server. Clients have none: they say where they are."""
        return len(self._subscriptions)

    def subscribe(self, options: SubscriberOptions) -> AreaSubscription:
        """From the next publication on, until :meth:`unsubscribe`."""
        subscription = AreaSubscription(self, self.number, options)
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: AreaSubscription) -> None:
        """Nothing more is kept for it; also for one that is gone already."""
        self._subscriptions.discard(subscription)

    def follow(self, options: SubscriberOptions, after: int | None, now: float) -> AreaSubscription:
        """For one request: after this number, or from the next publication on. What follows is kept for KEPT_S."""
        self._kept_until = now + KEPT_S
        return AreaSubscription(self, self.number if after is None else after, options)

    def tick(self, now: float) -> None:
        """Forget the history if nobody follows any more."""
        if self._pieces and not self._subscriptions and now >= self._kept_until:
            self._pieces.clear()
            self._bytes = 0

    def next_deadline(self) -> float | None:
        """When to call :meth:`tick`."""
        return self._kept_until if self._pieces and not self._subscriptions else None

    def has_all_after(self, number: int) -> bool:
        """Whether everything after this number is there."""
        return self.number - len(self._pieces) <= number <= self.number

    def after(self, number: int) -> Publication:
        """The publication that follows it, which must be there."""
        return self._pieces[number - self.number][0]

    def publish(
        self, entries: Mapping[str, Value], expired_keys: tuple[str, ...], sender: str | None, now: float
    ) -> None:
        """What has changed. Nothing changed is not a publication."""
        if not entries and not expired_keys:
            return
        if not self._subscriptions and now >= self._kept_until:
            self.number += 1
            self._pieces.clear()  # what comes after this one is not all that came
            self._bytes = 0
            return
        for piece in slices(entries):
            self._keep(piece, (), sender)
        if expired_keys:
            self._keep({}, expired_keys, sender)

    def _keep(self, entries: dict[str, Value], expired_keys: tuple[str, ...], sender: str | None) -> None:
        self.number += 1
        size = _OVERHEAD + sum(entry_bytes(key, entry) + _OVERHEAD for key, entry in entries.items())
        size += sum(len(key) + _OVERHEAD for key in expired_keys)
        self._pieces.append((Publication(self._area, self.number, entries, expired_keys, sender), size))
        self._bytes += size
        while len(self._pieces) > self._limits.max_publications or self._bytes > self._limits.max_bytes:
            self._bytes -= self._pieces.popleft()[1]


# -- area --------------------------------------------------------------------------------------------------------------


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

    def take_local_changes(self) -> dict[str, Value]:
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
