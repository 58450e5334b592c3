"""The entries in memory: which of them can be had, against a list that forgets nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from model_peer import state_entry

from raft_client.core.event_history import EventHistory
from raft_client.wire.log_entry import LogEntry


@given(st.integers(1, 50), st.lists(st.integers(0, 300), max_size=30), st.integers(0, 2000), st.integers(0, 90))
def test_what_is_there_is_there_without_a_gap(first: int, lengths: list[int], limit: int, index: int) -> None:
    """Either every entry after an index is in the history or none, and no more is kept than allowed."""
    entries = [LogEntry(first + n, state_entry(n, bytes(length))) for n, length in enumerate(lengths)]
    recent = EventHistory(limit)
    for entry in entries:
        recent.append(entry)
    found = list(recent.after(index))
    wanted = [entry for entry in entries if entry.index > index]
    assert found in ([], wanted)
    assert sum(entry.size + 100 for entry in found) <= limit
    if sum(entry.size + 100 for entry in wanted) <= limit and index + 1 >= first:
        assert found == wanted
    recent.clear()
    assert list(recent.after(index)) == []
