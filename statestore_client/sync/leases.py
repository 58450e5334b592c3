# Generated from statestore_client/aio/leases.py by tools/twins.py. Edit that, and run "make twins".
"""A held lock: what it is good for, until when; the workers that renew it and watch the clock; the store under it."""

from __future__ import annotations

import contextlib
import copy
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Final, NoReturn, Self, TypeVar, cast

from statestore_client.clocks import monotonic
from statestore_client.core.arguments import (
    DEFAULT_TIMEOUT,
    BatchCommands,
    Bytes,
    ConditionName,
    Pairs,
    SetItem,
    SetItems,
    Timeout,
    check_batch,
    check_pairs,
    check_timeout,
    delete_command,
    delete_commands,
    get_command,
    get_commands,
    raise_failures,
    set_command,
    set_commands,
    vdelete_command,
    vdelete_commands,
)
from statestore_client.core.edits import BatchReads, BatchWrites, Claims, read
from statestore_client.core.leases import LeaseState, check_after, keep_renewed, next_token, watch_expiry
from statestore_client.core.locks import Grant, LockTerms, release
from statestore_client.core.results import DeleteResult, Item, SetResult
from statestore_client.core.steps import Steps
from statestore_client.errors import (
    BatchError,
    ForkedClientError,
    InvalidArgumentError,
    LeaseLostError,
    PickleRefusedError,
    StateStoreError,
    TransportError,
)
from statestore_client.reports import warn_unclosed
from statestore_client.sync.engine import Engine
from statestore_client.sync.primitives import Flag, Guard, Worker, check_callback
from statestore_client.sync.steps import elapsed, run_steps
from statestore_client.wire.commands import Command, Set
from statestore_client.wire.hlc import HlcTimestamp

_T = TypeVar("_T")

logger: logging.Logger = logging.getLogger("statestore_client")

#: For how long to try to give back a lease that is lost, when its block ends (seconds).
_LOST_S: Final = 0.1


class Lease:
    """The lock, held. ``fencing_token`` goes with every write that the lock protects.

    Use it as a context manager: leaving gives the lock back. If that fails, a warning is logged: the lease ends by
    itself. Entering one that has ended already raises :class:`LeaseLostError`.
    """

    def __init__(
        self,
        engine: Engine,
        terms: LockTerms,
        grant: Grant,
        leases: set[weakref.ref[Lease]],
        *,
        renew: bool,
        request_timeout: float,
    ) -> None:
        self._engine = engine
        self._terms = terms
        self._leases = leases  # those that are held, this one until it is lost
        self._own: weakref.ref[Lease] = weakref.ref(self)  # what stands there
        self._request_timeout = request_timeout
        #: Set at the end, whatever it is: the lease can no longer be relied upon, or was released.
        self.ended: Flag = Flag()
        self.fencing_token: HlcTimestamp = grant.fencing_token
        self._claims = Claims(terms.key)  # of what was read and written through its store
        #: The store that granted it; None where the server does not say which it is.
        self.store_id: str | None = grant.store_id
        self._state = LeaseState(grant.valid_until, self.ended, renew=renew)  # on the clock of elapsed()
        self._changing = Guard()  # whoever changes the state
        self._giving_back = Guard()  # whoever releases, or supersedes
        self._keeper: Worker | None = None  # renews the lease, if it is to be renewed
        self._clock: Worker | None = None  # waits for its end
        self._renew = renew

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
        return self._state.valid_until - (elapsed() - monotonic())

    @property
    def remaining(self) -> float:
        """Seconds for which nobody else can have the lock, unless it is renewed; 0 when the lease has ended."""
        left = self._state.remaining(elapsed())
        if left <= 0 and not self.ended.is_set():
            self._mark(LeaseLostError(self._state.ending))  # known at once to whoever looks; the clock may be late
        return max(0.0, left)

    @property
    def valid(self) -> bool:
        """Whether nobody else can have the lock right now."""
        return self.remaining > 0

    def check(self) -> None:
        """Raise :class:`LeaseLostError` unless the lease is valid. Call it before each guarded piece of work."""
        if not self.valid:
            raise copy.copy(self._state.error) or LeaseLostError(self._state.ending)

    def on_lost(self, callback: Callable[[LeaseLostError], object]) -> None:
        """Call ``callback`` with the reason once the lease is lost; at once if it is lost already.

        It is not called for a release. It is called where the lease is renewed: the next holder may begin a moment
        later, so keep it short. What it raises is logged. In the asyncio client it may be a coroutine function: it runs
        in a task of the client then, beside the others, and closing the client gives it two seconds to finish.
        """
        check_callback("callback", callback)
        self._engine.check_process()
        with self._changing:
            reason = self._state.on_lost(callback)
        if reason is not None:
            self._notify(callback, reason)

    @property
    def store(self) -> LeaseStore:
        """The client's store under this lease: writes carry its token, and what is read is claimed for it first."""
        return LeaseStore(self._engine, self, self._claims)

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
            self._stop_keeper()
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
            return self._end() and bool(run_steps(release(self._terms, patience), self._engine))

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # One that is lost ends by itself, and whoever guards work with it has to hear of that now.
        patience = None if self.valid else _LOST_S
        try:
            self.release(timeout=patience)
        except StateStoreError as failed:
            # The lease ends by itself. An error here would hide the one from the body, or fail work that was done.
            logger.warning("the lock %s was not released: %s", self._terms.name, failed)

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError("a lease cannot be pickled: send its token, str(lease.fencing_token), in its place")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {self._state.describe(elapsed())}>"

    # -- what the lock does with it ------------------------------------------------------------------------------------

    def _keep(self, grant: Grant) -> None:
        """Begin to renew, and to wait for the end."""
        self._leases.add(self._own)
        state, lost = self._state, _weakly(self._lose)  # what renews a lease does not hold one that was dropped
        if self._renew:
            steps = keep_renewed(self._terms, grant, now=elapsed(), renewed=state.renewed, lost=lost)
            self._keeper = self._start(steps, lost)
        self._clock = self._start(
            watch_expiry(lambda: state.valid_until, now=elapsed(), why=state.ending, lost=lost), lost
        )

    def _start(self, steps: Steps, lost: Callable[[LeaseLostError], None]) -> Worker:
        worker = self._engine.worker(partial(_work, steps, self._engine, self.ended, lost), "statestore lease")
        worker.start()
        return worker

    def __del__(self) -> None:
        # It was dropped, so nobody can release it: it is given back. The collector may come in any thread, at any time.
        state, engine, terms = self._state, self._engine, self._terms
        if self._clock is None or self.ended.is_set() or not engine.is_own:
            return

        def give_back() -> None:
            state.release()
            engine.send(terms.give_back(), timeout=terms.lease)

        self._leases.discard(self._own)
        engine.later(give_back)
        warn_unclosed(self, f"lease on {terms.name}")

    def _supersede(self) -> None:
        """Its lock acquires anew, in the same holder's name: nothing of this lease may follow the new claim."""
        with self._giving_back:
            self._end()

    def _end(self) -> bool:
        """No more renewals; the lease is not to be relied upon. Returns whether this is its first end of this kind."""
        if not self.valid:
            self._lose(LeaseLostError(self._state.ending))
        with self._changing:
            is_first = self._state.release()
        self._leases.discard(self._own)
        self._stop_clock()
        self._stop_keeper()
        if self._keeper is not None:
            self._keeper.settle()  # what it sent has left before whatever is sent next
        return is_first

    def _stop_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()

    def _stop_clock(self) -> None:
        """It has nothing more to tell."""
        if self._clock is not None:
            self._clock.stop()

    def _closed(self) -> None:
        """The client was closed: nothing can be sent for the lease any longer."""
        with contextlib.suppress(ForkedClientError):
            self._engine.check_process()  # in a forked child, the lease is its parent's
            self._lose(LeaseLostError("the client was closed"))
            self._stop_keeper()

    def _mark(self, error: LeaseLostError) -> None:
        """From now on the lease is lost, and not renewed."""
        with self._changing:
            self._state.end(error)
        self._leases.discard(self._own)

    def _lose(self, error: LeaseLostError) -> None:
        """The lease is lost: mark it, and tell who wants to know."""
        with self._changing:
            news = self._state.lose(error)
        self._leases.discard(self._own)
        if news is not None:
            self._stop_clock()
            reason, listeners = news
            logger.warning("the lease on %s is lost: %s", self._terms.name, reason)
            for listener in listeners:
                self._notify(listener, reason)

    def _notify(self, listener: Callable[[LeaseLostError], object], reason: LeaseLostError) -> None:
        """At once: the next holder may begin a moment later."""
        what = f"a callback for the loss of the lease on {self._terms.name}"
        self._engine.call_back(what, listener, copy.copy(reason))


def _work(steps: Steps, engine: Engine, ended: Flag, lost: Callable[[LeaseLostError], None]) -> None:
    try:
        run_steps(steps, engine, stop=ended)
    except StateStoreError as failed:
        # If it was stopped, the reason is known already, and somebody else may be about to tell it.
        lost(LeaseLostError(f"the lease could not be renewed: {failed}"))


def _weakly(method: Callable[[LeaseLostError], None]) -> Callable[[LeaseLostError], None]:
    """The same, and nothing once its object is gone."""
    found = weakref.WeakMethod(method)

    def call(error: LeaseLostError) -> None:
        if (bound := found()) is not None:
            bound(error)

    return call


class GuardedStore:
    """The methods of a client, guarded by a lease; made by :meth:`StateStoreClient.guarded`.

    Every write carries the lease's fencing token. Nothing is sent once the lease is over: :class:`LeaseLostError` is
    raised instead. No request waits longer than the lease lasts, for the sake of an outage in the middle: what would be
    sent after it might overwrite the next holder's work. Reads are refused alike, since work that goes on with what it
    read after the loss is what the lease is to prevent.

    A read says what the key holds, no more: a write of an earlier holder may still be on its way. :attr:`Lease.store`
    is the same with reads that shut it out.
    """

    def __init__(self, engine: Engine, lease: Lease) -> None:
        self._engine = engine
        self._lease = lease

    @property
    def lease(self) -> Lease:
        """The lease that guards it."""
        return self._lease

    def set(
        self,
        key: Bytes,
        value: Bytes,
        *,
        condition: ConditionName | None = None,
        expected: Bytes | None = None,
        expiry: float | None = None,
        persist: bool = False,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> SetResult:
        """As :meth:`StateStoreClient.set`, with the lease's token."""
        wait, token = self._limit(timeout), self._lease.fencing_token
        command = set_command(key, value, condition, expiry, expected, persist)
        return self._set(command, wait, token)

    def get(self, key: Bytes, *, timeout: Timeout = DEFAULT_TIMEOUT) -> Item | None:
        """As :meth:`StateStoreClient.get`."""
        wait = self._limit(timeout)
        return cast("Item | None", self._call(get_command(key), wait))

    def delete(self, key: Bytes, *, timeout: Timeout = DEFAULT_TIMEOUT) -> DeleteResult:
        """As :meth:`StateStoreClient.delete`, with the lease's token."""
        wait, token = self._limit(timeout), self._lease.fencing_token
        return cast("DeleteResult", self._call(delete_command(key), wait, token))

    def vdelete(self, key: Bytes, value: Bytes, *, timeout: Timeout = DEFAULT_TIMEOUT) -> DeleteResult:
        """As :meth:`StateStoreClient.vdelete`, with the lease's token."""
        wait, token = self._limit(timeout), self._lease.fencing_token
        return cast("DeleteResult", self._call(vdelete_command(key, value), wait, token))

    def set_many(
        self,
        pairs: SetItems,
        *,
        expiry: float | None = None,
        persist: bool = False,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> list[SetResult]:
        """As :meth:`StateStoreClient.set_many`, with the lease's token. A lease lost half-way ends it there."""
        wait, token = self._limit(timeout), self._lease.fencing_token
        commands = set_commands(self._while_held(check_pairs(pairs)), expiry, persist)
        return self._set_many(commands, wait, token)

    def get_many(self, keys: Iterable[Bytes], *, timeout: Timeout = DEFAULT_TIMEOUT) -> list[Item | None]:
        """As :meth:`StateStoreClient.get_many`. A lease lost half-way ends it there."""
        wait = self._limit(timeout)
        commands = get_commands(self._while_held(keys))
        return cast("list[Item | None]", self._call_many(commands, wait))

    def delete_many(self, keys: Iterable[Bytes], *, timeout: Timeout = DEFAULT_TIMEOUT) -> list[DeleteResult]:
        """As :meth:`StateStoreClient.delete_many`, with the lease's token. A lease lost half-way ends it there."""
        wait, token = self._limit(timeout), self._lease.fencing_token
        commands = delete_commands(self._while_held(keys))
        return cast("list[DeleteResult]", self._call_many(commands, wait, token))

    def vdelete_many(self, pairs: Pairs, *, timeout: Timeout = DEFAULT_TIMEOUT) -> list[DeleteResult]:
        """As :meth:`StateStoreClient.vdelete_many`, with the lease's token. A lease lost half-way ends it there."""
        wait, token = self._limit(timeout), self._lease.fencing_token
        commands = vdelete_commands(self._while_held(check_pairs(pairs)))
        return cast("list[DeleteResult]", self._call_many(commands, wait, token))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._engine.url} under {self._lease!r}>"

    # -- inside --------------------------------------------------------------------------------------------------------

    def _limit(self, timeout: Timeout) -> float:
        """The seconds that a request may take, or that are left of the lease. Raises once it is over."""
        self._lease.check()
        limit, remaining = self._engine.seconds(timeout), max(0.001, self._lease.remaining)
        return remaining if limit is None else min(limit, remaining)

    def _set(self, command: Set, timeout: float, token: HlcTimestamp) -> SetResult:
        return cast("SetResult", self._call(command, timeout, token))

    def _set_many(self, commands: BatchCommands, timeout: float, token: HlcTimestamp) -> list[SetResult]:
        return cast("list[SetResult]", self._call_many(commands, timeout, token))

    def _call(self, command: Command, timeout: float, token: HlcTimestamp | None = None) -> object:
        try:
            return self._engine.call(command, timeout, token)
        except TransportError as error:
            check_after(error, self._lease)
            raise

    def _call_many(self, commands: BatchCommands, timeout: float, token: HlcTimestamp | None = None) -> list[object]:
        try:
            return self._engine.call_many(commands, timeout, token)
        except (TransportError, BatchError) as error:
            check_after(error, self._lease)
            raise

    def _while_held(self, items: Iterable[_T]) -> Iterator[_T]:
        return self._checked(check_batch(items))

    def _checked(self, items: Iterable[_T]) -> Iterator[_T]:
        for item in items:
            self._lease.check()
            if isinstance(item, SetItem) and item.fencing_token is not None:
                raise InvalidArgumentError("an item of a guarded store has the lease's fencing token, not its own")
            yield item


class LeaseStore(GuardedStore):
    """A guarded store whose reads count until the lease ends; made by :attr:`Lease.store`.

    A read claims the key: it is answered when the key is marked with the lease's fencing token, so that what an earlier
    holder has sent, and the network still has, is refused from then on. What is made of the value, here or elsewhere,
    is made of the latest one. The claim is a SET of the value that was read (with NEX, so that it changes no other
    one). It needs the right to write, watchers of the key see it, and from then on the key takes no write without a
    fencing token: read what the lock does not protect with the client. A key that has the version of this lease's own
    write needs no claim.

    A missing key has no mark. The first :meth:`set` after such a read goes with NX, and raises
    :class:`KeyChangedError` if somebody was faster: read again. What nothing can shut out is an earlier holder's
    deletion: it takes the mark with it, and one that arrives in the middle of a read may be undone by the claim.
    """

    def __init__(self, engine: Engine, lease: Lease, claims: Claims) -> None:
        super().__init__(engine, lease)
        self._claims = claims

    def get(
        self, key: Bytes, *, expiry: float | None = None, persist: bool = False, timeout: Timeout = DEFAULT_TIMEOUT
    ) -> Item | None:
        """The value and version of ``key``, which is claimed; None when there is no such key.

        ``expiry`` and ``persist`` are those of :meth:`set`, for a key that has them: its claim is a SET, too. Raises
        :class:`FencingTokenTooOldError` when a later holder has the key, and :class:`KeyChangedError` when it changes
        again and again between the read and its claim.
        """
        template = set_command(key, b"", None, expiry, persist=persist)
        return self._get(template, self._limit(timeout))

    def get_many(
        self,
        keys: Iterable[Bytes],
        *,
        expiry: float | None = None,
        persist: bool = False,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> list[Item | None]:
        """As :meth:`get` for every key, pipelined: all are read, then claimed. A lease lost half-way ends it there."""
        wait, token = self._limit(timeout), self._lease.fencing_token
        keys_to_claim = ((key, b"") for key in self._while_held(keys))
        reads = BatchReads(self._claims, set_commands(keys_to_claim, expiry, persist))
        reads.outcomes = self._outcomes(reads.gets(), wait, None)
        for position, template in reads.changed(self._outcomes(reads.to_claim(), wait, token)):
            try:
                reads.outcomes[position] = self._get(template, wait)
            except StateStoreError as error:
                reads.outcomes[position] = error
        raise_failures(reads.outcomes)
        return cast("list[Item | None]", reads.outcomes)

    def _get(self, template: Set, timeout: float) -> Item | None:
        item: Item | None = run_steps(read(self._lease, self._claims, template, timeout), self._engine)
        return item

    def _set(self, command: Set, timeout: float, token: HlcTimestamp) -> SetResult:
        sent = self._claims.to_send(command)
        result = super()._set(sent, timeout, token)
        return self._claims.written(sent.key, result, was_missing=sent is not command)

    def _set_many(self, commands: BatchCommands, timeout: float, token: HlcTimestamp) -> list[SetResult]:
        writes = BatchWrites(self._claims)
        outcomes = writes.outcomes(self._outcomes(writes.to_send(commands), timeout, token))
        raise_failures(outcomes)
        return cast("list[SetResult]", outcomes)

    def _outcomes(self, commands: BatchCommands, timeout: float, token: HlcTimestamp | None) -> list[object]:
        """As :meth:`_call_many`; what failed stands in its place."""
        try:
            return self._call_many(commands, timeout, token)
        except BatchError as error:
            return list(error.results)
