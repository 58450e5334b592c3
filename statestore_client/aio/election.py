"""An election: of several candidates, one leads."""

from __future__ import annotations

import weakref
from typing import NoReturn

from statestore_client.aio.acquisition import acquisition
from statestore_client.aio.engine import Engine
from statestore_client.aio.lease import AsyncLease
from statestore_client.aio.lock import AsyncLock
from statestore_client.aio.observation import AsyncLockObservation
from statestore_client.core.locks import ElectionTerms
from statestore_client.errors import PickleRefusedError

__all__ = ["AsyncElection"]


class AsyncElection:
    """A named election that one candidate wins at a time; made by :meth:`StateStoreClient.election`.

    A leadership is a :class:`Lease`: it renews itself, has a fencing token, says when it is lost, and resigns when its
    ``with`` statement is left. One object is one candidate: tasks that compete take an election object each.
    """

    def __init__(
        self, engine: Engine, terms: ElectionTerms, leases: set[weakref.ref[AsyncLease]], *, request_timeout: float
    ) -> None:
        self._terms = terms
        self._lock = AsyncLock(engine, terms, leases, renew=True, request_timeout=request_timeout)

    @property
    def name(self) -> str:
        """The election's name: the key that holds the leader's."""
        return self._terms.name

    @property
    def candidate(self) -> bytes:
        """This candidate's name."""
        return self._terms.holder

    @acquisition  # asyncio only: there, what waits for a lease has to be told from the lease
    async def campaign(self, timeout: float | None = None) -> AsyncLease:
        """Wait until this candidate leads, up to ``timeout`` seconds (None: for ever; 0 tries once).

        Returns its leadership, which is a context manager: leaving it resigns.

        When the time is over it raises :class:`LockNotAcquiredError` if another candidate leads, and
        :class:`RequestTimeoutError` if that is not known, or not any longer: the server gave no answer, or the
        connection is down. Until then it waits through outages.
        """
        return await self._lock.acquire(timeout)

    async def try_campaign(self) -> AsyncLease | None:
        """One attempt without waiting; None when another candidate leads."""
        return await self._lock.try_acquire()

    async def resign(self, *, timeout: float | None = None) -> bool:
        """Stop leading, so that the next candidate can. Returns False when this one did not lead any longer.

        As :meth:`Lock.release`, which says how long it waits for an answer.
        """
        return await self._lock.release(timeout=timeout)

    async def leader(self) -> bytes | None:
        """The candidate that leads now; None when nobody does."""
        return await self._lock.holder()

    def observe(self) -> AsyncLockObservation:
        """The leader, as it changes: an iterator, used as a context manager. The present state comes first."""
        return self._lock.observe()

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError(
            "an election cannot be pickled: send the fencing token of its lease, or client.settings to elect elsewhere"
        )

    def __repr__(self) -> str:
        state = "leading" if self._lock._is_held else "not leading"  # noqa: SLF001 - the two classes are one idea
        return f"<{type(self).__name__} {self.name}, candidate {self.candidate!r}, {state}>"
