"""How far the clocks of clients are ahead of the store's, as the timestamps of their requests tell.

Only the future counts: a clock that is behind does no harm. And only a time that the store has given to nobody tells of
its sender's clock: clients go on from the versions that they hear, so one whose clock is right repeats the time of
another one's that is ahead.

Invariant: what :meth:`ClientClocks.furthest_s` tells was seen within the last ``2 * SPAN_S``, and all of the last
``SPAN_S`` is in it.
"""

from __future__ import annotations

from math import inf
from typing import Final

from statestore_client.wire.hot_value import hot_value

#: What is less is no news: requests are refused from a minute on.
NOTED_AHEAD_MS: Final = 10_000

SPAN_S: Final = 300.0

#: Kept until they are taken.
_MOST: Final = 64


@hot_value
class ClockAhead:
    """This client's clock was ahead of the store's by so much."""

    client_id: str
    ahead_ms: int


class ClientClocks:
    """``news`` is for whoever takes it: what was noted since."""

    __slots__ = ("_ahead_ms", "_former_ms", "_span_ends", "news")

    def __init__(self) -> None:
        self.news: list[ClockAhead] = []
        self._ahead_ms = self._former_ms = 0
        self._span_ends = -inf

    def note(self, client_id: str, ahead_ms: int, now: float) -> None:
        """``now`` in monotonic seconds."""
        self._turn(now)
        self._ahead_ms = max(self._ahead_ms, ahead_ms)
        if len(self.news) < _MOST:
            self.news.append(ClockAhead(client_id, ahead_ms))

    def furthest_s(self, now: float) -> float:
        """Of all clients; 0 if none was noted."""
        self._turn(now)
        return max(self._ahead_ms, self._former_ms) / 1000

    def _turn(self, now: float) -> None:
        if now < self._span_ends:
            return
        self._former_ms = self._ahead_ms if now < self._span_ends + SPAN_S else 0
        self._ahead_ms = 0
        self._span_ends = now + SPAN_S
