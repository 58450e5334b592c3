"""A life of a server that shares a log with others: what it makes of each entry, and what it appends. Pure.

The program tells what happens (:meth:`ClusterMember.receive`, :meth:`ClusterMember.tick`, …), then takes :attr:`output`
and :attr:`events`. Entries come in the order of the log, each once; what has been appended must arrive here or be told
with :meth:`ClusterMember.failed`. Before it says anything to clients the program calls
:meth:`ClusterMember.holds_lease`, with the clock read for that; what depends on a batch waits for :class:`BatchWritten`
as well.

``now.monotonic`` must go on while the machine sleeps (``CLOCK_BOOTTIME``): a lease ends meanwhile.

Source: ``docs/decisions/replicated-server.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore_client.server.cluster.campaign import Campaign, ObservedTime
from statestore_client.server.cluster.entries import (
    Assembly,
    BatchPiece,
    Challenge,
    Claim,
    NewFormat,
    Part,
    Snapshot,
    UnreadableLogError,
    decode,
    pack_batch,
    unpack_batch,
)
from statestore_client.server.cluster.fence import Fence, Verdict
from statestore_client.server.cluster.interface import (
    Appends,
    BatchReplicated,
    BatchWritten,
    Deposed,
    FormatRaised,
    IdInUse,
    OwnerChanged,
    Promoted,
    Role,
    RowsRestored,
    SnapshotRestored,
    SnapshotWritten,
)
from statestore_client.server.cluster.ownership import Ownership
from statestore_client.server.cluster.snapshots import SnapshotReader, SnapshotWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.server.cluster.entries import LogEntry
    from statestore_client.server.cluster.interface import Append, ClusterEvent, ClusterSettings
    from statestore_client.server.journal import WriteBatch
    from statestore_client.wire.instant import Instant


class ClusterMember:
    """It begins as a standby that knows nothing: of an empty log, or with the entry of a snapshot that is the base. The
    entries after that snapshot's index come next, not those after its entry. Raises UnreadableLogError.
    """

    def __init__(self, settings: ClusterSettings, now: Instant, base: tuple[int, LogEntry] | None = None) -> None:
        self.settings = settings
        self.events: list[ClusterEvent] = []
        self.fence: Fence = Fence()
        #: Bytes of the log since the snapshot that is the base.
        self.log_bytes: int = 0
        self._reader: SnapshotReader | None = None
        if base is not None:
            at, entry = base
            if not isinstance(entry.body, Snapshot):
                raise UnreadableLogError(f"the base of the log, {at}, is not a snapshot")
            self.fence = Fence.unpack(entry.body.fence)
            if self.fence.index != entry.body.index:
                raise UnreadableLogError(f"the snapshot at {at} has the fence of another index")
            self._reader = SnapshotReader(at)
            self.events.append(OwnerChanged(self.fence.epoch, self.fence.owner, self.fence.url))
        self._appends = Appends()
        self._time = ObservedTime()
        self._assembly = Assembly()
        self._campaign = Campaign(settings, self.fence, self._time, self._appends, now.monotonic)
        self._ownership: Ownership | None = None
        self._writer: SnapshotWriter | None = None
        self._is_caught_up = False
        self._is_deposed = False

    @property
    def output(self) -> list[Append]:
        """What is to be appended, in this order. The program empties it."""
        return self._appends.output

    @property
    def role(self) -> Role:
        """At the moment."""
        if self._is_deposed:
            return Role.DEPOSED
        return self._campaign.role if self._ownership is None else Role.ACTIVE

    @property
    def is_ready(self) -> bool:
        """Whether it may become active: it has read the log to its end, and a snapshot if there is one, and no data
        directory is being copied into the log.
        """
        return self._is_caught_up and self._reader is None and not (self._is_deposed or self.awaits_import)

    @property
    def awaits_import(self) -> bool:
        """Whether it reads a log into which a data directory is copied, or is to be."""
        return self.fence.is_unfinished or (self.settings.awaits_import and self.fence.epoch == 0)

    @property
    def is_snapshot_under_way(self) -> bool:
        """Whether this life or another one is writing one."""
        return self._writer is not None or self.fence.is_snapshot_under_way

    # -- the log -------------------------------------------------------------------------------------------------------

    def receive(self, index: int, data: bytes, now: Instant) -> None:
        """The next entry. Raises UnreadableLogError, or NewerLogError, and then this server must stop."""
        if self._is_deposed or index <= self.fence.index:
            return
        entry = decode(data)
        wait_s = self._campaign.wait_s
        verdict = self.fence.receive(index, entry)
        self.log_bytes += len(data)
        body = entry.body
        if isinstance(body, Snapshot | Part):
            self._receive_snapshot(entry, body, verdict)
        elif isinstance(body, Challenge):
            self._receive_challenge(entry, now)
        elif isinstance(body, Claim):
            self._receive_claim(entry, body, verdict, wait_s, now)
        else:
            self._receive_owned(index, entry, verdict, now)

    def catch_up(self) -> None:
        """The log has been read to where it ended when this life began."""
        self._is_caught_up = True

    def failed(self, ticket: int, now: Instant) -> None:
        """An append was given up."""
        if self._ownership is not None:
            self._ownership.failed(ticket)
        elif not self._is_deposed:
            self._campaign.failed(ticket, now.monotonic)
        if self._writer is not None:
            self._writer.failed(ticket)

    def _receive_claim(self, entry: LogEntry, claim: Claim, verdict: Verdict, wait_s: float, now: Instant) -> None:
        is_own = entry.life == self.settings.life
        if verdict is not Verdict.VALID:
            if is_own and self._ownership is None:
                self._campaign.claim_lost(entry, now.monotonic)
            return
        self._assembly.clear()
        self._time.restart()
        self._time.observe(entry.log_ms, now)
        self.events.append(OwnerChanged(entry.epoch, entry.life, claim.url))
        if self._ownership is not None:
            self._depose()
        elif is_own:
            self._promote(entry, claim, wait_s, now)
        else:
            self._campaign.owner_changed(now.monotonic)

    def _promote(self, entry: LogEntry, claim: Claim, wait_s: float, now: Instant) -> None:
        timeline = self._campaign.timeline(now)
        sent_at = self._campaign.claimed_at(entry)
        self._ownership = Ownership(
            self.settings,
            self.fence,
            timeline,
            self._appends,
            lease_until=0.0 if sent_at is None else sent_at + self.settings.lease_s,
            silent_until=now.monotonic + wait_s if claim.is_forced else 0.0,
            now=now.monotonic,
        )
        self.events.append(Promoted(entry.epoch, timeline))

    def _depose(self) -> None:
        self._is_deposed = True
        self._ownership = self._writer = None
        self.events.append(Deposed(self.fence.epoch))

    def _receive_challenge(self, entry: LogEntry, now: Instant) -> None:
        if entry.life == self.settings.life:
            self._campaign.challenge_came_back(entry, now.monotonic)
        elif self._ownership is not None:
            if entry.life.id == self.settings.life.id:
                self.events.append(IdInUse(entry.life))
            self._ownership.renew(now)

    def _receive_owned(self, index: int, entry: LogEntry, verdict: Verdict, now: Instant) -> None:
        body = entry.body
        if verdict is not Verdict.VALID:
            if self._ownership is not None and (entry.epoch, entry.life) == (self.fence.epoch, self.settings.life):
                self._ownership.receive(entry, verdict, now)
            return
        if self._ownership is None:
            self._time.observe(entry.log_ms, now)
            self._campaign.owner_wrote(now.monotonic)
        if isinstance(body, BatchPiece):
            self._receive_piece(index, body)
        elif isinstance(body, NewFormat):
            self.events.append(FormatRaised(self.fence.format))
        if self._ownership is not None:
            self._ownership.receive(entry, verdict, now)
        if self.fence.owner is None:
            self.events.append(OwnerChanged(entry.epoch, None, ""))
            if self._ownership is not None:
                self._depose()
            else:
                self._campaign.owner_changed(now.monotonic)

    def _receive_piece(self, index: int, piece: BatchPiece) -> None:
        if self._ownership is not None:
            if piece.is_last:
                self._ownership.is_writing = False
                self.events.append(BatchWritten(index))
            return
        data = self._assembly.add(piece.data, is_last=piece.is_last)
        if data is not None:
            batch = unpack_batch(data)
            if self._reader is not None:
                self._reader.touch(batch)
            self.events.append(BatchReplicated(index, batch))

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def _receive_snapshot(self, entry: LogEntry, body: Snapshot | Part, verdict: Verdict) -> None:
        if verdict is Verdict.VALID and isinstance(body, Part):
            # With the last part the place of the snapshot is the base; until then it is in ``writing``.
            at = self.fence.base if body.is_end else self.fence.writing.at if self.fence.writing else 0
            if self._reader is not None:
                self._restore(self._reader, at, body)
            if body.is_end:
                self.log_bytes = 0
                self.events.append(SnapshotWritten(body.index))
        if self._writer is not None and entry.life == self.settings.life and not self._writer.receive(entry, verdict):
            self._writer = None

    def _restore(self, reader: SnapshotReader, at: int, part: Part) -> None:
        rows = reader.receive(at, part)
        if rows is not None and rows.changes:
            self.events.append(RowsRestored(rows))
        if part.is_end and reader.at == at:
            self._reader = None
            self.events.append(SnapshotRestored(part.index))

    def begin_snapshot(self, rows: Iterator[WriteBatch], now: Instant) -> bool:
        """Write one, if none is being written, and if there are whole batches only. See :class:`SnapshotWriter`.

        All ``rows`` must be in the log: an active server begins when no change waits for a batch, leaves out rows that
        do, and ends the iterator when that batch is in the log, also for rows that it removes. Returns False if it
        cannot be done now.
        """
        fence = self.fence
        if not self.is_ready or self._assembly or self._writer is not None or fence.is_snapshot_under_way:
            return False
        if self._ownership is not None and self._ownership.is_writing:
            return False
        self._writer = SnapshotWriter(self.settings, fence, self._appends, rows, now.monotonic)
        return True

    # -- the owner -----------------------------------------------------------------------------------------------------

    @property
    def sent(self) -> int:
        """The number of the own epoch's entry that was sent last: see :meth:`holds_lease`."""
        return 0 if self._ownership is None else self._ownership.sent

    def holds_lease(self, now: Instant, since: int) -> bool:
        """Whether that may be said to clients, at this moment, which was decided when :attr:`sent` was ``since``."""
        return self._ownership is not None and self._ownership.holds_lease(now.monotonic, since)

    def may_pulse(self, now: Instant) -> bool:
        """Whether to give others signs of life: not if the log does not take entries of this server any more."""
        return self._ownership is not None and not self._ownership.is_stuck(now.monotonic)

    def renew_lease(self, now: Instant, since: int) -> None:
        """There is something to be said, which was decided when :attr:`sent` was ``since``."""
        if self._ownership is not None:
            self._ownership.renew_lease(now, since)

    @property
    def may_write(self) -> bool:
        """One batch at a time, and none after the epoch was handed over."""
        return self._ownership is not None and not (self._ownership.is_writing or self._ownership.is_handing_over)

    def write(self, batch: WriteBatch, now: Instant) -> None:
        """Append a batch, when :attr:`may_write` says so. :class:`BatchWritten` tells that it is valid; without that
        nobody may hear of it. Raises InvalidArgumentError for one that is too large for any log.
        """
        if self._ownership is None or not self.may_write:
            raise RuntimeError("not the owner, or a batch is being written: see may_write")
        self._ownership.write(pack_batch(batch), now)

    def hand_over(self, next_id: str, now: Instant) -> bool:
        """Give the epoch up, to a server of this id if it is there. Returns False if it cannot be done yet: a batch is
        being written, or this epoch was forced and has just begun.
        """
        ownership = self._ownership
        if ownership is None or not ownership.may_hand_over(now.monotonic):
            return False
        ownership.hand_over(next_id, now)
        return True

    def raise_format(self, new: int, now: Instant) -> bool:
        """Let batches have this format, which all servers know. Returns False if this is not the time for it."""
        if self._ownership is None or self._ownership.is_handing_over:
            return False
        self._ownership.raise_format(new, now)
        return True

    # -- others --------------------------------------------------------------------------------------------------------

    def hear(self, epoch: int, now: Instant) -> None:
        """A pulse of a server that takes itself for the owner of this epoch."""
        if self._ownership is None:
            self._campaign.hear(epoch, now.monotonic)

    def listener_came(self, now: Instant) -> None:
        """Another server listens to this one. Its life may have begun after the owner's last entry: without another
        one it would know the time of that at best, if it had to take over.
        """
        if self._ownership is not None:
            self._ownership.renew(now)

    def suspect(self, now: Instant) -> None:
        """The owner's machine refuses connections: its process is gone."""
        self._campaign.suspect()
        self.tick(now)

    def promote(self, now: Instant) -> bool:
        """Claim regardless of the owner, because people say so. Returns False if this life is not ready, or active."""
        if not self.is_ready or self._ownership is not None:
            return False
        self._campaign.claim(now, is_forced=True)
        return True

    # -- the clock -----------------------------------------------------------------------------------------------------

    def tick(self, now: Instant) -> None:
        """Do what is due."""
        if self._ownership is not None:
            self._ownership.tick(now)
        elif self.is_ready:
            self._campaign.tick(now)
        if self._writer is not None:
            self._writer.tick(now.monotonic)

    def next_deadline(self, now: Instant) -> float:
        """When to call :meth:`tick`; infinity if nothing is to be done."""
        snapshot_at = float("inf") if self._writer is None else self._writer.next_deadline()
        if self._ownership is not None:
            return min(snapshot_at, self._ownership.next_deadline(now.monotonic))
        return min(snapshot_at, self._campaign.next_deadline()) if self.is_ready else snapshot_at
