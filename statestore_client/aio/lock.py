"""A leased lock with a fencing token, renewed by a task of its own."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from random import Random
from types import TracebackType

from statestore_client.aio.engine import Engine
from statestore_client.aio.steps import run_steps
from statestore_client.core.calls import check_timeout
from statestore_client.core.locks import Grant, LockTerms, acquire, keep_renewed, outlive, release, try_acquire
from statestore_client.errors import InvalidArgumentError, LeaseLostError, StateStoreError
from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["Lease", "Lock"]

logger = logging.getLogger("statestore_client")


class Lease:
    """The lock, held. ``fencing_token`` goes with every write that the lock protects."""

    def __init__(self, terms: LockTerms, grant: Grant) -> None:
        self._terms = terms
        self._valid_until = grant.valid_until
        self._error: LeaseLostError | None = None
        #: Set as soon as the lease can no longer be relied upon.
        self.lost = asyncio.Event()
        self.fencing_token: HlcTimestamp = grant.fencing_token

    @property
    def holder(self) -> bytes:
        """The holder's name, as it stands in the lock's key."""
        return self._terms.holder

    @property
    def valid_until(self) -> float:
        """Until when nobody else can have the lock, on the clock of ``time.monotonic()``."""
        return self._valid_until

    @property
    def valid(self) -> bool:
        """Whether nobody else can have the lock right now."""
        return not self.lost.is_set() and time.monotonic() < self._valid_until

    def check(self) -> None:
        """Raise :class:`LeaseLostError` unless the lease is valid. Call it before each guarded piece of work."""
        if not self.valid:
            raise copy.copy(self._error) or LeaseLostError("the lease ended before it could be renewed")

    def _renewed(self, valid_until: float) -> None:
        self._valid_until = valid_until

    def _lose(self, error: LeaseLostError) -> None:
        if self._error is None:
            self._error = error
            self.lost.set()


class Lock:
    """A named lock that one holder has at a time; made by :meth:`StateStoreClient.lock`.

    Not reentrant. One object is one contender: tasks that compete take a lock object each.
    """

    def __init__(self, engine: Engine, terms: LockTerms, *, renew: bool, request_timeout: float) -> None:
        self._engine = engine
        self._terms = terms
        self._renew = renew
        self._request_timeout = request_timeout
        self._lease: Lease | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def acquire(self, timeout: float | None = None) -> Lease:
        """Wait for the lock, up to ``timeout`` seconds (None: for ever).

        Raises :class:`LockNotAcquiredError` when the time is over. While the connection is down it keeps waiting.
        """
        self._check_free()
        steps = acquire(
            self._terms,
            now=time.monotonic(),
            timeout=check_timeout(timeout),
            request_timeout=self._request_timeout,
            random=Random(),  # noqa: S311 - jitter
        )
        return self._hold(await run_steps(steps, self._engine))

    async def try_acquire(self) -> Lease | None:
        """One attempt without waiting; None when somebody else holds the lock."""
        self._check_free()
        grant = await run_steps(try_acquire(self._terms, self._request_timeout), self._engine)
        return None if grant is None else self._hold(grant)

    async def release(self) -> bool:
        """Give the lock back. Returns False when it was no longer ours. Releasing what is not held does nothing."""
        lease, self._lease = self._lease, None
        if lease is None:
            return False
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            self._keeper = None
        lease._lose(LeaseLostError("the lock was released"))  # noqa: SLF001 - the two classes are one idea
        return bool(await run_steps(release(self._terms, self._request_timeout), self._engine))

    async def __aenter__(self) -> Lease:
        return await self.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except StateStoreError as release_error:
            # The lease ends by itself. An error here would hide the one from the body, or fail work that was done.
            logger.warning("the lock %s was not released: %s", self._terms.name, release_error)

    def _check_free(self) -> None:
        self._engine.check_process()
        if self._lease is not None and self._lease.valid:
            raise InvalidArgumentError("this lock object holds the lock already; it is not reentrant")

    def _hold(self, grant: Grant) -> Lease:
        lease = self._lease = Lease(self._terms, grant)
        self._keeper = asyncio.create_task(self._keep(lease, grant), name="statestore lease")
        return lease

    async def _keep(self, lease: Lease, grant: Grant) -> None:
        def lost(error: LeaseLostError) -> None:
            lease._lose(error)  # noqa: SLF001 - the two classes are one idea
            logger.warning("the lease on %s is lost: %s", self._terms.name, error)

        if self._renew:
            steps = keep_renewed(self._terms, grant, renewed=lease._renewed, lost=lost)  # noqa: SLF001 - one idea
        else:
            steps = outlive(grant, lost=lost)
        try:
            await run_steps(steps, self._engine)
        except StateStoreError as failed:
            if lease.valid:
                lost(LeaseLostError(f"the lease could not be renewed: {failed}"))
