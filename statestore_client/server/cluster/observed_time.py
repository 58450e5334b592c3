"""How far log time is ahead of this process's monotonic clock, as far as its entries tell.

An entry arrives after it was made, so each one gives a lower bound, and the greatest one is the best. Only those of the
last minute count: clocks run at different rates. A server that takes over goes on from there, so the time during which
nobody was active counts, and nothing ends early but by the drift of that minute.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from statestore_client.server.journal.journal import Timeline

if TYPE_CHECKING:
    from statestore_client.wire.instant import Instant

__all__ = ["ObservedTime", "log_time"]

_WINDOW_S: Final = 60


def log_time(timeline: Timeline, now: Instant) -> int:
    """Of an entry that is made now. Rounded down: what others observe must not be ahead of the truth."""
    return int(now.monotonic * 1000 + timeline.ahead_ms)


class ObservedTime:
    """The greatest bound of each second of the last minute."""

    def __init__(self) -> None:
        self._bounds: deque[tuple[int, float]] = deque()

    def restart(self) -> None:
        """There is another owner. It may be behind the one before, and deadlines are in its time now."""
        self._bounds.clear()

    def observe(self, log_ms: int, now: Instant) -> None:
        """A valid entry has arrived."""
        second = int(now.monotonic)
        ahead_ms = log_ms - now.monotonic * 1000
        bounds = self._bounds
        if bounds and bounds[-1][0] == second:
            ahead_ms = max(ahead_ms, bounds.pop()[1])
        bounds.append((second, ahead_ms))
        while bounds[0][0] < second - _WINDOW_S:
            bounds.popleft()

    def timeline(self, last_log_ms: int, now: Instant) -> Timeline:
        """For a server that becomes active now. ``last_log_ms`` is the greatest log time so far, 0 if there is none."""
        if not last_log_ms:
            return Timeline.begin(now)
        stopped_ms = last_log_ms - now.monotonic * 1000
        return Timeline(max([stopped_ms, *(ahead_ms for _, ahead_ms in self._bounds)]))
