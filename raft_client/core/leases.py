"""What the owner of a lease of keys knows: whether it may count on it, and when to keep it alive.

Invariant: an owner that may count on its lease at a moment has it: its keys are there at that moment.

A leader ends a lease when its own clock has passed the ttl since it applied the last word of the owner, or since it
began to lead, and that was after the owner sent the word. So the owner counts from when it sent the last word that was
acknowledged, and leaves a tenth for clocks that run differently.

Invariant: a lease that is over never comes back, whatever is acknowledged later.
"""

from __future__ import annotations

from typing import Final

import attrs

from raft_client.errors import LeaseEndedError

#: Of its ttl.
_HELD_SHARE: Final = 0.9
#: A word is sent so often; so two may be lost.
_KEEP_SHARE: Final = 0.3
#: After a word that was not acknowledged, the next one is sent so much later.
_RETRY_SHARE: Final = 0.05


@attrs.define(eq=False)
class OwnLease:
    """One lease, at its owner. ``now`` is seconds of a clock that goes on while the machine sleeps."""

    ttl_s: float
    #: Until when the owner may count on it, unless it is over; None before it was granted.
    valid_until: float | None = None
    #: When the next word is to be sent.
    due_at: float = 0.0
    #: Why it is over; None before that.
    ended: LeaseEndedError | None = None
    #: When the grant was sent first. It is appended once, so the answer to a later one may be about that.
    _asked_at: float | None = None

    def ask(self, now: float) -> float:
        """Note that the grant is sent now, and return when it was sent first."""
        if self._asked_at is None:
            self._asked_at = now
        return self._asked_at

    def begin(self, sent_at: float, now: float) -> bool:
        """Say whether a word that was sent then, and acknowledged now, lets the owner count on the lease, and do so."""
        if now >= sent_at + self.ttl_s * _HELD_SHARE:
            return False
        self.kept(sent_at)
        return True

    def kept(self, sent_at: float) -> None:
        """A word that was sent then was acknowledged."""
        self.valid_until = max(self.valid_until or 0.0, sent_at + self.ttl_s * _HELD_SHARE)
        self.due_at = sent_at + self.ttl_s * _KEEP_SHARE

    def not_kept(self, now: float) -> None:
        """Nobody knows whether a word was taken."""
        self.due_at = now + self.ttl_s * _RETRY_SHARE

    def look(self, now: float) -> LeaseEndedError | None:
        """Return why the owner cannot count on it any more; None if it can."""
        if self.ended is None and self.valid_until is not None and now >= self.valid_until:
            self.ended = LeaseEndedError("the lease could not be kept alive in time: its keys are deleted, or will be")
        return self.ended

    def end(self, why: LeaseEndedError) -> None:
        """It is over."""
        if self.ended is None:
            self.ended = why
