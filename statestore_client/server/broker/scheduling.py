"""What is due when: keep-alives, session expiry, wills and retained messages.

Keep-alives move with every packet. Moving a timer that often would cost more than the packet, so a timer is only looked
at when it comes up, and whoever is called then may find that it is not due after all and ask again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Protocol, TypeAlias

import attrs

from statestore_client.server.timer_heap import TimerHeap
from statestore_client.wire.instant import Instant

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
    #: When :meth:`run` is due, None for never; it may turn out that nothing was. The heap's own method: it is asked
    #: after every packet.
    next_deadline: Callable[[], float | None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.next_deadline = self._heap.next_deadline

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


# -- background work ---------------------------------------------------------------------------------------------------
#
# Work that takes too long for one turn, in slices: copies for thousands of subscribers, retained messages.
#
# A subject is what must stay in order: a topic, a key of the state store, a session. Work on one subject is done one
# after the other, different subjects take turns. A client that causes such work waits until it is done: otherwise a
# client could cause it faster than it is done, and it would pile up.


#: Does one slice; True while there is more to do.
Job: TypeAlias = Callable[[Instant], bool]


class Cause(Protocol):
    """Who has to wait for its work: ``pending`` is how many jobs are not done yet."""

    pending: int

    def job_done(self) -> None:
        """Take note that one of them is done."""


@attrs.define(eq=False)
class BackgroundWork:
    """Invariant: a subject is in ``_turns`` exactly once if and only if it has a queue, and no queue is empty."""

    #: By subject; to be looked at only.
    queues: dict[Hashable, deque[tuple[Job, Cause | None]]] = attrs.Factory(dict)
    _turns: deque[Hashable] = attrs.Factory(deque)

    def __len__(self) -> int:
        """How many subjects have work to be done."""
        return len(self._turns)

    def add(self, subject: Hashable, job: Job, cause: Cause | None = None) -> None:
        """Do this after what there is to do on the same subject; ``cause`` has to wait for it."""
        queue = self.queues.get(subject)
        if queue is None:
            queue = self.queues[subject] = deque()
            self._turns.append(subject)
        queue.append((job, cause))
        if cause is not None:
            cause.pending += 1

    def work(self, now: Instant) -> None:
        """One slice, if there is anything to do."""
        if not self._turns:
            return
        subject = self._turns.popleft()
        queue = self.queues[subject]
        job, cause = queue[0]
        has_more = False
        try:
            has_more = job(now)
        finally:
            if not has_more:
                queue.popleft()
                if cause is not None:
                    cause.job_done()
            if queue:
                self._turns.append(subject)
            else:
                del self.queues[subject]
