"""What the active life does: it writes, and it speaks while it has a lease, or of what the log has confirmed.

A lease lasts from the moment when an entry was first sent that came back valid. Every other life waits for longer than
that, counted from when it received the last valid entry, before it claims; its claim is lost if there was another one.
So the lease is over before a claim can be valid, though nobody compares clocks.

Where the log takes longer than a lease, no lease outlives the way of its entry. What was decided before an entry was
sent may be said once that entry has come back valid: at its place in the log this life was the owner, and had decided
all of it. That it is said late, even after the next owner has begun, is what a slow network does as well.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.cluster.campaign import log_time
from statestore_client.server.cluster.entries import (
    MAX_BATCH,
    MAX_PIECES,
    BatchPiece,
    HandOver,
    LogEntry,
    NewFormat,
    Renewal,
    UnreadableLogError,
    pieces,
)
from statestore_client.server.cluster.fence import Verdict

if TYPE_CHECKING:
    from statestore_client.server.cluster.entries import Body
    from statestore_client.server.cluster.fence import Fence
    from statestore_client.server.cluster.interface import Appends, ClusterSettings, SentEntry
    from statestore_client.server.journal import Timeline
    from statestore_client.wire.instant import Instant


class Ownership:
    """From the own claim on. ``lease_until``: what the claim gave; ``silent_until``: after a forced one."""

    def __init__(
        self,
        settings: ClusterSettings,
        fence: Fence,
        timeline: Timeline,
        appends: Appends,
        *,
        lease_until: float,
        silent_until: float,
        now: float,
    ) -> None:
        self.timeline = timeline
        self.epoch: int = fence.epoch
        self.is_handing_over: bool = False
        self.is_writing: bool = False
        self._settings = settings
        self._fence = fence
        self._appends = appends
        self._lease_until = lease_until
        self._silent_until = silent_until
        self._sent_at = now
        self._under_way: deque[SentEntry] = deque()
        self._wanted: int | None = None  # what was sent when the newest of what waits to be said was decided

    # -- what it may ---------------------------------------------------------------------------------------------------

    @property
    def sent(self) -> int:
        """The number of the entry of this epoch that was sent last."""
        return self._fence.seq + len(self._under_way)

    def holds_lease(self, now: float, since: int) -> bool:
        """Whether no other life can be the owner yet, or a later entry than ``since`` came back valid: what is to be
        said was decided when that one was the last.
        """
        return not self.is_handing_over and now >= self._silent_until and self._is_known(now, since)

    def _is_known(self, now: float, since: int) -> bool:
        return now < self._lease_until or self._fence.seq > since

    def is_stuck(self, now: float) -> bool:
        """Whether it waits for the log for so long that another one had better be the owner."""
        return bool(self._under_way) and now >= self._under_way[0].sent_at + self._settings.stuck_s

    def may_hand_over(self, now: float) -> bool:
        """Not while it writes, or while the lease of an owner that it forced out may last: nobody waits for that one
        any more, once the epoch is vacant.
        """
        return not (self.is_writing or self.is_handing_over) and now >= self._silent_until

    def renew_lease(self, now: Instant, since: int) -> None:
        """Something is to be said that was decided when ``since`` was the last entry, and the lease is over."""
        if not self.is_handing_over and now.monotonic >= self._lease_until:
            self._wanted = since if self._wanted is None else max(since, self._wanted)
            self.renew(now)

    # -- what it writes ------------------------------------------------------------------------------------------------

    def write(self, data: bytes, now: Instant) -> None:
        """A batch, in as many entries as it needs. Raises InvalidArgumentError if readers would not take it."""
        most = min(MAX_BATCH, MAX_PIECES * self._settings.piece_bytes)
        if len(data) > most:
            raise InvalidArgumentError(f"a batch of {len(data)} bytes; the log takes {most}")
        self.is_writing = True
        for piece, is_last in pieces(data, self._settings.piece_bytes):
            self._send(BatchPiece(piece, is_last), now)

    def renew(self, now: Instant) -> None:
        """Unless something is under way, which does the same."""
        if not self._under_way and not self.is_handing_over:
            self._send(Renewal(now.wall_ms), now)

    def hand_over(self, next_id: str, now: Instant) -> None:
        """Say nothing from now on: the next one claims as soon as it sees this."""
        self.is_handing_over = True
        self._send(HandOver(next_id), now)

    def raise_format(self, new: int, now: Instant) -> None:
        """Batches that are written from now on may have it."""
        self._send(NewFormat(new), now)

    def _send(self, body: Body, now: Instant) -> None:
        fence = self._fence
        log_ms = max(log_time(self.timeline, now), fence.log_ms)
        seq = fence.seq + len(self._under_way) + 1
        entry = LogEntry(self.epoch, seq, self._settings.life, log_ms, fence.base, body)
        self._under_way.append(self._appends.send(entry, now.monotonic))
        self._sent_at = now.monotonic

    # -- what comes back -----------------------------------------------------------------------------------------------

    def receive(self, entry: LogEntry, verdict: Verdict, now: Instant) -> None:
        """An entry of this life and epoch."""
        if verdict is Verdict.VALID:
            if not self._under_way:
                raise UnreadableLogError("an entry of this server's own life that it has not written")
            sent = self._under_way.popleft()
            self._lease_until = max(self._lease_until, sent.sent_at + self._settings.lease_s)
            if self._wanted is not None:
                if self._is_known(now.monotonic, self._wanted):
                    self._wanted = None
                else:
                    self.renew(now)
        elif verdict is Verdict.GAP and self._under_way and entry.seq == self._under_way[-1].entry.seq:
            # Turned around, or one before it is lost. Not earlier than with the last one: most come back like this
            # together, and each would have all of them sent again.
            self._repeat()

    def failed(self, ticket: int) -> None:
        """Given up. If it was the newest copy of its entry, that is sent again, with all others: one at a time they
        would only come back with a gap before them.
        """
        if any(sent.ticket == ticket for sent in self._under_way):
            self._repeat()

    def _repeat(self) -> None:
        for sent in self._under_way:
            self._appends.repeat(sent)

    # -- the clock -----------------------------------------------------------------------------------------------------

    def tick(self, now: Instant) -> None:
        """Do what is due."""
        if now.monotonic >= self._sent_at + self._settings.idle_s:
            self.renew(now)

    def next_deadline(self, now: float) -> float:
        """When to call :meth:`tick`, and to ask again whether it may speak."""
        idle_at = float("inf") if self._under_way else self._sent_at + self._settings.idle_s
        return min(idle_at, self._silent_until) if self._silent_until > now else idle_at
