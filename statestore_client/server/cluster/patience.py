"""How long clients of the active server wait for the log, before they are let go to try another server. Pure.

Nothing that is safe depends on it: without its lease this server says nothing, however long its clients stay. So it is
a question of cost. Letting a client go costs it a connection, in vain where no server is better; to keep it costs the
outage that another server, on the side of the majority, would have ended: that one is active after 0.6 s.

=============================== ========= =============================================================================
The log                         wait      why
=============================== ========= =============================================================================
is heard: its leader broadcasts 5 s       it is slow, and not lost. A disk that takes 300 ms for a sync answers after
                                          0.6 to 1.2 s, one that stalls after more; a leader without a disk steps down
                                          by itself after 1 s, and other servers replace one whose entries do not come
                                          back after 1.6 s
is silent                       1 s, then A leader that has lost its majority gives up after 0.3 s, and is called silent
                                2 s, 4 s, 0.7 s later: after 1.0 s. An election on quick disks is over before (0.25 to
                                5 s       0.5 s). Who was let go and is back has found no better server, and would be
                                          let go once a second: the next wait is twice as long
=============================== ========= =============================================================================

Invariant: who was not let go in vain: within one outage of the log a client that stays at this server is let go four
times in its first 12 s, then once in five seconds. An own timer that comes late is no silence of the log: what arrived
meanwhile is read first.
"""

from __future__ import annotations

from typing import Final

import attrs

#: While the log is heard, and at most.
_LONGEST_S: Final = 5.0
#: When it falls silent.
_FIRST_S: Final = 1.0
#: A look that comes later than this after the one before was held up by the process, as by a machine that slept.
_LATE_S: Final = 0.5


class ClientPatience:
    """Of one life of a server. It is asked again and again, several times a second."""

    def __init__(self, now: float) -> None:
        self._silent_limit_s = _FIRST_S
        self._looked_at = now

    def is_over(self, waited_s: float, now: float, *, is_heard: bool) -> bool:
        """Whether to let the clients go that have waited for so long; they count as let go. ``is_heard``: the log's
        leader has said something lately.
        """
        is_late = now - self._looked_at > _LATE_S
        self._looked_at = now
        if is_heard:
            self._silent_limit_s = _FIRST_S
        limit_s = _LONGEST_S if is_heard else self._silent_limit_s
        if is_late or waited_s < limit_s:
            return False
        if not is_heard:
            self._silent_limit_s = min(2.0 * limit_s, _LONGEST_S)
        return True


#: An election on quick disks is over before, see above.
_OUTAGE_S: Final = 1.5
#: Between two lines in the log about the same outage.
_AGAIN_S: Final = 10.0


@attrs.frozen
class OutageNews:
    """What to log: for how long the log has had no leader, in seconds, and whether it has one again."""

    lasted_s: float
    is_over: bool


class LogOutage:
    """Whether the log has no leader, and when to say so: after 1.5 s, each 10 s, and when there is one again. It is
    asked several times a second.
    """

    def __init__(self, now: float) -> None:
        self._heard_at = self._looked_at = now
        self._said_at: float | None = None

    def look(self, now: float, *, is_heard: bool) -> OutageNews | None:
        """``is_heard`` as for :class:`ClientPatience`."""
        if now - self._looked_at > _LATE_S:  # this process was held up, and not the log
            self._heard_at += now - self._looked_at
        self._looked_at = now
        lasted_s = self.lasts_s
        if is_heard:
            was_said, self._said_at, self._heard_at = self._said_at is not None, None, now
            return OutageNews(lasted_s, is_over=True) if was_said else None
        if not lasted_s or (self._said_at is not None and now < self._said_at + _AGAIN_S):
            return None
        self._said_at = now
        return OutageNews(lasted_s, is_over=False)

    @property
    def lasts_s(self) -> float:
        """Seconds without a leader at the last look; 0 before they are an outage."""
        silent_s = self._looked_at - self._heard_at
        return silent_s if silent_s >= _OUTAGE_S else 0.0
