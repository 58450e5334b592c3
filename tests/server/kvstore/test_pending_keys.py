"""Keys that wait to be sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.server.kvstore.pending_keys import PendingKeys


@given(st.lists(st.none() | st.integers(0, 30), max_size=200))
def test_each_key_waits_once_until_it_is_taken(steps: list[int | None]) -> None:
    """Whatever is added and taken (None), what is taken was waiting, and it waits no more."""
    pending, waiting = PendingKeys(), set[str]()
    for step in steps:
        if step is not None:
            pending.add((f"key {step}",))
            waiting.add(f"key {step}")
        elif waiting:
            waiting.remove(pending.take())
        assert len(pending) == len(waiting)
    assert {pending.take() for _ in range(len(pending))} == waiting


def test_nothing_is_taken_where_nothing_waits() -> None:
    """It is an error, not a search without end."""
    with pytest.raises(IndexError):
        PendingKeys().take()


def test_keys_that_change_all_the_time_do_not_keep_others_waiting() -> None:
    """Each time that a key is sent, a hundred others change again: all that waited before are sent nevertheless."""
    pending = PendingKeys()
    waiting = {f"key {n}" for n in range(2_000)}
    pending.add(waiting)
    left = 10_000
    while waiting and left:
        waiting.discard(pending.take())
        pending.add(f"busy {n}" for n in range(100))
        left -= 1
    assert not waiting


def test_no_table_has_a_large_share_of_the_keys() -> None:
    """A table that grows is copied: with all keys in one, a single step would take as long as there are keys."""
    pending = PendingKeys()
    pending.add(f"key {n}" for n in range(20_000))
    assert max(len(table) for table in pending._tables) < 200
