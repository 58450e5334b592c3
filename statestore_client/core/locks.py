"""Leased locks: what to send and when, written once as generators of steps; each shell has a small driver for them.

The server grants the lock to who sets the key first: ``SET lock holder NEX PX lease``. The version it returns is the
fencing token (state store protocol, "Locking and fencing tokens").

What the local clock may conclude. The server starts to count the lease after we sent the request, so the lease is ours
at least until *sent + lease* by a clock of the same speed; a safety margin covers a clock that is a little slower.

Invariant: a lease is called valid only while no other holder can have been granted the lock.
Invariant: a renewal counts only if its answer came before the lease it renews ended. One that came later may have taken
the lock anew, after somebody else had it in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.core.results import SetResult
from statestore_client.errors import (
    InvalidArgumentError,
    LeaseLostError,
    LockNotAcquiredError,
    ServerError,
    TransportError,
    UnexpectedReplyError,
)
from statestore_client.wire.commands import Command, Condition, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp

if TYPE_CHECKING:
    from random import Random

__all__ = [
    "Answer",
    "Grant",
    "Invoke",
    "LockTerms",
    "Observe",
    "Pause",
    "Step",
    "Steps",
    "WaitForChange",
    "acquire",
    "keep_renewed",
    "outlive",
    "release",
    "try_acquire",
]

#: Part of the lease that is not relied upon: quartz clocks differ by far less than this.
_SAFETY_MARGIN: Final = 0.02
#: Renew when this part of the lease is used up: two more attempts fit before it ends.
_RENEW_AFTER: Final = 1 / 3
#: A waiter looks again after this long (seconds) even if no notification came; jitter spreads many waiters.
_POLL_S: Final = 1.0
_RETRY_S: Final = 0.1


# -- steps -------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Invoke:
    """Send a command; the answer's value is its result. Its errors are raised inside the generator."""

    command: Command
    timeout: float  # seconds


@attrs.frozen
class Pause:
    """Wait."""

    seconds: float


@attrs.frozen
class Observe:
    """Watch a key from now on, until the steps end. Its errors are raised inside the generator."""

    key: bytes
    timeout: float  # seconds, until the watch stands


@attrs.frozen
class WaitForChange:
    """Wait for the next event of the observed key; the answer's value is the event, or None after ``seconds``."""

    seconds: float


Step: TypeAlias = Invoke | Pause | Observe | WaitForChange


@attrs.frozen
class Answer:
    """What a step came to, and when it began and ended (monotonic seconds)."""

    value: Any
    started: float
    finished: float


Steps: TypeAlias = Generator[Step, Answer, Any]


# -- locks -------------------------------------------------------------------------------------------------------------


@attrs.frozen
class LockTerms:
    """What is locked, by whom, for how long. ``holder`` must differ between any two that may not hold it together."""

    key: bytes
    holder: bytes
    lease: float  # seconds

    def __attrs_post_init__(self) -> None:
        if isinstance(self.lease, bool) or not isinstance(self.lease, (int, float)) or not 0.01 <= self.lease <= 86_400:
            raise InvalidArgumentError(f"lease must be seconds from 0.01 to 86400, not {self.lease!r}")
        if not self.holder:
            raise InvalidArgumentError("holder is empty")

    @property
    def name(self) -> str:
        """The key as people read it."""
        return self.key.decode("utf-8", "backslashreplace")

    def claim(self) -> Set:
        """The command that takes the lock or renews the lease."""
        return Set(self.key, self.holder, Condition.NEX, round(self.lease * 1000))

    def valid_until(self, sent: float) -> float:
        """Until when (monotonic seconds) a lease that was granted for a request sent at ``sent`` can be relied upon."""
        return sent + self.lease * (1.0 - _SAFETY_MARGIN)


@attrs.frozen
class Grant:
    """The lock was granted."""

    fencing_token: HlcTimestamp
    sent: float  # monotonic seconds
    valid_until: float  # monotonic seconds


def try_acquire(terms: LockTerms, timeout: float) -> Generator[Step, Answer, Grant | None]:
    """One attempt. None when somebody else holds the lock."""
    return _grant(terms, (yield Invoke(terms.claim(), timeout)))


def _grant(terms: LockTerms, answer: Answer) -> Grant | None:
    result = _set_result(answer)
    if not result.applied:
        return None
    if result.version is None:
        raise UnexpectedReplyError("the server granted the lock without a version; there is no fencing token")
    return Grant(result.version, answer.started, terms.valid_until(answer.started))


def acquire(
    terms: LockTerms, *, now: float, timeout: float | None, request_timeout: float, random: Random
) -> Generator[Step, Answer, Grant]:
    """Try, then wait for the holder to go and try again. Raises :class:`LockNotAcquiredError` after ``timeout``.

    Try, observe, try again, then wait: a release between the last attempt and the watch cannot be missed, and who finds
    the lock free needs no watch. A server that refuses the watch is polled.
    """
    deadline = math.inf if timeout is None else now + timeout
    observing = False
    while True:
        patience = max(0.001, min(request_timeout, deadline - now))
        try:
            answer = yield Invoke(terms.claim(), patience)
            now = answer.finished
            grant = _grant(terms, answer)
            # A request that waited for a connection may have been granted a lease that is over by now.
            if grant is not None and now < grant.valid_until:
                return grant
            if observing:
                now = yield from _wait_until_free(now, deadline, random)
            else:
                now = yield from _observe(terms.key, now, patience)
                observing = True
        except TransportError as error:
            now = yield from _pause_before_retry(_RETRY_S, deadline)
            if now >= deadline:
                raise _gave_up(terms, timeout) from error
        if now >= deadline:
            raise _gave_up(terms, timeout)


def _pause_before_retry(seconds: float, until: float) -> Generator[Step, Answer, float]:
    """Wait after an error, not beyond ``until``. Returns the time, which the error did not tell."""
    now = (yield Pause(0.0)).finished
    return (yield Pause(min(seconds, until - now))).finished if now < until else now


def _observe(key: bytes, now: float, timeout: float) -> Generator[Step, Answer, float]:
    """Begin to watch. Returns the time."""
    try:
        return (yield Observe(key, timeout)).finished
    except ServerError:
        return now  # it may take the lock but not watch it: without a watch, waiting is polling


def _wait_until_free(now: float, deadline: float, random: Random) -> Generator[Step, Answer, float]:
    """Wait until the key was deleted, may have been, or it is time to look anyway. Returns the time."""
    look_at = min(deadline, now + _POLL_S * (0.75 + 0.5 * random.random()))
    while now < look_at:
        answer = yield WaitForChange(look_at - now)
        now = answer.finished
        event = answer.value
        if isinstance(event, WatchEvent) and (event.kind is EventKind.DELETE or event.missed):
            break
    return now


def keep_renewed(
    terms: LockTerms, grant: Grant, *, renewed: Callable[[float], None], lost: Callable[[LeaseLostError], None]
) -> Generator[Step, Answer, None]:
    """Renew until the lease is lost. ``renewed`` is called with each new ``valid_until``, ``lost`` once, with why."""
    sent, valid_until = grant.sent, grant.valid_until
    now = sent
    while True:
        now = (yield Pause(max(0.0, sent + terms.lease * _RENEW_AFTER - now))).finished
        while True:
            if now >= valid_until:
                return lost(LeaseLostError("the lease ended before it could be renewed"))
            try:
                answer = yield Invoke(terms.claim(), valid_until - now)
                break
            except TransportError:
                now = yield from _pause_before_retry(min(_RETRY_S, terms.lease / 10), valid_until)
        now = answer.finished
        if not _set_result(answer).applied:
            return lost(LeaseLostError("somebody else holds the lock"))
        if now >= valid_until:
            lost(LeaseLostError("the answer to the renewal came after the lease had ended"))
            yield Invoke(VDel(terms.key, terms.holder), terms.lease)
            return None
        sent, valid_until = answer.started, terms.valid_until(answer.started)
        renewed(valid_until)


def outlive(grant: Grant, *, lost: Callable[[LeaseLostError], None]) -> Generator[Step, Answer, None]:
    """Wait for the end of a lease that is not renewed. ``lost`` is called once, with why."""
    now = grant.sent
    while now < grant.valid_until:
        now = (yield Pause(grant.valid_until - now)).finished
    lost(LeaseLostError("the lease has ended; it was not to be renewed"))


def release(terms: LockTerms, timeout: float) -> Generator[Step, Answer, bool]:
    """Give the lock back if it is still ours; returns whether it was."""
    answer = yield Invoke(VDel(terms.key, terms.holder), timeout)
    return bool(answer.value.count)


def _set_result(answer: Answer) -> SetResult:
    if not isinstance(answer.value, SetResult):
        raise UnexpectedReplyError(f"SET was answered with {answer.value!r}")
    return answer.value


def _gave_up(terms: LockTerms, timeout: float | None) -> LockNotAcquiredError:
    return LockNotAcquiredError(f"the lock {terms.name} was not free within {timeout:g} s")
