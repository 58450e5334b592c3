"""The classes of values on the hot path, which both packages make in the same way."""

from __future__ import annotations

from pathlib import Path

import pytest

import raft_client
import raft_client.wire.frames
import statestore_client
import statestore_client.wire.hot_value


def test_both_packages_say_the_same() -> None:
    """Both packages have the same file, because neither imports the other."""
    files = [Path(package.__path__[0], "wire", "hot_value.py") for package in (statestore_client, raft_client)]
    assert files[0].read_text("utf-8") == files[1].read_text("utf-8")


@pytest.mark.parametrize("package", [statestore_client, raft_client])
def test_hot_values_are_values(package: object) -> None:
    """Hot values with the same fields are equal and have the same hash, and they take no other fields."""

    @package.wire.hot_value.hot_value
    class Point:
        x: int
        y: int

    assert Point(1, 2) == Point(1, 2) != Point(2, 1)
    assert len({Point(1, 2), Point(1, 2), Point(2, 1)}) == 2
    with pytest.raises(AttributeError):
        Point(1, 2).z = 3
