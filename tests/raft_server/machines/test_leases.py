"""Leases of keys: schedules of peers, owners and clocks in which no lease ends too soon, none lives for ever, and all
peers agree. Mistakes that are planted are found by the schedules: so these would find such a mistake."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from lease_model import Schedule, ViolationError
from support.schedules import Mutants, run_schedules, seeds_near

from raft_client import Change, ChangeKind, Compare, KeyValueCodec, LogEntry
from raft_client.errors import ProtocolError
from raft_client.server.machines import leases
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.machines.leases import LeaseClock, LeaseTable
from raft_client.server.machines.state_machine import Applied
from raft_client.wire.client_requests import ClientDispatch
from raft_client.wire.key_value_messages import (
    AskLease,
    AskOutcome,
    LeaseReply,
    OutcomeReply,
    TransactionStatus,
    decode_lease_reply,
    decode_outcome_reply,
)
from raft_client.wire.leases import EndLease, GrantLease, HeldLease, KeepLease, LeasedKey, LeaseOperation

A, B = b"lease of a..", b"lease of b.."
_FOUND_IN = 2_000


def _run(seed: int) -> tuple[str | None, dict[str, int]]:
    try:
        return None, Schedule(seed).run()
    except ViolationError as error:
        return str(error), {}


def test_leases_end_when_they_must_and_not_before(record_property: Callable[[str, object], None]) -> None:
    """In any schedule a lease ends after its owner had to doubt it, and ends if it has no owner, on all peers alike."""
    totals = run_schedules(
        "leases of keys",
        _run,
        record_property,
        long=20_000,
        violation=lambda outcome: outcome[0],
        counts=lambda outcome: outcome[1],
    )
    for what in ("kept", "ended", "ends without effect", "snapshots", "elections"):
        assert totals[what], f"the schedules do not lead to: {what}"


# -- mistakes ----------------------------------------------------------------------------------------------------------

MUTANTS = Mutants()


@MUTANTS.instead(LeaseTable, "may_end")
def _an_end_ignores_what_it_has_seen(right: Any, table: LeaseTable, lease: bytes, seen: int | None) -> Any:
    del seen
    return right(table, lease, None)


@MUTANTS.instead(LeaseClock, "lead")
def _a_new_leader_does_not_start_anew(right: Any, clock: LeaseClock, now: float) -> None:
    del right, now
    clock._leads = True


@MUTANTS.instead(LeaseClock, "lead")
def _a_new_leader_takes_all_leases_for_over(right: Any, clock: LeaseClock, now: float) -> None:
    right(clock, now)
    clock._over_at = dict.fromkeys(clock._over_at, now)
    clock._heap = [(now, lease) for lease in clock._over_at]


@MUTANTS.instead(LeaseClock, "applied")
def _the_clock_does_not_hear_of_owners(right: Any, clock: LeaseClock, now: float) -> None:
    table = clock._table
    table.touched = {lease: None for lease in table.touched if not (lease in clock._over_at and lease in table)}
    right(clock, now)


@MUTANTS.instead(LeaseTable, "keep")
def _applying_reads_a_clock(right: Any, table: LeaseTable, lease: bytes, index: int) -> Any:
    return right(table, lease, index + time.perf_counter_ns() % 1_000)


@MUTANTS.instead(LeaseTable, "end")
def _keys_are_kept_after_the_end(right: Any, table: LeaseTable, lease: bytes) -> list[bytes]:
    right(table, lease)
    return []


@MUTANTS.instead(LeaseTable, "keep")
def _an_ended_lease_goes_on(right: Any, table: LeaseTable, lease: bytes, index: int) -> Any:
    return right(table, lease, index) if lease in table else table.grant(lease, 1_000, index)


@MUTANTS.instead(LeaseTable, "copied")
def _a_snapshot_has_no_leases(right: Any, table: LeaseTable) -> list[Any]:
    return [each for each in right(table) if isinstance(each, tuple)]


@MUTANTS.instead(LeaseTable, "detach")
def _a_key_stays_with_its_former_lease(right: Any, table: LeaseTable, key: bytes) -> None:
    del right, table, key


@MUTANTS.instead(LeaseTable, "may_have")
def _keys_are_given_to_an_ended_lease(right: Any, table: LeaseTable, lease: bytes, keys: Any) -> Any:
    if lease not in table:
        table.grant(lease, 1_000, 0)
    return right(table, lease, keys)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_schedules_find_mistakes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mistake is found in a few schedules."""
    plant, _ = MUTANTS[name]
    plant(monkeypatch)
    assert any(_run(seed)[0] is not None for seed in seeds_near(1, near=_FOUND_IN, most=_FOUND_IN))  # most: below 20


# -- the machine -------------------------------------------------------------------------------------------------------


def _entry(index: int, data: bytes | LeaseOperation) -> LogEntry:
    return LogEntry.of(data if isinstance(data, bytes) else KeyValueCodec.encode_lease(data), term=1, index=index)


def _put(key: str, value: str = "", lease: bytes | None = None) -> bytes:
    return KeyValueCodec.encode((Change(ChangeKind.SET, key.encode(), value.encode()),), lease=lease)


def _machine(*entries: bytes | LeaseOperation) -> KeyValueStateMachine:
    machine = KeyValueStateMachine()
    machine.apply([_entry(index, data) for index, data in enumerate(entries, 1)])
    return machine


def _outcome(machine: KeyValueStateMachine, index: int) -> tuple[TransactionStatus, int]:
    type_, ident, *frames = AskOutcome(b"", index).to_frames()
    answer = machine.dispatch(ClientDispatch(type_, ident, tuple(frames)))
    assert answer is not None
    reply = decode_outcome_reply(answer)
    assert isinstance(reply, OutcomeReply)
    return reply.status, reply.deleted


def _look(machine: KeyValueStateMachine, lease: bytes) -> tuple[int | None, tuple[bytes, ...]]:
    type_, ident, *frames = AskLease(b"", lease).to_frames()
    answer = machine.dispatch(ClientDispatch(type_, ident, tuple(frames)))
    assert answer is not None
    reply = decode_lease_reply(answer)
    assert isinstance(reply, LeaseReply)
    return reply.ttl_ms, reply.keys


def test_bytes_of_entries_about_leases() -> None:
    """The four operations are MessagePack arrays of the kinds 4 to 7, so that a client in another language can write
    them."""
    name = "c40c" + A.hex()
    assert KeyValueCodec.encode_lease(GrantLease(A, 1_000)) == bytes.fromhex(f"92 a26b76 93 04 {name} cd03e8")
    assert KeyValueCodec.encode_lease(KeepLease(A)) == bytes.fromhex(f"92 a26b76 92 05 {name}")
    assert KeyValueCodec.encode_lease(EndLease(A, 7)) == bytes.fromhex(f"92 a26b76 93 06 {name} 07")
    assert KeyValueCodec.encode_lease(EndLease(A)) == bytes.fromhex(f"92 a26b76 93 06 {name} c0")
    assert _put("k", "v", A) == bytes.fromhex(f"93 a26b76 92 07 {name} 93 01 c4016b c40176")


def test_the_end_deletes_the_keys_in_one_entry() -> None:
    """The end of a lease deletes what was set with it last, and is told as one change, in the order of keys."""
    told: list[Applied] = []
    machine = KeyValueStateMachine(told.append)
    both = KeyValueCodec.encode((Change(ChangeKind.SET, b"z", b"1"), Change(ChangeKind.SET, b"c", b"1")), lease=A)
    entries = [GrantLease(A, 1_000), GrantLease(B, 1_000), both, _put("a", "1", A), _put("b", "1", A)]
    entries += [_put("b", "2", B), _put("c", "2"), EndLease(A, 1)]
    machine.apply([_entry(index, data) for index, data in enumerate(entries, 1)])
    assert told[-1] == Applied(8, (Change(ChangeKind.DELETE, b"a"), Change(ChangeKind.DELETE, b"z")))
    assert _outcome(machine, 8) == (TransactionStatus.DONE, 2)
    assert (_look(machine, A), _look(machine, B)) == ((None, ()), (1_000, (b"b",)))
    assert [machine.get(key) for key in (b"a", b"b", b"c", b"z")] == [None, b"2", b"2", None]


def test_an_end_before_a_later_word_has_no_effect() -> None:
    """An end names the entry that was seen last, and has no effect if the owner was heard after it."""
    machine = _machine(GrantLease(A, 1_000), _put("a", "1", A), KeepLease(A), EndLease(A, 1), EndLease(A, 3))
    assert _outcome(machine, 4) == (TransactionStatus.COMPARISON_FAILED, 0)
    assert _outcome(machine, 5) == (TransactionStatus.DONE, 1)
    machine.apply([_entry(6, EndLease(A))])
    assert _outcome(machine, 6) == (TransactionStatus.NO_LEASE, 0)


def test_nothing_is_done_without_the_lease() -> None:
    """A transaction whose lease has ended does nothing, neither what it wants nor what it wants otherwise."""
    changes = [(Change(ChangeKind.SET, key, b"1"),) for key in (b"then", b"otherwise")]
    data = KeyValueCodec.encode(changes[0], (Compare(b"k"),), changes[1], lease=A)
    machine = _machine(GrantLease(A, 1_000), EndLease(A), KeepLease(A), data, _put("k"), data)
    assert [_outcome(machine, index)[0] for index in (3, 4, 6)] == [TransactionStatus.NO_LEASE] * 3
    assert machine.get(b"then") is machine.get(b"otherwise") is None
    machine = _machine(GrantLease(A, 1_000), data, _put("k"), data)
    assert [_outcome(machine, index)[0] for index in (2, 4)] == [
        TransactionStatus.DONE,
        TransactionStatus.COMPARISON_FAILED,
    ]
    assert _look(machine, A) == (1_000, (b"otherwise", b"then"))


def test_there_are_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases, keys of a lease and keys of all leases are bounded; what is refused changes nothing."""
    monkeypatch.setattr(leases, "MOST_LEASES", 2)
    monkeypatch.setattr(leases, "MOST_KEYS_OF_A_LEASE", 2)
    monkeypatch.setattr(leases, "MOST_LEASED_KEYS", 3)
    entries = [GrantLease(name, 1_000) for name in (A, B, b"lease of c..")]
    puts = [_put("a", "1", A), _put("b", "1", A), _put("c", "1", A), _put("a", "2", A)]
    more = [_put("c", "1", B), _put("d", "1", B), _put("b", "2", B)]
    machine = _machine(*entries, *puts, *more)
    refused = [index for index in range(1, 11) if _outcome(machine, index)[0] is TransactionStatus.TOO_MANY]
    assert refused == [3, 6, 9]
    assert (_look(machine, A), _look(machine, B)) == ((1_000, (b"a",)), (1_000, (b"b", b"c")))


def test_a_snapshot_has_the_leases() -> None:
    """A restored machine has the leases, which entry each was kept with, and their keys; and nothing but that."""
    machine = _machine(GrantLease(A, 1_000), GrantLease(B, 86_400_000), *[_put(f"k{n:04}", "", A) for n in range(600)])
    pieces = machine.snapshot()
    machine.apply([_entry(603, EndLease(A))])
    restored = KeyValueStateMachine()
    list(restored.restore(602, pieces))
    assert (len(_look(restored, A)[1]), _look(restored, B)) == (600, (86_400_000, ()))
    assert restored.leases.copied()[:2] == [HeldLease(A, 1_000, 1), HeldLease(B, 86_400_000, 2)]
    restored.apply([_entry(603, EndLease(A))])
    assert list(restored.snapshot()) == list(machine.snapshot())
    only_leases = KeyValueStateMachine()
    list(only_leases.restore(603, restored.snapshot()))
    assert only_leases.leases.copied() == [HeldLease(B, 86_400_000, 2)]


@pytest.mark.parametrize(
    "leases_of_a_snapshot",
    [
        [LeasedKey(A, b"k")],
        [HeldLease(A, 1_000, 1), LeasedKey(A, b"j")],
        [HeldLease(A, 999, 1)],
        [HeldLease(b"", 1_000, 1)],
    ],
)
def test_a_broken_snapshot_changes_nothing(leases_of_a_snapshot: list[Any]) -> None:
    """Keys without their lease, leases without their keys, and what no lease can be, are refused."""
    machine = _machine(GrantLease(B, 1_000))
    pieces = KeyValueCodec.encode_snapshot([(b"k", b"")], leases_of_a_snapshot)
    with pytest.raises(ProtocolError):
        list(machine.restore(7, pieces))
    assert _look(machine, B) == (1_000, ())


@pytest.mark.parametrize(
    "operations",
    [
        "92 04 {a}",  # without a ttl
        "93 04 {a} cd03e7",  # 999 ms
        "93 04 {a} cb408f400000000000",  # 1000.0 ms
        "93 04 c40161 cd03e8",  # a short name
        "93 05 {a} c0",
        "92 06 {a}",
        "93 06 {a} ff",  # seen -1
        "92 07 {a}",  # nothing after it
    ],
)
def test_unknown_words_on_leases_change_nothing(operations: str) -> None:
    """Entries that say something unknown of leases are refused by the codec, and change nothing."""
    data = bytes.fromhex("92 a26b76" + operations.format(a="c40c" + A.hex()))
    with pytest.raises(ProtocolError):
        KeyValueCodec().decode_operation(data)
    assert list(_machine(data).snapshot()) == list(KeyValueStateMachine().snapshot())


def test_a_watch_that_reads_the_log_knows_no_ends() -> None:
    """Who reads the log passes over words on leases that change no key, and refuses those that may."""
    codec = KeyValueCodec()
    assert [codec.decode(KeyValueCodec.encode_lease(each)) for each in (GrantLease(A, 1_000), KeepLease(A))] == [(), ()]
    assert codec.decode_transaction(KeyValueCodec.encode_lease(KeepLease(A))) is None
    for data in (KeyValueCodec.encode_lease(EndLease(A)), _put("k", "v", A)):
        with pytest.raises(ProtocolError, match="known to the state machine"):
            codec.decode(data)


# -- the clock ---------------------------------------------------------------------------------------------------------


def _clock(*ttls_ms: int) -> tuple[KeyValueStateMachine, LeaseClock]:
    machine = _machine(*[GrantLease(b"%012d" % number, ttl_ms) for number, ttl_ms in enumerate(ttls_ms)])
    clock = LeaseClock(machine.leases)
    clock.applied(0.0)
    return machine, clock


def test_only_a_leader_counts() -> None:
    """A peer that does not lead ends nothing; one that begins to lead gives each lease all of its time."""
    _, clock = _clock(1_000, 2_000)
    assert clock.next_deadline() is None
    clock.lead(10.0)
    assert clock.next_deadline() == 11.0
    assert [clock.due(at) for at in (10.9, 11.0, 11.1)] == [[], [EndLease(b"%012d" % 0, 1)], []]
    assert clock.next_deadline() == 12.0
    clock.follow()
    assert (clock.due(99.0), clock.next_deadline()) == ([], None)


def test_an_end_is_proposed_until_it_is_applied() -> None:
    """What was not appended, because the leadership was being handed over, say, is proposed again after a second."""
    machine, clock = _clock(1_000)
    clock.lead(0.0)
    end = EndLease(b"%012d" % 0, 1)
    assert [clock.due(at) for at in (1.0, 1.9, 2.0)] == [[end], [], [end]]
    machine.apply([_entry(2, KeepLease(end.lease))])
    clock.applied(2.5)
    assert [clock.due(at) for at in (3.0, 3.4, 3.5)] == [[], [], [EndLease(end.lease, 2)]]
    machine.apply([_entry(3, EndLease(end.lease, 2))])
    clock.applied(3.6)
    assert clock.due(9.0) == []
    assert clock.next_deadline() is None


def test_many_ends_are_shared_out() -> None:
    """A turn proposes a few ends, and the next one is due at once."""
    _, clock = _clock(*[1_000] * 40)
    clock.lead(0.0)
    found = [len(clock.due(1.5)) for _ in range(4)]
    assert found == [16, 16, 8, 0]
