"""The index of names in order: the same as a sorted set, and the only one."""

from __future__ import annotations

import ast
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import statestore_client.server
from statestore_client.server.key_index import KeyIndex


def test_nothing_else_on_the_server_keeps_names_in_order() -> None:
    """No other module of the server that keeps names imports bisect: a sorted list would move what comes after one."""
    package = Path(statestore_client.server.__file__).parent
    users = [
        path.name
        for path in package.rglob("*.py")
        if "bisect" in (text := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module == "bisect"
    ]
    assert sorted(users) == ["key_index.py", "patterns.py"]  # a pattern looks up characters


operations = st.lists(st.tuples(st.booleans(), st.binary(max_size=3), st.integers(0, 9)), max_size=60)


@settings(max_examples=50)
@given(st.data(), operations)
def test_the_index_is_a_sorted_set(data: st.DataObject, changes: list[tuple[bool, bytes, int]]) -> None:
    """The index holds what ``sorted(set)`` holds, with enough keys that blocks split and empty."""
    index: KeyIndex[bytes] = KeyIndex()
    model: set[bytes] = set()
    for add, stem, step in changes:
        for number in range(0, 2_500, step * 250 + 7):
            key = stem + b"%05d" % number
            if add and key not in model:
                model.add(key)
                index.add(key)
            elif not add and key in model:
                model.remove(key)
                index.remove(key)
    start, inclusive = data.draw(st.binary(max_size=4)), data.draw(st.booleans())
    expected = sorted(key for key in model if key > start or (inclusive and key == start))
    assert list(index.keys_from(start, inclusive=inclusive)) == expected
    assert index.first_from(start) == min((key for key in model if key >= start), default=None)
    assert list(index) == list(KeyIndex(model)) == sorted(model)
    assert all(len(block) <= 1024 for block in index._blocks)


def test_a_block_may_have_lost_its_first_key() -> None:
    """A walk finds the keys that are there, although a block has lost its first one."""
    names = [f"{number:05}" for number in range(5_000)]
    index, there = KeyIndex(names), set(names)
    for name in names:
        if not 2 < int(name) % 512 < 509:
            index.remove(name)
            there.remove(name)
    assert list(index) == sorted(there)
    following = None
    for name in reversed(names):
        following = name if name in there else following
        assert index.first_from(name) == following
    for name in there:
        index.remove(name)
    assert (list(index), index.first_from("")) == ([], None)
