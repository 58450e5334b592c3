"""How far this server's wall clock is from that of the server that writes into the log, and when to say so. Pure.

Each append has a request id, whose time is the wall clock of its writer in whole seconds. It arrives here later, never
earlier, so an entry makes the writer's clock look too slow at worst: of all entries of a span, the one whose writer's
clock looks fastest is the closest to the truth. An owner writes every ten seconds if nobody else has it write, so each
span has a fresh one; what waited for this server while it was away is in one span with what came at once.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from statestore_client.wire.instant import Instant

_SPAN_S: Final = 11.0
#: Whole seconds, and a log that takes one to answer, make no more of clocks that agree.
_NEAR_S: Final = 2.0
#: Without an entry for longer, nothing is known any more.
_KNOWN_S: Final = 3 * _SPAN_S
#: More than a slow log makes up.
WRONG_S: Final = 5.0
#: Between two lines in the log about clocks that differ.
_AGAIN_S: Final = 3600.0


@attrs.frozen
class ClockNews:
    """What to log: by how many seconds the own clock is ahead of the writer's, 0 when it is so no more."""

    ahead_s: float


class ClockSkew:
    """Over all lives of one server."""

    def __init__(self) -> None:
        #: By so much the own clock was ahead in the last whole span, negative: behind. 0 for less than 2.
        self.ahead_s: float = 0.0
        self._best_s: float = inf  # of the span that is under way: the least that the own clock is ahead
        self._ends_at = -inf
        self._said_at: float | None = None

    def observe(self, made_s: int, now: Instant) -> None:
        """An entry has arrived that was made in this second of its writer's clock."""
        if now.monotonic >= self._ends_at:
            if self._best_s < inf:
                self.ahead_s = self._best_s if abs(self._best_s) >= _NEAR_S else 0.0
            self._best_s, self._ends_at = inf, now.monotonic + _SPAN_S
        self._best_s = min(self._best_s, now.wall_ms / 1000 - made_s - 0.5)

    def look(self, now: float) -> ClockNews | None:
        """What to say now, if anything: when the clocks differ, once an hour while they do, and when they agree."""
        if now >= self._ends_at + _KNOWN_S:
            self.ahead_s = 0.0
        if abs(self.ahead_s) < WRONG_S:
            was_said, self._said_at = self._said_at is not None, None
            return ClockNews(0.0) if was_said else None
        if self._said_at is not None and now < self._said_at + _AGAIN_S:
            return None
        self._said_at = now
        return ClockNews(self.ahead_s)
