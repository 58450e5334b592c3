"""The simulation sees mistakes: with one in the core, or in what a server does with it, some schedule fails.

Each mutant is a mistake of the list in the plan of the replicated server (those have its numbers), or one that was
nearly made here. The search begins at the schedule that is known to find the mutant; in the long run at the first one,
and 2,000 may be needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
from replicas_host import Host
from replicas_machine import Machine
from replicas_process import Process
from replicas_schedule import run_schedule
from support.schedules import Mutants, seeds_near

from statestore_client.server.cluster.campaign import Campaign, ObservedTime
from statestore_client.server.cluster.entries import Assembly, BatchPiece, Claim, UnreadableLogError, decode
from statestore_client.server.cluster.fence import Fence, Verdict
from statestore_client.server.cluster.interface import BatchWritten, Role, SnapshotRestored
from statestore_client.server.cluster.member import ClusterMember
from statestore_client.server.cluster.ownership import Ownership
from statestore_client.server.cluster.snapshots import SnapshotReader
from statestore_client.server.journal import Stream, Timeline, WriteBatch
from statestore_client.wire.instant import Instant

Patch = pytest.MonkeyPatch

#: With the first schedule that finds it.
MUTANTS = Mutants()


# -- what is valid -----------------------------------------------------------------------------------------------------


@MUTANTS.instead(Fence, "_claim", 113)
def claims_that_compare_nothing(original: Any, fence: Fence, entry: Any, claim: Claim) -> Verdict:
    """1: whatever the claimer has seen."""
    return original(fence, attrs.evolve(entry, seq=fence.seq), claim)


@MUTANTS.instead(ClusterMember, "_receive_claim", 2)
def claims_by_name(original: Any, member: ClusterMember, entry: Any, *rest: Any) -> None:
    """2: a restarted server takes its old claim for a new one, and writes in that epoch."""
    if entry.life.id == member.settings.life.id:
        entry = attrs.evolve(entry, life=member.settings.life)
    original(member, entry, *rest)


@MUTANTS.instead(Fence, "_owned", 2)
def gaps_are_accepted(original: Any, fence: Fence, entry: Any, body: Any) -> Verdict:
    """13: a batch after one that is missing."""
    if entry.epoch == fence.epoch and entry.life == fence.owner and entry.seq > fence.seq:
        fence.seq = entry.seq - 1
    return original(fence, entry, body)


@MUTANTS.instead(ClusterMember, "_receive_piece", 2)
def a_piece_is_taken_for_a_batch(original: Any, member: ClusterMember, index: int, piece: BatchPiece) -> None:
    """11, at the owner: it says what depends on the last piece when the first one is back."""
    ownership = member._ownership
    if ownership is None:
        original(member, index, piece)
    elif ownership.is_writing:
        ownership.is_writing = False
        member.events.append(BatchWritten(index))


@MUTANTS.instead(Fence, "_owned", 2)
def copies_of_batches_count(original: Any, fence: Fence, entry: Any, body: Any) -> Verdict:
    """What comes twice is done twice: a copy is taken for the next one."""
    if entry.epoch == fence.epoch and entry.life == fence.owner and entry.seq <= fence.seq:
        fence.seq = entry.seq - 1
    return original(fence, entry, body)


@MUTANTS.instead(Fence, "_claim", 543)
def a_forced_claim_brings_its_format(original: Any, fence: Fence, entry: Any, body: Claim) -> Verdict:
    """It was made before its server had read that there is a newer one."""
    has, fence.format = fence.format, 0
    verdict: Verdict = original(fence, entry, body)
    if verdict is not Verdict.VALID:
        fence.format = has
    return verdict


# 11: what was never completed is mixed into the next owner's batch.
MUTANTS.replace("pieces_of_a_deposed_owner_stay", Assembly, "clear", lambda _: None, 21)


@MUTANTS.plant(55)
def newer_formats_are_taken_for_known_ones(patch: Patch) -> None:
    """A server goes on with records that it cannot read."""
    patch.setattr("statestore_client.server.cluster.fence._format", lambda value: value)


# -- who may speak -----------------------------------------------------------------------------------------------------


@MUTANTS.instead(Process, "append_answered", 2)
def acknowledges_what_is_in_the_log(
    _original: Any, process: Process, life: int, ticket: int, index: int, data: bytes
) -> None:
    """3: without looking whether it is valid."""
    body = decode(data).body
    if life == process.lives and isinstance(body, BatchPiece) and body.is_last:
        process._written = process._cut


@MUTANTS.instead(Ownership, "receive", 86)
def a_lease_from_receipt(original: Any, ownership: Ownership, entry: Any, verdict: Verdict, now: Instant) -> None:
    """4: the entry may have been on its way for longer than others wait."""
    if ownership._under_way:
        ownership._under_way[0].sent_at = now.monotonic
    original(ownership, entry, verdict, now)


@MUTANTS.plant(137)
def a_lease_after_a_hand_over(patch: Patch) -> None:
    """5: the next owner speaks at once."""
    patch.setattr(Ownership, "holds_lease", lambda self, now, _: self._silent_until <= now < self._lease_until)
    original = Process.serve

    def serve(process: Process, connection: Any, request: Any) -> None:
        hand_over_to, process.hand_over_to = process.hand_over_to, None
        original(process, connection, request)
        process.hand_over_to = process.hand_over_to or hand_over_to

    patch.setattr(Process, "serve", serve)


@MUTANTS.instead(Ownership, "__init__", 4)
def a_forced_claim_speaks_at_once(original: Any, *args: Any, **options: Any) -> None:
    """The old owner has a lease."""
    original(*args, **(options | {"silent_until": 0.0}))


# A server that stood still answers reads as before.
MUTANTS.replace("speaks_without_a_lease", Ownership, "holds_lease", lambda self, *_: not self.is_handing_over, 2)
# The next one waits for nobody, though the owner that was forced out has a lease.
MUTANTS.replace(
    "hands_over_while_silent", Ownership, "may_hand_over",
    lambda self, _: not (self.is_writing or self.is_handing_over), 4,
)  # fmt: skip
# The owner's leases may be longer.
_OWN_LEASE = property(lambda self: self._settings.lease_s * 1.2)
MUTANTS.replace("waits_for_its_own_lease_only", Campaign, "wait_s", _OWN_LEASE, 518)
# A lease by a slow clock is longer than one by a fast clock.
_BARE_LEASE = property(lambda self: self._fence.lease_ms / 1000)
MUTANTS.replace("waits_as_if_clocks_had_one_rate", Campaign, "wait_s", _BARE_LEASE, 81)
# A challenge without an answer says that the owner is gone, doesn't it?
MUTANTS.replace("does_not_wait", Campaign, "wait_s", property(lambda _: 0.0), 3)


# -- what is kept ------------------------------------------------------------------------------------------------------


@MUTANTS.instead(Process, "deposed", 2)
def deposed_keeps_its_machine(_original: Any, process: Process) -> None:
    """6: with what it did and the log does not have."""
    rows = process.machine.rows
    for connection in process.connections:
        connection.close()
    process.begin_life()
    process.machine.rows = rows
    for index in range(process._position + 1, len(process.log.entries) + 1):
        process._position = index
        process.member.receive(index, process.log.entries[index - 1], process.now)
    process.member.events.clear()


@MUTANTS.plant(10)
def active_before_it_has_read_everything(patch: Patch) -> None:
    """8: as soon as its claim is in the log."""

    def append_answered(process: Process, life: int, ticket: int, index: int, data: bytes) -> None:
        if life == process.lives and isinstance(decode(data).body, Claim):
            process.member.receive(index, data, process.now)

    patch.setattr(Process, "append_answered", append_answered)
    for check in ("folded", "listens"):
        patch.setattr(f"replicas_audit.Audit.{check}", lambda *_: None)


@MUTANTS.instead(ClusterMember, "_restore", 10)
def a_snapshot_is_whole_with_its_first_part(
    original: Any, member: ClusterMember, reader: SnapshotReader, at: int, part: Any
) -> None:
    """A snapshot is complete with its first part."""
    original(member, reader, at, part)
    if reader.at == at and member._reader is not None:
        member._reader = None
        member.events.append(SnapshotRestored(part.index))


@MUTANTS.instead(Process, "look", 3)
def standbys_expire_keys(original: Any, process: Process) -> None:
    """9: by their own clock, and nobody is told."""
    if process.member.role is not Role.ACTIVE:
        member = process.member
        log_ms = process.now.monotonic * 1000 + member._time.timeline(member.fence.log_ms, process.now).ahead_ms
        for key in [key for key, deadline in process.machine.deadlines() if deadline <= log_ms]:
            del process.machine.rows[Stream.KEYS, key]
    original(process)


@MUTANTS.plant(2)
def no_grace_for_wills(patch: Patch) -> None:
    """14: each failover sends them all."""
    patch.setattr("replicas_process.GRACE_S", 0.0)


@MUTANTS.instead(Machine, "execute", 10)
def a_removal_without_its_version(original: Any, machine: Machine, request: Any, log_ms: float, wall_ms: int) -> Any:
    """15: the next owner may give it again."""
    answer = original(machine, request, log_ms, wall_ms)
    if request.verb == "delete":
        machine.changed.pop((Stream.CLOCK, "versions"), None)
    return answer


# 7: clients hang on the one that stands still.
MUTANTS.replace("splices_survive_an_epoch", Process, "cut_splices", lambda _: None, 2)
# The new one is behind them, and its deadlines are in its own time.
MUTANTS.replace("log_time_of_former_owners", ObservedTime, "restart", lambda _: None, 832)
# One that has begun while nobody wrote anything knows the time of the last entry only.
MUTANTS.replace("listeners_hear_no_time", ClusterMember, "listener_came", lambda *_: None, 105)
# Others have observed what that said.
MUTANTS.replace("log_time_behind_the_own_claim", Campaign, "_ahead_ms", lambda _self, _epoch, its: its.ahead_ms, 6)
# 10: those of two servers are not the same.
MUTANTS.replace("wall_clocks_as_deadlines", Process, "log_ms", property(lambda process: float(process.now.wall_ms)), 3)
# 12: whatever has touched them since.
MUTANTS.replace("parts_overwrite_newer_rows", SnapshotReader, "touch", lambda *_: None, 10)


# -- liveness ----------------------------------------------------------------------------------------------------------


@MUTANTS.instead(ClusterMember, "_receive_challenge", 143)
def challenges_are_not_answered(original: Any, member: ClusterMember, entry: Any, now: Instant) -> None:
    """An owner that is well and idle is deposed."""
    if entry.life == member.settings.life:
        original(member, entry, now)


@MUTANTS.instead(Campaign, "owner_wrote", 49)
def answers_are_not_heard(_original: Any, campaign: Campaign, now: float) -> None:
    """It claims, whatever the owner says."""
    campaign._valid_at = now


@MUTANTS.instead(ObservedTime, "timeline", 2)
def log_time_ahead(original: Any, observed: ObservedTime, last_log_ms: int, now: Instant) -> Timeline:
    """The bound of the first entry that was ever seen, by clocks of two rates."""
    return Timeline(original(observed, last_log_ms, now).ahead_ms + 700 * bool(last_log_ms))


@MUTANTS.instead(ObservedTime, "timeline", 3)
def log_time_stands_still(_original: Any, _observed: ObservedTime, last_log_ms: int, now: Instant) -> Timeline:
    """Since the last entry, though the owner went on after it."""
    return Timeline(last_log_ms - now.monotonic * 1000) if last_log_ms else Timeline.begin(now)


@MUTANTS.plant(1655)
def signs_of_life_from_the_event_loop(patch: Patch) -> None:
    """A busy one gives none."""
    look, give_signs = Process.look, Process._give_signs
    patch.setattr(Process, "_give_signs", lambda _: None)
    patch.setattr(Process, "look", lambda process: (look(process), give_signs(process)))


@MUTANTS.plant(401)
def a_hung_owner_gives_signs_of_life(patch: Patch) -> None:
    """From its thread, for ever."""
    patch.setattr("replicas_host.HUNG_S", float("inf"))


@MUTANTS.instead(Host, "suspend", 15)
def clocks_that_sleep_with_the_machine(original: Any, host: Host, seconds: float) -> None:
    """A lease that ended meanwhile goes on."""
    original(host, seconds)
    host._origin -= host.rate * seconds
    host.set_wall(host.wall_offset_ms)


@MUTANTS.instead(Process, "_rows", 664)
def uncommitted_rows_in_a_snapshot(_original: Any, _process: Process, machine: Machine) -> Iterator[WriteBatch]:
    """Their batch may never be valid."""
    left = list(machine.rows)
    for start in range(0, len(left), 6):
        yield machine.some_rows(left[start : start + 6])


@MUTANTS.instead(Process, "_rows", 40)
def a_snapshot_without_rows_that_wait(_original: Any, process: Process, machine: Machine) -> Iterator[WriteBatch]:
    """What they were before is missing, if their batch is never valid."""
    left = list(machine.rows)
    for start in range(0, len(left), 6):
        uncertain = machine.changed.keys() | process._flying
        yield machine.some_rows([subject for subject in left[start : start + 6] if subject not in uncertain])


# What was turned around is lost for good.
MUTANTS.replace("nothing_is_sent_again", Ownership, "_repeat", lambda _: None, 2)
# Cut off from the log alone, it keeps all others waiting.
MUTANTS.replace("a_stuck_owner_gives_signs_of_life", Ownership, "is_stuck", lambda *_: False, 41)


def _found(seed: int) -> str | None:
    """What goes wrong. That a server stops is wrong, too."""
    try:
        violations = run_schedule(seed, compares=False).violations
    except (UnreadableLogError, LookupError) as error:
        return f"{type(error).__name__}: {error}"
    return violations[0] if violations else None


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.turns(3)
@pytest.mark.ci
def test_the_simulation_finds(mutant: str, monkeypatch: Patch, figures: Callable[[str], None]) -> None:
    """With one deliberate mistake some schedule fails, and says why."""
    plant, known = MUTANTS[mutant]
    plant(monkeypatch)
    for seed in seeds_near(known, near=400, most=2000):
        if (violation := _found(seed)) is not None:
            figures(f"found by schedule {seed}: {violation}")
            return
    pytest.fail("no schedule saw it")
