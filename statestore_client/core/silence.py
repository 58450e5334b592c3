"""Whether the broker is gone without a word: its machine lost its power or its cable, and TCP keeps the connection up.

While an answer is owed (a PUBACK, a SUBACK, a response, a PINGRESP), three times follow each other, counted from the
last byte that came, or from when the answer began to be owed::

    nothing for `patience` --PINGREQ--> nothing for `patience`, and `silence_timeout` is over --one look more--> gone

* *Suspicion* costs one packet, so that it is fast: :attr:`RoundTrip.patience` follows the round trip, as TCP does.
* *Giving up* costs a connection: it needs a question that was asked, that takes no disk to answer, and that had its
  time. What has still to be sent before the question counts, too: a large value on a slow line.
* A late timer of our own is not the silence of others: this process was stopped, or was busy, and could neither ask nor
  read. Then the wait for the answer begins anew. In any case the shell reads once more before the verdict.

Any byte is a sign of life. Keep-alive would notice, too, but later: after 90 seconds by default.

The connection is dropped before the next address is dialled. To dial beside it, and to spare it if a byte comes until
the other one is open, was tried as a prototype, and bought nothing that could be told from chance. Machines were cut in
network namespaces, both ways in alternation, five times each: the next write was acknowledged after 1.18 s (beside) and
1.16 s (median) where the active server was lost, and after 0.85 s and 0.86 s where a standby was. A dial there takes
0.06 ms (median of 50; 16 ms at most). Servers that paused were left by both from 0.85 s on (5 and 4 of 5), by neither
up to 0.8 s (0 of 10). The last moment to spare a connection would be before CONNECT, not before CONNACK: the broker
takes the session over when it has processed CONNECT, and CONNACK only tells.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import Final

#: If a request times out, and the broker has sent and acknowledged nothing for this long (seconds), it is taken for
#: gone. For lines of which nobody sees the bytes: those of the application's paho client.
_SILENCE_S: Final = 5.0
#: The same, when it says other things and acknowledges nothing. Longer: a large value takes its time to get there.
_OVERDUE_S: Final = 60.0
#: Seconds, however short the round trip: a broker collects its garbage, and its disk takes a while.
_LEAST_PATIENCE_S: Final = 0.25
#: Seconds before there was a round trip (RFC 6298, 2.1).
_FIRST_PATIENCE_S: Final = 1.0
#: With several addresses, another one is tried after this silence (seconds). Longer than a standby takes to become
#: active, so that the next address has somebody to pass on to; longer than most pauses of a busy broker.
_NEXT_ADDRESS_S: Final = 0.8
#: A tick that comes so much later (seconds) than it was asked for has found this process asleep.
_LATE_S: Final = 0.1
#: Seconds between the last look and the verdict: the shell reads what came in meanwhile.
_LOOK_S: Final = 0.03
#: Bytes a second that each line carries: 1 Mbit/s.
_SLOWEST_LINE: Final = 125_000


class Verdict(Enum):
    """What :meth:`Silence.check` asks for."""

    NOTHING = auto()
    PING = auto()
    GONE = auto()


class RoundTrip:
    """From a publication to its PUBACK: smoothed, with its deviation (RFC 6298, section 2). Seconds."""

    __slots__ = ("_deviation", "_smoothed", "patience")

    def __init__(self) -> None:
        self._smoothed: float | None = None
        self._deviation = 0.0
        #: How long an answer may take.
        self.patience: float = _FIRST_PATIENCE_S

    def measured(self, seconds: float) -> None:
        """One more. Not of what was sent twice: nobody knows which of both was answered (section 3)."""
        if self._smoothed is None:
            self._smoothed, self._deviation = seconds, seconds / 2
        else:
            self._deviation += (abs(seconds - self._smoothed) - self._deviation) / 4
            self._smoothed += (seconds - self._smoothed) / 8
        self.patience = max(_LEAST_PATIENCE_S, self._smoothed + 4 * self._deviation)


class Silence:
    """See the module. Times are monotonic seconds.

    :attr:`deadline` is set when something begins to be owed, and looked at again only when it is reached: requests that
    are answered meanwhile cost nothing.
    """

    __slots__ = ("_has_looked", "_pinged_at", "_timeout", "deadline", "round_trip")

    def __init__(self, timeout: float) -> None:
        """``timeout``: the setting ``silence_timeout``, which counts for one address."""
        self._timeout = timeout
        self.round_trip: RoundTrip = RoundTrip()
        #: When :meth:`check` has something to do; infinity while nothing is owed.
        self.deadline: float = math.inf
        self._pinged_at: float | None = None
        self._has_looked = False

    def expect(self, now: float) -> None:
        """An answer is owed. Nothing to do if one was already: see ``deadline``."""
        self.deadline = now + self.round_trip.patience

    def forget(self) -> None:
        """The connection has ended."""
        self.deadline = math.inf
        self._pinged_at = None

    def check(
        self,
        now: float,
        heard_at: float | None,
        owed_since: float | None,
        owed_bytes: int,
        *,
        has_others: bool,
    ) -> Verdict:
        """What to do now. ``owed_since``: when the oldest publication without its answer left; ``owed_bytes``: what is
        under way to the broker and not answered; ``has_others``: another address may answer.
        """
        if now < self.deadline:
            return Verdict.NOTHING
        if heard_at is None or owed_since is None:
            self.forget()
            return Verdict.NOTHING
        is_late = now - self.deadline > _LATE_S
        patience = self.round_trip.patience
        silent_since = max(heard_at, owed_since)
        if self._pinged_at is None or heard_at >= self._pinged_at:
            self._pinged_at = None
            self.deadline = silent_since + patience
            if now < self.deadline:
                return Verdict.NOTHING
            self._pinged_at, self._has_looked = now, False
            timeout = min(self._timeout, _NEXT_ADDRESS_S) if has_others else self._timeout
            self.deadline = max(now + patience + owed_bytes / _SLOWEST_LINE, silent_since + timeout)
            return Verdict.PING
        if is_late or not self._has_looked:
            self._has_looked = not is_late
            self.deadline = now + (patience if is_late else _LOOK_S)
            return Verdict.NOTHING
        self.forget()
        return Verdict.GONE


def is_connection_dead(now: float, heard_at: float, unacknowledged_since: float | None, acknowledged_at: float) -> bool:
    """Whether nothing, or no PUBACK, came in since the oldest publication without one left, and that was long ago.

    The time is counted from that publication, and not only from the last packet that came in: an idle link is silent as
    well. All times are monotonic seconds. ``heard_at``: the last packet; ``unacknowledged_since``: when the oldest
    publication without PUBACK left; ``acknowledged_at``: the last PUBACK.
    """
    if unacknowledged_since is None:
        return False
    silent_s = now - max(unacknowledged_since, heard_at)
    overdue_s = now - max(unacknowledged_since, acknowledged_at)
    return silent_s >= _SILENCE_S or overdue_s >= _OVERDUE_S
