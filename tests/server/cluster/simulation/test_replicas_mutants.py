"""The simulation sees mistakes: with one in the core, or in what a server does with it, some schedule fails.

Each mutant is a mistake of the list in the plan of the replicated server, or one that was nearly made here. Without
``CLUSTER_MUTANT_LIMIT`` the search begins at the schedule that is known to find the mutant; with it at the first one,
and as many as it says may be needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from replicas_machine import Machine
from replicas_process import Process
from replicas_schedule import run_schedule

from statestore_client.server.cluster.batches import Assembly
from statestore_client.server.cluster.campaign import Campaign
from statestore_client.server.cluster.codec import UnreadableLogError, decode
from statestore_client.server.cluster.entries import BatchPiece, Claim
from statestore_client.server.cluster.events import BatchWritten, SnapshotRestored
from statestore_client.server.cluster.fence import Fence, Verdict
from statestore_client.server.cluster.member import ClusterMember
from statestore_client.server.cluster.observed_time import ObservedTime
from statestore_client.server.cluster.ownership import Ownership
from statestore_client.server.cluster.roles import Role
from statestore_client.server.cluster.snapshots import SnapshotReader
from statestore_client.server.journal.streams import Stream
from statestore_client.server.journal.timeline import Timeline
from statestore_client.wire.instant import Instant

Patch = pytest.MonkeyPatch

_LIMIT = int(os.environ.get("CLUSTER_MUTANT_LIMIT", "0"))
#: A change of the core or of the simulation changes what a seed gives: look a little further.
_NEAR = 400


# -- what is valid -----------------------------------------------------------------------------------------------------


def _claims_that_compare_nothing(patch: Patch) -> None:
    """1: whatever the claimer has seen."""
    original = Fence._claim
    patch.setattr(Fence, "_claim", lambda self, entry, claim: original(self, attrs.evolve(entry, seq=self.seq), claim))


def _claims_by_name(patch: Patch) -> None:
    """2: a restarted server takes its old claim for a new one, and writes in that epoch."""
    original = ClusterMember._receive_claim

    def receive_claim(member: ClusterMember, entry: Any, claim: Claim, verdict: Verdict, *rest: Any) -> None:
        if entry.life.id == member.settings.life.id:
            entry = attrs.evolve(entry, life=member.settings.life)
        original(member, entry, claim, verdict, *rest)

    patch.setattr(ClusterMember, "_receive_claim", receive_claim)


def _gaps_are_accepted(patch: Patch) -> None:
    """13: a batch after one that is missing."""
    original = Fence._owned

    def owned(self: Fence, entry: Any, body: Any) -> Verdict:
        if entry.epoch == self.epoch and entry.life == self.owner and entry.seq > self.seq:
            self.seq = entry.seq - 1
        return original(self, entry, body)

    patch.setattr(Fence, "_owned", owned)


def _pieces_of_a_deposed_owner_stay(patch: Patch) -> None:
    """11: what was never completed is mixed into the next owner's batch."""
    patch.setattr(Assembly, "clear", lambda _: None)


def _a_piece_is_taken_for_a_batch(patch: Patch) -> None:
    """11, at the owner: it says what depends on the last piece when the first one is back."""

    def receive_piece(member: ClusterMember, index: int, piece: BatchPiece) -> None:
        ownership = member._ownership
        if ownership is None:
            original(member, index, piece)
        elif ownership.is_writing:
            ownership.is_writing = False
            member.events.append(BatchWritten(index))

    original = ClusterMember._receive_piece
    patch.setattr(ClusterMember, "_receive_piece", receive_piece)


def _copies_of_batches_count(patch: Patch) -> None:
    """What comes twice is done twice: a copy is taken for the next one."""
    original = Fence._owned

    def owned(self: Fence, entry: Any, body: Any) -> Verdict:
        if entry.epoch == self.epoch and entry.life == self.owner and entry.seq <= self.seq:
            self.seq = entry.seq - 1
        return original(self, entry, body)

    patch.setattr(Fence, "_owned", owned)


# -- who may speak -----------------------------------------------------------------------------------------------------


def _acknowledges_what_is_in_the_log(patch: Patch) -> None:
    """3: without looking whether it is valid."""

    def append_answered(process: Process, life: int, ticket: int, index: int, data: bytes) -> None:
        body = decode(data).body
        if life == process.lives and isinstance(body, BatchPiece) and body.is_last:
            process._written = process._cut

    patch.setattr(Process, "append_answered", append_answered)


def _a_lease_from_receipt(patch: Patch) -> None:
    """4: the entry may have been on its way for longer than others wait."""
    original = Ownership.receive

    def receive(ownership: Ownership, entry: Any, verdict: Verdict, now: Instant) -> None:
        if ownership._under_way:
            ownership._under_way[0].sent_at = now.monotonic
        original(ownership, entry, verdict, now)

    patch.setattr(Ownership, "receive", receive)


def _a_lease_after_a_hand_over(patch: Patch) -> None:
    """5: the next owner speaks at once."""
    patch.setattr(Ownership, "may_speak", lambda self, now: self._silent_until <= now < self._lease_until)
    original = Process.serve

    def serve(process: Process, connection: Any, request: Any) -> None:
        hand_over_to, process.hand_over_to = process.hand_over_to, None
        original(process, connection, request)
        process.hand_over_to = process.hand_over_to or hand_over_to

    patch.setattr(Process, "serve", serve)


def _speaks_without_a_lease(patch: Patch) -> None:
    """A server that stood still answers reads as before."""
    patch.setattr(Ownership, "may_speak", lambda self, _: not self.is_handing_over)


def _a_forced_claim_speaks_at_once(patch: Patch) -> None:
    """The old owner has a lease."""
    original = Ownership.__init__
    patch.setattr(Ownership, "__init__", lambda self, *a, **k: original(self, *a, **(k | {"silent_until": 0.0})))


def _hands_over_while_silent(patch: Patch) -> None:
    """The next one waits for nobody, though the owner that was forced out has a lease."""
    patch.setattr(Ownership, "may_hand_over", lambda self, _: not (self.is_writing or self.is_handing_over))


def _waits_for_its_own_lease_only(patch: Patch) -> None:
    """The owner's leases may be longer."""
    patch.setattr(Campaign, "wait_s", property(lambda self: self._settings.lease_s * 1.2))


def _waits_as_if_clocks_had_one_rate(patch: Patch) -> None:
    """A lease by a slow clock is longer than one by a fast clock."""
    patch.setattr(Campaign, "wait_s", property(lambda self: self._fence.lease_ms / 1000))


def _does_not_wait(patch: Patch) -> None:
    """A challenge without an answer says that the owner is gone, doesn't it?"""
    patch.setattr(Campaign, "wait_s", property(lambda _: 0.0))


# -- what is kept ------------------------------------------------------------------------------------------------------


def _deposed_keeps_its_machine(patch: Patch) -> None:
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


def _splices_survive_an_epoch(patch: Patch) -> None:
    """7: clients hang on the one that stands still."""
    patch.setattr(Process, "cut_splices", lambda _: None)


def _active_before_it_has_read_everything(patch: Patch) -> None:
    """8: as soon as its claim is in the log."""

    def append_answered(process: Process, life: int, ticket: int, index: int, data: bytes) -> None:
        if life == process.lives and isinstance(decode(data).body, Claim):
            process.member.receive(index, data, process.now)

    patch.setattr(Process, "append_answered", append_answered)
    patch.setattr("replicas_audit.Audit.folded", lambda *_: None)


def _log_time_of_former_owners(patch: Patch) -> None:
    """The new one is behind them, and its deadlines are in its own time."""
    patch.setattr(ObservedTime, "restart", lambda _: None)


def _log_time_behind_the_own_claim(patch: Patch) -> None:
    """Others have observed what that said."""
    patch.setattr(Campaign, "_ahead_ms", lambda _self, _epoch, timeline: timeline.ahead_ms)


def _a_snapshot_is_whole_with_its_first_part(patch: Patch) -> None:
    """A snapshot is complete with its first part."""
    original = ClusterMember._restore

    def restore(member: ClusterMember, reader: SnapshotReader, at: int, part: Any) -> None:
        original(member, reader, at, part)
        if reader.at == at and member._reader is not None:
            member._reader = None
            member.events.append(SnapshotRestored(part.index))

    patch.setattr(ClusterMember, "_restore", restore)


def _standbys_expire_keys(patch: Patch) -> None:
    """9: by their own clock, and nobody is told."""
    original = Process._give_signs

    def give_signs(process: Process) -> None:
        if process.member.role is not Role.ACTIVE:
            member = process.member
            log_ms = process.now.monotonic * 1000 + member._time.timeline(member.fence.log_ms, process.now).ahead_ms
            for key in [key for key, deadline in process.machine.deadlines() if deadline <= log_ms]:
                del process.machine.rows[Stream.KEYS, key]
        original(process)

    patch.setattr(Process, "_give_signs", give_signs)


def _wall_clocks_as_deadlines(patch: Patch) -> None:
    """10: those of two servers are not the same."""
    patch.setattr(Process, "log_ms", property(lambda process: float(process.now.wall_ms)))


def _parts_overwrite_newer_rows(patch: Patch) -> None:
    """12: whatever has touched them since."""
    patch.setattr(SnapshotReader, "touch", lambda *_: None)


def _no_grace_for_wills(patch: Patch) -> None:
    """14: each failover sends them all."""
    patch.setattr("replicas_process.GRACE_S", 0.0)


def _a_removal_without_its_version(patch: Patch) -> None:
    """15: the next owner may give it again."""
    original = Machine.execute

    def execute(machine: Machine, request: Any, log_ms: float, wall_ms: int) -> Any:
        answer = original(machine, request, log_ms, wall_ms)
        if request.verb == "delete":
            machine.changed.pop((Stream.CLOCK, "versions"), None)
        return answer

    patch.setattr(Machine, "execute", execute)


# -- liveness ----------------------------------------------------------------------------------------------------------


def _challenges_are_not_answered(patch: Patch) -> None:
    """An owner that is well and idle is deposed."""
    original = ClusterMember._receive_challenge

    def receive_challenge(member: ClusterMember, entry: Any, now: Instant) -> None:
        if entry.life == member.settings.life:
            original(member, entry, now)

    patch.setattr(ClusterMember, "_receive_challenge", receive_challenge)


def _answers_are_not_heard(patch: Patch) -> None:
    """It claims, whatever the owner says."""

    def owner_wrote(self: Campaign, now: float) -> None:
        self._valid_at = now

    patch.setattr(Campaign, "owner_wrote", owner_wrote)


def _nothing_is_sent_again(patch: Patch) -> None:
    """What was turned around is lost for good."""
    patch.setattr(Ownership, "_repeat", lambda _: None)


def _log_time_ahead(patch: Patch) -> None:
    """The bound of the first entry that was ever seen, by clocks of two rates."""
    original = ObservedTime.timeline

    def timeline(self: ObservedTime, last_log_ms: int, now: Instant) -> Timeline:
        found = original(self, last_log_ms, now)
        return Timeline(found.ahead_ms + 700 * bool(last_log_ms))

    patch.setattr(ObservedTime, "timeline", timeline)


#: Mutant -> the first schedule that finds it.
MUTANTS: dict[Callable[[Patch], None], int] = {
    _claims_that_compare_nothing: 66,
    _claims_by_name: 2,
    _gaps_are_accepted: 1,
    _pieces_of_a_deposed_owner_stay: 26,
    _a_piece_is_taken_for_a_batch: 1,
    _copies_of_batches_count: 1,
    _acknowledges_what_is_in_the_log: 1,
    _a_lease_from_receipt: 44,
    _a_lease_after_a_hand_over: 4,
    _speaks_without_a_lease: 3,
    _a_forced_claim_speaks_at_once: 7,
    _hands_over_while_silent: 7,
    _waits_for_its_own_lease_only: 164,
    _waits_as_if_clocks_had_one_rate: 674,
    _does_not_wait: 7,
    _deposed_keeps_its_machine: 12,
    _splices_survive_an_epoch: 34,
    _active_before_it_has_read_everything: 7,
    _log_time_of_former_owners: 266,
    _log_time_behind_the_own_claim: 35,
    _a_snapshot_is_whole_with_its_first_part: 19,
    _standbys_expire_keys: 2,
    _wall_clocks_as_deadlines: 1,
    _parts_overwrite_newer_rows: 19,
    _no_grace_for_wills: 2,
    _a_removal_without_its_version: 3,
    _challenges_are_not_answered: 117,
    _answers_are_not_heard: 4,
    _nothing_is_sent_again: 1,
    _log_time_ahead: 2,
}


def _found(seed: int) -> str | None:
    """What goes wrong. That a server stops is wrong, too."""
    try:
        violations = run_schedule(seed, compares=False).violations
    except (UnreadableLogError, LookupError) as error:
        return f"{type(error).__name__}: {error}"
    return violations[0] if violations else None


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__.strip("_"))
def test_the_simulation_finds(
    plant: Callable[[Patch], None], monkeypatch: Patch, figures: Callable[[str], None]
) -> None:
    """With one deliberate mistake some schedule fails, and says why."""
    plant(monkeypatch)
    first = 1 if _LIMIT else MUTANTS[plant]
    for seed in range(first, first + (_LIMIT or _NEAR)):
        if (violation := _found(seed)) is not None:
            figures(f"found by schedule {seed}: {violation}")
            return
    pytest.fail("no schedule saw it")
