"""The times of a peer: who may conclude what from silence, and when.

========== ================================================================ ============================================
Time       Value                                                            Who relies on it
========== ================================================================ ============================================
quiet      ``QUIET_S`` at least, after each word of a leader                leases, hence safety: never adaptive
suspicion  the election time-out; longer where the own disk is slow, the    liveness only
           leader was silent for as long before, and lived, or this
           process stood still: others may on such a machine, too
patience   a candidate waits until a majority has answered                  liveness only, see :mod:`.election`
give up    the longest election time-out without a sign of life of a        clients, see :mod:`.step_down`
           majority, longer in the same way; ``disk_stall_s`` without the
           disk
========== ================================================================ ============================================

Invariant: a voter that has heard a leader gives no vote away for ``QUIET_S``, whatever it is set to, and it begins with
such a time: what it had promised before it stopped is not known. It says so in its hello; a leader's lease is shorter
than the shortest of what its voters promise.
Invariant: nothing is concluded from a timer that comes late before what arrived meanwhile could be read: a process that
stood still has heard nobody.
Invariant: nothing here is put off for longer than ``LONGEST_S``, unless the election time-outs are set to more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

    from raft_client.server.node.settings import NodeSettings

#: A constant of the protocol among our peers: what an earlier life or another version has promised is no less.
QUIET_S: Final = 0.2
#: Suspicion and grace end here, however slow disk and process are.
LONGEST_S: Final = 2.0
#: A timer that comes later than this was held up by the process, not by its own grain.
_LATE_S: Final = 0.03
#: What arrived during that time is read within this one.
_GRACE_S: Final = 0.1
#: An election has two syncs, of candidate and voter, and either may take twice as long as usual.
_SYNCS: Final = 4.0
#: A silence that ended by itself says how long the next one may be: processes stand still, theirs or this one.
_SILENCES: Final = 2.0
#: A delay that was seen once counts for half after this time.
_HALF_LIFE_S: Final = 10.0


class RecentPeak:
    """The longest of some durations, where one that is long ago counts for less."""

    __slots__ = ("_at", "_peak_s")

    def __init__(self) -> None:
        self._peak_s, self._at = 0.0, 0.0

    def add(self, seconds: float, now: float) -> None:
        """It took so long, and ended now."""
        if seconds >= self.at(now):
            self._peak_s, self._at = seconds, now

    def at(self, now: float) -> float:
        """In seconds; 0.0 if there was none."""
        return self._peak_s * math.exp2(-(now - self._at) / _HALF_LIFE_S) if self._peak_s else 0.0


class Timing:
    """When this peer suspects its leader, and until when it is quiet."""

    def __init__(self, settings: NodeSettings, rng: random.Random, now: float, *, was_quiet: bool) -> None:
        """``was_quiet``: an earlier life may have promised something."""
        self._settings, self._rng = settings, rng
        #: Of jobs of the own disk; of silences of others that ended by themselves; of timers that came late.
        self.syncs, self.silences, self.lags = RecentPeak(), RecentPeak(), RecentPeak()
        #: Until then no vote is given away: a leader may believe that it leads.
        self.quiet_until: float = now + QUIET_S if was_quiet else now
        #: A member that hears nothing until then asks for votes.
        self.election_at: float = now
        self._heard_at = self._restarted_at = now
        self._grace_until = -math.inf
        self.restart(now)

    # -- quiet and suspicion -------------------------------------------------------------------------------------------

    def hear_leader(self, now: float, *, is_the_same: bool) -> None:
        """The leader has said something; ``is_the_same``: as the last time."""
        if is_the_same:
            self.end_silence(self._heard_at, now)
        self._heard_at = now
        self.quiet_until = now + max(QUIET_S, self._settings.election_timeout_min_s)
        self.restart(now)

    def restart(self, now: float) -> None:
        """Wait for a random time from now, so that peers do not ask for votes all at once."""
        self._restarted_at, self.election_at = now, now + self._rng.uniform(*self._slow_times(now))

    def election_s(self, now: float) -> float:
        """Within this time another peer leads, if one can: it stands, and the others vote, on disks like this one's."""
        return self._slow_times(now)[1]

    def give_up_s(self, now: float) -> float:
        """For how long a leader waits for a sign of life of a majority."""
        return self._times(_SILENCES * self.silences.at(now))[1]

    def _slow_times(self, now: float) -> tuple[float, float]:
        silence_s = max(self.silences.at(now), self.lags.at(now))
        return self._times(max(_SYNCS * self.syncs.at(now), _SILENCES * silence_s))

    def _times(self, slow_s: float) -> tuple[float, float]:
        """The two election time-outs, or both longer, so that the shorter one is ``slow_s``."""
        shortest, longest = self._settings.election_timeout_min_s, self._settings.election_timeout_max_s
        if slow_s <= shortest:
            return shortest, longest
        spread = longest / shortest
        shortest = max(shortest, min(slow_s, LONGEST_S / spread))
        return shortest, shortest * spread

    def end_silence(self, since: float, now: float, *, may_have_been_away: bool = False) -> None:
        """One who was last heard then is heard now. One who was away was not slow."""
        if now - since <= self._settings.election_timeout_min_s / _SILENCES:
            return
        if not may_have_been_away or now - since < self.give_up_s(now):
            self.silences.add(min(now - since, LONGEST_S), now)

    def lose_leader(self, now: float) -> None:
        """The connection to the leader is gone: its process is, or will be heard on another one.

        A promise holds. Others have heard the leader later: who asks them too soon asks once more.
        """
        self.quiet_until = min(self.quiet_until, self._heard_at + QUIET_S)
        soon = max(now, self.quiet_until) + self._rng.uniform(0.0, self._settings.rpc_timeout_s)
        self.election_at = min(self.election_at, soon)

    # -- timers that come late -----------------------------------------------------------------------------------------

    def came_late(self, due: float, now: float) -> None:
        """Something was due, and this process looks at it now."""
        if now - due > _LATE_S:
            self.lags.add(min(now - due, LONGEST_S), now)
            self._grace_until = now + _GRACE_S
            self.election_at = self.put_off(self.election_at, self._restarted_at)

    def put_off(self, deadline: float, since: float) -> float:
        """When a conclusion from a silence ``since`` then may be drawn, instead of at ``deadline``."""
        return max(deadline, min(self._grace_until, since + LONGEST_S))
