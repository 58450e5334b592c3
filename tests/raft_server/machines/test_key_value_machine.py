"""The key/value state machine: transactions, snapshots while it changes, and questions; a dictionary as the oracle."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft_client import KeyValueCodec
from raft_client.codecs import Change, ChangeKind, Compare
from raft_client.errors import InvalidDataError, ProtocolError
from raft_client.server.machines import key_value
from raft_client.server.machines.key_value import FrozenItems, KeyValueStateMachine, PastValues
from raft_client.server.machines.state_machine import Applied
from raft_client.wire.client_requests import ClientDispatch
from raft_client.wire.configuration import ConfigChange, Peer, encode_config
from raft_client.wire.frames import decode_uint
from raft_client.wire.key_value_messages import (
    AskOutcome,
    NotYet,
    OutcomeReply,
    Outrun,
    Page,
    ReadKeys,
    TransactionStatus,
    decode_outcome_reply,
    decode_read_reply,
)
from raft_client.wire.log_entry import CHECKPOINT_DATA, EntryKind, LogEntry, Position

GET, RANGE, DONE, READ, OUTCOME = b"kv.get", b"kv.range", b"kv.done", b"kv.read", b"kv.outcome"


def entry(index: int, data: bytes, kind: EntryKind = EntryKind.STATE) -> LogEntry:
    return LogEntry.of(data, term=1, kind=kind, index=index)


def ask(machine: KeyValueStateMachine, kind: bytes, *frames: bytes) -> list[bytes]:
    answer = machine.dispatch(ClientDispatch(kind, b"", frames))
    assert answer is not None
    return list(answer)


def filled(count: int) -> KeyValueStateMachine:
    machine = KeyValueStateMachine()
    machine.apply([entry(n, KeyValueCodec.set(f"k{n:05}", str(n))) for n in range(1, count + 1)])
    return machine


def state(machine: KeyValueStateMachine) -> dict[bytes, bytes]:
    return dict(KeyValueCodec().decode_snapshot(machine.snapshot()))


# -- entries -----------------------------------------------------------------------------------------------------------


def test_bytes_of_a_transaction_that_compares() -> None:
    """A transaction that compares is ``["kv", [2, "a", "1"], [1, "a", "2"]]`` in MessagePack, so that a client in
    another language can write it."""
    data = bytes.fromhex("93 a26b76 93 02 c40161 c40131 93 01 c40161 c40132")
    assert KeyValueCodec.compare_and_set("a", "1", "2") == data
    machine = KeyValueStateMachine()
    machine.apply([entry(1, KeyValueCodec.set("a", "1")), entry(2, data), entry(3, data)])
    assert machine.get(b"a") == b"2"
    assert [ask(machine, DONE, bytes((n,)))[1:] for n in (1, 2, 3)] == [[b"\x00"], [b"\x01"], [b"\x02"]]


def test_entries_of_others_change_nothing() -> None:
    """Entries of other formats, broken ones, checkpoints and configurations change nothing, alike on every peer."""
    machine = filled(1)
    config = encode_config(ConfigChange((Peer("1", "tcp://127.0.0.1:1"),)))
    machine.apply(
        [
            entry(2, b"anything"),
            entry(3, bytes.fromhex("92 a26b76 92 07 c40161")),
            entry(4, CHECKPOINT_DATA, EntryKind.CHECKPOINT),
            entry(5, config, EntryKind.CONFIG),
            entry(6, bytes.fromhex("92 a26b76 93 02 c40161 c0")),  # compares, and changes nothing
        ]
    )
    assert state(machine) == {b"k00001": b"1"}
    assert machine.last_applied == 6


def test_watches_hear_what_really_changed() -> None:
    """A deletion of a missing key, and a transaction whose comparison failed, are not told to watches as changes."""
    heard: list[Applied] = []
    machine = KeyValueStateMachine(heard.append)
    machine.apply(
        [
            entry(1, KeyValueCodec.delete("a")),
            entry(2, KeyValueCodec.set("a", "1")),
            entry(3, KeyValueCodec.compare_and_set("a", None, "2")),
            entry(4, KeyValueCodec.compare_and_set("a", "1", None)),
            entry(5, KeyValueCodec.compare_and_set("a", None, "3")),
        ]
    )
    assert heard == [
        Applied(2, (Change(ChangeKind.SET, b"a", b"1"),)),
        Applied(4, (Change(ChangeKind.DELETE, b"a"),)),
        Applied(5, (Change(ChangeKind.SET, b"a", b"3"),)),
    ]


def test_a_watch_that_reads_the_log_refuses_what_compares() -> None:
    """A watch that reads the log refuses a transaction that compares: it cannot know whether that was done."""
    with pytest.raises(ProtocolError, match="known to the state machine of the peers only"):
        KeyValueCodec().decode(KeyValueCodec.compare_and_set("k", None, "v"))


KEYS = st.sampled_from([b"a", b"b", b"ab", b"\xff"])
VALUES = st.binary(max_size=3)
CHANGES = st.builds(Change, st.just(ChangeKind.SET), KEYS, VALUES) | st.builds(Change, st.just(ChangeKind.DELETE), KEYS)
COMPARES = st.builds(Compare, KEYS, st.none() | VALUES) | st.builds(Compare, KEYS)
TRANSACTIONS = st.tuples(
    st.lists(COMPARES, max_size=2), st.lists(CHANGES, min_size=1, max_size=4), st.lists(CHANGES, max_size=2)
)


@given(st.lists(TRANSACTIONS, max_size=20), st.data())
def test_a_dictionary_comes_to_the_same(transactions: list[Any], data: st.DataObject) -> None:
    """The state is a dictionary's, however entries are grouped and with a snapshot restored anywhere; its size is
    right."""
    oracle: dict[bytes, bytes] = {}
    machine = KeyValueStateMachine()
    for index, (compares, changes, others) in enumerate(transactions, 1):
        otherwise = others if compares else []
        done = all(oracle.get(compare.key) == compare.expected for compare in compares)
        for change in changes if done else otherwise:
            oracle.pop(change.key, None)
            if change.value is not None:
                oracle[change.key] = change.value
        machine.apply([entry(index, KeyValueCodec.encode(changes, compares, otherwise))])
        if data.draw(st.booleans()):
            pieces = b"".join(machine.snapshot())
            machine = KeyValueStateMachine()
            cut = data.draw(st.integers(0, len(pieces)))
            list(machine.restore(index, [pieces[:cut], pieces[cut:]]))
    assert state(machine) == oracle
    assert machine.last_applied == len(transactions)
    assert machine.state_bytes == sum(200 + len(key) + len(value) for key, value in oracle.items())


# -- snapshots ---------------------------------------------------------------------------------------------------------


def test_a_snapshot_shows_the_moment_of_its_call() -> None:
    """A snapshot has each key as it was when it was begun, although keys change while it is written."""
    machine = filled(1000)
    before = state(machine)
    pieces = machine.snapshot()
    first = next(pieces)
    machine.apply(
        [
            entry(1001, KeyValueCodec.set("k00999", "changed")),
            entry(1002, KeyValueCodec.delete("k00998")),
            entry(1003, KeyValueCodec.set("k00997x", "new")),
            entry(1004, KeyValueCodec.delete("k00999")),
            entry(1005, KeyValueCodec.set("k00998", "again")),
            entry(1006, KeyValueCodec.delete("k00001")),
        ]
    )
    assert dict(KeyValueCodec().decode_snapshot([first, *pieces])) == before
    after = state(machine)
    assert after.pop(b"k00998") == b"again"
    assert after.pop(b"k00997x") == b"new"
    assert b"k00999" not in after


@given(st.lists(st.tuples(st.sampled_from("ns"), st.binary(min_size=1, max_size=2), st.none() | VALUES), max_size=60))
def test_a_frozen_state_stands_still(steps: list[tuple[str, bytes, bytes | None]]) -> None:
    """A frozen state has the items of its moment, in order, whatever is set and deleted between two looks at it."""
    items = FrozenItems()
    for number in range(700):  # of several steps of the reader
        items.set(number.to_bytes(2, "big"), b"old")
    expected = list(items.after(b"", prefix=b""))
    frozen = items.frozen()
    found = []
    for kind, key, value in steps:
        if kind == "n":
            found += list(itertools.islice(frozen, 1 + len(key) * 100))
        elif value is not None:
            items.set(key, value)
        elif items.get(key) is not None:
            items.delete(key)
    assert found + list(frozen) == expected


def test_a_frozen_state_begins_at_once_however_many_keys_there_are() -> None:
    """Freezing many keys, and reading the first ones, takes no memory, and so no time, that grows with their number."""
    items = FrozenItems()
    for number in range(50_000):
        items.set(b"%06d" % number, b"value")
    tracemalloc.start()
    try:
        next(items.frozen())
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_no_block_of_memory_grows_with_the_number_of_keys_alone() -> None:
    """There is no table of all keys, which would be copied whole, in one go, when it grows."""
    items = FrozenItems()
    tracemalloc.start()
    try:
        for number in range(50_000):
            items.set(b"%06d" % number, b"value")
        assert max(trace.size for trace in tracemalloc.take_snapshot().traces) < 200_000
    finally:
        tracemalloc.stop()


def test_a_snapshot_is_restored_in_many_steps() -> None:
    """Restoring stops every 128 keys, so that the peer can see to its cluster, and changes nothing before its end."""
    machine = KeyValueStateMachine()
    steps = machine.restore(9, filled(1000).snapshot())
    assert [machine.last_applied for _ in steps] == [0] * 7
    assert (machine.last_applied, len(state(machine))) == (9, 1000)


def test_a_snapshot_that_is_given_up_makes_place_for_another() -> None:
    """A snapshot that is closed, dropped half-way or never read leaves nothing, and another one can be made."""
    machine = filled(1000)
    machine.snapshot().close()  # type: ignore[attr-defined]
    half = machine.snapshot()
    next(half)
    with pytest.raises(RuntimeError, match="being read already"):
        machine.snapshot()
    del half
    assert len(state(machine)) == 1000


def test_an_empty_state_has_a_snapshot_of_some_bytes() -> None:
    """The snapshot of an empty state has some bytes, because Node peers do not send one of no bytes (facts §1.4)."""
    machine = KeyValueStateMachine()
    pieces = b"".join(machine.snapshot())
    assert pieces
    list(machine.restore(7, [pieces]))
    assert (state(machine), machine.last_applied) == ({}, 7)


@pytest.mark.parametrize("damage", [b"\xc1", b"\x92\xa2kv", b"\x92\xa2kv\x92\x00\xc4\x01a", b"\x01"])
def test_a_broken_snapshot_leaves_the_state_as_it_is(damage: bytes) -> None:
    """A broken snapshot is a ProtocolError and leaves the state as it was."""
    machine = filled(3)
    before = state(machine)
    with pytest.raises(ProtocolError):
        list(machine.restore(9, [b"".join(machine.snapshot()), damage]))
    assert (state(machine), machine.last_applied) == (before, 3)


# -- questions ---------------------------------------------------------------------------------------------------------


def test_a_key_is_answered_with_the_index() -> None:
    """The answer about a key has the index and tells whether it was found; an empty value is a value."""
    machine = KeyValueStateMachine()
    machine.apply([entry(1, KeyValueCodec.set("k", "")), entry(2, KeyValueCodec.set("l", "v"))])
    assert ask(machine, GET, b"l") == [b"\x02", b"\x01", b"v"]
    assert ask(machine, GET, b"k") == [b"\x02", b"\x01", b""]
    assert ask(machine, GET, b"x") == [b"\x02", b"", b""]


def test_pages_give_every_key_of_a_prefix_once() -> None:
    """Pages that are asked for after the last key give every key of a prefix once."""
    machine = filled(25)
    machine.apply([entry(26, KeyValueCodec.set("j", "before")), entry(27, KeyValueCodec.set("l", "after"))])
    found: list[bytes] = []
    after = b""
    while True:
        index, more, *items = ask(machine, RANGE, b"k", after, b"\x0a")
        assert decode_uint(index) == 27
        assert len(items) <= 20
        found += items[::2]
        if not more:
            break
        after = found[-1]
    assert found == [b"k%05d" % n for n in range(1, 26)]


def test_a_page_is_bounded_in_bytes() -> None:
    """A page is bounded in bytes, and has one key at least."""
    machine = KeyValueStateMachine()
    machine.apply([entry(n, KeyValueCodec.set(f"k{n}", b"x" * 700_000)) for n in range(1, 5)])
    _index, more, *items = ask(machine, RANGE, b"", b"", b"\xff")
    assert more
    assert len(items) == 4


@pytest.mark.parametrize(
    ("kind", "frames"),
    [
        (GET, ()),
        (RANGE, (b"", b"")),
        (RANGE, (b"", b"", b"")),
        (DONE, ()),
        (DONE, (b"",)),
        (DONE, (b"\xff" * 8,)),
        (READ, ()),
        (READ, (b"", b"", b"\x00", b"", b"", b"")),
        (OUTCOME, ()),
    ],
)
def test_a_question_that_cannot_be_read_is_refused(kind: bytes, frames: tuple[bytes, ...]) -> None:
    """A question that cannot be read is answered with an empty frame and the reason: nobody waits for a time-out."""
    empty, reason = ask(filled(1), kind, *frames)
    assert empty == b""
    assert reason.startswith(kind)


def test_messages_for_others_are_not_answered() -> None:
    """A message for another state machine is not answered, as by Node peers."""
    assert filled(1).dispatch(ClientDispatch(b"other", b"")) is None


@given(st.sampled_from([GET, RANGE, DONE, READ, OUTCOME]), st.lists(st.binary(max_size=9), max_size=7))
def test_any_frames_are_answered_or_refused(kind: bytes, frames: list[bytes]) -> None:
    """Any frames are answered, or refused with a reason, and never end the peer."""
    machine = filled(3)
    question = ClientDispatch(kind, b"", tuple(frames))
    machine.may_be_stale(question)
    answer = machine.dispatch(question)
    assert answer is not None
    if kind == READ:
        decode_read_reply(answer)
    elif kind == OUTCOME:
        decode_outcome_reply(answer)
    elif answer[0]:
        assert decode_uint(answer[0]) == 3


def test_the_status_of_exactly_so_many_transactions_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of as many transactions as are remembered has its status, and one more takes it away."""
    monkeypatch.setattr(key_value, "_REMEMBERED", 3)
    machine = filled(0)
    data = KeyValueCodec.compare_and_set("k", None, "v")
    machine.apply([entry(index, data) for index in range(1, 5)])
    statuses = [ask(machine, DONE, bytes((index,)))[1] for index in range(1, 5)]
    assert statuses == [b"\x00", b"\x02", b"\x02", b"\x02"]


# -- pages that show one moment ----------------------------------------------------------------------------------------


def read(machine: KeyValueStateMachine, first: bytes, end: bytes, limit: int, at: int | None, **more: bool) -> Any:
    asked = ReadKeys(b"", first, end, limit, at, **more)
    return decode_read_reply(machine.dispatch(ClientDispatch.from_frames(asked.to_frames())) or ())


SMALL = st.sampled_from([b"a", b"ab", b"b", b"c", b"c\x00", b"\xff"])
STEPS = st.lists(
    st.lists(st.tuples(SMALL, st.none() | st.sampled_from([b"1", b"2", b"333"])), min_size=1, max_size=3), max_size=25
)


@given(STEPS, st.binary(max_size=2), st.binary(max_size=2), st.integers(1, 3), st.integers(0, 2_000), st.data())
def test_pages_show_what_the_keys_were_at_any_index(
    steps: list[list[tuple[bytes, bytes | None]]],
    first: bytes,
    end: bytes,
    limit: int,
    memory: int,
    data: st.DataObject,
) -> None:
    """Pages at any index have the keys of that moment, once each, or say that it is forgotten; a dictionary for each
    index is the oracle. However little is remembered, the newest state can be read."""
    machine, oracle = KeyValueStateMachine(), [dict[bytes, bytes]()]
    machine._past = PastValues(memory)
    restored = data.draw(st.integers(0, len(steps)))
    for index, changes in enumerate(steps, 1):
        state_then = dict(oracle[-1])
        for key, value in changes:
            state_then.pop(key, None)
            if value is not None:
                state_then[key] = value
        oracle.append(state_then)
        kinds = [
            Change(ChangeKind.SET if value is not None else ChangeKind.DELETE, key, value) for key, value in changes
        ]
        machine.apply([entry(index, KeyValueCodec.encode(kinds))])
        if index == restored:
            pieces = [b"".join(machine.snapshot())]
            list(machine.restore(index, pieces))
    for at in range(len(oracle)):
        found: list[tuple[bytes, bytes]] = []
        following = first
        while isinstance(page := read(machine, following, end, limit, at), Page):
            assert page.position.index == at
            assert len(page.items) <= limit
            found += page.items
            if not (following := page.following):
                break
        if isinstance(page, Outrun):
            assert at < page.oldest <= page.newest == len(steps)
        else:
            wanted = sorted(oracle[at].items())
            assert found == [item for item in wanted if first <= item[0] and (not end or item[0] < end)]
    assert isinstance(read(machine, b"", b"", 1, None), Page)
    assert isinstance(read(machine, b"", b"", 1, len(steps) + 1), NotYet)


def test_what_keys_were_is_forgotten_when_it_takes_too_much() -> None:
    """What keys were takes no more memory than it may, and the oldest of it goes first."""
    past = PastValues(10 * (key_value._CHANGE_BYTES + 2))
    for index in range(1, 31):
        past.changed(index, b"%d" % (index % 3), b"v")
    assert past.oldest == 20
    assert len(past._order) == sum(map(len, past._before.values())) == 10
    past.changed(31, b"huge", b"v" * 10_000)
    assert (past.oldest, past._bytes, len(past._before)) == (31, 0, 0)


def test_a_page_of_keys_alone_has_no_values() -> None:
    """If keys alone are wanted, values are not sent."""
    page = read(filled(3), b"k00002", b"", 10, None, keys_only=True)
    assert page.items == ((b"k00002", b""), (b"k00003", b""))
    assert page.position == Position(3, 1)


def test_a_page_ends_when_too_many_keys_were_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that did not exist then cost work, too: a page of none of them says where to go on."""
    monkeypatch.setattr(key_value, "_MOST_LOOKED_AT", 10)
    machine = filled(40)
    page = read(machine, b"", b"", 100, 1)
    assert [len(page.items), page.following] == [1, b"k00006"]  # a key that changed since is looked at twice


# -- what else transactions do -----------------------------------------------------------------------------------------


def outcome(machine: KeyValueStateMachine, index: int) -> Any:
    asked = AskOutcome(b"", index)
    return decode_outcome_reply(machine.dispatch(ClientDispatch.from_frames(asked.to_frames())) or ())


def test_bytes_of_a_transaction_with_another_branch() -> None:
    """What is done otherwise stands after ``[3]``: ``[[2, "a", nil], [1, "a", "1"], [3], [0, "a"], [0, "b"]]``."""
    data = bytes.fromhex("96 a26b76 93 02 c40161 c0 93 01 c40161 c40131 91 03 92 00 c40161 92 00 c40162")
    otherwise = [Change(ChangeKind.DELETE, b"a"), Change(ChangeKind.DELETE, b"b")]
    assert KeyValueCodec.encode([Change(ChangeKind.SET, b"a", b"1")], [Compare(b"a")], otherwise) == data
    machine = KeyValueStateMachine()
    heard: list[Applied] = []
    machine.tell_changes(heard.append)
    machine.apply([entry(1, data), entry(2, data), entry(3, KeyValueCodec.delete("a"))])
    assert [outcome(machine, n) for n in (1, 2, 3, 4)] == [
        OutcomeReply(TransactionStatus.DONE, 1, 0),
        OutcomeReply(TransactionStatus.COMPARISON_FAILED, 1, 1),
        OutcomeReply(TransactionStatus.DONE, 1, 0),
        OutcomeReply(TransactionStatus.UNKNOWN, 0, 0),
    ]
    assert [each.changes for each in heard] == [
        (Change(ChangeKind.SET, b"a", b"1"),), (Change(ChangeKind.DELETE, b"a"),)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        "93 a26b76 91 03 92 00 c40161",  # compares nothing
        "93 a26b76 93 02 c40161 c0 91 03",  # does nothing
        "95 a26b76 93 02 c40161 c0 91 03 92 00 c40161 91 03",  # twice
        "94 a26b76 93 02 c40161 c0 91 03 93 02 c40161 c0",  # compares again
    ],
)
def test_another_branch_is_in_its_place(data: str) -> None:
    """A transaction whose other branch is empty, stands alone, or compares, cannot be read, and changes nothing."""
    machine = KeyValueStateMachine()
    machine.apply([entry(1, bytes.fromhex(data))])
    assert machine.last_applied == 1
    with pytest.raises(ProtocolError):
        KeyValueCodec().decode_transaction(bytes.fromhex(data))


def test_another_branch_needs_a_comparison() -> None:
    """An entry that compares nothing cannot do something otherwise."""
    with pytest.raises(InvalidDataError, match="compares nothing"):
        KeyValueCodec.encode([Change(ChangeKind.DELETE, b"a")], (), [Change(ChangeKind.DELETE, b"a")])
