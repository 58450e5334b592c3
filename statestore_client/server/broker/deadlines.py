"""What is due when: one heap for keep-alives, session expiry, wills and retained messages.

Keep-alives move with every packet. Moving a heap entry that often would cost more than the packet, so an entry is only
looked at when it comes up, and whoever is called then may find that it is not due after all and ask again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from statestore_client.wire.instant import Instant

__all__ = ["Deadlines", "Due", "Timer"]

Due: TypeAlias = Callable[[Instant], None]

#: Cancelled entries hold their subjects in memory; fewer than this are not worth a rebuild of the heap.
_REBUILD_AT: Final = 64

#: Ten thousand connections may be lost in the same moment, and each may have a will.
_AT_ONCE: Final = 64


@attrs.define(eq=False)
class Timer:
    """One deadline; ``due`` is None once it was run or cancelled."""

    when: float  # monotonic seconds
    due: Due | None
    is_in_heap: bool = True


@attrs.define(eq=False)
class Deadlines:
    """Timers in order of time, equal times in order of asking."""

    _heap: list[tuple[float, int, Timer]] = attrs.Factory(list)
    _sequence: int = 0
    _cancelled: int = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def add(self, when: float, due: Due) -> Timer:
        timer = Timer(when, due)
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, timer))
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """Forget a timer; None, and those that were run or cancelled, are fine."""
        if timer is None or timer.due is None:
            return
        timer.due = None
        if not timer.is_in_heap:
            return
        self._cancelled += 1
        if self._cancelled > _REBUILD_AT and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].due is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def next_deadline(self) -> float | None:
        heap = self._heap
        while heap and heap[0][2].due is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def run(self, now: Instant) -> None:
        """Run the timers up to ``now``, some at a time: :meth:`next_deadline` tells if more are due. Those made
        meanwhile wait for the next call, even if already due. What one of them raises is raised here; those behind it
        are run by the next call.
        """
        due: deque[tuple[float, int, Timer]] = deque()
        while len(due) < _AT_ONCE and (when := self.next_deadline()) is not None and when <= now.monotonic:
            entry = heapq.heappop(self._heap)
            entry[2].is_in_heap = False
            due.append(entry)
        try:
            while due:
                timer = due.popleft()[2]
                # Read late: one timer may cancel another one of the same moment.
                action, timer.due = timer.due, None
                if action is not None:
                    action(now)
        finally:
            for entry in due:
                self._put_back(entry)

    def _put_back(self, entry: tuple[float, int, Timer]) -> None:
        """It was due, and one before it failed."""
        if entry[2].due is not None:
            entry[2].is_in_heap = True
            heapq.heappush(self._heap, entry)
