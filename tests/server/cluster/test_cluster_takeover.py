"""Standbys: when they suspect the owner, challenge it and claim; the log time that they go on with."""

from __future__ import annotations

import pytest
from cluster_lives import ReplicatedServer, puts

from statestore_client.server.cluster.campaign import ObservedTime, log_time
from statestore_client.server.cluster.entries import UNFINISHED, Challenge, Claim, decode
from statestore_client.server.cluster.interface import (
    BatchReplicated,
    ClusterSettings,
    FormatRaised,
    Life,
    OwnerChanged,
    Promoted,
    Role,
)
from statestore_client.wire.instant import Instant


def founded(*ids: str) -> ReplicatedServer:
    """The first one is the owner, and gone: nothing that it wants to say reaches anyone."""
    lives = ReplicatedServer(*ids)
    lives.found(ids[0])
    del lives.lives[ids[0]]
    return lives


def kinds(lives: ReplicatedServer) -> list[type]:
    """Of what is in the log after the founding claims."""
    return [type(decode(data).body) for data in lives.log[1:]]


def test_silence_is_suspected_after_half_a_second() -> None:
    """A challenge; after a tenth of a second without an answer, a claim, which is the new owner's."""
    lives = founded("a", "b")
    lives.go_on(0.48)
    assert kinds(lives) == []
    lives.go_on(0.03)
    assert kinds(lives) == [Challenge]
    assert lives["b"].role is Role.CANDIDATE
    lives.go_on(0.08)
    assert kinds(lives) == [Challenge]
    lives.go_on(0.04)
    assert kinds(lives) == [Challenge, Claim]
    assert lives["b"].role is Role.ACTIVE
    assert lives["b"].holds_lease(lives.instant, lives["b"].sent)


def test_pulses_keep_suspicion_away() -> None:
    """Those of the owner of this epoch; one that was deposed and does not know it has none to give."""
    lives = founded("a", "b")
    for _ in range(20):
        lives["b"].hear(1, lives.instant)
        lives.go_on(0.05)
    assert kinds(lives) == []
    for _ in range(20):
        lives["b"].hear(0, lives.instant)
        lives.go_on(0.05)
    assert kinds(lives) == [Challenge, Claim]


def test_a_pulse_ends_a_candidacy() -> None:
    """The owner was only late; its epoch goes on."""
    lives = founded("a", "b")
    lives["b"].suspect(lives.instant)
    assert lives["b"].role is Role.CANDIDATE
    lives["b"].hear(1, lives.instant)
    lives.go_on(0.45)
    assert (lives["b"].role, kinds(lives)) == (Role.STANDBY, [Challenge])


@pytest.mark.parametrize("lease_s", [0.25, 1.0])
def test_a_claim_waits_until_the_last_lease_is_over(lease_s: float) -> None:
    """1.2 times what the owner's claim says, since its last valid entry was received, also with a process that is gone
    for certain.
    """
    lives = ReplicatedServer()
    lives.begin("a", 1, lease_s=lease_s)
    lives.begin("b", 2)
    lives.found("a").write(puts(k=b""), lives.instant)
    lives.settle()
    del lives.lives["a"]
    lives["b"].suspect(lives.instant)
    lives.settle()
    lives.go_on(1.2 * lease_s - 0.02)
    assert lives["b"].role is Role.CANDIDATE
    lives.go_on(0.04)
    assert lives["b"].role is Role.ACTIVE


def test_without_a_log_nobody_claims() -> None:
    """A challenge that does not come back proves nothing."""
    lives = founded("a", "b")
    lives["b"].suspect(lives.instant)
    (challenge,) = lives.take("b")
    lives.go_on(60.0)
    assert lives.log[1:] == []
    lives["b"].failed(challenge.ticket, lives.instant)
    assert lives["b"].role is Role.STANDBY
    lives.go_on(1.0)
    assert lives["b"].role is Role.ACTIVE


def test_an_answer_ends_a_candidacy() -> None:
    """What came before the challenge is not an answer; the next challenge waits for half a second."""
    lives = ReplicatedServer("a", "b")
    owner = lives.found("a")
    owner.write(puts(k=b"1"), lives.instant)
    batch = lives.take("a")
    lives["b"].suspect(lives.instant)
    challenge = lives.take("b")
    lives.put(*batch)
    assert lives["b"].role is Role.CANDIDATE
    lives.put(*challenge)
    lives.settle()
    assert lives["b"].role is Role.STANDBY
    lives["b"].suspect(lives.instant)
    lives.go_on(0.4)
    assert lives["b"].role is Role.STANDBY
    lives.go_on(0.2)
    assert lives["a"].role is Role.ACTIVE
    assert [kind is Challenge for kind in kinds(lives)].count(True) == 2


def test_a_claim_that_has_not_seen_everything_is_lost() -> None:
    """The owner's entry was first: it stays the owner, and the standby waits again."""
    lives = ReplicatedServer("a", "b")
    owner = lives.found("a")
    lives["b"].suspect(lives.instant)
    lives.put(*lives.take("b"))
    lives.take("a")  # its answer is on the way
    lives.now += 0.31
    lives["b"].tick(lives.instant)
    (claim,) = lives.take("b")
    owner.failed(owner._ownership._under_way[0].ticket, lives.instant)
    lives.settle()
    lives.put(claim)
    assert (owner.role, lives["b"].role) == (Role.ACTIVE, Role.STANDBY)
    assert lives["b"].next_deadline(lives.instant) > lives.now


def test_a_claim_that_was_given_up_may_be_in_the_log() -> None:
    """Then it is the owner's, but nobody knows when it was sent: a lease has to be asked for."""
    lives = founded("a", "b")
    lives["b"].suspect(lives.instant)
    lives.put(*lives.take("b"))
    lives.now += 1.0
    lives["b"].tick(lives.instant)
    (claim,) = lives.take("b")
    lives["b"].failed(claim.ticket, lives.instant)
    assert lives["b"].role is Role.STANDBY
    lives.put(claim)
    assert lives["b"].role is Role.ACTIVE
    assert not lives["b"].holds_lease(lives.instant, lives["b"].sent)
    lives["b"].renew_lease(lives.instant, lives["b"].sent)
    lives.settle()
    assert lives["b"].holds_lease(lives.instant, lives["b"].sent)


def test_a_server_that_was_restarted_is_not_who_it_was() -> None:
    """Its old claim is that of another life. It knows that this one is gone, and does not wait for silence."""
    lives = ReplicatedServer("a", "b")
    lives.found("a")
    lives.begin("a", 9)
    assert lives["a"].role is Role.STANDBY
    lives.go_on(0.02)
    assert kinds(lives) == [Challenge]
    lives.go_on(0.3)
    assert (lives["a"].role, lives["a"].fence.epoch) == (Role.ACTIVE, 2)
    assert lives["a"].holds_lease(lives.instant, lives["a"].sent)


def test_a_forced_claim_is_silent_until_old_leases_are_over() -> None:
    """It has not seen everything, so it waits afterwards; and it cannot hand over before that."""
    lives = ReplicatedServer("a", "b")
    owner = lives.found("a")
    lives.now += 1.0
    assert lives["b"].promote(lives.instant)
    (claim,) = lives.take("b")
    owner.write(puts(k=b"1"), lives.instant)
    lives.settle()
    lives.put(claim)
    assert (owner.role, lives["b"].role) == (Role.DEPOSED, Role.ACTIVE)
    assert len(lives.events("b", BatchReplicated)) == 1
    assert not lives["b"].holds_lease(lives.instant, lives["b"].sent)
    assert not lives["b"].hand_over("", lives.instant)
    assert lives["b"].next_deadline(lives.instant) == pytest.approx(lives.now + 0.3)
    lives.now += 0.301
    lives["b"].renew_lease(lives.instant, lives["b"].sent)
    lives.settle()
    assert lives["b"].holds_lease(lives.instant, lives["b"].sent)
    assert not lives["b"].promote(lives.instant)


def test_a_forced_claim_of_a_short_lease_does_not_shorten_the_wait() -> None:
    """The owner that it forced out may speak for longer than the claimer would."""
    lives = ReplicatedServer()
    lives.begin("a", 1, lease_s=5.0)
    for server_id in ("b", "c"):
        lives.begin(server_id, 2)
    lives.found("a")
    lives.found("b").promote(lives.instant)
    lives.settle()
    del lives.lives["b"]
    lives["c"].suspect(lives.instant)
    lives.go_on(5.98)
    assert lives["c"].role is Role.CANDIDATE
    lives.go_on(0.1)
    assert lives["c"].role is Role.ACTIVE


def test_nobody_owns_the_epoch_meanwhile() -> None:
    """Others hear that there is no owner, and then which one there is."""
    lives = ReplicatedServer("a", "b", "c")
    lives.found("a").hand_over("nobody", lives.instant)
    lives.events("c", OwnerChanged)
    lives.settle()
    lives.go_on(0.2)
    changes = [(event.epoch, event.url) for event in lives.events("c", OwnerChanged)]
    assert changes == [(1, ""), (2, "tcp://b")]


# -- log time ----------------------------------------------------------------------------------------------------------


def test_log_time_goes_on_while_nobody_is_active() -> None:
    """By the clock of the one that takes over, and whatever its wall clock says."""
    lives = ReplicatedServer("a", "b")
    lives.found("a").write(puts(k=b""), lives.instant)
    lives.settle()
    before = lives["b"].fence.log_ms
    assert before == lives.wall_ms
    del lives.lives["a"]
    lives.wall_ms -= 3_600_000
    lives["b"].hear(1, lives.instant)
    lives.go_on(30.0)
    (promoted,) = lives.events("b", Promoted)
    assert log_time(promoted.timeline, lives.instant) == pytest.approx(before + 30_000, abs=2)
    lives["b"].write(puts(k=b""), lives.instant)
    lives.settle()
    assert lives["b"].fence.log_ms == pytest.approx(before + 30_000, abs=2)


def test_the_time_of_a_former_owner_does_not_count() -> None:
    """The new one is behind it, and deadlines are in its time now: nobody goes on ahead of that."""
    observed = ObservedTime()
    observed.observe(10_000, at(1.0))
    observed.restart()
    observed.observe(10_500, at(2.0))
    assert observed.timeline(10_500, at(3.0)).ahead_ms == 8500


def at(monotonic: float, wall_ms: int = 0) -> Instant:
    return Instant(monotonic, wall_ms)


def test_the_greatest_bound_of_the_last_minute_counts() -> None:
    """An entry that came late says little; one that is older than a minute may be wrong by more than it is worth."""
    observed = ObservedTime()
    assert observed.timeline(0, at(5.0, 777_000)).ahead_ms == 772_000
    observed.observe(10_000, at(5.0))
    observed.observe(10_100, at(5.9))
    assert observed.timeline(10_100, at(20.0)).ahead_ms == 5000
    for second in range(6, 66):
        observed.observe(second * 1000 + 4000, at(second + 0.5))
    assert observed.timeline(69_000, at(66.0)).ahead_ms == 5000
    observed.observe(70_000, at(66.5))
    assert observed.timeline(70_000, at(66.5)).ahead_ms == 3500
    assert len(observed._bounds) == 61


def test_log_time_never_goes_back() -> None:
    """Whatever was observed, the last one in the log is the least."""
    observed = ObservedTime()
    observed.observe(10_000, at(5.0))
    assert observed.timeline(90_000, at(6.0)).ahead_ms == 84_000


def test_what_a_claim_says_of_leases_is_rounded_up() -> None:
    """Others wait for no less than the lease is."""
    assert ClusterSettings(Life("a", 1), lease_s=0.2501).lease_ms == 251
    assert ClusterSettings(Life("a", 1)).lease_ms == 250


def test_a_later_epoch_has_the_format_of_the_log() -> None:
    """Of a release that knows a newer one, too: a server of the release before reads on, until the format is raised."""
    lives = founded("a", "b")
    lives.begin("b", 3, format=7)
    lives.go_on(1.0)
    claims = [body for body in (decode(data).body for data in lives.log) if isinstance(body, Claim)]
    assert [body.format for body in claims] == [1, 1]


def test_nobody_takes_over_a_part_of_a_data_directory() -> None:
    """While the copy goes on, and when it was given up; somebody does when it is complete."""
    lives = ReplicatedServer("import", "b")
    lives.begin("import", 1, format=UNFINISHED)
    owner = lives.found("import")
    owner.write(puts(k=b"v"), lives.instant)
    lives.settle()
    lives.go_on(20.0)
    assert lives["b"].role is Role.STANDBY
    assert lives["b"].awaits_import
    assert not lives["b"].promote(lives.instant)
    assert owner.raise_format(1, lives.instant)
    assert owner.hand_over("", lives.instant)
    lives.settle()
    lives.go_on(0.2)
    assert lives["b"].role is Role.ACTIVE
    assert lives.events("b", FormatRaised) == [FormatRaised(1)]


def test_who_waits_for_an_import_does_not_begin_with_an_empty_log() -> None:
    """It does not by force, either; once there is an epoch it is a server like others."""
    lives = ReplicatedServer()
    lives.begin("a", 1, awaits_import=True)
    lives.go_on(20.0)
    assert lives.log == []
    assert not lives["a"].promote(lives.instant)
    lives.begin("b", 1)
    lives.found("b")
    del lives.lives["b"]
    lives.go_on(2.0)
    assert lives["a"].role is Role.ACTIVE
