# Generated from statestore_client/aio/election.py by tools/twins.py. Edit that, and run "make twins".
"""An election: of several candidates, one leads."""

from __future__ import annotations

import weakref
from typing import NoReturn

from statestore_client.core.locks import ElectionTerms
from statestore_client.errors import PickleRefusedError
from statestore_client.sync.engine import Engine
from statestore_client.sync.lease import Lease
from statestore_client.sync.lock import Lock
from statestore_client.sync.observation import LockObservation

__all__ = ["Election"]


class Election:
    """A named election that one candidate wins at a time; made by :meth:`StateStoreClient.election`.

    A leadership is a :class:`Lease`: it renews itself, has a fencing token, says when it is lost, and resigns when its
    ``with`` statement is left. One object is one candidate: threads that compete take an election object each.
    """

    def __init__(
        self, engine: Engine, terms: ElectionTerms, leases: set[weakref.ref[Lease]], *, request_timeout: float
    ) -> None:
        self._terms = terms
        self._lock = Lock(engine, terms, leases, renew=True, request_timeout=request_timeout)

    @property
    def name(self) -> str:
        """The election's name: the key that holds the leader's."""
        return self._terms.name

    @property
    def candidate(self) -> bytes:
        """This candidate's name."""
        return self._terms.holder

    def campaign(self, timeout: float | None = None) -> Lease:
        """Wait until this candidate leads, up to ``timeout`` seconds (None: for ever; 0 tries once).

        Returns its leadership, which is a context manager: leaving it resigns.

        When the time is over it raises :class:`LockNotAcquiredError` if another candidate leads, and
        :class:`RequestTimeoutError` if that is not known, or not any longer: the server gave no answer, or the
        connection is down. Until then it waits through outages.
        """
        return self._lock.acquire(timeout)

    def try_campaign(self) -> Lease | None:
        """One attempt without waiting; None when another candidate leads."""
        return self._lock.try_acquire()

    def resign(self, *, timeout: float | None = None) -> bool:
        """Stop leading, so that the next candidate can. Returns False when this one did not lead any longer.

        As :meth:`Lock.release`, which says how long it waits for an answer.
        """
        return self._lock.release(timeout=timeout)

    def leader(self) -> bytes | None:
        """The candidate that leads now; None when nobody does."""
        return self._lock.holder()

    def observe(self) -> LockObservation:
        """The leader, as it changes: an iterator, used as a context manager. The present state comes first."""
        return self._lock.observe()

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError(
            "an election cannot be pickled: send the fencing token of its lease, or client.settings to elect elsewhere"
        )

    def __repr__(self) -> str:
        state = "leading" if self._lock._is_held else "not leading"  # noqa: SLF001 - the two classes are one idea
        return f"<{type(self).__name__} {self.name}, candidate {self.candidate!r}, {state}>"
