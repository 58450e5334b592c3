"""What the owner of a lease counts on."""

from __future__ import annotations

from raft_client.core.calls import Failed, Finished, MayLease, Retry
from raft_client.core.leases import OwnLease
from raft_client.errors import LeaseEndedError, LeasesUnsupportedError
from raft_client.wire.key_value_messages import LeasesReply


def test_an_owner_counts_from_when_it_sent_a_word() -> None:
    """It counts on nine tenths of the ttl after it sent the last word that was acknowledged, and sends some before."""
    own = OwnLease(10.0)
    assert own.look(1_000.0) is None
    assert own.begin(0.0, 1.0)
    assert (own.due_at, own.look(8.9)) == (3.0, None)
    own.not_kept(5.0)
    assert own.due_at == 5.5
    own.kept(4.0)
    assert (own.due_at, own.look(12.9)) == (7.0, None)
    assert own.look(13.0) is not None


def test_a_lease_that_is_over_does_not_come_back() -> None:
    """Whatever is acknowledged later."""
    own = OwnLease(10.0)
    assert own.begin(0.0, 0.0)
    assert own.look(9.0) is not None
    own.kept(8.9)
    assert own.look(9.0) is not None
    ended = OwnLease(10.0)
    ended.end(LeaseEndedError("ended"))
    ended.end(LeaseEndedError("again"))
    assert str(ended.look(0.0)) == "ended"


def test_a_grant_that_took_too_long_is_none() -> None:
    """What was granted so late that its owner could not count on it has to be kept alive first."""
    own = OwnLease(10.0)
    assert not own.begin(0.0, 9.0)
    assert own.valid_until is None
    assert own.begin(9.0, 9.1)


def test_a_grant_that_is_sent_again_counts_from_the_first_time() -> None:
    """It is in the log once, so its answer may be about an entry that was applied long before."""
    own = OwnLease(10.0)
    assert (own.ask(5.0), own.ask(14.5)) == (5.0, 5.0)
    assert not own.begin(own.ask(14.6), 14.6)


def test_members_that_were_not_heard_are_waited_for() -> None:
    """A member that knows no leases is an error at once; one that has not said yet what it knows may do so."""
    call = MayLease(b"", 1)
    assert isinstance(call.receive(LeasesReply((), ()).to_frames()), Finished)
    failed = call.receive(LeasesReply(("2",), ("3",)).to_frames())
    assert isinstance(failed, Failed)
    assert "; 2 knows none" in str(failed.error)
    waits = call.receive(LeasesReply((), ("3",)).to_frames())
    assert isinstance(waits, Retry)
    assert isinstance(waits.error, LeasesUnsupportedError)
    assert "3 was not reached yet" in str(waits.error)
