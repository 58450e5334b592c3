"""Batches of the journal in the replicated log: bytes written by hand, pieces, and nonsense."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.server.cluster import batches
from statestore_client.server.cluster.batches import MAX_PIECES, Assembly, pack_batch, pieces, unpack_batch
from statestore_client.server.cluster.codec import NewerLogError, UnreadableLogError
from statestore_client.server.journal.storage import Changes, WriteBatch
from statestore_client.server.journal.streams import ALL_STREAMS, Stream

BATCH = WriteBatch(
    (
        Changes(Stream.KEYS, ((b"k", b"\x01"), (b"l", b"")), (b"m",)),
        Changes(Stream.INBOUND, ((65536, b"x"),), ()),
        Changes(Stream.CLOCK, (("time", b"t"),), ()),
    )
)
#: By hand: 9x an array of x, ax a text, c4 bytes, ce an unsigned integer of 4 bytes.
BYTES = (
    "93 93 a4 6b657973 94 c4 01 6b c4 01 01 c4 01 6c c4 00 91 c4 01 6d"
    " 93 a7 696e626f756e64 92 ce 00010000 c4 01 78 90 93 a5 636c6f636b 92 a4 74696d65 c4 01 74 90"
)


def subjects(stream: Stream) -> st.SearchStrategy[object]:
    """As the stream has them."""
    if stream.is_numbered:
        return st.integers(0, 2**63 - 1)
    return st.text(st.characters(exclude_categories=["Cs"])) | st.binary()


changes = st.sampled_from(ALL_STREAMS).flatmap(
    lambda stream: st.builds(
        Changes,
        st.just(stream),
        st.lists(st.tuples(subjects(stream), st.binary()), max_size=4).map(tuple),
        st.lists(subjects(stream), max_size=4).map(tuple),
    )
)


def test_bytes_by_hand() -> None:
    """A batch has the bytes that the docstring of the module and MessagePack's specification say."""
    assert pack_batch(BATCH) == bytes.fromhex(BYTES)
    assert unpack_batch(bytes.fromhex(BYTES)) == BATCH


@given(st.lists(changes, max_size=4).map(tuple).map(WriteBatch), st.integers(1, 50))
def test_what_is_written_is_read(batch: WriteBatch, size: int) -> None:
    """A batch comes back as it was, through pieces of any size, and only with the last one."""
    assembly = Assembly()
    found = [assembly.add(piece, is_last=is_last) for piece, is_last in pieces(pack_batch(batch), size)]
    assert found[:-1] == [None] * (len(found) - 1)
    assert found[-1] is not None
    assert unpack_batch(found[-1]) == batch
    assert not assembly


@pytest.mark.parametrize(
    "content",
    [
        5,
        [5],
        [["keys", []]],
        [["keys", 5, []]],
        [["keys", [b"k"], []]],
        [["keys", [b"k", "text"], []]],
        [["keys", [1, b"x"], []]],
        [["inbound", [b"k", b"x"], []]],
        [["inbound", [], [True]]],
        [["inbound", [-1, b"x"], []]],
        [["messages", [1 << 63, b"x"], []]],
        [["deliveries", [], [(1 << 64) - 1]]],
        [["keys", [-1, b"x"], []]],
        [["keys", [], "text"]],
        [["keys", "text", []]],
        [[{}, [], []]],
    ],
)
def test_nonsense_is_refused(content: object) -> None:
    """What is not a batch is told with one kind of error."""
    with pytest.raises(UnreadableLogError) as caught:
        unpack_batch(msgpack.packb(content))
    assert not isinstance(caught.value, NewerLogError)


def test_a_stream_that_a_newer_program_knows_is_not_skipped() -> None:
    """Skipped, it would be lost at the next snapshot."""
    with pytest.raises(NewerLogError, match="'ledgers'"):
        unpack_batch(msgpack.packb([["ledgers", [], []]]))


def test_a_batch_that_is_not_completed_is_forgotten() -> None:
    """Pieces of another writer do not get mixed."""
    assembly = Assembly()
    assert assembly.add(b"old", is_last=False) is None
    assert assembly
    assembly.clear()
    assert assembly.add(b"new", is_last=True) == b"new"


def test_a_batch_without_end_is_refused() -> None:
    """What a reader holds for one batch is bounded."""
    assembly = Assembly()
    for _ in range(MAX_PIECES):
        assembly.add(b"x", is_last=False)
    with pytest.raises(UnreadableLogError, match="pieces"):
        assembly.add(b"x", is_last=False)


def test_a_batch_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one of few pieces may have is bounded, too; the next one begins anew."""
    monkeypatch.setattr(batches, "MAX_BATCH", 10)
    assembly = Assembly()
    for _ in range(2):
        assert assembly.add(bytes(5), is_last=False) is None
        assert assembly.add(bytes(5), is_last=True) == bytes(10)
    assembly.add(bytes(9), is_last=False)
    assembly.clear()
    assembly.add(bytes(9), is_last=False)
    with pytest.raises(UnreadableLogError, match="10 bytes"):
        assembly.add(bytes(2), is_last=True)
