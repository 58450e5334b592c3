"""How a life that is not the owner becomes it: suspicion, challenge, claim.

A challenge keeps those from being deposed that are alive, and is what nobody can do without a log: while that has no
leader no challenge comes back, and nobody claims. That a claim is safe does not depend on it; see ``ownership``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from statestore_client.server.cluster.entries import Challenge, Claim, LogEntry
from statestore_client.server.cluster.interface import CLOCK_RATES, Role
from statestore_client.server.journal import Timeline

if TYPE_CHECKING:
    from statestore_client.server.cluster.fence import Fence
    from statestore_client.server.cluster.interface import Appends, ClusterSettings, SentEntry
    from statestore_client.wire.instant import Instant

# -- observed time -----------------------------------------------------------------------------------------------------
#
# How far log time is ahead of this process's monotonic clock, as far as its entries tell.
#
# An entry arrives after it was made, so each one gives a lower bound, and the greatest one is the best. Only those of
# the last minute count: clocks run at different rates. A server that takes over goes on from there, so the time during
# which nobody was active counts, and nothing ends early but by the drift of that minute.


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


# -- campaign ----------------------------------------------------------------------------------------------------------


class Campaign:
    """Of one life, until it is the owner."""

    def __init__(
        self, settings: ClusterSettings, fence: Fence, time: ObservedTime, appends: Appends, now: float
    ) -> None:
        self.role: Role = Role.STANDBY
        self._settings = settings
        self._fence = fence
        self._time = time
        self._appends = appends
        self._challenges = 0
        self._challenge: SentEntry | None = None
        self._challenge_back_at: float | None = None
        self._claim: SentEntry | None = None
        #: The epoch that was claimed last, and the latest log time, relative to the own clock, that a claim of it had.
        self._claimed: tuple[int, float] = (0, 0.0)
        self._is_refused = False
        self._heard_at = now  # a sign of life of the owner
        self._valid_at = now  # the last valid entry came, or the owner was changed
        self._pause_until = now

    # -- signs of life -------------------------------------------------------------------------------------------------

    def hear(self, epoch: int, now: float) -> None:
        """A pulse of the owner of this epoch. That of one that was deposed, and does not know it, is none."""
        if epoch == self._fence.epoch:
            self._heard_at = now
            self._is_refused = False
            if self._claim is None:
                self._stand_by()

    def suspect(self) -> None:
        """The owner's machine says that there is no such process."""
        self._is_refused = True

    @property
    def _suspected_at(self) -> float:
        owner = self._fence.owner
        if self._is_refused or (owner is not None and owner.id == self._settings.life.id):
            return self._valid_at  # at once: the owner was this server, in an earlier life
        return self._heard_at + self._settings.silence_s

    @property
    def wait_s(self) -> float:
        """Longer than any lease of the owner, by any clock."""
        return self._fence.lease_ms / 1000 * CLOCK_RATES

    # -- entries -------------------------------------------------------------------------------------------------------

    def owner_changed(self, now: float) -> None:
        """Another life has claimed, or the owner has given up its epoch."""
        self._heard_at = self._valid_at = now
        self._is_refused = False
        self._stand_by()

    def owner_wrote(self, now: float) -> None:
        """A valid entry. After the own challenge it is the answer."""
        self._valid_at = now
        if self._challenge_back_at is not None:
            self._is_refused = False
            self._pause_until = now + self._settings.pause_s
            self._stand_by()

    def challenge_came_back(self, entry: LogEntry, now: float) -> None:
        """Of this life."""
        if self._challenge is not None and self._challenge.entry.seq == entry.seq and self._challenge_back_at is None:
            self._challenge_back_at = now

    def claim_lost(self, entry: LogEntry, now: float) -> None:
        """The own claim came back, and is not valid."""
        if self._claim is not None and self._claim.entry == entry:
            self._claim = None
            self._pause_until = now + self._settings.pause_s
            self._stand_by()

    def claimed_at(self, entry: LogEntry) -> float | None:
        """When this claim was sent; None if that was another one, sent earlier."""
        return self._claim.sent_at if self._claim is not None and self._claim.entry == entry else None

    def timeline(self, now: Instant) -> Timeline:
        """Of the own epoch, which has just begun. It goes on from the claim: others have observed the time of that."""
        return Timeline(self._ahead_ms(self._fence.epoch, self._time.timeline(self._fence.log_ms, now)))

    def _ahead_ms(self, epoch: int, timeline: Timeline) -> float:
        claimed, ahead_ms = self._claimed
        return max(ahead_ms, timeline.ahead_ms) if claimed == epoch else timeline.ahead_ms

    def failed(self, ticket: int, now: float) -> None:
        """An append was given up. If all is as it was, it is tried again after a pause."""
        if self._claim is not None and self._claim.ticket == ticket:
            self._claim = None
        elif self._challenge is None or self._challenge.ticket != ticket or self._challenge_back_at is not None:
            return
        self._pause_until = now + self._settings.pause_s
        self._stand_by()

    def _stand_by(self) -> None:
        self.role = Role.STANDBY
        self._challenge = self._challenge_back_at = None

    # -- the clock -----------------------------------------------------------------------------------------------------

    def tick(self, now: Instant) -> None:
        """Do what is due."""
        if now.monotonic >= self.next_deadline():
            if self._fence.owner is None or self._challenge is not None:
                self.claim(now)
            else:
                self._send_challenge(now.monotonic)

    def next_deadline(self) -> float:
        """When to call :meth:`tick`."""
        if self._claim is not None:
            return float("inf")
        fence, settings = self._fence, self._settings
        if fence.owner is None:
            waits = fence.epoch != 0 and fence.next_id != settings.life.id
            return max(self._pause_until, self._valid_at + settings.next_s * waits)
        if self._challenge is None:
            return max(self._pause_until, self._suspected_at)
        if self._challenge_back_at is None:
            return float("inf")
        return max(self._challenge_back_at + settings.answer_s, self._valid_at + self.wait_s)

    def _send_challenge(self, now: float) -> None:
        fence = self._fence
        self.role = Role.CANDIDATE
        self._challenges += 1
        entry = LogEntry(fence.epoch, self._challenges, self._settings.life, fence.log_ms, fence.base, Challenge())
        self._challenge = self._appends.send(entry, now)

    def claim(self, now: Instant, *, is_forced: bool = False) -> None:
        """Claim the next epoch."""
        fence, settings = self._fence, self._settings
        self.role = Role.CANDIDATE
        timeline = self._time.timeline(fence.log_ms, now)
        self._claimed = (fence.epoch + 1, self._ahead_ms(fence.epoch + 1, timeline))
        log_ms = log_time(timeline, now)
        format_ = fence.format if fence.epoch else settings.format
        body = Claim(settings.url, format_, settings.lease_ms, now.wall_ms, is_forced)
        entry = LogEntry(fence.epoch + 1, fence.seq, settings.life, log_ms, fence.base, body)
        self._claim = self._appends.send(entry, now.monotonic)
