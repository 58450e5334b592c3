"""Leased locks with a fencing token, elections, and the holder of either, as it changes."""

from __future__ import annotations

import weakref
from collections import deque
from random import Random
from types import TracebackType
from typing import Final, NoReturn, Self

from statestore_client.aio.acquisition import acquisition
from statestore_client.aio.engine import Engine
from statestore_client.aio.leases import AsyncLease
from statestore_client.aio.primitives import ExclusiveUse, Mutex
from statestore_client.aio.steps import elapsed, run_steps
from statestore_client.aio.watch import AsyncEventIterator, AsyncWatch
from statestore_client.clocks import monotonic
from statestore_client.core import locks
from statestore_client.core.actions import WatchOptions
from statestore_client.core.arguments import Bytes, check_function, check_timeout, check_wait, set_command
from statestore_client.core.edits import KEEP, Change, Edit, edit
from statestore_client.core.event_queue import WatchTerms
from statestore_client.core.locks import ElectionTerms, Grant, HolderView, LockState, LockTerms
from statestore_client.core.results import Item
from statestore_client.core.steps import Steps
from statestore_client.errors import (
    BusyError,
    InvalidArgumentError,
    LeaseLostError,
    PickleRefusedError,
    TransportError,
)


class AsyncLockObservation(AsyncEventIterator[LockState]):
    """The holder of a lock, or the leader of an election; made by :meth:`Lock.observe` and :meth:`Election.observe`.

    Use it as a context manager, which starts it, and iterate: the first state is the present one, the next comes when
    the holder changes. Renewals do not count. Iteration ends when the observation is closed.
    """

    _not_pickled = "an observation cannot be pickled: send client.settings, and observe where it is needed"

    def __init__(self, engine: Engine, key: bytes, *, timeout: float | None) -> None:
        self._engine = engine
        self._watch = AsyncWatch(engine, WatchTerms(key, WatchOptions(initial=True), limit=64), timeout=timeout)
        self._view = HolderView()
        self._first: deque[LockState] = deque()
        self._starting = Mutex()
        self._started = False

    async def start(self) -> Self:
        """Start observing; returns when no later change can be missed. If it fails, it may be tried again."""
        self._engine.check_loop()
        async with self._starting:
            await self._watch.start()
            if not self._started:
                self._first.append(self._view.first(await self._watch.get(timeout=0)))
                self._started = True
        return self

    async def get(self, timeout: float | None = None) -> LockState | None:
        """The next state, or None when it did not change within ``timeout`` seconds (None: for ever; 0: only a look).

        Raises :class:`ClosedError` once the observation or its client is closed.
        """
        seconds = check_wait(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        while not self._first:
            remaining = None if deadline is None else max(0.0, deadline - monotonic())
            event = await self._watch.get(timeout=remaining)
            if event is None:
                return None
            if (state := self._view.changed(event)) is not None:
                return state
        return self._first.popleft()

    async def close(self) -> None:
        """Stop observing; an iteration in another task ends. Closing twice is harmless."""
        self._first.clear()
        await self._watch.close()

    def __repr__(self) -> str:
        state = self._watch._state.describe()  # noqa: SLF001 - the two classes are one idea
        return f"<{type(self).__name__} {self._watch.key[:80]!r}, {state}>"


class AsyncLock:
    """A named lock that one holder has at a time; made by :meth:`StateStoreClient.lock`.

    Not reentrant. One object is one contender: tasks that compete take a lock object each.
    """

    #: What the function given to :meth:`edit` returns to leave the key as it is.
    KEEP: Final = KEEP

    def __init__(
        self,
        engine: Engine,
        terms: LockTerms,
        leases: set[weakref.ref[AsyncLease]],
        *,
        renew: bool,
        request_timeout: float,
    ) -> None:
        self._engine = engine
        self._terms = terms
        self._leases = leases  # where the client finds those that are held
        self._renew = renew
        self._request_timeout = request_timeout
        self._lease: AsyncLease | None = None
        self._acquiring = ExclusiveUse("another task acquires with this lock object; take one object each")
        self._edits = Mutex()  # one edit after the other: they would share the lease

    @property
    def name(self) -> str:
        """The lock's name: the key that holds its holder."""
        return self._terms.name

    @acquisition  # asyncio only: there, what waits for a lease has to be told from the lease
    async def acquire(self, timeout: float | None = None) -> AsyncLease:
        """Wait for the lock, up to ``timeout`` seconds (None: for ever; 0 tries once). Leaving the lease gives it back.

        When the time is over it raises :class:`LockNotAcquiredError` if somebody else holds the lock, and
        :class:`RequestTimeoutError` if that is not known, or not any longer: the server gave no answer, or the
        connection is down. Until then it waits through outages. A caller that gives up during a request takes
        it back; if the connection is down just then, the lock may stay taken for one lease.
        """
        steps = locks.acquire(
            self._terms,
            now=elapsed(),
            timeout=check_wait(timeout),
            request_timeout=self._request_timeout,
            random=Random(),  # noqa: S311 - jitter
        )
        lease = await self._take(steps)
        assert lease is not None  # noqa: S101 - these steps return a grant or raise
        return lease

    async def try_acquire(self) -> AsyncLease | None:
        """One attempt without waiting; None when somebody else holds the lock."""
        return await self._take(locks.try_acquire(self._terms, self._request_timeout))

    async def release(self, *, timeout: float | None = None) -> bool:
        """Give the lock back, as :meth:`Lease.release`, which says what can happen. What is not held stays as it is."""
        timeout = check_timeout(timeout)
        self._engine.check_loop()
        lease, self._lease = self._lease, None
        return lease is not None and await lease.release(timeout=timeout)

    async def holder(self) -> bytes | None:
        """The present holder of the lock; None when it is free."""
        found: bytes | None = await run_steps(locks.holder(self._terms.key, self._request_timeout), self._engine)
        return found

    def observe(self) -> AsyncLockObservation:
        """The lock's holder, as it changes: an iterator, used as a context manager. The present state comes first."""
        return AsyncLockObservation(self._engine, self._terms.key, timeout=self._request_timeout)

    async def edit(
        self,
        key: Bytes,
        change: Change,
        *,
        expiry: float | None = None,
        persist: bool = False,
        timeout: float | None = None,
    ) -> Item | None:
        """Change ``key`` under the lock; returns what is there afterwards, None when there is no such key.

        ``change`` gets the present value, or None, and returns the new one, None to delete the key, or ``Lock.KEEP``.
        The lock is acquired for that, in up to ``timeout`` seconds, unless this object holds it already. What is to be
        changed is claimed first, as by :attr:`Lease.store`. When the lock is lost before anything was written, or the
        key changes before it is claimed, all begins anew: ``change`` may be called several times. Edits by one object
        follow one another. ``persist`` marks the new value as in :meth:`StateStoreClient.set`. From then on the key
        takes no write without a fencing token: change it by ``edit``. Raises what :meth:`acquire` raises,
        :class:`InvalidArgumentError` for the key of the lock itself, :class:`FencingTokenTooOldError` when the key has
        a newer token, of another lock, and :class:`KeyChangedError` when it changes again and again.
        """
        check_function("change", change)
        command = set_command(key, b"", None, expiry, persist=persist)
        if command.key == self._terms.key:
            raise InvalidArgumentError(f"key must not be the key of the lock, {self.name}: it holds the holder's name")
        work = Edit(command.key, change, command.expiry_ms, self._request_timeout, persist)
        deadline = None if (timeout := check_wait(timeout)) is None else elapsed() + timeout
        async with self._edits.within(timeout, lambda: self._terms.in_vain(timeout or 0.0, self._engine.trouble)):
            return await self._edit_alone(work, timeout, deadline)

    async def __aenter__(self) -> AsyncLease:
        return await self.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease = self._lease
        if lease is not None:
            await lease.__aexit__(kind, error, trace)
            if self._lease is lease and not self._is_held:  # where it may not be released, it is held still
                self._lease = None

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError(
            "a lock cannot be pickled: send the fencing token of its lease, or client.settings to lock elsewhere"
        )

    def __repr__(self) -> str:
        state = "held" if self._is_held else "not held"
        return f"<{type(self).__name__} {self.name}, holder {self._terms.holder!r}, {state}>"

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _is_held(self) -> bool:
        """By this object, as far as it knows; asking changes nothing."""
        lease = self._lease  # read once, here and below: it may be released meanwhile
        return lease is not None and not lease.ended.is_set()

    async def _edit_alone(self, work: Edit, timeout: float | None, deadline: float | None) -> Item | None:
        lease = self._lease
        if lease is not None and lease.valid:
            return await self._edit(lease, work)
        while True:
            try:
                remaining = max(0.001, deadline - elapsed()) if timeout and deadline else timeout
                lease = await self.acquire(remaining)
            except TransportError as error:
                error.may_have_been_applied = False  # the claim, perhaps; of the edit, nothing was sent
                raise
            try:
                async with lease:
                    return await self._edit(lease, work)
            except LeaseLostError as error:
                if error.may_have_been_applied:
                    raise

    async def _edit(self, lease: AsyncLease, work: Edit) -> Item | None:
        item: Item | None = await run_steps(edit(self._terms, lease, work), self._engine)
        return item

    async def _take(self, steps: Steps) -> AsyncLease | None:
        self._engine.check_loop()
        with self._acquiring:  # two would both be granted the lock: the server knows the holder only
            lease = self._lease  # read once: it may be released meanwhile
            if lease is not None:
                if lease.valid:
                    raise BusyError("this lock object holds the lock already; it is not reentrant")
                lease._supersede()  # noqa: SLF001 - the two classes are one idea
                self._lease = None
            grant: Grant | None = await run_steps(steps, self._engine)
            return None if grant is None else await self._hold(grant)

    async def _hold(self, grant: Grant) -> AsyncLease:
        lease = self._lease = AsyncLease(
            self._engine, self._terms, grant, self._leases, renew=self._renew, request_timeout=self._request_timeout
        )
        try:
            lease._keep(grant)  # noqa: SLF001 - the two classes are one idea
        except BaseException:  # no room for what renews it, say
            self._lease = None
            await lease.release()
            raise
        return lease


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
