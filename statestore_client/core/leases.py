"""What happens while a lock is held: the lease is renewed by the same SET, found lost, or yields a newer fencing token.

Invariant: a renewal counts only if its answer came before the lease it renews ended. One that came later may have taken
the lock anew, after somebody else had it in between.
Invariant: a renewal counts only in the store that granted the lock. Another one, which began empty, may have granted it
to somebody else in between.
Invariant: ``lost`` is called no later than ``valid_until``, which is before the server can grant the lock to another.
Invariant: the first reason of an end counts, and an ended lease is never valid again.
Invariant: a listener is called once for a loss, and never for a release.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, Protocol

from statestore_client.core.locks import Grant, LockTerms, pause_before_retry, set_result
from statestore_client.core.results import is_another_store
from statestore_client.core.steps import Answer, Invoke, Pause, SendUnawaited, Step
from statestore_client.errors import (
    BatchError,
    LeaseLostError,
    TransportError,
    UnexpectedReplyError,
)
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HlcTimestamp

LossListener = Callable[[LeaseLostError], object]

_TOO_LATE: Final = "the lease ended before it could be renewed"
_NOT_RENEWED: Final = "the lease has ended; it was not to be renewed"


class Ended(Protocol):
    """The event that others wait for: of threads, or of tasks."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...


class LeaseState:
    """Seconds are those of the caller's clock. With threads, one at a time may change it; all may look."""

    __slots__ = ("_is_reported", "_listeners", "ended", "ending", "error", "is_released", "valid_until")

    def __init__(self, valid_until: float, ended: Ended, *, renew: bool) -> None:
        self.valid_until: float = valid_until
        self.ended: Ended = ended
        #: Why it is lost if its time runs out.
        self.ending: Final = _TOO_LATE if renew else _NOT_RENEWED
        self.error: LeaseLostError | None = None
        self.is_released: bool = False
        self._listeners: list[LossListener] = []
        self._is_reported = False  # to the listeners, or not to be: the lock was released

    def remaining(self, now: float) -> float:
        """Seconds for which nobody else can have the lock; negative or 0 when its time is over, 0 once it has ended."""
        return 0.0 if self.ended.is_set() else self.valid_until - now

    def describe(self, now: float) -> str:
        """The state in words, for a repr."""
        if self.is_released:
            return "released"
        left = self.remaining(now)
        return f"valid for {left:.1f} s" if left > 0 else "lost"

    def renewed(self, valid_until: float) -> None:
        """A renewal was granted. Raises :class:`LeaseLostError` when the end was noticed before its answer came."""
        if self.ended.is_set():
            raise LeaseLostError(self.ending)
        self.valid_until = valid_until

    def end(self, error: LeaseLostError) -> None:
        """From now on the lease is lost, and not renewed."""
        self.error = self.error or error
        self.ended.set()

    def lose(self, error: LeaseLostError) -> tuple[LeaseLostError, list[LossListener]] | None:
        """The lease is lost: why, and who is to be told of it. None when all was told, or it was released."""
        self.end(error)
        if self._is_reported:
            return None
        self._is_reported = True
        listeners, self._listeners = self._listeners, []
        return self.error or error, listeners

    def release(self) -> bool:
        """It is being given back: nobody is told of a loss any more. Whether this is the first time."""
        is_first, self.is_released = not self.is_released, True
        self._is_reported = True
        self.end(LeaseLostError("the lock was released"))
        return is_first

    def on_lost(self, listener: LossListener) -> LeaseLostError | None:
        """Somebody wants to know. Returns the reason if it is lost already: tell it now."""
        if not self._is_reported:
            self._listeners.append(listener)
            return None
        return None if self.is_released else self.error


#: Renew when this part of the lease is used up: two more attempts fit before it ends.
_RENEW_AFTER: Final = 1 / 3
#: No attempt waits longer than this part of the lease, nor than this many seconds: a link that swallows everything is
#: found out only by a request that times out, and what is left of the lease is needed for a new link.
_ATTEMPT: Final = 1 / 3
_ATTEMPT_S: Final = 10.0
_RETRY_S: Final = 0.1
#: NEX takes the lock anew there.
_NEW_STORE: Final = "the server began anew with an empty store, where somebody else may have held the lock"


class LeaseView(Protocol):
    """A lease, as work that it guards sees it."""

    @property
    def fencing_token(self) -> HlcTimestamp: ...

    @property
    def store_id(self) -> str | None:
        """The store that granted it, if that is known."""

    @property
    def remaining(self) -> float:
        """Seconds for which nobody else can have the lock; 0 when that is over."""

    def check(self) -> None:
        """Raise :class:`LeaseLostError` unless the lease is valid."""


def keep_renewed(
    terms: LockTerms,
    grant: Grant,
    *,
    now: float,
    renewed: Callable[[float], None],
    lost: Callable[[LeaseLostError], None],
) -> Generator[Step, Answer, None]:
    """Renew until the lease is lost. ``renewed`` is called with each new ``valid_until``, ``lost`` once, with why."""
    sent, valid_until = grant.sent, grant.valid_until
    while True:
        now = (yield Pause(max(0.0, sent + terms.lease * _RENEW_AFTER - now))).finished
        while True:
            if now >= valid_until:
                return lost(LeaseLostError("the lease ended before it could be renewed"))
            try:
                answer = yield Invoke(terms.claim(), min(valid_until - now, terms.lease * _ATTEMPT, _ATTEMPT_S))
                break
            except TransportError:
                now = yield from pause_before_retry(min(_RETRY_S, terms.lease / 10), valid_until)
        now = answer.finished
        result = set_result(answer)
        if not result.applied:
            return lost(LeaseLostError("somebody else holds the lock"))
        if now >= valid_until:
            lost(LeaseLostError("the answer to the renewal came after the lease had ended"))
            yield SendUnawaited(terms.give_back())
            return None
        if is_another_store(grant.store_id, result.store_id):
            lost(LeaseLostError(_NEW_STORE))
            yield SendUnawaited(terms.give_back())
            return None
        sent, valid_until = answer.started, terms.valid_until(answer.started)
        renewed(valid_until)


def watch_expiry(
    valid_until: Callable[[], float], *, now: float, why: str, lost: Callable[[LeaseLostError], None]
) -> Generator[Step, Answer, None]:
    """Wait for the end of a lease that others may extend meanwhile. ``lost`` is called once, with ``why``.

    It runs beside :func:`keep_renewed`: whatever a renewal waits for, the loss is reported in time.
    """
    while now < (until := valid_until()):
        now = (yield Pause(until - now)).finished
    lost(LeaseLostError(why))


def next_token(terms: LockTerms, lease: LeaseView, timeout: float) -> Generator[Step, Answer, HlcTimestamp]:
    """A new fencing token of the held lock: newer than all before, older than any later holder's.

    The holder sets the key again, and the store gives that write a version. A token made up here, from the first one
    and a number, would be newer than a later holder's as soon as the server's clock stands still between the two: for
    up to a minute after a client with a fast clock has written.
    """
    lease.check()
    try:
        result = set_result((yield Invoke(terms.claim(), min(timeout, lease.remaining))))
    except TransportError as error:
        check_after(error, lease)
        raise
    if not result.applied:
        raise LeaseLostError("somebody else holds the lock")
    if result.version is None:
        raise UnexpectedReplyError("the server renewed the lock without a version; there is no fencing token")
    if is_another_store(lease.store_id, result.store_id):
        raise LeaseLostError(_NEW_STORE)
    # NEX also succeeds when the lock had ended and was free. Somebody may have held it in between, and our work may
    # build on what that holder changed.
    lease.check()
    return result.version


def check_after(error: TransportError | BatchError, lease: LeaseView) -> None:
    """A guarded request, or some of a batch, failed. Raise :class:`LeaseLostError` if the lease ended meanwhile.

    A request that may last no longer than the lease times out when the lease ends; the lost lease is what matters then.
    """
    try:
        lease.check()
    except LeaseLostError as lost:
        lost.may_have_been_applied = error.may_have_been_applied or isinstance(error, BatchError)
        raise lost from error


def guarded(
    lease: LeaseView, command: Command, timeout: float, token: HlcTimestamp | None
) -> Generator[Step, Answer, Answer]:
    """Send a command that waits no longer than the lease lasts: later it might overwrite the next holder's work."""
    lease.check()
    try:
        return (yield Invoke(command, min(timeout, lease.remaining), token))
    except TransportError as error:
        check_after(error, lease)
        raise
