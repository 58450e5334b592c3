"""Waiting for a held lock: when to try again, and what is known when the time is over.

A waiter tries again at once when the lock may be free, and hardly ever while it is held.

A notification tells that the lock is free. Two things can go wrong with that, and each has its remedy here.

*It does not come.* The server, or the link, lost it; or the server does not tell of keys that expire. A waiter looks
again by itself, no later than a second after the holder's lease can have ended. It learns from the holder's renewals
how long a lease must be: a holder that renews every three seconds has a lease of more than three. So a waiter does not
ask about a healthy holder at all, and about a dead one once a second for what is left of its lease.

*It comes to two hundred at once.* All would ask, one would win. So a waiter that has lost such a race before waits a
few milliseconds, each a different time, and does not ask if meanwhile it hears that somebody has the lock. One in four
still asks at once: otherwise newcomers, and a holder that releases and acquires in a loop, would win every time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.errors import RequestTimeoutError, TransportError

if TYPE_CHECKING:
    from random import Random

__all__ = ["LastWord", "WaitPolicy", "within"]

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


class LastWord:
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


def within(timeout: float | None) -> str:
    """How long a caller waited in vain, in words, rounded: it may be what was left of a longer time. 0: one attempt."""
    return f"within {round(timeout, 2 if timeout >= 1 else 4):g} s" if timeout else "at once"
