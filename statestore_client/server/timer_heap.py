"""What is due next, of things that change their minds: the timers of the broker, the expiries of the store.

A heap with lazy deletion. What no longer counts stays in it until it comes up: taking it out of the middle would cost
more than what it was for. A keep-alive that moves, or a lock that is renewed a thousand times a second, would grow the
heap for ever so; a new heap takes its place when more than half of it is *stale*.

There may be a million items, and nobody may have to wait until all of them were looked at. So every call does a bounded
number of steps: the old heap is emptied from its end, which leaves a heap, while it goes on to be used; and of many
stale items in front, the next call drops more.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final, Generic, TypeVar

#: Begins with its deadline. What follows decides the order of equal deadlines.
Item = TypeVar("Item", bound=tuple[Any, ...])

_SMALL: Final = 64  # below this many stale items a new heap is not worth it

#: Items that move into the new heap at each change. Invariant: more than one, so that the old heap is empty before half
#: of the new one is stale.
_MOVES: Final = 4

#: Stale items that are dropped in search for the next deadline: some dozen microseconds.
_DROPS: Final = 32


class TimerHeap(Generic[Item]):
    """Deadlines are monotonic seconds. ``holds`` tells whether an item still counts."""

    __slots__ = ("_heap", "_holds", "_old_heap", "stale")

    def __init__(self, holds: Callable[[Item], bool]) -> None:
        self._holds = holds
        self._heap: list[Item] = []
        self._old_heap: list[Item] = []  # what is still to be moved
        self.stale: int = 0  # how many of the items no longer count

    def __len__(self) -> int:
        """Items, stale ones included."""
        return len(self._heap) + len(self._old_heap)

    def add(self, item: Item) -> None:
        """An item that counts. An earlier one for the same thing must be forgotten as well."""
        heappush(self._heap, item)
        if self._old_heap:
            self._move_some()

    def forget_one(self) -> None:
        """One item no longer counts; what ``holds`` looks at was changed before this call."""
        self.stale += 1
        if self._old_heap:
            self._move_some()
        elif self.stale > _SMALL and self.stale * 2 > len(self._heap):
            self._heap, self._old_heap = [], self._heap

    def _move_some(self) -> None:
        old_heap = self._old_heap
        for _ in range(min(_MOVES, len(old_heap))):
            item = old_heap.pop()
            if self._holds(item):
                heappush(self._heap, item)
            else:
                self._dropped()

    def _dropped(self) -> None:
        self.stale = max(0, self.stale - 1)

    def pop_due(self, now: float) -> tuple[Item, bool] | None:
        """An item whose deadline has come, and whether it still counts; None if there is none."""
        heap = self._first_heap()
        if not heap or heap[0][0] > now:
            return None
        item = heappop(heap)
        holds = self._holds(item)
        if not holds:
            self._dropped()
        return item, holds

    def next_deadline(self) -> float | None:
        """The earliest deadline that still counts. Behind many stale ones, one of them, which is earlier."""
        heap, old_heap = self._heap, self._old_heap
        if not heap and not old_heap:
            return None
        if heap and not old_heap and self._holds(heap[0]):  # as it mostly is
            deadline: float = heap[0][0]
            return deadline
        first = self.first()
        return None if first is None else first[0]

    def first(self) -> Item | None:
        """The item of :meth:`next_deadline`, which stays."""
        if not self._heap and not self._old_heap:
            return None
        for _ in range(_DROPS):
            heap = self._first_heap()
            if not heap:
                return None
            if self._holds(heap[0]):
                break
            heappop(heap)
            self._dropped()
        heap = self._first_heap()
        return heap[0] if heap else None

    def _first_heap(self) -> list[Item]:
        """The one that has the earliest item; an empty one if there is none."""
        heap, old_heap = self._heap, self._old_heap
        return old_heap if old_heap and (not heap or old_heap[0] < heap[0]) else heap
