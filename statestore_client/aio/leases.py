"""A held lock: what it is good for, until when, and the workers that renew it and watch the clock.

:func:`run_steps` runs the generators of steps from ``core``, for leases and for the locks that they are of.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import time
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from statestore_client.aio.engine import Engine
from statestore_client.aio.primitives import Flag, Guard, Worker, check_callback, pause
from statestore_client.aio.watch import AsyncWatch
from statestore_client.clocks import monotonic
from statestore_client.core.actions import WatchEvent, WatchOptions
from statestore_client.core.arguments import check_timeout
from statestore_client.core.event_queue import WatchTerms
from statestore_client.core.leases import LeaseState, keep_renewed, next_token, watch_expiry
from statestore_client.core.locks import Grant, LockTerms, release
from statestore_client.core.steps import Answer, Invoke, Pause, SendUnawaited, StartWatch, Step, Steps, WaitForChange
from statestore_client.errors import ClosedError, ForkedClientError, LeaseLostError, PickleRefusedError, StateStoreError
from statestore_client.reports import warn_unclosed
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HlcTimestamp

#: How long (seconds) to wait for the answer to what is sent in passing, and how long it may take to leave.
_POST_S: Final = 0.05
_POST_LASTS_S: Final = 10.0
#: Seconds for an answer, where less is left.
_AT_LEAST_S: Final = 0.001
#: A waiter for a lock has to know whether it still hears of it.
_WATCH: Final = WatchOptions(connection_events=True)
#: Linux has it. Elsewhere, the monotonic clock must do.
_SLEEPLESS_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed() -> float:
    """Seconds on a clock that goes on while the machine sleeps, as the server's does. Linux's monotonic one stops."""
    return monotonic() if _SLEEPLESS_CLOCK is None else time.clock_gettime(_SLEEPLESS_CLOCK)


async def run_steps(steps: Steps, engine: Engine, *, stop: Flag | None = None) -> Any:
    """Run ``steps`` to their end and return their result; raises what they raise.

    When ``stop`` is set they end before the next step, or in the middle of a pause, and :class:`ClosedError` is raised.
    What they only post is sent all the same: it gives back what came too late.
    """
    runner = _Runner(engine, stop)
    try:
        step = next(steps)
        while True:
            started = elapsed()
            try:
                value = await runner.take(step)
            except StateStoreError as error:
                if stop is not None and stop.is_set():
                    raise
                step = steps.throw(error)
            else:
                step = steps.send(Answer(value, started, elapsed()))
    except StopIteration as end:
        return end.value
    except BaseException:
        await runner.take_back()
        raise
    finally:
        await runner.close()


class _Runner:
    """Does one step after the other; owns the watch that the steps may have opened."""

    def __init__(self, engine: Engine, stop: Flag | None) -> None:
        self._engine = engine
        self._stop = stop
        self._watch: AsyncWatch | None = None
        self._undo: Command | None = None  # of a command that may have been applied, nobody can tell

    async def take(self, step: Step) -> Any:
        if isinstance(step, SendUnawaited):
            return await self._post(step.command)
        if self._stop is not None and self._stop.is_set():
            raise ClosedError("stopped")
        match step:
            case Invoke():
                return await self._invoke(step)
            case Pause(seconds=seconds, before_retry=before_retry):
                if before_retry:
                    self._engine.check_open()
                return await self._pause(seconds)
            case StartWatch(key=key, timeout=timeout):
                watch = AsyncWatch(self._engine, WatchTerms(key, _WATCH, limit=16), timeout=timeout)
                await watch.start()
                self._watch = watch
                return None
            case WaitForChange(seconds=seconds):
                return await self._wait_for_change(seconds)

    async def _invoke(self, step: Invoke) -> Any:
        undo, self._undo = self._undo, step.undo or self._undo
        try:
            result = await self._engine.call(
                step.command, max(_AT_LEAST_S, step.timeout), step.fencing_token, lasting=step.lasting
            )
        except StateStoreError as error:
            if not error.may_have_been_applied:
                self._undo = undo
            raise
        if step.undo is not None:
            self._undo = None  # the answer to the last of several attempts speaks for all
        return result

    async def _post(self, command: Command) -> None:
        with contextlib.suppress(StateStoreError):
            await self._engine.post(command, patience=_POST_S, timeout=_POST_LASTS_S)

    async def take_back(self) -> None:
        """The steps failed: undo what may have been done."""
        if self._undo is not None:
            await self._post(self._undo)

    async def _pause(self, seconds: float) -> None:
        if self._stop is None:
            await pause(seconds)
        elif await self._stop.wait_for(seconds):
            raise ClosedError("stopped")

    async def _wait_for_change(self, seconds: float) -> WatchEvent | None:
        if self._watch is None:
            await self._pause(seconds)
            return None
        return await self._watch.get(timeout=seconds)

    async def close(self) -> None:
        if self._watch is not None:
            await self._watch.close()


logger: logging.Logger = logging.getLogger("statestore_client")

#: For how long to try to give back a lease that is lost, when its block ends (seconds).
_LOST_S: Final = 0.1


class AsyncLease:
    """The lock, held. ``fencing_token`` goes with every write that the lock protects.

    Use it as a context manager: leaving gives the lock back. If that fails, a warning is logged: the lease ends by
    itself. Entering one that has ended already raises :class:`LeaseLostError`.
    """

    def __init__(
        self,
        engine: Engine,
        terms: LockTerms,
        grant: Grant,
        leases: set[weakref.ref[AsyncLease]],
        *,
        renew: bool,
        request_timeout: float,
    ) -> None:
        self._engine = engine
        self._terms = terms
        self._leases = leases  # those that are held, this one until it is lost
        self._own: weakref.ref[AsyncLease] = weakref.ref(self)  # what stands there
        self._request_timeout = request_timeout
        #: Set at the end, whatever it is: the lease can no longer be relied upon, or was released.
        self.ended: Flag = Flag()
        self.fencing_token: HlcTimestamp = grant.fencing_token
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
        self._engine.check_loop()
        with self._changing:
            reason = self._state.on_lost(callback)
        if reason is not None:
            self._notify(callback, reason)

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
            self._stop_keeper()
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
        with self._giving_back:
            return self._end() and bool(await run_steps(release(self._terms, patience), self._engine))

    async def __aenter__(self) -> Self:
        self.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # One that is lost ends by itself, and whoever guards work with it has to hear of that now.
        patience = None if self.valid else _LOST_S
        try:
            await self.release(timeout=patience)
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


async def _work(steps: Steps, engine: Engine, ended: Flag, lost: Callable[[LeaseLostError], None]) -> None:
    try:
        await run_steps(steps, engine, stop=ended)
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
