# Generated from statestore_client/sync/section.py by tools/twins.py. Edit that, and run "make twins".
"""The critical section of a blocking client: one thread at a time works on what it decides and on its connections.

A signal handler runs on top of whatever frame its thread is in, and so does what the garbage collector runs
(``__del__``, the ``finally`` of a generator that was dropped): also on top of a frame that is inside.

Invariant: code on top of a frame that is inside never waits for that frame. :meth:`Section.enter` raises
:class:`BusyError` there, and :meth:`Section.later` leaves the work to it.
Invariant: work that was left is carried out as soon as the section is free, by the thread that leaves it. What an
exception cuts is carried out once more, so it must bear that.
Invariant: an exception at any line (a signal handler may raise one) leaves the section free, once the handler of that
exception has called :meth:`Section.abandon`. Hence no ``with`` statement where signals come: Python 3.14 looks for them
between the call that takes a lock and the block that gives it back.
Invariant: nobody works on what an exception has cut. It is mended first: by the thread that is cut and, if that is cut
as well, by the next one to enter; until it has been mended once from the beginning to the end.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from raft_client.clocks import monotonic
from raft_client.errors import BusyError, RequestTimeoutError
from raft_client.thread_locks import LONGEST_NAP_S, Mutex

_REFUSAL: Final = (
    "a signal handler or finalizer has interrupted this client at work in the same thread, so it cannot wait for an "
    "answer here; nothing was sent. Set a flag in the handler (an attribute, no threading.Event: its lock may be held "
    "below), and call the client where the program looks at it. What ends something works here (close, release): it is "
    "carried out a moment later"
)


class Section:
    """See the module. An *entry* is any object that belongs to one call alone."""

    __slots__ = ("_entry", "_is_cut", "_left", "_lock", "_mend", "_taken_over", "_tried")

    def __init__(self, mend: Callable[[], None]) -> None:
        """``mend`` makes whole what an exception has left half done, wherever that came; also what is whole."""
        self._mend = mend
        self._is_cut = False  # an exception came, and nothing is whole until ``mend`` has returned
        self._tried: Callable[[], None] | None = None  # the work that was left, and begun last
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
            if self._is_cut or self._left:
                self._begin_whole()
            return
        while not self._has_entered(entry, deadline):
            pass
        if self._is_cut or self._left:
            self._begin_whole()

    def _begin_whole(self) -> None:
        """What was left comes first: the end of a watch, say, before the same watch is started again."""
        if self._is_cut:
            self._make_whole()
        while self._left:
            self._do_first()

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

    def abandon(self, entry: object, *, is_whole: bool = False) -> None:
        """After an exception: mend what this entry has left half done, and leave, if it is inside still.

        ``is_whole``: nothing was begun. A lock that was taken just before the exception, for nothing yet, is given
        back.
        """
        if self._entry is entry:
            try:
                if not is_whole:
                    self._is_cut = True
                    self._make_whole()
            finally:
                self.leave()
        elif self._entry is None:
            while self._lock.is_mine():
                self._lock.release()

    def _make_whole(self) -> None:
        self._mend()
        self._is_cut = False

    @property
    def is_interrupted(self) -> bool:
        """Whether a frame below this one is inside."""
        return self._entry is not None and self._lock.is_mine()

    def later(self, work: Callable[[], None]) -> None:
        """Carry out ``work`` inside: now if the section is free, otherwise when its thread leaves. Never waits."""
        self._left.append(work)
        self._carry_out()

    def _carry_out(self) -> None:
        entry = object()
        try:
            while self._left and not self.is_interrupted and self._has_entered(entry, None):
                if self._is_cut:
                    self._make_whole()
                while self._left:
                    self._do_first()
                self._entry = None
                self._lock.release()
        except BaseException:
            self.abandon(entry)
            raise

    def _do_first(self) -> None:
        """It stays until it is done. If it was begun before, and cut, this is the last time: it may fail for ever."""
        work = self._left[0]
        if work is self._tried:
            self._left.popleft()
            work()
            return
        self._tried = work
        work()
        self._left.popleft()
        self._tried = None

    # -- where no signal handler runs: in a thread of the client's own -------------------------------------------------

    def __enter__(self) -> None:
        self.enter(self)

    def __exit__(self, *_: object) -> None:
        self.leave()
