"""When to connect again, and what attempts that were given up may still do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from statestore_client.core.backoff import Backoff
from statestore_client.wire.instant import Instant

if TYPE_CHECKING:
    from random import Random

__all__ = ["Reconnection"]

#: A connection that lived this long (seconds) starts the back-off anew; a shorter one is part of the same trouble.
_STABLE_AFTER_S: Final = 5.0
#: For this long (seconds) an attempt that was given up may still reach the broker, and take the session over from its
#: successor: a kernel tries for a minute or two to send what was written to a closed socket.
_SHADOW_S: Final = 120.0


class Reconnection:
    """Attempt after attempt of one client. Times are monotonic seconds.

    The broker's addresses take turns, in rounds. After a connection that was stable a new round begins at once, and
    within a round the next attempt is made at once: a hand-over between two servers takes no longer than it must. The
    pauses of the back-off are between rounds.
    """

    __slots__ = (
        "_attempt_failed_at",
        "_backoff",
        "_failures",
        "_random",
        "_ready_since",
        "begins_round",
        "retry_at",
    )

    def __init__(self, backoff: Backoff, random: Random) -> None:
        self._backoff = backoff
        self._random = random
        self._failures = 0  # rounds without a stable connection, one after the other
        self._attempt_failed_at = -math.inf  # when an attempt ended without CONNACK
        self._ready_since: float | None = None
        #: When the next attempt is due; None while none is planned.
        self.retry_at: float | None = None
        #: Whether each address may be tried again then.
        self.begins_round: bool = True

    def begin_anew(self) -> None:
        """The client is opened again. What its last attempts may still do they may do now."""
        self._failures, self._ready_since, self.retry_at, self.begins_round = 0, None, None, True

    def succeeded(self, now: Instant) -> None:
        """Requests can leave."""
        self._ready_since = now.monotonic

    def failed(self, now: Instant) -> None:
        """An attempt ended without CONNACK."""
        self._attempt_failed_at = now.monotonic

    def plan(self, now: Instant, *, is_round_over: bool) -> None:
        """The connection, or the attempt, is over, and another one is to follow."""
        was_stable = self._ready_since is not None and now.monotonic - self._ready_since >= _STABLE_AFTER_S
        pause = 0.0
        if was_stable:
            self._failures = 0
        elif is_round_over:
            pause = self._backoff.delay(self._failures, self._random)
            self._failures += 1
        self._ready_since = None
        self.begins_round = was_stable or is_round_over
        self.retry_at = now.monotonic + pause

    def hurry(self, now: Instant) -> None:
        """The broker is not to blame: no back-off."""
        self._failures, self.retry_at, self.begins_round = 0, now.monotonic, True

    def is_due(self, now: Instant) -> bool:
        """Whether it is time for the next attempt, which the caller makes then."""
        if self.retry_at is None or self.retry_at > now.monotonic:
            return False
        self.retry_at = None
        return True

    def may_have_shadow(self, now: Instant) -> bool:
        """Whether an attempt that was given up without CONNACK may have reached the broker, or may still."""
        return now.monotonic - self._attempt_failed_at < _SHADOW_S
