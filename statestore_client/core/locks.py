"""Leased locks: what to send and when, written once as generators of steps; each shell has a small driver for them.

The server grants the lock to the client that sets the key first: ``SET lock holder NEX PX lease``. The version that it
returns is the fencing token (state store protocol, "Locking and fencing tokens").

What the local clock proves. The server starts to count the lease after we sent the request, so the lease is ours
at least until *sent + lease* by a clock of the same speed; a safety margin covers a clock that is a little slower, and
the time that it takes to wake the work that must stop.

Invariant: a lease is called valid only while no other holder can have been granted the lock.
Invariant: a claim whose outcome stays unknown is taken back, unless the connection is down; then the key stays
for one lease.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.core.actions import WatchEvent
from statestore_client.core.results import SetResult
from statestore_client.core.steps import Answer, Invoke, Observe, Pause, Post, Step, WaitForChange
from statestore_client.core.waiting import LastWord, WaitPolicy, within
from statestore_client.errors import (
    InvalidArgumentError,
    LockNotAcquiredError,
    RequestTimeoutError,
    ServerError,
    TransportError,
    UnexpectedReplyError,
)
from statestore_client.wire.commands import Condition, Get, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp

if TYPE_CHECKING:
    from random import Random

__all__ = [
    "Grant",
    "LockTerms",
    "acquire",
    "holder",
    "pause_before_retry",
    "release",
    "set_result",
    "try_acquire",
]

#: Part of the lease that is not relied upon: quartz clocks differ by far less than this.
_CLOCK_MARGIN: Final = 0.02
#: The least that is not relied upon (seconds), if the lease has so much to spare: threads and tasks wake up late.
_WAKE_MARGIN_S: Final = 0.05
_WAKE_MARGIN: Final = 0.1  # of the lease, at most
_RETRY_S: Final = 0.1


@attrs.frozen
class LockTerms:
    """What is locked, by whom, for how long. ``holder`` must differ between any two that may not hold it together."""

    key: bytes
    holder: bytes
    lease: float  # seconds
    persist: bool = False  # whether the claim is marked as one that must be on disk

    #: What the caller calls its arguments.
    lease_word = "lease"
    holder_word = "holder"

    def __attrs_post_init__(self) -> None:
        lease = self.lease
        if isinstance(lease, bool) or not isinstance(lease, (int, float)) or not 0.01 <= lease <= 86_400:
            raise InvalidArgumentError(f"{self.lease_word} must be seconds from 0.01 to 86400, not {lease!r}")
        if not self.holder:
            raise InvalidArgumentError(f"{self.holder_word} is empty")

    @property
    def name(self) -> str:
        """The key as people read it."""
        return self.key.decode("utf-8", "backslashreplace")

    def claim(self) -> Set:
        """The command that takes the lock or renews the lease."""
        return Set(self.key, self.holder, Condition.NEX, round(self.lease * 1000), None, self.persist)

    def give_back(self) -> VDel:
        """The command that frees the lock if this holder has it."""
        return VDel(self.key, self.holder)

    def valid_until(self, sent: float) -> float:
        """Until when (seconds) a lease that was granted for a request sent at ``sent`` can be relied upon."""
        margin = max(self.lease * _CLOCK_MARGIN, min(_WAKE_MARGIN_S, self.lease * _WAKE_MARGIN))
        return sent + self.lease - margin

    def not_acquired(self, timeout: float) -> LockNotAcquiredError:
        """The error of a caller that waited in vain for a lock that somebody else holds."""
        return LockNotAcquiredError(f"the lock {self.name} was not free {within(timeout)}")

    def not_known(self, timeout: float, why: str) -> RequestTimeoutError:
        """The error of a caller that waited in vain for the server, not for another holder."""
        return RequestTimeoutError(
            f"the lock {self.name} was not acquired {within(timeout)}, and whether it is free is not known: {why}"
        )

    def in_vain(self, timeout: float, why: str | None) -> LockNotAcquiredError | RequestTimeoutError:
        """:meth:`not_acquired` if ``why`` is None, else :meth:`not_known`: ``why`` says why nobody knows the holder."""
        return self.not_acquired(timeout) if why is None else self.not_known(timeout, why)


@attrs.frozen
class Grant:
    """The lock was granted."""

    fencing_token: HlcTimestamp
    sent: float  # seconds
    valid_until: float  # seconds
    store_id: str | None = None  # that granted it, if it says so


def try_acquire(terms: LockTerms, timeout: float) -> Generator[Step, Answer, Grant | None]:
    """One attempt. None when somebody else holds the lock, or when the lease had ended before its grant arrived."""
    answer = yield Invoke(terms.claim(), timeout, undo=terms.give_back())
    grant = _grant(terms, answer)
    if grant is not None and answer.finished >= grant.valid_until:
        yield Post(terms.give_back())
        return None
    return grant


def _grant(terms: LockTerms, answer: Answer) -> Grant | None:
    result = set_result(answer)
    if not result.applied:
        return None
    if result.version is None:
        raise UnexpectedReplyError("the server granted the lock without a version; there is no fencing token")
    return Grant(result.version, answer.started, terms.valid_until(answer.started), result.store_id)


def acquire(
    terms: LockTerms, *, now: float, timeout: float | None, request_timeout: float, random: Random
) -> Generator[Step, Answer, Grant]:
    """Try; else watch, try again, wait for the holder to go. After ``timeout`` it raises what :class:`LastWord` finds.

    A ``timeout`` of 0 tries once: the answer has the time of any other request.

    If the first attempt finds the lock free, no watch is needed. Otherwise the attempt that counts comes after the
    watch stands, so that a release between the two cannot be missed. A server that refuses the watch is polled.
    """
    deadline = math.inf if timeout is None else now + timeout
    policy = WaitPolicy(holder=terms.holder, lease=terms.lease, random=random)
    word = LastWord()
    observing = False
    while True:
        patience = request_timeout if timeout == 0 else max(0.001, min(request_timeout, deadline - now))
        try:
            answer = yield Invoke(terms.claim(), patience, undo=terms.give_back())
            now = answer.finished
            grant = _grant(terms, answer)
            if grant is not None and now < grant.valid_until:
                return grant
            word.answered(now, held=grant is None)
            if grant is not None and now >= deadline:
                yield Post(terms.give_back())
            # A request that waited for a connection may have been granted a lease that is over by now: then, again.
            if grant is None and now < deadline:
                if observing:
                    now = yield from _wait_for_turn(policy, word, now, deadline)
                else:
                    now = yield from _observe(terms.key, now, patience)
                    observing = True
        except TransportError as error:
            word.failed(error)
            now = yield from pause_before_retry(_RETRY_S, deadline)
        if timeout is not None and now >= deadline:
            raise _in_vain(terms, word, timeout, now) from word.failure


def _in_vain(
    terms: LockTerms, word: LastWord, timeout: float, now: float
) -> LockNotAcquiredError | RequestTimeoutError:
    error = terms.in_vain(timeout, word.what_is_missing(now))
    error.may_have_been_applied = word.unsettled and isinstance(error, RequestTimeoutError)
    return error


def pause_before_retry(seconds: float, until: float) -> Generator[Step, Answer, float]:
    """Wait after an error, not beyond ``until``. Returns the time, which the error did not tell."""
    now = (yield Pause(0.0, before_retry=True)).finished
    return (yield Pause(min(seconds, until - now))).finished if now < until else now


def _observe(key: bytes, now: float, timeout: float) -> Generator[Step, Answer, float]:
    """Begin to watch. Returns the time."""
    try:
        return (yield Observe(key, timeout)).finished
    except ServerError:
        return now  # it may take the lock but not watch it: without a watch, waiting is polling


def _wait_for_turn(policy: WaitPolicy, word: LastWord, now: float, deadline: float) -> Generator[Step, Answer, float]:
    """Wait until it is time for the next attempt. Returns the time."""
    look_at = policy.after_refusal(now)
    while now < (until := min(look_at, deadline)):
        answer = yield WaitForChange(until - now)
        now = answer.finished
        if isinstance(answer.value, WatchEvent):
            word.heard(answer.value, now)
            look_at = policy.after_event(answer.value, now, look_at)
    return now


def release(terms: LockTerms, timeout: float) -> Generator[Step, Answer, bool]:
    """Give the lock back if it is still ours; returns whether it was."""
    answer = yield Invoke(terms.give_back(), timeout, lasting=True)
    return bool(answer.value.count)


def holder(key: bytes, timeout: float) -> Generator[Step, Answer, bytes | None]:
    """The present holder of the lock; None when it is free."""
    item = (yield Invoke(Get(key), timeout)).value
    return None if item is None else bytes(item.value)


def set_result(answer: Answer) -> SetResult:
    """The result of a SET."""
    if not isinstance(answer.value, SetResult):
        raise UnexpectedReplyError(f"SET was answered with {answer.value!r}")
    return answer.value
