"""Which key expires next.

A heap of (deadline, key) with lazy deletion: a SET that moves or removes an expiry leaves its old item behind, and
items that no longer agree with the keyspace are skipped. A lock that is renewed a thousand times a second would grow
the heap for ever, so it is rebuilt when more than half of it is stale; that costs a constant per change on average.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ExpiryQueue"]

_SMALL: Final = 64  # below this many stale items rebuilding is not worth it


class ExpiryQueue:
    """Deadlines are monotonic seconds. ``expires_at`` tells the deadline that the keyspace has for a key."""

    __slots__ = ("_expires_at", "_heap", "_stale")

    def __init__(self, expires_at: Callable[[bytes], float | None]) -> None:
        self._expires_at = expires_at
        self._heap: list[tuple[float, bytes]] = []
        self._stale = 0

    def __len__(self) -> int:
        """Items in the heap, stale ones included."""
        return len(self._heap)

    def schedule(self, key: bytes, deadline: float) -> None:
        """The key now expires at ``deadline``. An earlier deadline of it must be forgotten as well."""
        heappush(self._heap, (deadline, key))

    def forget_one(self) -> None:
        """One scheduled item no longer agrees with the keyspace, which was changed before this call."""
        self._stale += 1
        if self._stale > _SMALL and self._stale * 2 > len(self._heap):
            self._rebuild()

    def _rebuild(self) -> None:
        # dict.fromkeys: a key that got the same deadline twice keeps one item.
        self._heap = [item for item in dict.fromkeys(self._heap) if self._expires_at(item[1]) == item[0]]
        heapify(self._heap)
        self._stale = 0

    def pop_due(self, now: float) -> bytes | None:
        """The next key whose deadline has come, None if there is none. The caller removes it from the keyspace."""
        deadline = self.next_deadline()
        if deadline is None or deadline > now:
            return None
        return heappop(self._heap)[1]

    def next_deadline(self) -> float | None:
        """The earliest deadline that still holds."""
        while self._heap:
            deadline, key = self._heap[0]
            if self._expires_at(key) == deadline:
                return deadline
            heappop(self._heap)
            self._stale = max(0, self._stale - 1)
        return None
