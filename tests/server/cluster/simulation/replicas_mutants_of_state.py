"""Mistakes in what is kept, in log time, in snapshots, and in who is suspected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from replicas_host import Host
from replicas_machine import Machine
from replicas_process import Process

from statestore_client.server.cluster.campaign import Campaign
from statestore_client.server.cluster.codec import decode
from statestore_client.server.cluster.entries import Claim
from statestore_client.server.cluster.events import SnapshotRestored
from statestore_client.server.cluster.member import ClusterMember
from statestore_client.server.cluster.observed_time import ObservedTime
from statestore_client.server.cluster.ownership import Ownership
from statestore_client.server.cluster.roles import Role
from statestore_client.server.cluster.snapshots import SnapshotReader
from statestore_client.server.journal.storage import WriteBatch
from statestore_client.server.journal.streams import Stream
from statestore_client.server.journal.timeline import Timeline
from statestore_client.wire.instant import Instant

Patch = pytest.MonkeyPatch


# -- what is kept ------------------------------------------------------------------------------------------------------


def deposed_keeps_its_machine(patch: Patch) -> None:
    """6: with what it did and the log does not have."""

    def deposed(process: Process) -> None:
        rows = process.machine.rows
        for connection in process.connections:
            connection.close()
        process.begin_life()
        process.machine.rows = rows
        for index in range(process._position + 1, len(process.log.entries) + 1):
            process._position = index
            process.member.receive(index, process.log.entries[index - 1], process.now)
        process.member.events.clear()

    patch.setattr(Process, "deposed", deposed)


def splices_survive_an_epoch(patch: Patch) -> None:
    """7: clients hang on the one that stands still."""
    patch.setattr(Process, "cut_splices", lambda _: None)


def active_before_it_has_read_everything(patch: Patch) -> None:
    """8: as soon as its claim is in the log."""

    def append_answered(process: Process, life: int, ticket: int, index: int, data: bytes) -> None:
        if life == process.lives and isinstance(decode(data).body, Claim):
            process.member.receive(index, data, process.now)

    patch.setattr(Process, "append_answered", append_answered)
    for check in ("folded", "listens"):
        patch.setattr(f"replicas_audit.Audit.{check}", lambda *_: None)


def log_time_of_former_owners(patch: Patch) -> None:
    """The new one is behind them, and its deadlines are in its own time."""
    patch.setattr(ObservedTime, "restart", lambda _: None)


def listeners_hear_no_time(patch: Patch) -> None:
    """One that has begun while nobody wrote anything knows the time of the last entry only."""
    patch.setattr(ClusterMember, "listener_came", lambda *_: None)


def log_time_behind_the_own_claim(patch: Patch) -> None:
    """Others have observed what that said."""
    patch.setattr(Campaign, "_ahead_ms", lambda _self, _epoch, timeline: timeline.ahead_ms)


def a_snapshot_is_whole_with_its_first_part(patch: Patch) -> None:
    """A snapshot is complete with its first part."""
    original = ClusterMember._restore

    def restore(member: ClusterMember, reader: SnapshotReader, at: int, part: Any) -> None:
        original(member, reader, at, part)
        if reader.at == at and member._reader is not None:
            member._reader = None
            member.events.append(SnapshotRestored(part.index))

    patch.setattr(ClusterMember, "_restore", restore)


def standbys_expire_keys(patch: Patch) -> None:
    """9: by their own clock, and nobody is told."""
    original = Process.look

    def look(process: Process) -> None:
        if process.member.role is not Role.ACTIVE:
            member = process.member
            log_ms = process.now.monotonic * 1000 + member._time.timeline(member.fence.log_ms, process.now).ahead_ms
            for key in [key for key, deadline in process.machine.deadlines() if deadline <= log_ms]:
                del process.machine.rows[Stream.KEYS, key]
        original(process)

    patch.setattr(Process, "look", look)


def wall_clocks_as_deadlines(patch: Patch) -> None:
    """10: those of two servers are not the same."""
    patch.setattr(Process, "log_ms", property(lambda process: float(process.now.wall_ms)))


def parts_overwrite_newer_rows(patch: Patch) -> None:
    """12: whatever has touched them since."""
    patch.setattr(SnapshotReader, "touch", lambda *_: None)


def no_grace_for_wills(patch: Patch) -> None:
    """14: each failover sends them all."""
    patch.setattr("replicas_process.GRACE_S", 0.0)


def a_removal_without_its_version(patch: Patch) -> None:
    """15: the next owner may give it again."""
    original = Machine.execute

    def execute(machine: Machine, request: Any, log_ms: float, wall_ms: int) -> Any:
        answer = original(machine, request, log_ms, wall_ms)
        if request.verb == "delete":
            machine.changed.pop((Stream.CLOCK, "versions"), None)
        return answer

    patch.setattr(Machine, "execute", execute)


# -- liveness ----------------------------------------------------------------------------------------------------------


def challenges_are_not_answered(patch: Patch) -> None:
    """An owner that is well and idle is deposed."""
    original = ClusterMember._receive_challenge

    def receive_challenge(member: ClusterMember, entry: Any, now: Instant) -> None:
        if entry.life == member.settings.life:
            original(member, entry, now)

    patch.setattr(ClusterMember, "_receive_challenge", receive_challenge)


def answers_are_not_heard(patch: Patch) -> None:
    """It claims, whatever the owner says."""

    def owner_wrote(self: Campaign, now: float) -> None:
        self._valid_at = now

    patch.setattr(Campaign, "owner_wrote", owner_wrote)


def nothing_is_sent_again(patch: Patch) -> None:
    """What was turned around is lost for good."""
    patch.setattr(Ownership, "_repeat", lambda _: None)


def log_time_ahead(patch: Patch) -> None:
    """The bound of the first entry that was ever seen, by clocks of two rates."""
    original = ObservedTime.timeline

    def timeline(self: ObservedTime, last_log_ms: int, now: Instant) -> Timeline:
        found = original(self, last_log_ms, now)
        return Timeline(found.ahead_ms + 700 * bool(last_log_ms))

    patch.setattr(ObservedTime, "timeline", timeline)


def log_time_stands_still(patch: Patch) -> None:
    """Since the last entry, though the owner went on after it."""

    def timeline(self: ObservedTime, last_log_ms: int, now: Instant) -> Timeline:
        return Timeline(last_log_ms - now.monotonic * 1000) if last_log_ms else Timeline.begin(now)

    patch.setattr(ObservedTime, "timeline", timeline)


def a_stuck_owner_gives_signs_of_life(patch: Patch) -> None:
    """Cut off from the log alone, it keeps all others waiting."""
    patch.setattr(Ownership, "is_stuck", lambda *_: False)


def signs_of_life_from_the_event_loop(patch: Patch) -> None:
    """A busy one gives none."""
    look, give_signs = Process.look, Process._give_signs
    patch.setattr(Process, "_give_signs", lambda _: None)

    def both(process: Process) -> None:
        look(process)
        give_signs(process)

    patch.setattr(Process, "look", both)


def a_hung_owner_gives_signs_of_life(patch: Patch) -> None:
    """From its thread, for ever."""
    patch.setattr("replicas_process.HUNG_S", float("inf"))


def clocks_that_sleep_with_the_machine(patch: Patch) -> None:
    """A lease that ended meanwhile goes on."""
    original = Host.suspend

    def suspend(host: Host, seconds: float) -> None:
        original(host, seconds)
        host._origin -= host.rate * seconds
        host.set_wall(host.wall_offset_ms)

    patch.setattr(Host, "suspend", suspend)


def uncommitted_rows_in_a_snapshot(patch: Patch) -> None:
    """Their batch may never be valid."""

    def rows(_process: Process, machine: Machine) -> Iterator[WriteBatch]:
        left = list(machine.rows)
        for start in range(0, len(left), 6):
            yield machine.some_rows(left[start : start + 6])

    patch.setattr(Process, "_rows", rows)


def a_snapshot_without_rows_that_wait(patch: Patch) -> None:
    """What they were before is missing, if their batch is never valid."""

    def rows(process: Process, machine: Machine) -> Iterator[WriteBatch]:
        left = list(machine.rows)
        for start in range(0, len(left), 6):
            uncertain = machine.changed.keys() | process._flying
            yield machine.some_rows([subject for subject in left[start : start + 6] if subject not in uncertain])

    patch.setattr(Process, "_rows", rows)
