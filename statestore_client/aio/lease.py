"""A held lock: what it is good for, until when, and the tasks that renew it and watch the clock."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from statestore_client.aio.callbacks import finish
from statestore_client.aio.engine import Engine
from statestore_client.aio.steps import elapsed, run_steps
from statestore_client.core.callbacks import check_function
from statestore_client.core.calls import check_timeout
from statestore_client.core.leases import keep_renewed, next_token, outlive
from statestore_client.core.locks import Grant, LockTerms, release
from statestore_client.core.steps import Steps
from statestore_client.errors import ForkedClientError, LeaseLostError, StateStoreError
from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["AsyncLease"]

logger = logging.getLogger("statestore_client")

_TOO_LATE: Final = "the lease ended before it could be renewed"
_NOT_RENEWED: Final = "the lease has ended; it was not to be renewed"


class AsyncLease:
    """The lock, held. ``fencing_token`` goes with every write that the lock protects.

    Use it as a context manager: leaving gives the lock back. If that fails, a warning is logged: the lease ends by
    itself. Entering one that has ended already raises :class:`LeaseLostError`.
    """

    def __init__(
        self, engine: Engine, terms: LockTerms, grant: Grant, leases: set[AsyncLease], *, request_timeout: float
    ) -> None:
        self._engine = engine
        self._terms = terms
        self._leases = leases  # those that are held, this one until it is lost
        self._request_timeout = request_timeout
        self._valid_until = grant.valid_until  # on the clock of elapsed()
        self._error: LeaseLostError | None = None
        self._callbacks: list[Callable[[LeaseLostError], object]] = []
        self._told = False  # the callbacks were called, or need not be: the lock was released
        self._released = False
        self._ending = _NOT_RENEWED
        self._keeper: asyncio.Task[None] | None = None  # renews the lease, if it is to be renewed
        self._clock: asyncio.Task[None] | None = None  # waits for its end
        #: Set at the end, whatever it is: the lease can no longer be relied upon, or was released.
        self.ended = asyncio.Event()
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
        check_function("callback", callback, awaited=True)
        self._engine.check_loop()
        if not self._told:
            self._callbacks.append(callback)
        elif self._error is not None and not self._released:
            self._tell(callback, self._error)

    async def next_token(self) -> HlcTimestamp:
        """A new fencing token: newer than all of this lock so far, older than any later holder's.

        For work that must be protected from the holder's own leftovers: a token for each batch keeps a task that hangs
        in one batch from writing into the next. Keys that were written with it refuse the lease's own, older token.
        Raises :class:`LeaseLostError` when the lock is not ours any more, and :class:`TransportError` when no answer
        came; asking again is safe then.
        """
        try:
            token: HlcTimestamp = await run_steps(next_token(self._terms, self, self._request_timeout), self._engine)
        except LeaseLostError as error:
            self._lose(error)
            self._stop()
            raise
        return token

    async def release(self, *, timeout: float | None = None) -> bool:
        """Give the lock back. Returns False when it was no longer ours; a second release does nothing.

        When no answer comes it raises :class:`TransportError`; the lock is then free at the latest when the lease ends.
        It waits up to ``timeout`` seconds (None: the client's ``request_timeout``), and no longer than a lease lasts.
        If the caller is cancelled or interrupted, it is sent all the same.
        """
        patience = min(self._request_timeout, max(0.1, self._terms.lease))  # what comes later does not matter any more
        patience = patience if (timeout := check_timeout(timeout)) is None else min(timeout, patience)
        self._engine.check_loop()
        return self._end() and bool(await run_steps(release(self._terms, patience), self._engine))

    async def __aenter__(self) -> Self:
        self.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
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
        self._clock = self._start(waiting)

    def _start(self, steps: Steps) -> asyncio.Task[None]:
        async def work() -> None:
            try:
                await run_steps(steps, self._engine)
            except StateStoreError as failed:
                self._lose(LeaseLostError(f"the lease could not be renewed: {failed}"))

        return self._engine.tasks.start(work(), name="statestore lease")

    def _supersede(self) -> None:
        """Its lock acquires anew, in the same holder's name: nothing of this lease may follow the new claim."""
        self._end()

    def _end(self) -> bool:
        """No more renewals; the lease is not to be relied upon. Returns whether this is its first end of this kind."""
        if not self.valid:
            self._lose(LeaseLostError(self._ending))
        is_first, self._released = not self._released, True
        self._told = True
        self._mark(LeaseLostError("the lock was released"))
        self._stop_clock()
        self._stop()
        return is_first

    def _stop(self) -> None:
        """A cancelled task does not take another step; what it sent has left before whatever is sent next."""
        if self._keeper is not None and self._keeper is not asyncio.current_task():
            self._keeper.cancel()

    def _stop_clock(self) -> None:
        """It has nothing more to tell."""
        if self._clock is not None and self._clock is not asyncio.current_task():
            self._clock.cancel()

    def _closed(self) -> None:
        """The client was closed: nothing can be sent for the lease any longer."""
        with contextlib.suppress(ForkedClientError):
            self._engine.check_process()  # in a forked child, the lease is its parent's
            self._lose(LeaseLostError("the client was closed"))
            self._stop()

    def _renewed(self, valid_until: float) -> None:
        if self.ended.is_set():
            raise LeaseLostError(self._ending)  # somebody looked at it in the moment in which it had ended
        self._valid_until = valid_until

    def _mark(self, error: LeaseLostError) -> None:
        """From now on the lease is lost; the first reason counts."""
        self._error = self._error or error
        self.ended.set()
        self._leases.discard(self)

    def _lose(self, error: LeaseLostError) -> None:
        """The lease is lost: mark it, and tell who wants to know."""
        self._mark(error)
        if self._told:
            return
        self._told = True
        self._stop_clock()
        reason = self._error or error
        callbacks, self._callbacks = self._callbacks, []
        logger.warning("the lease on %s is lost: %s", self._terms.name, reason)
        for callback in callbacks:
            self._tell(callback, reason)

    def _tell(self, callback: Callable[[LeaseLostError], object], error: LeaseLostError) -> None:
        what = f"a callback for the loss of the lease on {self._terms.name}"
        try:
            outcome = callback(copy.copy(error))  # at once: the next holder may begin a moment later
        except Exception:
            logger.exception("%s failed", what)
        else:
            if inspect.isawaitable(outcome):
                self._engine.tasks.start(finish(what, outcome), name=what)
