"""Up to when request ids may be forgotten, also if somebody sets the clock."""

from __future__ import annotations

from typing import Final

__all__ = ["RequestHorizon"]

#: It is asked for this often.
_INTERVAL_S: Final = 10.0


class RequestHorizon:
    """Follows the wall clock, but no faster than time passes.

    What is forgotten cannot be told from what is new. A clock that shows next year for a minute must not make a peer
    forget ids that are fresh again when it shows today: it would append their entries twice. ``now`` is monotonic.
    """

    def __init__(self, ttl_s: float | None) -> None:
        """``ttl_s`` is how long ids are remembered; None is for ever."""
        self._ttl_s = ttl_s
        self._due_at = 0.0
        self._horizon_s: float | None = None
        #: The horizon less the monotonic time, when the first one was told.
        self._offset_s = 0.0

    def due(self, now: float, wall_s: float) -> float | None:
        """Ids made before this time (seconds since 1970) may be forgotten now; None if it is not time to do so."""
        if self._ttl_s is None or now < self._due_at:
            return None
        self._due_at = now + _INTERVAL_S
        horizon_s = wall_s - self._ttl_s
        if self._horizon_s is None:
            self._horizon_s, self._offset_s = horizon_s, horizon_s - now
        self._horizon_s = max(self._horizon_s, min(horizon_s, now + self._offset_s))
        return self._horizon_s
