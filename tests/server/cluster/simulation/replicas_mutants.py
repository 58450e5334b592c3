"""Mistakes in what is valid, and in who may speak. Those of the list in the plan have its numbers."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from replicas_process import Process

from statestore_client.server.cluster.batches import Assembly
from statestore_client.server.cluster.campaign import Campaign
from statestore_client.server.cluster.codec import decode
from statestore_client.server.cluster.entries import BatchPiece, Claim
from statestore_client.server.cluster.events import BatchWritten
from statestore_client.server.cluster.fence import Fence, Verdict
from statestore_client.server.cluster.member import ClusterMember
from statestore_client.server.cluster.ownership import Ownership
from statestore_client.wire.instant import Instant

Patch = pytest.MonkeyPatch


# -- what is valid -----------------------------------------------------------------------------------------------------


def claims_that_compare_nothing(patch: Patch) -> None:
    """1: whatever the claimer has seen."""
    original = Fence._claim
    patch.setattr(Fence, "_claim", lambda self, entry, claim: original(self, attrs.evolve(entry, seq=self.seq), claim))


def claims_by_name(patch: Patch) -> None:
    """2: a restarted server takes its old claim for a new one, and writes in that epoch."""
    original = ClusterMember._receive_claim

    def receive_claim(member: ClusterMember, entry: Any, claim: Claim, verdict: Verdict, *rest: Any) -> None:
        if entry.life.id == member.settings.life.id:
            entry = attrs.evolve(entry, life=member.settings.life)
        original(member, entry, claim, verdict, *rest)

    patch.setattr(ClusterMember, "_receive_claim", receive_claim)


def gaps_are_accepted(patch: Patch) -> None:
    """13: a batch after one that is missing."""
    original = Fence._owned

    def owned(self: Fence, entry: Any, body: Any) -> Verdict:
        if entry.epoch == self.epoch and entry.life == self.owner and entry.seq > self.seq:
            self.seq = entry.seq - 1
        return original(self, entry, body)

    patch.setattr(Fence, "_owned", owned)


def pieces_of_a_deposed_owner_stay(patch: Patch) -> None:
    """11: what was never completed is mixed into the next owner's batch."""
    patch.setattr(Assembly, "clear", lambda _: None)


def a_piece_is_taken_for_a_batch(patch: Patch) -> None:
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


def copies_of_batches_count(patch: Patch) -> None:
    """What comes twice is done twice: a copy is taken for the next one."""
    original = Fence._owned

    def owned(self: Fence, entry: Any, body: Any) -> Verdict:
        if entry.epoch == self.epoch and entry.life == self.owner and entry.seq <= self.seq:
            self.seq = entry.seq - 1
        return original(self, entry, body)

    patch.setattr(Fence, "_owned", owned)


def newer_formats_are_taken_for_known_ones(patch: Patch) -> None:
    """A server goes on with records that it cannot read."""
    patch.setattr("statestore_client.server.cluster.fence._format", lambda value: value)


def a_forced_claim_brings_its_format(patch: Patch) -> None:
    """It was made before its server had read that there is a newer one."""
    original = Fence._claim

    def claim(fence: Fence, entry: Any, body: Claim) -> Verdict:
        has, fence.format = fence.format, 0
        verdict = original(fence, entry, body)
        if verdict is not Verdict.VALID:
            fence.format = has
        return verdict

    patch.setattr(Fence, "_claim", claim)


# -- who may speak -----------------------------------------------------------------------------------------------------


def acknowledges_what_is_in_the_log(patch: Patch) -> None:
    """3: without looking whether it is valid."""

    def append_answered(process: Process, life: int, ticket: int, index: int, data: bytes) -> None:
        body = decode(data).body
        if life == process.lives and isinstance(body, BatchPiece) and body.is_last:
            process._written = process._cut

    patch.setattr(Process, "append_answered", append_answered)


def a_lease_from_receipt(patch: Patch) -> None:
    """4: the entry may have been on its way for longer than others wait."""
    original = Ownership.receive

    def receive(ownership: Ownership, entry: Any, verdict: Verdict, now: Instant) -> None:
        if ownership._under_way:
            ownership._under_way[0].sent_at = now.monotonic
        original(ownership, entry, verdict, now)

    patch.setattr(Ownership, "receive", receive)


def a_lease_after_a_hand_over(patch: Patch) -> None:
    """5: the next owner speaks at once."""
    patch.setattr(Ownership, "may_speak", lambda self, now: self._silent_until <= now < self._lease_until)
    original = Process.serve

    def serve(process: Process, connection: Any, request: Any) -> None:
        hand_over_to, process.hand_over_to = process.hand_over_to, None
        original(process, connection, request)
        process.hand_over_to = process.hand_over_to or hand_over_to

    patch.setattr(Process, "serve", serve)


def speaks_without_a_lease(patch: Patch) -> None:
    """A server that stood still answers reads as before."""
    patch.setattr(Ownership, "may_speak", lambda self, _: not self.is_handing_over)


def a_forced_claim_speaks_at_once(patch: Patch) -> None:
    """The old owner has a lease."""
    original = Ownership.__init__
    patch.setattr(Ownership, "__init__", lambda self, *a, **k: original(self, *a, **(k | {"silent_until": 0.0})))


def hands_over_while_silent(patch: Patch) -> None:
    """The next one waits for nobody, though the owner that was forced out has a lease."""
    patch.setattr(Ownership, "may_hand_over", lambda self, _: not (self.is_writing or self.is_handing_over))


def waits_for_its_own_lease_only(patch: Patch) -> None:
    """The owner's leases may be longer."""
    patch.setattr(Campaign, "wait_s", property(lambda self: self._settings.lease_s * 1.2))


def waits_as_if_clocks_had_one_rate(patch: Patch) -> None:
    """A lease by a slow clock is longer than one by a fast clock."""
    patch.setattr(Campaign, "wait_s", property(lambda self: self._fence.lease_ms / 1000))


def does_not_wait(patch: Patch) -> None:
    """A challenge without an answer says that the owner is gone, doesn't it?"""
    patch.setattr(Campaign, "wait_s", property(lambda _: 0.0))
