"""Those that follow an area: what is new goes into the queue of each subscriber that wants it. (facts §6.4)

A subscriber that begins gets the number of the last publication. It reads a snapshot after that, in pages: what changes
meanwhile is in its queue, so nothing is lost in between, and some of it may come twice. A queue is bounded: a
subscription that falls behind is ended, its reader is told so after what was queued, and begins again with a snapshot.
The others notice nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.server.kvstore.admission import entry_bytes
from statestore_client.server.kvstore.key_filter import ALL_KEYS, KeyFilter
from statestore_client.wire.kvstore.value import Publication, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AreaSubscribers", "AreaSubscription", "SubscriberOptions"]

#: What a key, its entry and its place in a queue take besides their bytes, roughly.
_OVERHEAD: Final = 256


@attrs.frozen
class SubscriberOptions:
    """What a subscriber wants, and how far it may fall behind."""

    key_filter: KeyFilter = ALL_KEYS
    #: Leave out entries without a value, which are about TTLs only.
    ignore_ttl: bool = True
    #: Hashes in place of values.
    omit_values: bool = False
    max_queued: int = 10_000
    max_queued_bytes: int = 16 << 20

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
    """One subscriber. ``began_after``: the number of the last publication before it."""

    __slots__ = ("_bytes", "_is_ended", "_queue", "began_after", "id", "options")

    def __init__(self, number: int, began_after: int, options: SubscriberOptions) -> None:
        self.id = number
        self.began_after = began_after
        self.options = options
        self._queue: deque[tuple[Publication, int]] = deque()
        self._bytes = 0
        self._is_ended = False

    def __len__(self) -> int:
        """Publications that wait."""
        return len(self._queue)

    def push(self, publication: Publication) -> None:
        """Queue what passes. A queue that is full ends the subscription: what is in it is still delivered."""
        wanted = None if self._is_ended else self.options.wanted(publication)
        if wanted is None:
            return
        size = _OVERHEAD + sum(entry_bytes(key, entry) + _OVERHEAD for key, entry in wanted.entries.items())
        size += sum(len(key) + _OVERHEAD for key in wanted.expired_keys)
        is_full = len(self._queue) >= self.options.max_queued or self._bytes + size > self.options.max_queued_bytes
        if is_full:
            self._is_ended = True
            return
        self._queue.append((wanted, size))
        self._bytes += size

    def take(self) -> Publication | None:
        """The next one; None if there is none now."""
        if not self._queue:
            return None
        publication, size = self._queue.popleft()
        self._bytes -= size
        return publication

    @property
    def is_over(self) -> bool:
        """It fell behind and was ended, and all that was queued before is taken. Subscribe again, with a snapshot."""
        return self._is_ended and not self._queue

    @property
    def has_fallen_behind(self) -> bool:
        """It was ended; what was queued before may still be taken."""
        return self._is_ended


class AreaSubscribers:
    """Numbers the publications of an area, and hands them out."""

    def __init__(self, area: str) -> None:
        self._area = area
        self._subscriptions: dict[int, AreaSubscription] = {}
        self._last_id = 0
        #: Of the last publication; 0 before the first.
        self.number = 0

    def __len__(self) -> int:
        return len(self._subscriptions)

    def subscribe(self, options: SubscriberOptions) -> AreaSubscription:
        """From the next publication on."""
        self._last_id += 1
        subscription = AreaSubscription(self._last_id, self.number, options)
        self._subscriptions[subscription.id] = subscription
        return subscription

    def unsubscribe(self, subscription: AreaSubscription) -> None:
        """Nothing more is queued; also for one that is gone already."""
        self._subscriptions.pop(subscription.id, None)

    def publish(
        self, entries: Mapping[str, Value], expired_keys: tuple[str, ...], sender: str | None
    ) -> Publication | None:
        """What has changed. Nothing changed is not a publication."""
        if not entries and not expired_keys:
            return None
        self.number += 1
        publication = Publication(self._area, self.number, entries, expired_keys, sender)
        for subscription in self._subscriptions.values():
            subscription.push(publication)
        return publication
