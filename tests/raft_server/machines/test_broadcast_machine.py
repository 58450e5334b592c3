"""Live broadcast: what a leader says, and when; bytes captured from Node peers (facts §1.3)."""

from __future__ import annotations

import pytest

from raft_client.server.machines.broadcast import Broadcaster, BroadcastStateMachine
from raft_client.wire.log_entry import CHECKPOINT_DATA, EntryKind, LogEntry


def entries(first: int, last: int) -> list[LogEntry]:
    return [LogEntry.of(b"x", term=2, index=n) for n in range(first, last + 1)]


def test_only_a_leader_says_anything() -> None:
    """A follower applies entries and broadcasts nothing; when it is elected, what it has applied counts."""
    broadcaster = Broadcaster(b"")
    assert broadcaster.applied(entries(1, 8), 0.0) is None
    assert broadcaster.tick(100.0) is None
    assert broadcaster.next_deadline() is None
    first = broadcaster.lead(1, 8, 100.0)
    assert first.to_frames() == [b"", b"\x01", b"\x08"]  # a heartbeat, as captured
    broadcaster.follow()
    assert broadcaster.applied(entries(9, 9), 101.0) is None
    assert broadcaster.next_deadline() is None


def test_entries_of_all_kinds_go_out_in_one_message() -> None:
    """Entries of all kinds that were applied together are broadcast in one message."""
    broadcaster = Broadcaster(b"c")
    broadcaster.lead(2, 0, 0.0)
    checkpoint = LogEntry.of(CHECKPOINT_DATA, term=2, kind=EntryKind.CHECKPOINT, index=1)
    said = broadcaster.applied([checkpoint, *entries(2, 3)], 0.0)
    assert said is not None
    assert (said.ident, said.term, said.last_applied, len(said.entries)) == (b"c", 2, 3, 3)


def test_silence_is_broken_after_a_tenth_of_a_second() -> None:
    """A heartbeat comes 0.1 s after the last message of any kind; after a late one, the next is later."""
    broadcaster = Broadcaster(b"")
    broadcaster.lead(1, 0, 10.0)
    assert broadcaster.tick(10.09) is None
    broadcaster.applied(entries(1, 1), 10.09)
    assert broadcaster.next_deadline() == pytest.approx(10.19)
    assert broadcaster.tick(10.18) is None
    heartbeat = broadcaster.tick(10.25)
    assert heartbeat is not None
    assert (heartbeat.last_applied, heartbeat.entries) == (1, ())
    assert broadcaster.next_deadline() == pytest.approx(10.35)


def test_nothing_applied_is_nothing_said() -> None:
    """An empty list of entries is not broadcast as a heartbeat."""
    broadcaster = Broadcaster(b"")
    broadcaster.lead(1, 0, 0.0)
    assert broadcaster.applied([], 1.0) is None


def test_a_broadcast_state_machine_keeps_its_place() -> None:
    """The snapshot of a broadcast machine stands for what was dropped, and one of another program is taken as it is."""
    machine = BroadcastStateMachine()
    machine.apply(entries(1, 300))
    machine.apply([])
    assert b"".join(machine.snapshot()) == b"\x2c\x01"
    other = BroadcastStateMachine()
    assert list(other.restore(300, [b"what", b"ever"])) == [None, None]
    assert other.last_applied == 300
