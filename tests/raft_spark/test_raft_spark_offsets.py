"""Offsets of a stream: what stands in a checkpoint, and which ranges a micro-batch has."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft_client import Position, SettingsError
from raft_client.spark.reading import EntryRange
from raft_client.spark.stream_planning import StreamOffset

#: As a checkpoint of this version has it.
STORED = '{"format": 1, "after": "400@3", "until": "1400@4", "tasks": 3}'
INDEXES = st.integers(0, 2**53 - 1)


def test_a_stored_offset_is_read_for_ever() -> None:
    """The text that a checkpoint has today is read, and written again to the letter."""
    offset = StreamOffset.from_json(json.loads(STORED))
    assert offset == StreamOffset(Position(400, 3), Position(1400, 4), 3)
    assert json.dumps(offset.to_json()) == STORED
    assert offset.parts() == [
        EntryRange(Position(400, 3), 733),
        EntryRange(Position(733), 1066),
        EntryRange(Position(1066), 1400),
    ]


@pytest.mark.parametrize(
    ("stored", "complaint"),
    [
        (
            {"format": 2, "after": "0", "until": "1", "tasks": 1},
            "offset of the format 2, and this version .* reads 1",
        ),
        ({"partitions": [3]}, "belongs to another source"),
        (7, "belongs to another source"),
        (None, "belongs to another source"),
        ({"format": 1, "after": "0", "until": "one", "tasks": 1}, "belongs to another source"),
        ({"format": 1, "after": "0", "until": 1, "tasks": 1}, "belongs to another source"),
        ({"format": 1, "after": "2", "until": "1", "tasks": 1}, "belongs to another source"),
        ({"format": 1, "after": "0", "until": "1", "tasks": 0}, "belongs to another source"),
        ({"format": 1, "after": "0", "until": "1", "tasks": True}, "belongs to another source"),
        ({"format": 1, "after": "0", "until": "1"}, "belongs to another source"),
    ],
)
def test_a_foreign_offset_is_a_typed_error(stored: Any, complaint: str) -> None:
    """An offset of a later version or of another source is refused with a word on what to do."""
    with pytest.raises(SettingsError, match=complaint):
        StreamOffset.from_json(stored)


@given(INDEXES, st.integers(0, 10**7), st.none() | st.integers(1, 500))
def test_a_batch_is_cut_into_tasks(after: int, length: int, wanted: int | None) -> None:
    """The ranges of a batch have each of its entries once, in as many tasks as wanted, if there are entries enough."""
    end = min(after + length, 2**53 - 1)
    offset = StreamOffset.at(Position(after, 1)).next(Position(end, 2), wanted)
    assert StreamOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    ranges = [part for part in offset.parts() if isinstance(part, EntryRange)]
    if end == after:
        assert ranges == []
        return
    assert (ranges[0].after, ranges[-1].until) == (Position(after, 1), end)
    assert all(left.until == right.after.index for left, right in pairwise(ranges))
    assert all(part.after.index < part.until for part in ranges)
    if wanted is not None:
        assert len(ranges) == min(wanted, end - after)


def test_batches_follow_each_other() -> None:
    """Each batch begins where the one before ended, with the position's term."""
    first = StreamOffset.at(Position(10)).next(Position(20, 1), None)
    second = first.next(Position(25, 2), None)
    assert (first.after, first.until) == (Position(10), Position(20, 1))
    assert (second.after, second.until) == (Position(20, 1), Position(25, 2))
