"""The local clock, with which the timestamps of requests are compared.

It is the wall clock, as long as that goes forward. When the wall clock is set back, versions stay where they are, and
so do the clients whose timestamps follow them, or whose clocks are right: a server that compared them with its wall
clock would refuse the fencing token that it has just given out. So the local clock goes on from where it was, at the
pace of the monotonic clock, until the wall clock has caught up. It is written down and survives a restart; whoever
becomes the active server of a replicated log goes on with it as well, however slow its own wall clock is.

Upper bounds: no timestamp of a client moves the local clock, so a client that is always a minute ahead never gets the
versions further than that minute. And it is at most ``MAX_AHEAD_MS`` ahead of the wall clock: one that is set back
further was wrong before, and the mistake is not to last.

Source: state store protocol, "Clock skew", which says only "the state store's local clock".
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from statestore_client.wire.instant import Instant

__all__ = ["MAX_AHEAD_MS", "LocalClock"]

#: A day: more than any mistake with time zones.
MAX_AHEAD_MS: Final = 86_400_000


class LocalClock:
    """Invariant: between two readings it goes on by at least as much as the monotonic clock, unless the wall clock
    falls back by more than ``MAX_AHEAD_MS``.
    """

    __slots__ = ("ahead_ms",)

    def __init__(self) -> None:
        #: The greatest distance of the wall clock from the monotonic one that was seen so far, in milliseconds.
        self.ahead_ms: float = -inf

    def read(self, now: Instant) -> int:
        """Milliseconds since the Unix epoch, never behind the wall clock."""
        wall_ms, monotonic_ms = now.wall_ms, now.monotonic * 1000
        if wall_ms - monotonic_ms >= self.ahead_ms:
            self.ahead_ms = wall_ms - monotonic_ms
            return wall_ms
        return min(max(wall_ms, round(monotonic_ms + self.ahead_ms)), wall_ms + MAX_AHEAD_MS)

    def resume(self, ahead_ms: float) -> None:
        """Go on after a restart: with what an earlier life has seen."""
        self.ahead_ms = max(self.ahead_ms, ahead_ms)
