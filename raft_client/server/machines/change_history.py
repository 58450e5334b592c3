"""The last changes of a state machine, as far as memory is set aside for them.

Source: State Watch pattern, "Storing Event History".
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from raft_client.wire.watch_messages import Events

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ChangeHistory"]

#: Places that were dropped are given back when there are so many of them, and as many as are left.
_SLACK = 1_000


class ChangeHistory:
    """Changes by the index of their entry, the oldest ones dropped when they take more than ``limit`` bytes.

    ``oldest``: everything that entries from this index on changed is here.
    """

    __slots__ = ("_bytes", "_dropped", "_events", "_indexes", "_limit", "oldest")

    def __init__(self, limit: int, oldest: int) -> None:
        self._limit = limit
        self._events: list[Events] = []
        self._indexes: list[int] = []
        self._dropped = 0
        self._bytes = 0
        self.oldest = oldest

    def append(self, events: Events) -> None:
        """What a later entry than all before changed."""
        self._events.append(events)
        self._indexes.append(events.index)
        self._bytes += events.size
        while self._bytes > self._limit and self._dropped < len(self._events):
            dropped = self._events[self._dropped]
            self._bytes -= dropped.size
            self._dropped += 1
            self.oldest = dropped.index + 1
        if self._dropped > _SLACK and 2 * self._dropped > len(self._events):
            del self._events[: self._dropped], self._indexes[: self._dropped]
            self._dropped = 0

    def after(self, index: int) -> Iterator[Events]:
        """What entries after ``index`` changed, in order; it must not be older than the history."""
        first = max(bisect_right(self._indexes, index), self._dropped)
        for place in range(first, len(self._events)):
            yield self._events[place]

    def clear(self, oldest: int) -> None:
        """Forget everything: a snapshot was restored, and nobody knows what it changed."""
        self._events.clear()
        self._indexes.clear()
        self._dropped = self._bytes = 0
        self.oldest = oldest
