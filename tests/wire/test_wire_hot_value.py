"""The classes of values on the hot path, which both packages make in the same way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import raft_client.wire.frames
import statestore_client.wire.hot_value


@pytest.mark.parametrize("hot_value", [statestore_client.wire.hot_value.hot_value, raft_client.wire.frames.hot_value])
def test_hot_values_are_values(hot_value: Callable[[type], type]) -> None:
    """Hot values with the same fields are equal and have the same hash, and they take no other fields."""

    @hot_value
    class Point:
        x: int
        y: int

    assert Point(1, 2) == Point(1, 2) != Point(2, 1)
    assert len({Point(1, 2), Point(1, 2), Point(2, 1)}) == 2
    with pytest.raises(AttributeError):
        Point(1, 2).z = 3
