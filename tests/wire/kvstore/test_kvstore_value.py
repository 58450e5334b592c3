"""Entries of the KvStore, their hash, and which of two is better."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.wire.kvstore.value import Comparison, Value, compare, hash_of

FIRST, SECOND, TIED, UNKNOWN = Comparison.FIRST, Comparison.SECOND, Comparison.TIED, Comparison.UNKNOWN
SWAPPED = {FIRST: SECOND, SECOND: FIRST, TIED: TIED, UNKNOWN: UNKNOWN}

VALUES = st.builds(
    Value,
    version=st.integers(1, 3),
    originator=st.sampled_from(["node5", "node55", "zoe"]),
    value=st.sampled_from([None, b"", b"dummy", b"dummyValue"]),
    ttl_version=st.integers(0, 2),
    hash=st.sampled_from([None, 1, 2]),
)


def test_the_hash_is_a_published_one() -> None:
    """The hash is BLAKE2b of eight bytes, and no other host computes another one."""
    # b2sum -l 64 of "3:5:node1value".
    assert hash_of(3, "node1", b"value") == int.from_bytes(bytes.fromhex("2f5daca64fdbca81"), "big", signed=True)


@pytest.mark.parametrize(
    "other", [(4, "node1", b"value"), (3, "node1v", b"alue"), (3, "node", b"1value"), (3, "node1", b"")], ids=str
)
def test_the_hash_covers_version_originator_and_value(other: tuple[int, str, bytes]) -> None:
    """Another version, originator or value has another hash, also if the same bytes are cut elsewhere."""
    assert hash_of(*other) != hash_of(3, "node1", b"value")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (Value(2, "a", b"x"), Value(1, "z", b"z", ttl_version=9), FIRST),
        (Value(1, "node55", b"a"), Value(1, "node5", b"z"), FIRST),
        (Value(1, "a", b"x", hash=7, ttl_version=1), Value(1, "a", None, hash=7, ttl_version=2), SECOND),
        (Value(1, "a", b"x", hash=7), Value(1, "a", None, hash=7), TIED),
        (Value(1, "a", b"dummyValue", hash=7), Value(1, "a", b"dummy", hash=8), FIRST),
        (Value(1, "a", b"x", ttl_version=1), Value(1, "a", b"x", ttl_version=2), TIED),
        (Value(1, "a", b"x", hash=7), Value(1, "a", None, hash=8), UNKNOWN),
        (Value(1, "a", None), Value(1, "a", None), UNKNOWN),
    ],
    ids=["version", "originator", "TTL version", "equal hashes", "value", "no hashes", "hashes differ", "no values"],
)
def test_which_of_two_is_better(first: Value, second: Value, expected: Comparison) -> None:
    """Each line of the comparison decides, whichever of the two comes first."""
    assert compare(first, second) is expected
    assert compare(second, first) is SWAPPED[expected]


@given(VALUES, VALUES)
def test_a_comparison_has_no_side(first: Value, second: Value) -> None:
    """Two entries the other way round compare the other way round."""
    assert compare(second, first) is SWAPPED[compare(first, second)]
