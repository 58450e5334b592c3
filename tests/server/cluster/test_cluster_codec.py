"""Entries of the replicated log, and batches of the journal in them: bytes written by hand from MessagePack's
specification, round trips, pieces, and nonsense.
"""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.cluster import entries as log_entries
from statestore_client.server.cluster.entries import (
    MAX_DATA,
    MAX_ENTRY,
    MAX_ID_BYTES,
    MAX_LEASE_MS,
    MAX_PIECES,
    MAX_URL_BYTES,
    Assembly,
    BatchPiece,
    Challenge,
    Claim,
    HandOver,
    Life,
    LogEntry,
    NewerLogError,
    NewFormat,
    Part,
    Renewal,
    Snapshot,
    UnreadableLogError,
    decode,
    encode,
    pack_batch,
    pieces,
    unpack_batch,
)
from statestore_client.server.journal import ALL_STREAMS, Changes, Stream, WriteBatch

A = Life("a", 2**63)

#: Entry -> its bytes, by hand: 9x an array of x, dc one of 16 bits, ax a text, c4 bytes, c2 false, c3 true, cc to cf
#: unsigned integers of 1 to 8 bytes.
HEADER = "a1 61 cf 8000000000000000"
GOLDEN: list[tuple[LogEntry, str]] = [
    (
        LogEntry(3, 7, A, 1000, 0, Claim("tcp://h", 1, 250, 65536, True)),
        f"9d 01 01 03 07 {HEADER} cd 03e8 00 a7 7463703a2f2f68 01 cc fa ce 00010000 c3",
    ),
    (
        LogEntry(3, 8, A, 2**32, 200, BatchPiece(b"\x01\x02", False)),
        f"9a 01 02 03 08 {HEADER} cf 0000000100000000 cc c8 c4 02 0102 c2",
    ),
    (LogEntry(3, 9, A, 1, 0, Renewal(5)), f"99 01 03 03 09 {HEADER} 01 00 05"),
    (LogEntry(3, 10, A, 1, 0, HandOver("bé")), f"99 01 04 03 0a {HEADER} 01 00 a3 62c3a9"),
    (LogEntry(3, 1, A, 1, 0, Challenge()), f"98 01 05 03 01 {HEADER} 01 00"),
    (LogEntry(3, 0, A, 1, 0, Snapshot(127, b"")), f"9a 01 06 03 00 {HEADER} 01 00 7f c4 00"),
    (LogEntry(3, 4, A, 1, 0, Part(127, b"x", True, False)), f"9c 01 07 03 04 {HEADER} 01 00 7f c4 01 78 c3 c2"),
    (LogEntry(3, 11, A, 1, 0, NewFormat(2)), f"99 01 08 03 0b {HEADER} 01 00 02"),
]

numbers = st.integers(0, 2**64 - 1)
ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=MAX_ID_BYTES // 4)
bodies = st.one_of(
    st.builds(Claim, ids, numbers, st.integers(0, MAX_LEASE_MS), numbers, st.booleans()),
    st.builds(BatchPiece, st.binary(max_size=300), st.booleans()),
    st.builds(Renewal, numbers),
    st.builds(HandOver, st.just("") | ids),
    st.builds(Challenge),
    st.builds(Snapshot, numbers, st.binary(max_size=50)),
    st.builds(Part, numbers, st.binary(max_size=300), st.booleans(), st.booleans()),
    st.builds(NewFormat, numbers),
)
times = st.integers(0, 2**52 - 1)
entries = st.builds(LogEntry, numbers, numbers, st.builds(Life, ids, numbers), times, numbers, bodies)


def header(**other: object) -> list[object]:
    """Of a renewal, with some fields that are otherwise."""
    fields = {"version": 1, "kind": 3, "epoch": 1, "seq": 1, "id": "a", "incarnation": 1, "log_ms": 1, "base": 0}
    return [*(fields | other).values()]


@pytest.mark.parametrize(("entry", "data"), GOLDEN, ids=lambda value: "" if isinstance(value, str) else str(value.body))
def test_bytes_by_hand(entry: LogEntry, data: str) -> None:
    """Each kind has the bytes that the table of the module and MessagePack's specification say."""
    assert encode(entry) == bytes.fromhex(data)
    assert decode(bytes.fromhex(data)) == entry


@given(entries)
def test_what_is_written_is_read(entry: LogEntry) -> None:
    """An entry comes back as it was."""
    assert decode(encode(entry)) == entry


@given(st.binary(max_size=40) | st.lists(numbers | st.none() | st.binary(max_size=9), max_size=12).map(msgpack.packb))
def test_nonsense_is_refused(data: bytes) -> None:
    """Whatever is no entry raises one kind of error."""
    with pytest.raises(UnreadableLogError):
        decode(data)


@given(entries, st.data())
def test_a_spoiled_entry_is_refused_or_read_as_another(entry: LogEntry, draw: st.DataObject) -> None:
    """One byte is another one: an error of the one kind, or an entry that can be written again."""
    data = bytearray(encode(entry))
    data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    try:
        spoiled = decode(bytes(data))
    except UnreadableLogError:
        return
    assert decode(encode(spoiled)) == spoiled


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([*header(version=2), 5], "version 2"),
        ([*header(kind=9), 5], "kind 9"),
        ([*header(kind=True), 5], "kind True"),
    ],
)
def test_what_a_newer_program_writes_is_told_apart(fields: list[object], error: str) -> None:
    """Another version or kind is a reason for an upgrade, and not damage."""
    with pytest.raises(NewerLogError, match=error):
        decode(msgpack.packb(fields))


@pytest.mark.parametrize(
    "fields",
    [
        [*header()],
        [*header(), 5, 5],
        [*header(epoch=-1), 5],
        [*header(seq=True), 5],
        [*header(id=""), 5],
        [*header(id=b"a"), 5],
        [*header(id="a" * (MAX_ID_BYTES + 1)), 5],
        [*header(incarnation=None), 5],
        [*header(log_ms=1.5), 5],
        [*header(base="0"), 5],
        [*header(), None],
        [*header(kind=1), "u" * (MAX_URL_BYTES + 1), 1, 250, 0, False],
        [*header(kind=1), "u", 1, 250, 0, 0],
        [*header(kind=2), "text", True],
        [*header(kind=4), None],
        [*header(kind=6), 1, []],
        [1, 2, 3],
    ],
)
def test_each_field_is_checked(fields: list[object]) -> None:
    """A field of another type, or out of its range, spoils the entry; a newer program is not blamed."""
    with pytest.raises(UnreadableLogError) as caught:
        decode(msgpack.packb(fields))
    assert not isinstance(caught.value, NewerLogError)


@pytest.mark.parametrize(
    "entry",
    [
        LogEntry(-1, 0, A, 0, 0, Challenge()),
        LogEntry(0, 2**64, A, 0, 0, Challenge()),
        LogEntry(0, 0, Life("", 1), 0, 0, Challenge()),
        LogEntry(0, 0, Life("\ud800", 1), 0, 0, Challenge()),
        LogEntry(0, 0, A, 0, 0, HandOver("n" * (MAX_ID_BYTES + 1))),
        LogEntry(0, 0, A, 0, 0, Claim("u" * (MAX_URL_BYTES + 1), 1, 1, 1)),
        LogEntry(0, 0, A, 0, 0, BatchPiece(bytes(MAX_ENTRY))),
    ],
    ids=["negative", "large", "no id", "surrogate", "next", "url", "bytes"],
)
def test_what_nobody_could_read_is_not_written(entry: LogEntry) -> None:
    """The writer is told, before anything is in the log that stops all servers."""
    with pytest.raises(InvalidArgumentError):
        encode(entry)


def test_the_greatest_piece_fits() -> None:
    """A piece of the greatest size fits into an entry with the largest header; one byte beyond an entry is refused."""
    largest, latest = 2**64 - 1, 2**52 - 1
    for body in (BatchPiece(bytes(MAX_DATA)), Part(largest, bytes(MAX_DATA))):
        data = encode(LogEntry(largest, largest, Life("i" * MAX_ID_BYTES, largest), latest, largest, body))
        assert len(data) <= MAX_ENTRY
    with pytest.raises(UnreadableLogError):
        decode(bytes(MAX_ENTRY + 1))


# -- batches -----------------------------------------------------------------------------------------------------------


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


def test_bytes_of_a_batch_by_hand() -> None:
    """A batch has the bytes that the docstring of the module and MessagePack's specification say."""
    assert pack_batch(BATCH) == bytes.fromhex(BYTES)
    assert unpack_batch(bytes.fromhex(BYTES)) == BATCH


@given(st.lists(changes, max_size=4).map(tuple).map(WriteBatch), st.integers(1, 50))
def test_a_batch_comes_back_from_its_pieces(batch: WriteBatch, size: int) -> None:
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
def test_what_is_no_batch_is_refused(content: object) -> None:
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
    monkeypatch.setattr(log_entries, "MAX_BATCH", 10)
    assembly = Assembly()
    for _ in range(2):
        assert assembly.add(bytes(5), is_last=False) is None
        assert assembly.add(bytes(5), is_last=True) == bytes(10)
    assembly.add(bytes(9), is_last=False)
    assembly.clear()
    assembly.add(bytes(9), is_last=False)
    with pytest.raises(UnreadableLogError, match="10 bytes"):
        assembly.add(bytes(2), is_last=True)
