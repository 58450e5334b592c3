"""The book-keeping of snapshot chunks: order, repetition, gaps, and a snapshot that changes on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft_client.errors import ProtocolError
from raft_client.wire.snapshots import SnapshotChunk, SnapshotProgress


def chunk(offset: int, data: bytes, *, size: int = 10, index: int = 7) -> SnapshotChunk:
    """A piece of the snapshot of ten bytes at index 7."""
    return SnapshotChunk(index, 3, offset, size, data)


def test_chunks_in_order_complete_a_snapshot() -> None:
    """Each chunk moves the position; the last one completes."""
    progress = SnapshotProgress()
    assert not progress.complete
    assert progress.take(chunk(0, b"01234")) == chunk(0, b"01234")
    assert (progress.position, progress.complete) == (5, False)
    assert progress.take(chunk(5, b"56789")) == chunk(5, b"56789")
    assert progress.complete


def test_repeated_bytes_are_dropped() -> None:
    """A chunk that came before is dropped, one that came in part is cut."""
    progress = SnapshotProgress()
    progress.take(chunk(0, b"01234"))
    assert progress.take(chunk(0, b"01234")) is None
    assert progress.take(chunk(3, b"3456")) == chunk(5, b"56")


def test_missing_bytes_are_an_error() -> None:
    """A gap between chunks is an error."""
    progress = SnapshotProgress()
    progress.take(chunk(0, b"01"))
    with pytest.raises(ProtocolError, match="at 5 instead of 2"):
        progress.take(chunk(5, b"5"))
    assert progress.position == 2


def test_another_snapshot_starts_anew() -> None:
    """After a change of leader another snapshot is accepted from its first byte only."""
    progress = SnapshotProgress()
    progress.take(chunk(0, b"01"))
    with pytest.raises(ProtocolError):
        progress.take(chunk(2, b"2", index=8))
    assert progress.position == 0
    assert progress.take(chunk(0, b"ab", index=8)) == chunk(0, b"ab", index=8)


def test_an_empty_snapshot_is_complete_at_once() -> None:
    """A snapshot of no bytes has one empty chunk, which is both the first and the last."""
    progress = SnapshotProgress()
    empty = chunk(0, b"", size=0)
    assert progress.take(empty) == empty
    assert progress.complete
    assert empty.is_first
    assert empty.is_last


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.booleans()), max_size=30))
def test_what_is_taken_is_always_the_start_of_one_snapshot(pieces: list[tuple[int, int, bool]]) -> None:
    """Whatever arrives in whatever order, the bytes taken since the last start are the first bytes of one snapshot."""
    content = {False: bytes(range(30)), True: bytes(range(100, 130))}
    progress, taken = SnapshotProgress(), b""
    for offset, length, other in pieces:
        data = content[other][offset : offset + length]
        try:
            new = progress.take(SnapshotChunk(8 if other else 7, 3, min(offset, 30), 30, data))
        except ProtocolError:
            continue
        if new is not None:
            taken = (b"" if new.is_first else taken) + new.data
        if progress.position:
            assert len(taken) == progress.position
            assert any(whole.startswith(taken) for whole in content.values())
