"""A held lock: what it is good for, until when, and the threads that renew it and watch the clock."""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from statestore_client.core.callbacks import check_function
from statestore_client.core.calls import check_timeout
from statestore_client.core.leases import keep_renewed, next_token, outlive
from statestore_client.core.locks import Grant, LockTerms, release
from statestore_client.core.steps import Steps
from statestore_client.errors import ForkedClientError, LeaseLostError, StateStoreError
from statestore_client.sync.callbacks import call_back
from statestore_client.sync.engine import Engine
from statestore_client.sync.steps import elapsed, run_steps
from statestore_client.sync.waiters import ReentrantMutex
from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["Lease"]

logger = logging.getLogger("statestore_client")

#: How long (seconds) to wait for the keeper's end. It takes longer only while a renewal is on its way, and that has
#: then left before whatever is sent next.
_KEEPER_ENDS_S: Final = 0.1
_TOO_LATE: Final = "the lease ended before it could be renewed"
_NOT_RENEWED: Final = "the lease has ended; it was not to be renewed"


class Lease:
    """The lock, held. ``fencing_token`` goes with every write that the lock protects.

    Use it as a context manager: leaving gives the lock back. If that fails, a warning is logged: the lease ends by
    itself. Entering one that has ended already raises :class:`LeaseLostError`.
    """

    def __init__(
        self, engine: Engine, terms: LockTerms, grant: Grant, leases: set[Lease], *, request_timeout: float
    ) -> None:
        self._engine = engine
        self._terms = terms
        self._leases = leases  # those that are held, this one until it is lost
        self._request_timeout = request_timeout
        self._valid_until = grant.valid_until  # on the clock of elapsed()
        self._error: LeaseLostError | None = None
        self._callbacks: list[Callable[[LeaseLostError], object]] = []
        self._told = False  # the callbacks were called, or need not be: the lock was released
        self._losing = threading.RLock()  # guards the three above; a signal's handler may look at the lease, too
        self._giving_back = ReentrantMutex()  # by one thread; also a signal's handler may try
        self._ending = _NOT_RENEWED
        self._released = False
        self._keeper: threading.Thread | None = None  # renews the lease, if it is to be renewed
        #: Set at the end, whatever it is: the lease can no longer be relied upon, or was released.
        self.ended = threading.Event()
        self.fencing_token: HlcTimestamp = grant.fencing_token

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._terms.name

    @property
    def holder(self) -> bytes:
        """The holder's name, as it stands in the lock's key."""
        return self._terms.holder

    @property
    def valid_until(self) -> float:
        """Until when nobody else can have the lock, on the clock of ``time.monotonic()``."""
        return self._valid_until - (elapsed() - time.monotonic())

    @property
    def remaining(self) -> float:
        """Seconds for which nobody else can have the lock, unless it is renewed; 0 when the lease has ended."""
        left = self._valid_until - elapsed()
        if left <= 0:
            self._mark(LeaseLostError(self._ending))  # who looks knows it at once; the keeper may wake up later
        return 0.0 if self.ended.is_set() else max(0.0, left)

    @property
    def valid(self) -> bool:
        """Whether nobody else can have the lock right now."""
        return self.remaining > 0

    def check(self) -> None:
        """Raise :class:`LeaseLostError` unless the lease is valid. Call it before each guarded piece of work."""
        if not self.valid:
            raise copy.copy(self._error) or LeaseLostError(self._ending)

    def on_lost(self, callback: Callable[[LeaseLostError], object]) -> None:
        """Call ``callback`` with the reason once the lease is lost; at once if it is lost already.

        It is not called for a release. It is called where the lease is renewed: the next holder may begin a moment
        later, so keep it short. What it raises is logged. In the asyncio client it may be a coroutine function: it runs
        in a task of the client then, beside the others, and closing the client gives it two seconds to finish.
        """
        check_function("callback", callback)
        with self._losing:
            if not self._told:
                self._callbacks.append(callback)
                return
        if self._error is not None and not self._released:
            self._tell(callback, self._error)

    def next_token(self) -> HlcTimestamp:
        """A new fencing token: newer than all of this lock so far, older than any later holder's.

        For work that must be protected from the holder's own leftovers: a token for each batch keeps a task that hangs
        in one batch from writing into the next. Keys that were written with it refuse the lease's own, older token.
        Raises :class:`LeaseLostError` when the lock is not ours any more, and :class:`TransportError` when no answer
        came; asking again is safe then.
        """
        try:
            token: HlcTimestamp = run_steps(next_token(self._terms, self, self._request_timeout), self._engine)
        except LeaseLostError as error:
            self._lose(error)
            raise
        return token

    def release(self, *, timeout: float | None = None) -> bool:
        """Give the lock back. Returns False when it was no longer ours; a second release does nothing.

        When no answer comes it raises :class:`TransportError`; the lock is then free at the latest when the lease ends.
        It waits up to ``timeout`` seconds (None: the client's ``request_timeout``), and no longer than a lease lasts.
        If the caller is cancelled or interrupted, it is sent all the same.
        """
        patience = min(self._request_timeout, max(0.1, self._terms.lease))  # what comes later does not matter any more
        patience = patience if (timeout := check_timeout(timeout)) is None else min(timeout, patience)
        self._engine.check_process()
        with self._giving_back:
            if not self._end():
                return False
            return bool(run_steps(release(self._terms, patience), self._engine))

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except StateStoreError as failed:
            # The lease ends by itself. An error here would hide the one from the body, or fail work that was done.
            logger.warning("the lock %s was not released: %s", self._terms.name, failed)

    def __repr__(self) -> str:
        left = self._valid_until - elapsed()
        if self._released:
            state = "released"
        elif self.ended.is_set() or left <= 0:
            state = "lost"
        else:
            state = f"valid for {left:.1f} s"
        return f"<{type(self).__name__} {self.name}, {state}>"

    # -- what the lock does with it ------------------------------------------------------------------------------------

    def _keep(self, grant: Grant, *, renew: bool) -> None:
        """Begin to renew, and to wait for the end."""
        self._leases.add(self)
        if renew:
            self._ending = _TOO_LATE
            keeping = keep_renewed(self._terms, grant, now=elapsed(), renewed=self._renewed, lost=self._lose)
            self._keeper = self._start(keeping)
        waiting = outlive(lambda: self._valid_until, now=elapsed(), why=self._ending, lost=self._lose)
        self._start(waiting)

    def _start(self, steps: Steps) -> threading.Thread:
        def work() -> None:
            try:
                run_steps(steps, self._engine, stop=self.ended)
            except StateStoreError as failed:
                # If it was stopped, the reason is known already, and somebody else may be about to tell it.
                self._lose(LeaseLostError(f"the lease could not be renewed: {failed}"))

        thread = threading.Thread(target=work, name="statestore lease", daemon=True)
        thread.start()
        return thread

    def _supersede(self) -> None:
        """Its lock acquires anew, in the same holder's name: nothing of this lease may follow the new claim."""
        with self._giving_back:
            self._end()

    def _end(self) -> bool:
        """No more renewals; the lease is not to be relied upon. Returns whether this is its first end of this kind."""
        if not self.valid:
            self._lose(LeaseLostError(self._ending))
        with self._losing:
            is_first, self._released = not self._released, True
            self._told = True
        self._mark(LeaseLostError("the lock was released"))
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join(_KEEPER_ENDS_S)
        return is_first

    def _closed(self) -> None:
        """The client was closed: nothing can be sent for the lease any longer."""
        with contextlib.suppress(ForkedClientError):
            self._engine.check_process()  # in a forked child, the lease is its parent's
            self._lose(LeaseLostError("the client was closed"))

    def _renewed(self, valid_until: float) -> None:
        if self.ended.is_set():
            raise LeaseLostError(self._ending)  # somebody looked at it in the moment in which it had ended
        self._valid_until = valid_until

    def _mark(self, error: LeaseLostError) -> None:
        """From now on the lease is lost, and not renewed; the first reason counts."""
        with self._losing:
            self._error = self._error or error
            self.ended.set()
        self._leases.discard(self)

    def _lose(self, error: LeaseLostError) -> None:
        """The lease is lost: mark it, and tell who wants to know."""
        self._mark(error)
        with self._losing:
            if self._told:
                return
            self._told = True
            reason = self._error or error
            callbacks, self._callbacks = self._callbacks, []
        logger.warning("the lease on %s is lost: %s", self._terms.name, reason)
        for callback in callbacks:
            self._tell(callback, reason)

    def _tell(self, callback: Callable[[LeaseLostError], object], error: LeaseLostError) -> None:
        call_back(f"a callback for the loss of the lease on {self._terms.name}", callback, copy.copy(error))
