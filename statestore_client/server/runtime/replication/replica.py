"""One life of a replicated server: the pure core, the log, and machines that follow or serve."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from statestore_client.errors import InvalidArgumentError, ReplicatedLogError
from statestore_client.server.cluster.entries import Life
from statestore_client.server.cluster.interface import (
    BatchReplicated,
    BatchWritten,
    ClusterSettings,
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
from statestore_client.server.cluster.member import ClusterMember
from statestore_client.server.cluster.snapshots import is_snapshot_wanted
from statestore_client.server.runtime.clock import Alarm
from statestore_client.server.runtime.observability.logs import LOGGER, log_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from statestore_client.server.cluster.entries import LogEntry
    from statestore_client.server.cluster.interface import ClusterEvent
    from statestore_client.server.journal import Done, Timeline, WriteBatch
    from statestore_client.server.runtime.clock import ElapsedClock, TimerHandle
    from statestore_client.server.runtime.replication.log_link import LogLink

# -- life owner --------------------------------------------------------------------------------------------------------
#
# What one life of a replicated server tells its program.


class ReplicaListener(Protocol):
    """What a life tells. It may be closed from inside any of these."""

    def replicated(self, batch: WriteBatch) -> None:
        """A standby's machines have these rows from now on."""

    def settled(self) -> None:
        """All rows of a snapshot are here."""

    def log_trimmed(self) -> None:
        """This life has fallen behind: another one has to begin after the newest snapshot."""

    def caught_up(self) -> None:
        """All that there was has been read."""

    def appending(self, batch: WriteBatch) -> None:
        """The active server writes this batch."""

    def written(self) -> None:
        """It is in the log. What it answers is said next."""

    def owner_changed(self, epoch: int, owner: Life | None, url: str) -> None:
        """Another server is active, or none. What was so before this life had caught up is not told."""

    def promoted(self, epoch: int, timeline: Timeline) -> None:
        """This one is."""

    def deposed(self, epoch: int) -> None:
        """This life is over."""

    def lease_renewed(self) -> None:
        """Or so it may be: something came back from the log."""

    def failed(self, error: Exception) -> None:
        """The server cannot go on."""


# -- signs of the owner ------------------------------------------------------------------------------------------------
#
# Why another server is active, for people: nothing is decided by it.


class OwnerSigns:
    """What this server has seen of the active one. Times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self.is_refused: bool = False
        self.is_claimed_by_hand: bool = False
        self._heard_at = now
        self._owner: Life | None = None

    def heard(self, now: float) -> None:
        """The active server lives."""
        self._heard_at, self.is_refused = now, False

    def changed(self, event: OwnerChanged, own: Life, now: float) -> dict[str, Any]:
        """The fields of the line about it: who was active before, how long nobody has been, and why it changed. This
        server knows the latter two if it was not active itself.
        """
        former, self._owner = self._owner, event.owner
        silent_s = round(now - self._heard_at, 3)
        reason = self._reason(event, former, own)
        self.is_claimed_by_hand = False
        self.heard(now)
        fields: dict[str, Any] = {"former": "" if former is None else former.id}
        if former == own:
            return fields
        return fields | ({"nobody_active_s": silent_s} if event.epoch > 1 else {}) | {"reason": reason}

    def _reason(self, event: OwnerChanged, former: Life | None, own: Life) -> str:
        if event.owner is None:
            return "it has handed over"
        if event.epoch == 1:
            return "the log is new"
        if former is None:
            return "the former one has handed over"
        if event.owner == own:
            if self.is_claimed_by_hand:
                return "this server was told to take over"
            if former.id == own.id:
                return "this server was active, and has begun anew"
            if self.is_refused:
                return "the former one's machine refuses connections: its process has ended"
        return "the former one gave no sign of life"


# -- replica life ------------------------------------------------------------------------------------------------------


#: A batch may be on its way, or an epoch may be so new that it cannot be given up yet.
_AGAIN_S: Final = 0.01


class LogReplica:
    """For the active server it is :class:`~statestore_client.server.journal.BatchStorage` and
    :class:`~statestore_client.server.runtime.storage.group_commit.LeadershipLease`. Belongs to the event loop.
    """

    def __init__(
        self,
        life: Life,
        url: str,
        owner: ReplicaListener,
        clock: ElapsedClock,
        link: LogLink,
        base: tuple[int, LogEntry] | None,
        *,
        awaits_import: bool = False,
    ) -> None:
        """``url`` is where the others pass clients on to while this one is active; ``base`` is where the ``link`` has
        found that reading begins. ``awaits_import``: do not begin with an empty log. Raises UnreadableLogError.
        """
        self.life = life
        self._owner = owner
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._member = ClusterMember(ClusterSettings(life, url, awaits_import=awaits_import), clock(), base)
        self._alarm = Alarm(self._call_at, self._fire, slack_s=0.0)
        self._done: Done | None = None
        self._written_at = 0.0  # the batch that is on its way
        self._is_handing_over: asyncio.Future[None] | None = None
        self._new_format = asyncio.Event()
        self._is_caught_up = False
        self._active: OwnerChanged | None = None
        self._is_over = False
        self._asked_at: float | None = None
        self._snapshot_index = 0  # nobody needs the entries up to there, because of the newest snapshot
        self._namesake: Life | None = None  # another server with this id, which the operator was told of
        self._signs = OwnerSigns(clock().monotonic)
        #: What to log about the last change of the active server; nothing of one that was before this life.
        self.change: dict[str, Any] = {}

    def open(self) -> None:
        """Begin to follow."""
        self._link.open(self, self._member.fence.index)
        self._turn()

    async def close(self) -> None:
        """Write, say and read nothing any more. Safe to call twice."""
        self._end()
        await self._link.close()

    def _end(self) -> None:
        self._is_over = True
        self._alarm.cancel()
        if self._is_handing_over is not None and not self._is_handing_over.done():
            self._is_handing_over.set_result(None)

    # -- what is known ------------------------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return self._member.role

    @property
    def epoch(self) -> int:
        return self._member.fence.epoch

    @property
    def index(self) -> int:
        """Of the last entry that was read."""
        return self._member.fence.index

    @property
    def base(self) -> int:
        """Where the newest complete snapshot begins in the log; 0 for none."""
        return self._member.fence.base

    @property
    def log_bytes(self) -> int:
        """Of the entries since then."""
        return self._member.log_bytes

    @property
    def is_ready(self) -> bool:
        """Whether it has read all that there was."""
        return self._member.is_ready

    @property
    def awaits_import(self) -> bool:
        """Whether a data directory is being copied into the log, or is to be: until then nobody is active."""
        return self._member.awaits_import

    @property
    def format(self) -> int:
        """Of the records in the log; 0 until the first server has begun."""
        return self._member.fence.format

    # -- from the log -------------------------------------------------------------------------------------------------

    def read(self, entries: list[tuple[int, bytes]]) -> None:
        for index, data in entries:
            if self._is_over:
                return
            self._member.receive(index, data, self._clock())
            if self._member.events:
                self._emit_events()
        self._turn()
        if not self._is_over and self._member.role is Role.ACTIVE:
            self._owner.lease_renewed()

    def caught_up(self) -> None:
        self._member.catch_up()
        self._is_caught_up = True
        owner, self._active = self._active, None
        if owner is not None:
            self._owner.owner_changed(owner.epoch, owner.owner, owner.url)
        self._owner.caught_up()
        self._turn()

    def append_failed(self, ticket: int) -> None:
        self._member.failed(ticket, self._clock())
        self._turn()

    def log_trimmed(self) -> None:
        if not self._is_over:
            self._owner.log_trimmed()

    def log_failed(self, error: Exception) -> None:
        if not self._is_over:
            self._end()
            self._owner.failed(error)

    # -- from the others ----------------------------------------------------------------------------------------------

    def hear(self, epoch: int) -> None:
        """A pulse of the server that owns this epoch."""
        if epoch == self.epoch:
            self._signs.heard(self._clock().monotonic)
        self._member.hear(epoch, self._clock())
        self._turn()

    def suspect(self) -> None:
        """The active server's machine says that there is no such process."""
        self._signs.is_refused = True
        self._member.suspect(self._clock())
        self._turn()

    @property
    def may_pulse(self) -> bool:
        """Whether to give signs of life."""
        return not self._is_over and self._member.may_pulse(self._clock())

    def listener_came(self) -> None:
        """Another server listens to this one: if it is active, let it know the time of the log."""
        self._member.listener_came(self._clock())
        self._turn()

    # -- each turn ----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Do what is due, and set the timer for what is next."""
        if self._is_over:
            return
        self._member.tick(self._clock())
        self._emit_events()
        self._hand_on()
        self._arm()

    def _emit_events(self) -> None:
        member = self._member
        while member.events and not self._is_over:
            events, member.events = member.events, []
            for event in events:
                if not self._is_over:
                    self._emit(event)

    def _emit(self, event: ClusterEvent) -> None:
        owner = self._owner
        match event:
            case BatchReplicated(batch=batch) | RowsRestored(batch=batch):
                owner.replicated(batch)
            case BatchWritten():
                self._owner.written()
                done, self._done = self._done, None
                if done is not None:
                    done(None)
            case SnapshotRestored():
                owner.settled()
            case SnapshotWritten(index=index):
                self._snapshot_index = index
                if self._member.role is Role.ACTIVE:
                    self._link.trim(index)
            case OwnerChanged():
                change = self._signs.changed(event, self.life, self._clock().monotonic)
                if self._is_caught_up:
                    self.change = change
                    owner.owner_changed(event.epoch, event.owner, event.url)
                else:
                    self._active = event  # perhaps long ago
            case Promoted():
                owner.promoted(event.epoch, event.timeline)
            case Deposed():
                self._end()
                try:
                    owner.deposed(event.epoch)
                except Exception as error:  # noqa: BLE001 - our own defect: better no server than one that hangs
                    owner.failed(error)
            case FormatRaised():
                self._new_format.set()
                log_event(logging.INFO, "the log has a new format", format=event.format)
            case IdInUse(life=life) if life != self._namesake:
                self._namesake = life
                LOGGER.error("another server has the id %r, too: give each of them an id of its own", life.id)

    async def look_at_members(self) -> tuple[bool, str]:
        """Whether the log has a leader, and what to put right about its peers that this server was told of, if
        anything.
        """
        if not self._is_over:
            await self._link.look_at_members()
        return self._link.has_leader, self._link.warning

    async def trim(self) -> str:
        """Let the log's peers drop what precedes the newest snapshot. Returns why that was not done, or nothing."""
        if not self._snapshot_index:
            return "there is no snapshot in the log yet"
        return await self._link.trim_now(self._snapshot_index)

    def _hand_on(self) -> None:
        output = self._member.output
        for append in output:
            self._link.append(append)
        output.clear()

    def _arm(self) -> None:
        self._alarm.set(self._member.next_deadline(self._clock()))

    def _call_at(self, when: float, ring: Callable[[], object]) -> TimerHandle:
        return self._loop.call_later(max(0.0, when - self._clock().monotonic), ring)

    def _fire(self) -> None:
        self._turn()
        if not self._is_over and self._member.role is Role.ACTIVE:
            self._owner.lease_renewed()

    # -- the storage of the active server -----------------------------------------------------------------------------

    def append(self, batch: WriteBatch, done: Done) -> None:
        """One at a time. ``done`` is called when the batch came back valid, or never: then this life is over. It is
        called with ReplicatedLogError for a batch that is too large for any log.
        """
        if self._is_over or not self._member.may_write:
            return
        try:
            self._member.write(batch, self._clock())
        except InvalidArgumentError as error:
            done(ReplicatedLogError(str(error)))
            return
        self._done, self._written_at = done, self._clock().monotonic
        self._owner.appending(batch)
        self._hand_on()
        self._arm()

    def sent(self) -> int:
        return self._member.sent

    def holds_lease(self, since: int) -> bool:
        may = not self._is_over and self._member.holds_lease(self._clock(), since)
        if may:
            self._asked_at = None
        return may

    def renew_lease(self, since: int) -> None:
        if self._is_over:
            return
        now = self._clock()
        if self._asked_at is None:
            self._asked_at = now.monotonic
        self._member.renew_lease(now, since)
        self._hand_on()
        self._arm()

    def wait_anew(self) -> None:
        """Clients that have waited for too long are gone."""
        self._asked_at, self._written_at = None, self._clock().monotonic

    @property
    def silent_s(self) -> float:
        """How long clients have been waiting for the log: for what they wrote, or for the right to speak."""
        now = self._clock().monotonic
        asked_at = now if self._asked_at is None else self._asked_at
        written_at = now if self._done is None else self._written_at
        return now - min(asked_at, written_at)

    @property
    def is_log_heard(self) -> bool:
        """Whether the log has a leader that broadcasts, as far as this server can tell."""
        return self._link.is_heard

    # -- by people ----------------------------------------------------------------------------------------------------

    async def hand_over(self, next_id: str, timeout: float) -> bool:
        """Give up the epoch, when nothing waits to be said and the epoch is not too new for that. Returns whether that
        came back in time; if it did not, :attr:`is_handing_over` tells whether it may come yet.
        """
        try:
            async with asyncio.timeout(timeout):
                while self._is_handing_over is None:
                    if self._is_over:
                        return False
                    if self._member.hand_over(next_id, self._clock()):
                        self._is_handing_over = self._loop.create_future()
                        self._turn()
                    else:
                        await asyncio.sleep(_AGAIN_S)
                await asyncio.wait([self._is_handing_over])
        except TimeoutError:
            return False
        return True

    async def raise_format(self, new: int, timeout: float) -> bool:
        """Let batches have this format. Returns whether that came back in time."""
        self._new_format.clear()
        if self._is_over or not self._member.raise_format(new, self._clock()):
            return False
        self._turn()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._new_format.wait()
        return self.format >= new

    @property
    def is_handing_over(self) -> bool:
        """Nothing is said any more, for good."""
        return self._is_handing_over is not None

    def is_snapshot_wanted(self, state_bytes: int) -> bool:
        """Whether the log is much longer than what it comes to, which is about this many bytes."""
        member = self._member
        return (
            member.is_ready
            and not member.is_snapshot_under_way
            and is_snapshot_wanted(member.log_bytes, state_bytes, is_active=member.role is Role.ACTIVE)
        )

    def begin_snapshot(self, rows: Iterator[WriteBatch]) -> bool:
        """Write one, in parts between other entries, unless one is being written. Returns False if it cannot be begun
        in this moment.
        """
        if self._member.is_snapshot_under_way:
            return True
        is_begun = not self._is_over and self._member.begin_snapshot(rows, self._clock())
        self._turn()
        return is_begun

    def promote(self) -> bool:
        """Claim regardless of the active server."""
        is_done = not self._is_over and self._member.promote(self._clock())
        self._signs.is_claimed_by_hand = is_done
        self._turn()
        return is_done
