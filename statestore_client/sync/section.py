"""The critical section of a blocking client: one thread at a time works on its machine and its connection.

A signal handler runs on top of whatever frame its thread is in, and so does what the garbage collector runs
(``__del__``, the ``finally`` of a generator that was dropped): also on top of a frame that is inside.

Invariant: code on top of a frame that is inside never waits for that frame. :meth:`Section.enter` raises
:class:`BusyError` there, and :meth:`Section.later` leaves the work to it.
Invariant: work that was left is carried out as soon as the section is free, by the thread that leaves it.
Invariant: an exception at any line (a signal handler may raise one) leaves the section free, once the handler of that
exception has called :meth:`Section.was_inside` and, if so, :meth:`Section.leave`. Hence no ``with`` statement where
signals come: Python 3.14 looks for them between the call that takes a lock and the block that gives it back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from statestore_client.clocks import monotonic
from statestore_client.errors import BusyError, RequestTimeoutError
from statestore_client.thread_locks import LONGEST_NAP_S, Mutex

__all__ = ["Section"]

_REFUSAL: Final = (
    "a signal handler or finalizer has interrupted this client at work in the same thread, so it cannot wait for an "
    "answer here; nothing was sent. Set a threading.Event in the handler and call the client where the event is looked "
    "at. Releasing a lease, closing a watch and closing the client work here: they are carried out a moment later"
)


class Section:
    """See the module. An *entry* is any object that belongs to one call alone."""

    __slots__ = ("_entry", "_left", "_lock", "_taken_over")

    def __init__(self) -> None:
        self._lock = Mutex()
        self._entry: object | None = None  # changed by the thread that has the lock
        self._taken_over = 0  # how often a frame has taken the lock over from a frame below it
        self._left: deque[Callable[[], None]] = deque()

    def enter(self, entry: object, deadline: float = math.inf) -> None:
        """Wait until no other thread is inside, at most until ``deadline`` (monotonic seconds).

        Raises :class:`BusyError` on top of a frame that is inside, and :class:`RequestTimeoutError` at the deadline.
        """
        taken_over = self._taken_over
        if not self._lock.is_mine() and self._lock.acquire(False, -1) and self._taken_over == taken_over:
            self._entry = entry  # as nearly always; :meth:`_has_entered` says why nothing is called before it
            return
        while not self._has_entered(entry, deadline):
            pass

    def _has_entered(self, entry: object, deadline: float | None) -> bool:
        """Whether it is inside now. Not if a handler took the lock over meanwhile; at once if ``deadline`` is None.

        Signal handlers run after a call or at the end of a loop's body, so there must be neither between the last look
        at ``_taken_over`` and the entry.
        """
        if self._lock.is_mine():
            if self._entry is not None:
                raise BusyError(_REFUSAL)
            self._taken_over += 1  # the frame below has taken the lock, is not inside yet, and begins anew
            self._entry = entry
            return True
        taken_over = self._taken_over
        if not self._lock.acquire(False, -1):
            if deadline is None:
                return False
            self._wait(deadline)
        while self._taken_over != taken_over:
            taken_over = self._taken_over
            if not self._lock.is_mine():
                return False
        self._entry = entry
        return True

    def _wait(self, deadline: float) -> None:
        while not self._lock.acquire(True, max(0.0, min(deadline - monotonic(), LONGEST_NAP_S))):
            if monotonic() >= deadline:
                raise RequestTimeoutError("another thread was at work with this client until the time-out")

    def leave(self) -> None:
        """Let the next one in; carry out what was left."""
        self._entry = None
        self._lock.release()
        if self._left:
            self._carry_out()

    def was_inside(self, entry: object) -> bool:
        """After an exception: whether this entry is inside still. The caller repairs what is half done, and leaves.

        A lock that was taken just before the exception, for nothing yet, is given back here.
        """
        if self._entry is entry:
            return True
        if self._entry is None:
            while self._lock.is_mine():
                self._lock.release()
        return False

    @property
    def is_interrupted(self) -> bool:
        """Whether a frame below this one is inside."""
        return self._entry is not None and self._lock.is_mine()

    def later(self, work: Callable[[], None]) -> None:
        """Carry out ``work`` inside: now if the section is free, otherwise when its thread leaves. Never waits."""
        self._left.append(work)
        self._carry_out()

    def _carry_out(self) -> None:
        while self._left and not self.is_interrupted and self._has_entered(self, None):
            try:
                while self._left:
                    self._left.popleft()()
            finally:
                self._entry = None
                self._lock.release()

    # -- where no signal handler runs: in the network thread -----------------------------------------------------------

    def __enter__(self) -> None:
        self.enter(self)

    def __exit__(self, *_: object) -> None:
        self.leave()
