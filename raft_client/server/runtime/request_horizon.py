"""Up to when request ids may be forgotten, also if somebody sets the clock."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from raft_client.wire.request_id import CLOCK_TOLERANCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

#: It is asked for this often.
_INTERVAL_S: Final = 10.0


class RequestHorizon:
    """Follows the wall clock, but no faster than time passes, and no further than the newest id in the log allows.

    What is forgotten cannot be told from what is new. A clock that shows next year for a minute must not make a peer
    forget ids that are fresh again when it shows today: it would append their entries twice. While a peer runs, its
    monotonic clock (``now``) knows better. A machine that boots may show anything, but the ids in its log were made by
    others, and taken by leaders whose clocks agreed to a quarter of an hour: they say which time it is at least, and
    that is believed.
    """

    def __init__(self, ttl_s: float | None) -> None:
        """``ttl_s`` is how long ids are remembered; None is for ever."""
        self._ttl_s = ttl_s
        self._due_at = 0.0
        self._horizon_s: float | None = None
        #: What the wall clock allowed, less the monotonic time, when it was asked first.
        self._offset_s = 0.0

    def due(self, now: float, wall_s: float, newest_s: Callable[[], float]) -> float | None:
        """Ids made before this time (seconds since 1970) may be forgotten now; None if it is not time to do so.

        ``newest_s`` tells when the newest id in the log was made, or a time before that.
        """
        if self._ttl_s is None or now < self._due_at:
            return None
        self._due_at = now + _INTERVAL_S
        limit_s = wall_s - self._ttl_s
        if self._horizon_s is None:
            self._horizon_s, self._offset_s = -math.inf, limit_s - now
        limit_s = min(limit_s, now + self._offset_s, newest_s() - CLOCK_TOLERANCE_S - self._ttl_s)
        self._horizon_s = max(self._horizon_s, limit_s)
        return self._horizon_s if self._horizon_s > -math.inf else None
