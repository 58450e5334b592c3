"""What happens while a lock is held: the lease is renewed, found lost, or made to yield a newer fencing token.

Invariant: a renewal counts only if its answer came before the lease it renews ended. One that came later may have taken
the lock anew, after somebody else had it in between.
Invariant: a renewal counts only in the store that granted the lock. Another one, which began empty, may have granted it
to somebody else in between.
Invariant: ``lost`` is called no later than ``valid_until``, which is before the server can grant the lock to another.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, Protocol

from statestore_client.core.locks import Grant, LockTerms, pause_before_retry, set_result
from statestore_client.core.results import is_another_store
from statestore_client.core.steps import Answer, Invoke, Pause, Post, Step
from statestore_client.errors import BatchError, LeaseLostError, TransportError, UnexpectedReplyError
from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["Held", "check_after", "keep_renewed", "next_token", "outlive"]

#: Renew when this part of the lease is used up: two more attempts fit before it ends.
_RENEW_AFTER: Final = 1 / 3
#: No attempt waits longer than this part of the lease, nor than this many seconds: a link that swallows everything is
#: found out only by a request that times out, and what is left of the lease is needed for a new link.
_ATTEMPT: Final = 1 / 3
_ATTEMPT_S: Final = 10.0
_RETRY_S: Final = 0.1
#: NEX takes the lock anew there.
_NEW_STORE: Final = "the server began anew with an empty store, where somebody else may have held the lock"


class Held(Protocol):
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
            yield Post(terms.give_back())
            return None
        if is_another_store(grant.store_id, result.store_id):
            lost(LeaseLostError(_NEW_STORE))
            yield Post(terms.give_back())
            return None
        sent, valid_until = answer.started, terms.valid_until(answer.started)
        renewed(valid_until)


def outlive(
    valid_until: Callable[[], float], *, now: float, why: str, lost: Callable[[LeaseLostError], None]
) -> Generator[Step, Answer, None]:
    """Wait for the end of a lease that others may extend meanwhile. ``lost`` is called once, with ``why``.

    It runs beside :func:`keep_renewed`: whatever a renewal waits for, the loss is reported in time.
    """
    while now < (until := valid_until()):
        now = (yield Pause(until - now)).finished
    lost(LeaseLostError(why))


def next_token(terms: LockTerms, lease: Held, timeout: float) -> Generator[Step, Answer, HlcTimestamp]:
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


def check_after(error: TransportError | BatchError, lease: Held) -> None:
    """A guarded request, or some of a batch, failed. Raise :class:`LeaseLostError` if the lease ended meanwhile.

    A request that may last no longer than the lease times out when the lease ends; the lost lease is what matters then.
    """
    try:
        lease.check()
    except LeaseLostError as lost:
        lost.may_have_been_applied = error.may_have_been_applied or isinstance(error, BatchError)
        raise lost from error
