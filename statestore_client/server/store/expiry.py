"""Which key expires next.

A heap of (deadline, key) with lazy deletion: a SET that moves or removes an expiry leaves its old item behind, and
items that no longer agree with the keyspace are *stale*. A lock that is renewed a thousand times a second would grow
the heap for ever, so a new heap takes its place when more than half of it is stale.

There may be a million items, and nobody may have to wait until all of them were looked at. So every call does a bounded
number of steps: the old heap is emptied from its end, which leaves a heap, while it goes on to be used; and of many
stale items in front, the next call drops more.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ExpiryQueue"]

_Item: TypeAlias = tuple[float, bytes]

_SMALL: Final = 64  # below this many stale items a new heap is not worth it

#: Items that move into the new heap at each change. Invariant: more than one, so that the old heap is empty before half
#: of the new one is stale.
_MOVES: Final = 4

#: Stale items that are dropped in search for the next deadline: some dozen microseconds.
_DROPS: Final = 32


class ExpiryQueue:
    """Deadlines are monotonic seconds. ``expires_at`` tells the deadline that the keyspace has for a key."""

    __slots__ = ("_expires_at", "_heap", "_old_heap", "_stale")

    def __init__(self, expires_at: Callable[[bytes], float | None]) -> None:
        self._expires_at = expires_at
        self._heap: list[_Item] = []
        self._old_heap: list[_Item] = []  # what is still to be moved
        self._stale = 0

    def __len__(self) -> int:
        """Items, stale ones included."""
        return len(self._heap) + len(self._old_heap)

    def schedule(self, key: bytes, deadline: float) -> None:
        """The key now expires at ``deadline``. An earlier deadline of it must be forgotten as well."""
        heappush(self._heap, (deadline, key))
        if self._old_heap:
            self._move_some()

    def forget_one(self) -> None:
        """One scheduled item no longer agrees with the keyspace, which was changed before this call."""
        self._stale += 1
        if self._old_heap:
            self._move_some()
        elif self._stale > _SMALL and self._stale * 2 > len(self._heap):
            self._heap, self._old_heap = [], self._heap

    def _move_some(self) -> None:
        old_heap = self._old_heap
        for _ in range(min(_MOVES, len(old_heap))):
            item = old_heap.pop()
            if self._expires_at(item[1]) == item[0]:
                heappush(self._heap, item)
            else:
                self._dropped()

    def _dropped(self) -> None:
        self._stale = max(0, self._stale - 1)

    def pop_due(self, now: float) -> tuple[bytes, bool] | None:
        """A key whose deadline has come, and whether the deadline still holds; None if there is none.

        If it holds, the caller removes the key from the keyspace.
        """
        heap = self._first_heap()
        if not heap or heap[0][0] > now:
            return None
        deadline, key = heappop(heap)
        holds = self._expires_at(key) == deadline
        if not holds:
            self._dropped()
        return key, holds

    def next_deadline(self) -> float | None:
        """The earliest deadline that still holds. Behind many stale ones, one of them, which is earlier."""
        if not self._heap and not self._old_heap:
            return None
        for _ in range(_DROPS):
            heap = self._first_heap()
            if not heap:
                return None
            deadline, key = heap[0]
            if self._expires_at(key) == deadline:
                return deadline
            heappop(heap)
            self._dropped()
        heap = self._first_heap()
        return heap[0][0] if heap else None

    def _first_heap(self) -> list[_Item]:
        """The one that has the earliest item; an empty one if there is none."""
        heap, old_heap = self._heap, self._old_heap
        return old_heap if old_heap and (not heap or old_heap[0] < heap[0]) else heap
