"""Selectors, and the index that finds those which match a key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft_client.core.selectors import Key, Prefix, SelectorIndex, Tree
from raft_client.errors import InvalidArgumentError
from raft_client.wire.key_changes import Change, ChangeKind

KEYS = st.lists(st.sampled_from([b"a", b"b", b"/"]), max_size=4).map(b"".join)
SELECTORS = st.one_of(KEYS.map(Key), KEYS.map(Prefix), KEYS.map(Tree))


@pytest.mark.parametrize("make", [lambda: Key("a"), lambda: Prefix(None), lambda: Tree(b"a", "/")])
def test_selectors_are_bytes(make: Any) -> None:
    """A selector that is not bytes is refused, because the shells encode text."""
    with pytest.raises(InvalidArgumentError):
        make()


@given(st.lists(SELECTORS, max_size=8), st.data(), KEYS)
def test_the_index_finds_exactly_what_matches(selectors: list[Any], data: st.DataObject, key: bytes) -> None:
    """The index by length of prefix finds what asking every selector finds, also after some were removed."""
    index: SelectorIndex[int] = SelectorIndex()
    for number, selector in enumerate(selectors):
        index.add(number, selector)
    removed = data.draw(st.sets(st.sampled_from(range(len(selectors))))) if selectors else set()
    for number in removed:
        index.discard(number, selectors[number])
        index.discard(number, selectors[number])
    change = Change(ChangeKind.DELETE, key)
    found = list(index.candidates(key))
    assert len(found) == len(set(found))
    assert set(found) == {n for n, s in enumerate(selectors) if n not in removed and s.matches(change)}
    assert len(index) == len(selectors) - len(removed)
