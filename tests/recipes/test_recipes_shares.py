"""Shares of a set of work: the same for all who see the same members, and even."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.errors import InvalidArgumentError
from statestore_client.recipes.shares import checked_items, share_of

_NAMES = st.lists(st.text("abc", min_size=1), min_size=1, max_size=9, unique=True)
_ITEMS = st.lists(st.text("xyz", min_size=1), min_size=1, max_size=20, unique=True)


@given(_NAMES, _ITEMS)
def test_each_item_is_in_one_share_and_shares_are_even(names: list[str], items: list[str]) -> None:
    """In whatever order a member knows the others, and was given the items."""
    ordered = checked_items(items)
    shares = {name: share_of(name, names, ordered) for name in names}
    assert shares == {name: share_of(name, names[::-1], checked_items(items[::-1])) for name in names}
    assert sorted(item for share in shares.values() for item in share) == list(ordered)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    assert share_of("nobody", names, ordered) == frozenset()


@pytest.mark.parametrize(
    "wrong", ["abc", b"abc", None, 7, (), ("a", ""), ("a", 1), ("a", "a"), [f"{n}" for n in range(10_001)]]
)
def test_items_are_different_texts(wrong: Any) -> None:
    """At least one, and not more than a member can hold locks for."""
    with pytest.raises(InvalidArgumentError, match="items must be"):
        checked_items(wrong)
