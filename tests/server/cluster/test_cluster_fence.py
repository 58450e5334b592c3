"""Which entries of the log are valid: by table, and the same for each reader, from wherever it begins."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.server.cluster.entries import (
    FORMAT,
    MAX_LEASE_MS,
    UNFINISHED,
    BatchPiece,
    Body,
    Challenge,
    Claim,
    HandOver,
    Life,
    LogEntry,
    NewerLogError,
    NewFormat,
    Part,
    Renewal,
    Snapshot,
    UnreadableLogError,
)
from statestore_client.server.cluster.fence import Fence, SnapshotInLog, Verdict

A, A2, B = Life("a", 1), Life("a", 2), Life("b", 1)
VALID, NOTED, OUTDATED, REPEATED, GAP, LOST = Verdict

#: Epoch, seq, life, body, what becomes of it; the log time is always that of :func:`folded`.
Step = tuple[int, int, Life, Body, Verdict]


def claim(life: Life, epoch: int, seq: int, verdict: Verdict, *, is_forced: bool = False, format_: int = 1) -> Step:
    return epoch, seq, life, Claim(f"tcp://{life.id}", format_, 250, 0, is_forced), verdict


def batch(life: Life, epoch: int, seq: int, verdict: Verdict) -> Step:
    return epoch, seq, life, BatchPiece(b""), verdict


FOUNDED = (claim(A, 1, 0, VALID),)


def folded(steps: Iterable[Step], fence: Fence | None = None) -> Fence:
    """The fence after these entries, each of which gets the verdict that it names."""
    fence = fence or Fence()
    for epoch, seq, life, body, verdict in steps:
        entry = LogEntry(epoch, seq, life, fence.index * 10, 0, body)
        assert fence.receive(fence.index + 1, entry) is verdict, (fence, entry)
    return fence


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([claim(A, 1, 0, VALID), claim(B, 1, 0, OUTDATED)], id="the first claim founds epoch 1"),
        pytest.param([claim(A, 2, 0, OUTDATED), claim(A, 0, 0, OUTDATED)], id="epochs have no gaps"),
        pytest.param([batch(A, 0, 1, OUTDATED), batch(A, 1, 1, OUTDATED)], id="nobody writes without a claim"),
        pytest.param(
            [*FOUNDED, batch(A, 1, 1, VALID), batch(A, 1, 1, REPEATED), batch(A, 1, 3, GAP), batch(A, 1, 2, VALID)],
            id="seq is the next one",
        ),
        pytest.param([*FOUNDED, batch(B, 1, 1, OUTDATED), batch(A2, 1, 1, OUTDATED)], id="of the life that owns it"),
        pytest.param(
            [*FOUNDED, batch(A, 1, 1, VALID), claim(B, 2, 0, LOST), claim(B, 2, 1, VALID), batch(A, 1, 2, OUTDATED)],
            id="a claim has seen every valid entry",
        ),
        pytest.param(
            [*FOUNDED, claim(B, 2, 0, VALID), claim(B, 2, 0, OUTDATED), batch(B, 2, 1, VALID)], id="a copy of a claim"
        ),
        pytest.param([*FOUNDED, claim(A2, 2, 0, VALID), batch(A, 2, 1, OUTDATED)], id="of the same id after a restart"),
        pytest.param(
            [
                *FOUNDED, (1, 1, A, Renewal(0), VALID), claim(B, 2, 0, LOST), (1, 2, A, HandOver("b"), VALID),
                batch(A, 1, 3, OUTDATED), claim(B, 2, 0, VALID),
            ],
            id="a renewal counts, and nobody owns what was handed over",
        ),
        pytest.param([*FOUNDED, (1, 2, A, HandOver(), GAP), batch(A, 1, 1, VALID)], id="a hand-over has its turn, too"),
        pytest.param(
            [*FOUNDED, batch(A, 1, 1, VALID), claim(B, 2, 0, VALID, is_forced=True), batch(A, 1, 2, OUTDATED)],
            id="a forced claim has not seen everything",
        ),
        pytest.param([*FOUNDED, claim(B, 3, 0, OUTDATED, is_forced=True)], id="a forced claim is of the next epoch"),
        pytest.param([*FOUNDED, (1, 0, B, Challenge(), NOTED), claim(B, 2, 0, VALID)], id="a challenge is nothing"),
        pytest.param([*FOUNDED, claim(B, 2, 0, LOST, format_=0), claim(B, 2, 0, VALID)], id="an older format is lost"),
    ],
)  # fmt: skip
def test_what_is_valid(steps: list[Step]) -> None:
    """Each rule of the table, with an entry that breaks it."""
    folded(steps)


def snapshot(life: Life, index: int, verdict: Verdict) -> Step:
    return 1, 0, life, Snapshot(index, b""), verdict


def part(life: Life, index: int, number: int, verdict: Verdict, *, is_end: bool = False) -> Step:
    return 1, number, life, Part(index, b"", is_end=is_end), verdict


def test_parts_of_a_snapshot_come_in_their_order() -> None:
    """The first snapshot is written by one life, part after part; the last one makes it the base."""
    fence = folded(
        [
            *FOUNDED, batch(A, 1, 1, VALID), part(B, 1, 0, OUTDATED),
            snapshot(B, 4, OUTDATED), snapshot(B, 2, VALID), snapshot(A, 2, LOST),
            part(A, 2, 0, OUTDATED), part(B, 1, 0, OUTDATED), part(B, 2, 1, GAP), part(B, 2, 0, VALID),
            part(B, 2, 0, REPEATED),
        ]
    )  # fmt: skip
    assert (fence.base, fence.base_index) == (0, 0)
    folded([part(B, 2, 1, VALID, is_end=True), part(B, 2, 2, OUTDATED), snapshot(A, 2, OUTDATED)], fence)
    assert (fence.base, fence.base_index) == (5, 2)
    folded([snapshot(A, 5, VALID)], fence)


def test_a_writer_of_a_snapshot_that_is_gone_is_replaced() -> None:
    """After a minute of log time, and not of any clock."""
    fence = folded([*FOUNDED, batch(A, 1, 1, VALID), snapshot(B, 2, VALID), snapshot(A, 2, LOST)])
    fence.receive(5, LogEntry(1, 2, A, 10 + 59_999, 0, Renewal(0)))
    folded([snapshot(A, 3, LOST)], fence)
    fence.receive(7, LogEntry(1, 3, A, 10 + 60_000, 0, Renewal(0)))
    folded([snapshot(A, 3, VALID), part(B, 2, 0, OUTDATED), part(A, 3, 0, VALID)], fence)


def test_log_time_is_that_of_valid_entries_and_never_goes_back() -> None:
    """An entry that is not valid moves nothing, nor does a late one."""
    fence = folded(FOUNDED)
    fence.receive(2, LogEntry(1, 1, A, 5000, 0, BatchPiece(b"")))
    fence.receive(3, LogEntry(1, 1, B, 9000, 0, BatchPiece(b"")))
    fence.receive(4, LogEntry(1, 2, A, 4000, 0, Renewal(0)))
    assert fence.log_ms == 5000


def test_a_newer_format_stops_the_server() -> None:
    """A claim with it, if it is valid, would be followed by batches that this program cannot read."""
    folded([claim(A, 2, 0, OUTDATED, format_=FORMAT + 1)])
    with pytest.raises(NewerLogError, match=f"format {FORMAT + 1}"):
        folded([claim(A, 1, 0, VALID, format_=FORMAT + 1)])
    folded([*FOUNDED, (1, 1, B, NewFormat(FORMAT + 1), OUTDATED)])
    with pytest.raises(NewerLogError, match=f"format {FORMAT + 1}.*upgrade"):
        folded([*FOUNDED, (1, 1, A, NewFormat(FORMAT + 1), VALID)])


def test_a_format_is_raised_by_the_owner_and_never_goes_back() -> None:
    """From "unfinished" on, in an epoch that copies a data directory; a claim with a lower one is lost afterwards."""
    fence = folded([claim(A, 1, 0, VALID, format_=UNFINISHED), batch(A, 1, 1, VALID)])
    assert fence.is_unfinished
    folded([(1, 2, A, NewFormat(1), VALID)], fence)
    assert not fence.is_unfinished
    folded([(1, 3, A, NewFormat(UNFINISHED), VALID), (1, 4, A, HandOver(), VALID)], fence)
    assert fence.format == 1
    folded([claim(B, 2, 0, LOST, format_=UNFINISHED), claim(B, 2, 0, VALID)], fence)


lives = st.sampled_from([A, A2, B])
small = st.integers(0, 4)
bodies = st.one_of(
    st.builds(Claim, st.just("u"), st.just(1), st.just(250), st.just(0), st.booleans()),
    st.builds(BatchPiece, st.just(b"")),
    st.builds(HandOver, st.sampled_from(["", "a"])),
    st.builds(Challenge),
    st.builds(Snapshot, small, st.just(b"")),
    st.builds(Part, small, st.just(b""), st.just(True), st.booleans()),
)
logs = st.lists(st.builds(LogEntry, small, small, lives, st.integers(0, 200_000), st.just(0), bodies), max_size=25)


@given(logs, st.integers(0, 25))
def test_a_reader_that_begins_at_a_snapshot_decides_as_all_others(log: list[LogEntry], start: int) -> None:
    """The fence in a snapshot is the whole fold of what is before: no entry after it gets another verdict."""
    whole = Fence()
    for index, entry in enumerate(log[:start], start=1):
        whole.receive(index, entry)
    late = Fence.unpack(whole.pack())
    assert late == whole
    for index, entry in enumerate(log[start:], start=start + 1):
        assert late.receive(index, entry) is whole.receive(index, entry)
        assert late == whole


@given(logs)
def test_one_owner_for_each_epoch(log: list[LogEntry]) -> None:
    """In any log an epoch has one owner, epochs and log time grow, and seq has no gap."""
    fence = Fence()
    owners: dict[int, Life | None] = {0: None}
    for index, entry in enumerate(log, start=1):
        before = attrs.evolve(fence)
        verdict = fence.receive(index, entry)
        if verdict is not VALID:
            assert attrs.evolve(fence, index=before.index) == before
        elif isinstance(entry.body, Claim):
            assert fence.epoch == before.epoch + 1
            assert owners.setdefault(fence.epoch, entry.life) == entry.life
            assert fence.epoch not in (before.epoch, *range(before.epoch))
        elif isinstance(entry.body, BatchPiece):
            assert owners[fence.epoch] == entry.life == before.owner
            assert (fence.epoch, fence.seq) == (before.epoch, before.seq + 1)
        assert fence.log_ms >= before.log_ms


@pytest.mark.parametrize("data", [b"", b"\x05", b"\x90", b"\x91\x05", b"\x9c" + bytes(12), b"\x9c" + b"\xc0" * 12])
def test_a_fence_that_is_not_one_is_refused(data: bytes) -> None:
    """The fence of a snapshot is checked field by field."""
    with pytest.raises(UnreadableLogError):
        Fence.unpack(data)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("lease_ms", MAX_LEASE_MS + 1, "a lease of 60001 ms"),
        ("log_ms", 1 << 52, "the time 4503599627370496 ms"),
        ("writing", SnapshotInLog(3, 2, A, 1 << 52), "the time"),
        ("format", FORMAT + 1, f"format {FORMAT + 1}"),
        ("next_id", "x" * 65, "at most 64 bytes"),
        ("owner", Life("x" * 65, 1), "at most 64 bytes"),
    ],
)
def test_what_no_entry_may_have_no_snapshot_may(field: str, value: object, why: str) -> None:
    """A reader that begins at a snapshot is as strict as one that has read the entries before."""
    with pytest.raises(UnreadableLogError, match=why):
        Fence.unpack(attrs.evolve(Fence(), **{field: value}).pack())  # type: ignore[arg-type]
