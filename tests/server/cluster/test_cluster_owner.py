"""The owner of an epoch: its lease, its batches, entries that are lost or turned around, and its end."""

from __future__ import annotations

import pytest
from cluster_lives import ReplicatedServer, puts

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.cluster import ownership
from statestore_client.server.cluster.entries import Claim, HandOver, Renewal
from statestore_client.server.cluster.interface import (
    BatchReplicated,
    BatchWritten,
    Deposed,
    IdInUse,
    OwnerChanged,
    Promoted,
    Role,
)


def test_the_first_claim_in_an_empty_log_is_the_owner() -> None:
    """Both claim; the log decides, and both see it."""
    lives = ReplicatedServer("a", "b")
    for server_id in ("a", "b"):
        lives[server_id].tick(lives.instant)
        assert lives[server_id].role is Role.CANDIDATE
    lives.settle()
    assert (lives["a"].role, lives["b"].role) == (Role.ACTIVE, Role.STANDBY)
    assert [event.url for event in lives.events("b", OwnerChanged)] == ["tcp://a"]
    assert [event.epoch for event in lives.events("a", Promoted)] == [1]
    assert len(lives.log) == 2


def test_a_life_that_has_not_read_the_log_claims_nothing() -> None:
    """It does not know yet whether there is an owner."""
    lives = ReplicatedServer("a")
    lives["a"]._is_caught_up = False
    lives.go_on(5.0)
    assert lives.log == []
    assert not lives["a"].promote(lives.instant)
    lives["a"].catch_up()
    lives.go_on(0.01)
    assert lives["a"].role is Role.ACTIVE


def test_a_lease_lasts_from_when_its_entry_was_sent() -> None:
    """A claim that comes back late gives less, and one that comes back too late gives none."""
    for delay, holds_lease in ((0.0, True), (0.24, True), (0.26, False)):
        lives = ReplicatedServer("a")
        lives["a"].tick(lives.instant)
        claim = lives.take("a")
        sent_at = lives.now
        lives.now += delay
        lives.put(*claim)
        assert lives["a"].role is Role.ACTIVE
        assert lives["a"].holds_lease(lives.instant, lives["a"].sent) is holds_lease
        lives.now = sent_at + 0.251
        assert not lives["a"].holds_lease(lives.instant, lives["a"].sent)


def test_a_renewal_is_sent_when_something_is_to_be_said() -> None:
    """One at a time, and none while the lease lasts. One that comes back later than its lease confirms what was decided
    before it was sent.
    """
    lives = ReplicatedServer("a", "b")
    owner = lives.found("a")
    owner.renew_lease(lives.instant, owner.sent)
    assert lives.take("a") == []
    lives.now += 0.3
    before = owner.sent
    owner.renew_lease(lives.instant, before)
    owner.renew_lease(lives.instant, owner.sent)
    (renewal,) = lives.take("a")
    lives.now += 0.3
    assert not owner.holds_lease(lives.instant, before)
    lives.put(renewal)
    assert owner.holds_lease(lives.instant, before)
    assert not owner.holds_lease(lives.instant, owner.sent)
    lives.settle()
    assert owner.holds_lease(lives.instant, owner.sent)
    assert lives.sent("a") == []


def test_an_idle_owner_writes_every_ten_seconds() -> None:
    """Others learn the log time from it, and no more is in the log."""
    lives = ReplicatedServer("a")
    lives.found("a")
    lives.go_on(31.0)
    assert len(lives.log) == 1 + 3


def test_a_batch_is_told_when_it_came_back_valid() -> None:
    """The others get it, in one piece, whatever pieces the log has; and it renews the lease."""
    lives = ReplicatedServer("a", "b")
    owner = lives.found("a")
    lives.now += 1.0
    batch = puts(k=bytes(3 << 20))
    owner.write(batch, lives.instant)
    *pieces, last = lives.take("a")
    assert len(pieces) == 3
    lives.put(*pieces)
    assert lives.events("a", BatchWritten) == []
    assert lives.events("b", BatchReplicated) == []
    assert not owner.may_write
    lives.put(last)
    assert lives.events("a", BatchWritten) == [BatchWritten(5)]
    assert lives.events("b", BatchReplicated) == [BatchReplicated(5, batch)]
    assert owner.may_write
    assert owner.holds_lease(lives.instant, owner.sent)


def test_one_batch_at_a_time() -> None:
    """A second one is refused, and so is one of a standby, or one that no reader would take."""
    lives = ReplicatedServer("a", "b")
    owner = lives.found("a")
    owner.write(puts(k=b""), lives.instant)
    for server_id in ("a", "b"):
        with pytest.raises(RuntimeError, match="may_write"):
            lives[server_id].write(puts(k=b""), lives.instant)


@pytest.mark.parametrize("most", ["MAX_PIECES", "MAX_BATCH"])
def test_a_batch_that_no_reader_would_take_is_refused(most: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything of it is in the log, where it would stop all servers."""
    monkeypatch.setattr(ownership, most, 1)
    lives = ReplicatedServer("a")
    owner = lives.found("a")
    with pytest.raises(InvalidArgumentError):
        owner.write(puts(k=bytes(1 << 20)), lives.instant)
    assert owner.may_write
    assert lives.take("a") == []


@pytest.mark.parametrize("order", [(1, 0), (1, 2, 0), (2, 1, 0), (2, 0, 1), (0, 0, 1, 1, 2)])
def test_entries_that_were_turned_around_are_sent_again(order: tuple[int, ...]) -> None:
    """In the end the batch is valid, once, and the copies are not."""
    lives = ReplicatedServer("a", "b")
    lives.found("a").write(puts(k=bytes(max(order) * (1 << 20))), lives.instant)
    pieces = lives.take("a")
    assert len(pieces) == max(order) + 1
    for number in order:
        lives.put(pieces[number])
    lives.settle()
    assert len(lives.events("a", BatchWritten)) == len(lives.events("b", BatchReplicated)) == 1


def test_an_append_that_was_given_up_is_sent_again() -> None:
    """With all that is under way, once, though each is told; and a lease counts from the first time."""
    lives = ReplicatedServer("a", "b")
    owner = lives.found("a")
    lives.now += 1.0
    owner.write(puts(k=bytes(2 << 20)), lives.instant)
    first = lives.take("a")
    lives.now += 0.2
    for append in first:
        owner.failed(append.ticket, lives.instant)
    again = lives.take("a")
    assert [append.data for append in again] == [append.data for append in first]
    assert {append.ticket for append in again}.isdisjoint(append.ticket for append in first)
    lives.put(*again, *first)
    assert len(lives.events("b", BatchReplicated)) == 1
    assert owner.holds_lease(lives.instant, owner.sent)
    lives.now += 0.06
    assert not owner.holds_lease(lives.instant, owner.sent)


def test_an_owner_that_lives_answers_a_challenge() -> None:
    """With a renewal; what is under way already does as well."""
    lives = ReplicatedServer("a", "b")
    owner = lives.found("a")
    lives["b"].suspect(lives.instant)
    (challenge,) = lives.take("b")
    lives.put(challenge)
    assert [type(entry.body) for entry in lives.sent("a")] == [Renewal]
    lives.put(challenge)
    assert lives.take("a") == []
    assert lives.events("a", IdInUse) == []
    assert owner.role is Role.ACTIVE


def test_two_servers_with_one_id_are_told() -> None:
    """One that challenges with the id of the owner is another process that lives."""
    lives = ReplicatedServer("a", "b")
    lives.found("a")
    member = lives.lives.pop("a")
    lives.begin("a", 7)
    lives["a"].tick(lives.instant)
    lives.lives["first"] = member
    challenge, *rest = lives.take("a")
    assert not rest
    lives.put(challenge)
    assert [event.life.incarnation for event in lives.events("first", IdInUse)] == [7]


def test_a_deposed_owner_does_nothing_any_more() -> None:
    """It sees a claim of another life: what it wrote after that is not valid, and nobody hears that it is."""
    lives = ReplicatedServer("a", "b")
    owner = lives.found("a")
    owner.write(puts(k=b"1"), lives.instant)
    batch = lives.take("a")
    paused = lives.lives.pop("a")
    lives["b"].suspect(lives.instant)
    lives.go_on(1.0)
    assert lives["b"].role is Role.ACTIVE
    lives.put(*batch)
    lives.lives["a"] = paused
    paused.events.clear()
    for index, data in enumerate(lives.log, start=1):
        paused.receive(index, data, lives.instant)
    assert paused.role is Role.DEPOSED
    assert [type(event) for event in paused.events] == [OwnerChanged, Deposed]
    assert lives.events("b", BatchReplicated) == []
    paused.renew_lease(lives.instant, paused.sent)
    lives.go_on(20.0)
    assert not any((paused.holds_lease(lives.instant, paused.sent), paused.may_pulse(lives.instant), paused.may_write))
    assert paused.next_deadline(lives.instant) == float("inf")
    assert lives.take("a") == []


def test_a_hand_over_ends_the_lease_at_once() -> None:
    """The next one claims as soon as it sees it, another one a tenth of a second later; the old life is over."""
    lives = ReplicatedServer("a", "b", "c")
    owner = lives.found("a")
    owner.write(puts(k=b""), lives.instant)
    assert not owner.hand_over("c", lives.instant)
    lives.settle()
    assert owner.holds_lease(lives.instant, owner.sent)
    assert owner.hand_over("c", lives.instant)
    assert not owner.holds_lease(lives.instant, owner.sent)
    assert not owner.may_write
    assert not owner.hand_over("c", lives.instant)
    owner.renew_lease(lives.instant, owner.sent)
    (hand_over,) = lives.take("a")
    lives.put(hand_over)
    assert owner.role is Role.DEPOSED
    for server_id, kinds in (("b", []), ("c", [Claim])):
        lives[server_id].tick(lives.instant)
        assert [type(entry.body) for entry in lives.sent(server_id)] == kinds
    assert lives["b"].next_deadline(lives.instant) == pytest.approx(lives.now + 0.1)
    lives.now += 0.1
    lives["b"].tick(lives.instant)
    lives.settle()
    assert lives["b"].role is Role.ACTIVE


def test_a_hand_over_that_was_given_up_is_sent_again() -> None:
    """The owner says nothing meanwhile."""
    lives = ReplicatedServer("a")
    owner = lives.found("a")
    assert owner.hand_over("", lives.instant)
    (append,) = lives.take("a")
    owner.failed(append.ticket, lives.instant)
    assert not owner.holds_lease(lives.instant, owner.sent)
    assert [entry.body for entry in lives.sent("a")] == [HandOver("")]


def test_an_owner_that_the_log_forgets_gives_no_sign_of_life() -> None:
    """After a second another server had better take over, if it has a log."""
    lives = ReplicatedServer("a")
    owner = lives.found("a")
    owner.write(puts(k=b""), lives.instant)
    lives.now += 0.99
    assert owner.may_pulse(lives.instant)
    lives.now += 0.02
    assert not owner.may_pulse(lives.instant)
    lives.settle()
    assert owner.may_pulse(lives.instant)


def test_what_comes_twice_from_the_log_is_taken_once() -> None:
    """A reader that connects again may hear the same entries."""
    lives = ReplicatedServer("a", "b")
    lives.found("a").write(puts(k=b""), lives.instant)
    lives.settle()
    for index, data in enumerate(lives.log, start=1):
        lives["b"].receive(index, data, lives.instant)
    assert len(lives.events("b", BatchReplicated)) == 1
    assert lives["b"].fence == lives["a"].fence
