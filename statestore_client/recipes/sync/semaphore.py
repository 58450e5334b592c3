# Generated from statestore_client/recipes/aio/semaphore.py by tools/twins.py. Edit that, and run "make twins".
"""A lock that a number of holders have at the same time."""

from __future__ import annotations

from random import Random
from typing import NoReturn

from statestore_client.clocks import monotonic
from statestore_client.core.arguments import check_wait
from statestore_client.errors import LockNotAcquiredError, PickleRefusedError, TransportError
from statestore_client.recipes.slots import Attempt, check_permits, search
from statestore_client.sync.client import StateStoreClient
from statestore_client.sync.leases import Lease


class Semaphore:
    """At most ``permits`` holders at a time. A permit is a :class:`Lease` of a lock ``NAME/0``, ``NAME/1`` and so on.

    All contenders must give the same number of permits. A permit renews itself, ends ``lease`` seconds after its holder
    has died, and is given back when its block is left. Nobody has a place in a queue: when one is free, any of those
    who wait gets it, within a second.

    What is protected: ``lease.fencing_token`` is newer than those of all former holders of *this permit*, whose lock is
    ``lease.name``. So keys that belong to one permit can be guarded, ``lease.store`` does it. Nothing protects what
    several holders share: one that stands still may act when its permit is another's, as one holder too many.

    An object may be shared: each acquisition is for a permit of its own.
    """

    def __init__(self, store: StateStoreClient, name: str, permits: int, *, lease: float = 10.0) -> None:
        self._store = store
        self._name = name
        self._permits = check_permits(permits)
        self._lease_s = lease
        self._random = Random()  # noqa: S311 - spreads contenders over the permits; no secret
        store.lock(f"{name}/0", lease=lease)  # raises for what cannot be

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError("a semaphore cannot be pickled: send client.settings, its name and its permits")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name[:80]!r}, {self._permits} permits>"

    def acquire(self, timeout: float | None = None) -> Lease:
        """Wait for a permit, up to ``timeout`` seconds (None: for ever; 0 looks once). Leaving it gives it back.

        When the time is over it raises :class:`LockNotAcquiredError` if all are taken, and :class:`TransportError` if
        that is not known. Until then it waits through outages.
        """
        patience = check_wait(timeout)
        attempts = search(self._name, self._permits, now=monotonic(), timeout=patience, random=self._random)
        attempt = next(attempts)
        while True:
            try:
                return self._try(attempt)
            except (LockNotAcquiredError, TransportError) as error:
                attempt = attempts.send((monotonic(), error))

    def _try(self, attempt: Attempt) -> Lease:
        """In a holder's name that is used once: the lock is let in again by its own one."""
        return self._store.lock(f"{self._name}/{attempt.slot}", lease=self._lease_s).acquire(attempt.seconds)

    def try_acquire(self) -> Lease | None:
        """A permit that is free now; None if all are taken."""
        try:
            return self.acquire(0)
        except LockNotAcquiredError:
            return None

    def holders(self) -> dict[int, bytes]:
        """Who has which permit, those that are taken. It may be another one by the time this is read."""
        slots = range(self._permits)
        found = self._store.get_many(f"{self._name}/{slot}" for slot in slots)
        return {slot: item.value for slot, item in zip(slots, found, strict=True) if item is not None}
