"""Leased locks: what to send and when, written once as generators of steps; each shell has a small driver for them.

The server grants the lock to the client that sets the key first: ``SET lock holder NEX PX lease``. The version that it
returns is the fencing token (state store protocol, "Locking and fencing tokens").

What the local clock proves. The server starts to count the lease after we sent the request, so the lease is ours
at least until *sent + lease* by a clock of the same speed; a safety margin covers a clock that is a little slower, and
the time that it takes to wake the work that must stop.

Invariant: a lease is called valid only while no other holder can have been granted the lock.
Invariant: a claim whose outcome stays unknown is taken back, unless the connection is down; then the key stays
for one lease.

Waiting for a held lock. A waiter tries again at once when the lock may be free, and hardly ever while it is held.
A notification tells that the lock is free. Two things can go wrong with that, and each has its remedy here.

*It does not come.* The server, or the link, lost it; or the server does not tell of keys that expire. A waiter looks
again by itself, no later than a second after the holder's lease can have ended. It learns from the holder's renewals
how long a lease must be: a holder that renews every three seconds has a lease of more than three. So a waiter does not
ask about a healthy holder at all, and about a dead one once a second for what is left of its lease.

*It comes to two hundred at once.* All would ask, one would win. So a waiter that has lost such a race before waits a
few milliseconds, each a different time, and does not ask if meanwhile it hears that somebody has the lock. One in four
still asks at once: otherwise newcomers, and a holder that releases and acquires in a loop, would win every time.

Elections. Of several candidates one leads for a term, and the next one takes over when it resigns or is gone. An
election is a lock under other names: the leader holds it, the term is the lease, the candidate is the holder. Only
its use differs. A lock is taken for a piece of work and given back; a leader leads until something ends its
leadership, and all others want to know who leads. The key is the one that the official SDKs' leader election uses,
so candidates in .NET take part (state store facts, 3.2).

The holder of a lock, as it changes: the events of the lock's key without the renewals.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.core.results import SetResult, within
from statestore_client.core.steps import Answer, Invoke, Pause, SendUnawaited, StartWatch, Step, WaitForChange
from statestore_client.errors import (
    InvalidArgumentError,
    LockNotAcquiredError,
    NoStateStoreError,
    RequestTimeoutError,
    ServerError,
    TransportError,
    UnexpectedReplyError,
)
from statestore_client.wire.commands import Condition, Get, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp

if TYPE_CHECKING:
    from random import Random

#: A waiter that heard nothing looks again after at most this long (seconds), and at least half of it.
_POLL_S: Final = 1.0
#: Waiters that lost a race spread their next attempts over this time (seconds): about what a server takes to tell 200
#: waiters.
_SPREAD_S: Final = 0.02
#: The part of the waiters that lost a race and still try at once.
_AT_ONCE: Final = 0.25
#: For this long (seconds) after the server said that the lock is held, the lock is taken to be held, although a later
#: request, late in the wait, got no answer. A waiter asks after a second at most; the rest is for a slow answer.
_FRESH_S: Final = 2.0


class LockKnowledge:
    """What one waiter heard last, from the server or of the connection: "not free" is said only if it is known.

    It is known when the server has said so, nothing failed since, and the connection is not down. One exception: if the
    last request had too little time left to be answered, an earlier answer that is recent enough still counts.
    """

    __slots__ = ("_held_at", "_is_down", "failure", "unsettled")

    def __init__(self) -> None:
        self._held_at: float | None = None
        self._is_down = False
        #: Since the server's last word.
        self.failure: TransportError | None = None
        #: Whether a claim may have been granted, nobody can tell.
        self.unsettled: bool = False

    def answered(self, now: float, *, held: bool) -> None:
        """The server answered a claim; ``held``: somebody else has the lock."""
        self._held_at = now if held else None
        self._is_down, self.failure, self.unsettled = False, None, False

    def failed(self, error: TransportError) -> None:
        """A claim, or the start of the watch, found no answer."""
        self.failure = error
        self.unsettled = self.unsettled or error.may_have_been_applied

    def heard(self, event: WatchEvent, now: float) -> None:
        """What the watch told."""
        self._is_down = event.kind is EventKind.SUSPENDED
        if event.kind is EventKind.SET:
            self._held_at = now

    def what_is_missing(self, now: float) -> str | None:
        """Why it is not known that somebody else holds the lock; None if it is."""
        failure, held_at = self.failure, self._held_at
        if held_at is None:
            return "the lease had ended when its grant arrived" if failure is None else str(failure)
        is_late = isinstance(failure, RequestTimeoutError) and failure.may_have_been_applied
        if not self._is_down and (failure is None or (is_late and now - held_at <= _FRESH_S)):
            return None
        why = "the connection is down" if failure is None else str(failure)
        return f"{why}; it was held {now - held_at:.1f} s ago"


class WaitPolicy:
    """What one waiter knows about the lock, and what follows for its next attempt. Times are in seconds."""

    __slots__ = ("_held_by", "_in_race", "_lease", "_me", "_quiet", "_races_lost", "_random", "_set_at")

    def __init__(self, *, holder: bytes, lease: float, random: Random) -> None:
        self._me = holder
        self._lease = lease
        self._random = random
        self._held_by: bytes | None = None
        self._set_at = 0.0  # when the holder was last heard of
        self._quiet = 0.0  # its lease is longer than this
        self._in_race = False  # the lock became free, and nobody is known to have it yet
        self._races_lost = 0

    def after_refusal(self, now: float) -> float:
        """An attempt was refused: somebody holds the lock. Returns when to try next."""
        self._race_is_over()
        return now + self._poll()

    def after_event(self, event: WatchEvent, now: float, otherwise: float) -> float:
        """The lock's key changed. Returns when to try next; ``otherwise`` if the event says nothing about that."""
        if event.kind is EventKind.DELETE:
            return self._freed(now)
        if event.kind is EventKind.SET:
            return self._held(event, now)
        return otherwise

    def _freed(self, now: float) -> float:
        self._in_race = True
        self._held_by = None
        if not self._races_lost or self._random.random() < _AT_ONCE:
            return now
        return now + _SPREAD_S * self._random.random()

    def _held(self, event: WatchEvent, now: float) -> float:
        if event.value == self._me:
            return now  # an earlier claim by this waiter, given up as unanswered, has been granted
        self._race_is_over()
        renewed = event.value == self._held_by and not event.missed
        # Not more than our own lease: should a release between two events have gone unnoticed, the gap says nothing.
        self._quiet = min(now - self._set_at, self._lease) if renewed else 0.0
        self._held_by, self._set_at = event.value, now
        return now + self._quiet + self._poll()

    def _race_is_over(self) -> None:
        self._races_lost += self._in_race
        self._in_race = False

    def _poll(self) -> float:
        return _POLL_S * (0.5 + 0.5 * self._random.random())


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
        yield SendUnawaited(terms.give_back())
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
    """Try; else watch, try again, wait for the holder to go. After ``timeout`` it raises what
    :class:`LockKnowledge` finds.

    A ``timeout`` of 0 tries once: the answer has the time of any other request.

    If the first attempt finds the lock free, no watch is needed. Otherwise the attempt that counts comes after the
    watch stands, so that a release between the two cannot be missed. A server that refuses the watch is polled.
    """
    deadline = math.inf if timeout is None else now + timeout
    policy = WaitPolicy(holder=terms.holder, lease=terms.lease, random=random)
    word = LockKnowledge()
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
                yield SendUnawaited(terms.give_back())
            # A request that waited for a connection may have been granted a lease that is over by now: then, again.
            if grant is None and now < deadline:
                if observing:
                    now = yield from _wait_for_turn(policy, word, now, deadline)
                else:
                    now = yield from _observe(terms.key, now, patience)
                    observing = True
        except NoStateStoreError:
            raise
        except TransportError as error:
            word.failed(error)
            now = yield from pause_before_retry(_RETRY_S, deadline)
        if timeout is not None and now >= deadline:
            raise _in_vain(terms, word, timeout, now) from word.failure


def _in_vain(
    terms: LockTerms, word: LockKnowledge, timeout: float, now: float
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
        return (yield StartWatch(key, timeout)).finished
    except ServerError:
        return now  # it may take the lock but not watch it: without a watch, waiting is polling


def _wait_for_turn(
    policy: WaitPolicy, word: LockKnowledge, now: float, deadline: float
) -> Generator[Step, Answer, float]:
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


@attrs.frozen
class ElectionTerms(LockTerms):
    """The terms of a lock, in the words of an election."""

    lease_word = "term"
    holder_word = "candidate"

    def not_acquired(self, timeout: float) -> LockNotAcquiredError:
        """The error of a candidate that campaigned in vain while another one led."""
        return LockNotAcquiredError(f"the election {self.name} was not won {within(timeout)}: another one leads")

    def not_known(self, timeout: float, why: str) -> RequestTimeoutError:
        """The error of a candidate that campaigned in vain and could not learn who leads."""
        return RequestTimeoutError(
            f"the election {self.name} was not won {within(timeout)}, and who leads is not known: {why}"
        )


@attrs.frozen
class LockState:
    """The holder of a lock, or the leader of an election, from now on; ``holder`` is None when there is none.

    ``version`` is that of the key when this was seen, None when there was no key: of two states with the same holder,
    the later one has the greater version. ``missed``: there may have been other holders since the state before.
    """

    holder: bytes | None
    version: HlcTimestamp | None = None
    missed: bool = False

    @property
    def free(self) -> bool:
        """Whether nobody holds it."""
        return self.holder is None


class HolderView:
    """Turns a watch's events into the states of a lock, each told once."""

    __slots__ = ("_holder",)

    def __init__(self) -> None:
        self._holder: bytes | None = None

    def first(self, event: WatchEvent | None) -> LockState:
        """The state to begin with. ``event`` holds the key's value; None when there is no key."""
        if event is None or event.kind is not EventKind.SET:
            return LockState(None)
        self._holder = event.value
        return LockState(event.value, event.version)

    def changed(self, event: WatchEvent) -> LockState | None:
        """The new state, or None when the holder is the one that was told before: a renewal, say."""
        if event.kind is EventKind.SET:
            holder = event.value
        elif event.kind is EventKind.DELETE:
            holder = None
        else:
            return None
        if holder == self._holder:
            return None
        self._holder = holder
        return LockState(holder, event.version, event.missed)
