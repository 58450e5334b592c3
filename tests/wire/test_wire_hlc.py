"""Timestamps of hybrid logical clocks, their texts and their order; and how clocks tick and merge: the tables of the
official SDKs' tests, and what holds for any schedule."""

from __future__ import annotations

import copy
import operator
import pickle
import threading
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.errors import ClockDriftError, CounterOverflowError, TimestampError
from statestore_client.wire.hlc import CARRY_COUNTER, MAX_COUNTER, MAX_WALL_MS, HlcTimestamp, HybridLogicalClock


def test_the_epoch_vector_is_read_and_written() -> None:
    """The timestamp at the epoch in the official SDKs' tests is read and written with their bytes."""
    text = "000000000000000:00000:00000000-0000-0000-0000-000000000000"
    epoch = HlcTimestamp.parse(text)
    assert epoch == HlcTimestamp(0, 0, "00000000-0000-0000-0000-000000000000")
    assert str(epoch) == text


def test_both_forms_of_a_timestamp_are_read() -> None:
    """The document's unpadded text and the SDKs' padded text are read as the same timestamp."""
    stamp = HlcTimestamp(1696374425000, 1, "StateStore")
    assert HlcTimestamp.parse("1696374425000:1:StateStore") == stamp
    assert HlcTimestamp.parse("001696374425000:00001:StateStore") == stamp
    assert str(stamp) == "001696374425000:00001:StateStore"
    assert stamp.unpadded() == "1696374425000:1:StateStore"


@pytest.mark.parametrize(
    "text",
    [
        "1696374425000:1:StateStore",
        "001696374425000:00001:StateStore",
        "01696374425000:00001:StateStore",
        "00000000000000000007:0:a b",
        "1696374425000:123456:",
        "1234567890123456:1:n",
    ],
)
def test_a_timestamp_that_was_read_is_written_byte_for_byte(text: str) -> None:
    """A version that was read is written back "unmodified" as a fencing token, also after a pickle or copy; its text
    orders nothing."""
    stamp = HlcTimestamp.parse(text)
    wall, counter, node_id = text.split(":")
    made = HlcTimestamp(int(wall), int(counter), node_id)
    for same in (stamp, copy.deepcopy(stamp), pickle.loads(pickle.dumps(stamp))):  # noqa: S301 - our own
        assert str(same) == text
        assert same == made
        assert hash(same) == hash(made)
        assert same <= made
        assert same >= made
        assert repr(same) == repr(made)
    later = attrs.evolve(stamp, counter=made.counter + 1)
    assert str(later) == str(HlcTimestamp(made.wall_ms, made.counter + 1, node_id))


@pytest.mark.parametrize(
    "text",
    [
        *("", "NotValid", "1:2", "1:2:a:b", ":::", "::", ":1:a", "1::a", "-1:0:a", "+1:0:a", "1:-1:a", "1:+1:a"),
        *("1.5:0:a", " 1:0:a", "1 :0:a", "0x1:0:a", "1_0:0:a", "one:0:a", "1:one:a"),
        "١:0:a",  # an Arabic digit one, which int() would read
        *(f"{MAX_WALL_MS + 1}:0:a", f"1:{MAX_COUNTER + 1}:a", "9" * 100_000 + ":0:a", "1:" + "9" * 100_000 + ":a"),
    ],
)
def test_what_is_no_timestamp_is_refused(text: str) -> None:
    """A text with wrong segments, signs, other characters than digits, or numbers beyond 64 bits is refused."""
    with pytest.raises(TimestampError):
        HlcTimestamp.parse(text)


def test_the_greatest_numbers_are_read() -> None:
    """Wall clocks of 63 bits and counters of 64 bits are read, and an empty node, as by the Go and Rust SDKs."""
    assert HlcTimestamp.parse("1:2:") == HlcTimestamp(1, 2, "")
    assert HlcTimestamp.parse(f"{MAX_WALL_MS}:{MAX_COUNTER}:a") == HlcTimestamp(MAX_WALL_MS, MAX_COUNTER, "a")


stamps = st.builds(
    HlcTimestamp,
    st.integers(0, MAX_WALL_MS),
    st.integers(0, MAX_COUNTER),
    st.text(st.characters(exclude_characters=":", codec="utf-8"), max_size=40),
)


@given(stamps)
def test_any_timestamp_survives_the_round_trip(stamp: HlcTimestamp) -> None:
    """Any timestamp is read back from both of its texts and from a pickle."""
    assert HlcTimestamp.parse(str(stamp)) == HlcTimestamp.parse(stamp.unpadded()) == stamp
    assert pickle.loads(pickle.dumps(stamp)) == stamp  # noqa: S301 - just pickled


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Any text is read as a timestamp or refused with TimestampError."""
    try:
        HlcTimestamp.parse(text)
    except TimestampError:
        assert not text.replace(":", "").isascii() or text.count(":") != 2 or not text[: text.rindex(":")].isdigit()


def test_order_is_wall_then_counter_then_node() -> None:
    """Timestamps are ordered by wall clock, then counter, then node, as in the .NET SDK's compare cases."""
    ordered = [
        HlcTimestamp(1, 9, "z"),
        HlcTimestamp(2, 0, "z"),
        HlcTimestamp(2, 1, "a"),
        HlcTimestamp(2, 1, "b"),
        HlcTimestamp(10, 0, "a"),
    ]
    assert all(smaller < greater for smaller, greater in pairwise(ordered))
    assert len({*ordered, HlcTimestamp(2, 1, "a")}) == len(ordered)


few_stamps = st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from(["", "a", "b", "é"]))


@given(few_stamps, few_stamps)
def test_timestamps_compare_as_their_fields_do(one: tuple[int, int, str], other: tuple[int, int, str]) -> None:
    """All six comparisons and the hash agree with those of the tuple of wall clock, counter and node."""
    left, right = HlcTimestamp(*one), HlcTimestamp(*other)
    assert (left < right, left <= right) == (one < other, one <= other)
    assert (left > right, left >= right) == (one > other, one >= other)
    assert (left == right, left != right) == (one == other, one != other)
    assert left != right or hash(left) == hash(right)


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
def test_timestamps_have_no_order_among_other_things(compare: Callable[[object, object], bool]) -> None:
    """Comparing the order of a timestamp and anything else is a TypeError, even where the fields are the same."""
    stamp = HlcTimestamp(1, 2, "a")
    others: list[object] = [None, (1, 2, "a"), "1:2:a"]
    for other in others:
        assert stamp != other
        with pytest.raises(TypeError):
            compare(stamp, other)


# -- clocks ------------------------------------------------------------------------------------------------------------

NOW = 1_696_374_425_000


def new_clock(node_id: str = "self", *, max_drift_ms: int = 60_000) -> HybridLogicalClock:
    """A clock that one thread uses."""
    return HybridLogicalClock(node_id, guard=nullcontext(), max_drift_ms=max_drift_ms)


def clock_at(wall_ms: int, counter: int = 0) -> HybridLogicalClock:
    """A clock whose last timestamp is this one."""
    clock = new_clock()
    if counter:
        clock.merge(HlcTimestamp(wall_ms, counter - 1, "setup"), wall_ms)
    else:
        clock.tick(wall_ms)
    assert clock.last == HlcTimestamp(wall_ms, counter, "self")
    return clock


# Self and other in seconds from now -> counter after the merge, None for a drift error. Self has counter 0, other 3.
# Two counters: the wall clock moved on by a millisecond before the merge, or it did not.
OFFSETS: list[tuple[int, int, tuple[int, ...] | None]] = [
    (-120, -120, (0,)), (-105, -120, (0,)), (-120, -105, (0,)), (-120, -30, (0,)), (-120, 0, (0, 4)),
    (-120, 30, (4,)), (-120, 120, None), (-30, -120, (0,)), (-30, -30, (0,)), (-15, -30, (0,)), (-30, -15, (0,)),
    (-30, 0, (0, 4)), (-30, 30, (4,)), (-30, 120, None), (0, -120, (0, 1)), (0, -30, (0, 1)), (0, 0, (0, 4)),
    (0, 30, (4,)), (0, 120, None), (30, -120, (1,)), (30, -30, (1,)), (30, 0, (1,)), (30, 30, (4,)), (45, 30, (1,)),
    (30, 45, (4,)), (30, 120, None), (120, -120, None), (120, -30, None), (120, 0, None), (120, 30, None),
    (120, 120, None), (135, 120, None), (120, 135, None),
]  # fmt: skip


@pytest.mark.parametrize(("self_s", "other_s", "counters"), OFFSETS)
def test_merging_follows_the_offset_table(self_s: int, other_s: int, counters: tuple[int, ...] | None) -> None:
    """Merging two timestamps follows the table of the official Rust SDK's unit tests."""
    other = HlcTimestamp(NOW + other_s * 1000, 3, "other")
    if counters is None:
        clock = clock_at(NOW + self_s * 1000)
        before = clock.last
        with pytest.raises(ClockDriftError):
            clock.merge(other, NOW)
        assert clock.last == before
        return
    moved = clock_at(NOW + self_s * 1000).merge(other, NOW + 1)
    still = clock_at(NOW + self_s * 1000).merge(other, NOW)
    assert (moved.counter, still.counter) == (counters[0], counters[-1])
    assert moved.wall_ms == max(NOW + 1, NOW + self_s * 1000, other.wall_ms)
    assert still.wall_ms == max(NOW, NOW + self_s * 1000, other.wall_ms)
    assert moved.node_id == still.node_id == "self"


@pytest.mark.parametrize(
    ("self_s", "other_s", "self_max", "other_max", "fits"),
    [
        (30, 15, False, True, True),
        (15, 30, False, True, False),
        (15, 30, True, False, True),
        (30, 15, True, False, False),
        (-30, -30, True, True, True),
        (30, 30, False, True, False),
        (30, 30, True, False, False),
    ],
)
def test_overflow_follows_its_table(*, self_s: int, other_s: int, self_max: bool, other_max: bool, fits: bool) -> None:
    """A merge is refused only if the counter that it would increment is at its maximum, and then changes nothing."""
    clock = clock_at(NOW + self_s * 1000, MAX_COUNTER if self_max else 0)
    other = HlcTimestamp(NOW + other_s * 1000, MAX_COUNTER if other_max else 0, "other")
    before = clock.last
    if fits:
        assert clock.merge(other, NOW) > before
    else:
        with pytest.raises(CounterOverflowError):
            clock.merge(other, NOW)
        assert clock.last == before


def test_a_tick_with_an_exhausted_counter_changes_nothing() -> None:
    """A tick with an exhausted counter fails without a change, and succeeds when the wall clock has moved on."""
    clock = clock_at(NOW, MAX_COUNTER)
    with pytest.raises(CounterOverflowError):
        clock.tick(NOW)
    assert clock.last == HlcTimestamp(NOW, MAX_COUNTER, "self")
    assert clock.tick(NOW + 1) == HlcTimestamp(NOW + 1, 0, "self")


def test_ticks_count_within_a_millisecond() -> None:
    """A tick resets the counter at a later wall clock, and increments it at the same or an earlier one."""
    clock = new_clock()
    walls = [NOW, NOW, NOW - 1_000_000, NOW + 1, NOW + 1]
    assert [(t.wall_ms - NOW, t.counter) for t in map(clock.tick, walls)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def test_own_timestamps_merge_without_effect() -> None:
    """Merging a timestamp of the clock's own node changes nothing, however far in the future it is."""
    clock = clock_at(NOW)
    assert clock.merge(HlcTimestamp(NOW + 10**9, 7, "self"), NOW) == HlcTimestamp(NOW, 0, "self")


def test_exactly_the_allowed_drift_passes() -> None:
    """A timestamp that is ahead by exactly the allowed drift is merged; one that is further ahead is an error."""
    assert clock_at(NOW).merge(HlcTimestamp(NOW + 60_000, 0, "o"), NOW) == HlcTimestamp(NOW + 60_000, 1, "self")
    with pytest.raises(ClockDriftError):
        clock_at(NOW).merge(HlcTimestamp(NOW + 60_001, 0, "o"), NOW)
    with pytest.raises(ClockDriftError):
        new_clock(max_drift_ms=0).merge(HlcTimestamp(NOW + 1, 0, "o"), NOW)


def test_a_clock_that_forgets_begins_anew() -> None:
    """A clock that is told to forget starts again at its wall clock and keeps its node."""
    clock = clock_at(NOW, 7)
    clock.forget()
    assert clock.last == HlcTimestamp(0, 0, "self")
    assert clock.tick(NOW - 1_000) == HlcTimestamp(NOW - 1_000, 0, "self")


def test_the_documents_example_of_a_version() -> None:
    """Request 1696374425000:0:CLIENT at equal clocks gives version 1696374425000:1:StateStore, as in the document."""
    clock = new_clock("StateStore")
    version = clock.advance_past(HlcTimestamp.parse("1696374425000:0:CLIENT"), 1696374425000)
    assert version.unpadded() == "1696374425000:1:StateStore"


def test_a_version_exceeds_a_request_of_the_same_node_name() -> None:
    """A client that calls itself StateStore still gets a version greater than its request."""
    clock = new_clock("StateStore")
    request = HlcTimestamp(NOW + 5, 9, "StateStore")
    assert clock.advance_past(request, NOW) == HlcTimestamp(NOW + 5, 10, "StateStore")


def test_a_hostile_counter_carries_into_the_wall_clock() -> None:
    """A request with the greatest counter gets a version that is one millisecond later, so it cannot stop the
    server."""
    clock = clock_at(NOW)
    version = clock.advance_past(HlcTimestamp(NOW + 60_000, MAX_COUNTER, "hostile"), NOW)
    assert version == HlcTimestamp(NOW + 60_001, 0, "self")
    assert clock.advance_past(HlcTimestamp(NOW, 0, "c"), NOW) == HlcTimestamp(NOW + 60_001, 1, "self")
    assert clock_at(NOW, CARRY_COUNTER).advance_past(HlcTimestamp(NOW, 0, "c"), NOW).wall_ms == NOW + 1


def test_a_node_id_has_no_colon() -> None:
    """A node id with a colon is refused: it would make every timestamp of the clock unreadable."""
    with pytest.raises(TimestampError, match="colon"):
        new_clock("a:b")


near = st.integers(NOW - 100_000, NOW + 100_000)
steps = st.one_of(
    st.tuples(st.just("tick"), near, st.none()),
    st.tuples(
        st.sampled_from(["merge", "advance_past"]),
        near,
        st.builds(
            HlcTimestamp,
            near,
            st.one_of(st.integers(0, 5), st.integers(MAX_COUNTER - 3, MAX_COUNTER)),
            st.sampled_from(["other", "self"]),
        ),
    ),
)


@given(st.lists(steps, max_size=40))
def test_issued_timestamps_only_grow(schedule: list[tuple[str, int, HlcTimestamp | None]]) -> None:
    """Issued timestamps only grow, whatever the wall clock does and whatever is merged; errors change nothing."""
    clock = new_clock()
    issued: list[HlcTimestamp] = []
    for action, wall_ms, other in schedule:
        before = clock.last
        try:
            if other is None:
                issued.append(clock.tick(wall_ms))
            elif action == "merge":
                assert clock.merge(other, wall_ms) >= before
            else:
                issued.append(clock.advance_past(other, wall_ms))
                assert issued[-1] > other
        except (ClockDriftError, CounterOverflowError):
            assert clock.last == before
        assert clock.last >= before
    assert all(earlier < later for earlier, later in pairwise(issued))


def test_threads_never_get_the_same_timestamp() -> None:
    """With a lock as its guard, one clock gives many threads distinct timestamps, merges included."""
    clock = HybridLogicalClock("node", guard=threading.Lock())
    per_thread: list[list[HlcTimestamp]] = []

    def work(number: int) -> None:
        mine = []
        for turn in range(2_000):
            wall_ms = NOW + (turn * 7 + number * 13) % 50  # steps back and forth
            mine.append(clock.tick(wall_ms))
            if turn % 10 == 0:
                clock.merge(HlcTimestamp(wall_ms + 3, turn, f"other-{number}"), wall_ms)
        per_thread.append(mine)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(per_thread) == 4
    assert len({stamp for mine in per_thread for stamp in mine}) == 8_000
    assert all(mine == sorted(mine) for mine in per_thread)
