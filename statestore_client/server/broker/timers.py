"""What is due when: keep-alives, session expiry, wills and retained messages.

Keep-alives move with every packet. Moving a timer that often would cost more than the packet, so a timer is only looked
at when it comes up, and whoever is called then may find that it is not due after all and ask again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from statestore_client.server.timer_heap import TimerHeap
from statestore_client.wire.instant import Instant

__all__ = ["Due", "Timer", "Timers"]

Due: TypeAlias = Callable[[Instant], None]

#: Ten thousand connections may be lost in the same moment, and each may have a will.
_AT_ONCE: Final = 64


@attrs.define(eq=False)
class Timer:
    """One deadline; ``due`` is None once it was run or cancelled."""

    when: float  # monotonic seconds
    due: Due | None
    is_in_heap: bool = True


#: When, a sequence number, and the timer.
_Item: TypeAlias = tuple[float, int, Timer]


def _is_wanted(item: _Item) -> bool:
    return item[2].due is not None


@attrs.define(eq=False)
class Timers:
    """Timers in order of time, equal times in order of asking."""

    _heap: TimerHeap[_Item] = attrs.Factory(lambda: TimerHeap(_is_wanted))
    _sequence: int = 0

    def __len__(self) -> int:
        return len(self._heap) - self._heap.stale

    def add(self, when: float, due: Due) -> Timer:
        timer = Timer(when, due)
        self._sequence += 1
        self._heap.add((when, self._sequence, timer))
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """Forget a timer; None, and those that were run or cancelled, are fine."""
        if timer is None or timer.due is None:
            return
        timer.due = None
        if timer.is_in_heap:
            self._heap.forget_one()

    def next_deadline(self) -> float | None:
        """When :meth:`run` is due, None for never. It may turn out that nothing was."""
        return self._heap.next_deadline()

    def run(self, now: Instant) -> None:
        """Run the timers up to ``now``, some at a time: :meth:`next_deadline` tells if more are due. Those made
        meanwhile wait for the next call, even if already due. What one of them raises is raised here; those behind it
        are run by the next call.
        """
        due: deque[_Item] = deque()
        for _ in range(_AT_ONCE):
            found = self._heap.pop_due(now.monotonic)
            if found is None:
                break
            item, is_wanted = found
            if is_wanted:
                item[2].is_in_heap = False
                due.append(item)
        try:
            while due:
                timer = due.popleft()[2]
                # Read late: one timer may cancel another one of the same moment.
                action, timer.due = timer.due, None
                if action is not None:
                    action(now)
        finally:
            for item in due:
                self._put_back(item)

    def _put_back(self, item: _Item) -> None:
        """It was due, and one before it failed."""
        if item[2].due is not None:
            item[2].is_in_heap = True
            self._heap.add(item)
