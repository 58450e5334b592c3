"""A held lock: what it is good for, until when, and the task that renews it."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Callable

from statestore_client.aio.engine import Engine
from statestore_client.aio.steps import elapsed, run_steps
from statestore_client.core.leases import keep_renewed, next_token, outlive
from statestore_client.core.locks import Grant, LockTerms
from statestore_client.errors import LeaseLostError, StateStoreError
from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["Lease"]

logger = logging.getLogger("statestore_client")


class Lease:
    """The lock, held. ``fencing_token`` goes with every write that the lock protects."""

    def __init__(self, engine: Engine, terms: LockTerms, grant: Grant, *, request_timeout: float) -> None:
        self._engine = engine
        self._terms = terms
        self._request_timeout = request_timeout
        self._valid_until = grant.valid_until  # on the clock of elapsed()
        self._error: LeaseLostError | None = None
        self._callbacks: list[Callable[[LeaseLostError], object]] = []
        self._ended = False
        self._keeper: asyncio.Task[None] | None = None
        #: Set as soon as the lease can no longer be relied upon, and when the lock is released.
        self.lost = asyncio.Event()
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
        """Seconds for which nobody else can have the lock, unless it is renewed; 0 when the lease is lost."""
        return 0.0 if self.lost.is_set() else max(0.0, self._valid_until - elapsed())

    @property
    def valid(self) -> bool:
        """Whether nobody else can have the lock right now."""
        return self.remaining > 0

    def check(self) -> None:
        """Raise :class:`LeaseLostError` unless the lease is valid. Call it before each guarded piece of work."""
        if not self.valid:
            raise copy.copy(self._error) or LeaseLostError("the lease ended before it could be renewed")

    def on_lost(self, callback: Callable[[LeaseLostError], object]) -> None:
        """Call ``callback`` with the reason once the lease is lost; at once if it is lost already.

        It is not called for a release. It is called where the lease is renewed: the next holder may begin a moment
        later, so keep it short. What it raises is logged.
        """
        if self._error is None:
            self._callbacks.append(callback)
        elif not self._ended:
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
            raise
        return token

    # -- what the lock does with it ------------------------------------------------------------------------------------

    def _keep(self, grant: Grant, *, renew: bool) -> None:
        """Begin to renew, or to wait for the end."""
        steps = keep_renewed(self._terms, grant, renewed=self._renewed, lost=self._lose) if renew else None
        steps = steps or outlive(grant, lost=self._lose)

        async def work() -> None:
            try:
                await run_steps(steps, self._engine)
            except StateStoreError as failed:
                self._lose(LeaseLostError(f"the lease could not be renewed: {failed}"))

        self._keeper = asyncio.create_task(work(), name="statestore lease")

    def _end(self) -> None:
        """No more renewals; the lease is not to be relied upon. Nothing more will be sent for it: a cancelled task
        does not take another step."""
        if not self.valid:
            self._lose(LeaseLostError("the lease ended before it could be renewed"))
        self._ended = True
        self._lose(LeaseLostError("the lock was released"))
        if self._keeper is not None and self._keeper is not asyncio.current_task():
            self._keeper.cancel()

    def _renewed(self, valid_until: float) -> None:
        self._valid_until = valid_until

    def _lose(self, error: LeaseLostError) -> None:
        if self._error is not None:
            return
        self._error = error
        callbacks, self._callbacks = self._callbacks, []
        self.lost.set()
        if not self._ended:
            logger.warning("the lease on %s is lost: %s", self._terms.name, error)
            for callback in callbacks:
                self._tell(callback, error)

    def _tell(self, callback: Callable[[LeaseLostError], object], error: LeaseLostError) -> None:
        try:
            callback(copy.copy(error))
        except Exception:
            logger.exception("a callback for the loss of the lease on %s failed", self._terms.name)
