"""Keep-alive of a client (MQTT 5.0, 3.1.2.10): when to ping, and when the link is dead."""

from __future__ import annotations

from enum import Enum, auto

import attrs

__all__ = ["Due", "KeepAlive"]


class Due(Enum):
    """What :meth:`KeepAlive.check` asks for."""

    NOTHING = auto()
    PING = auto()
    END = auto()


@attrs.define(eq=False)
class KeepAlive:
    """Times are monotonic seconds; an ``interval_s`` of 0 switches it off.

    Silence of either side counts: a link that takes what we write may have lost its way back. A ping must be answered,
    by whatever comes in, within half an interval.
    """

    interval_s: float
    last_sent: float = 0.0
    last_received: float = 0.0
    pinged_at: float | None = None

    def begin(self, now: float) -> None:
        self.last_sent = self.last_received = now

    def heard(self, now: float) -> None:
        """Note that something came in."""
        self.last_received = now
        self.pinged_at = None

    def deadline(self) -> float | None:
        """When :meth:`check` has something to say."""
        if not self.interval_s:
            return None
        if self.pinged_at is not None:
            return self.pinged_at + self.interval_s / 2
        return min(self.last_sent, self.last_received) + self.interval_s

    def check(self, now: float) -> Due:
        """PING only once for each silence; END when no answer came."""
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return Due.NOTHING
        if self.pinged_at is not None:
            return Due.END
        self.pinged_at = now
        return Due.PING
