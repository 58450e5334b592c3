"""Timestamps of hybrid logical clocks: their texts, and their order."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from itertools import pairwise

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.errors import TimestampError
from statestore_client.wire.hlc import MAX_COUNTER, MAX_WALL_MS, HlcTimestamp


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
        "",
        "NotValid",
        "1:2",
        "1:2:a:b",
        ":::",
        "::",
        ":1:a",
        "1::a",
        "-1:0:a",
        "+1:0:a",
        "1:-1:a",
        "1:+1:a",
        "1.5:0:a",
        " 1:0:a",
        "1 :0:a",
        "0x1:0:a",
        "1_0:0:a",
        "one:0:a",
        "1:one:a",
        "١:0:a",  # an Arabic digit one, which int() would read
        f"{MAX_WALL_MS + 1}:0:a",
        f"1:{MAX_COUNTER + 1}:a",
        "9" * 100_000 + ":0:a",
        "1:" + "9" * 100_000 + ":a",
    ],
)
def test_what_is_no_timestamp_is_refused(text: str) -> None:
    """A text with wrong segments, signs, other characters than digits, or numbers beyond 64 bits is refused."""
    with pytest.raises(TimestampError):
        HlcTimestamp.parse(text)


def test_an_empty_node_is_read() -> None:
    """A timestamp with an empty node is read, as by the Go and Rust SDKs."""
    assert HlcTimestamp.parse("1:2:") == HlcTimestamp(1, 2, "")


def test_the_greatest_numbers_are_read() -> None:
    """Wall clocks of 63 bits and counters of 64 bits are read."""
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
