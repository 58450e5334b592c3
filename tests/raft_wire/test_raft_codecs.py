"""The key/value codec: the MessagePack specification's bytes, round trips, snapshots in any chunks, malformed input."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft_client.codecs import Change, ChangeKind, KeyValueCodec
from raft_client.errors import InvalidArgumentError, InvalidDataError, ProtocolError

CODEC = KeyValueCodec()


def test_entries_have_these_bytes() -> None:
    """Setting a key is an array of two, str "kv", array of three, 1, bin key, bin value; deleting it an array of two,
    0, bin key (MessagePack specification)."""
    for data, change in (
        (b"\x92\xa2kv\x93\x01\xc4\x01a\xc4\x02xy", Change(ChangeKind.SET, b"a", b"xy")),
        (b"\x92\xa2kv\x92\x00\xc4\x01a", Change(ChangeKind.DELETE, b"a")),
    ):
        made = KeyValueCodec.delete("a") if change.value is None else KeyValueCodec.set("a", change.value)
        assert made == data
        assert CODEC.decode(data) == (change,)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"hello", b"\xc0", b"\x90", b"\x91\xa2kw", b"\x91\x01", b"\x81\xa2kv\x01", b"\x00" * 20, b"\xdc"),
        b"\x93\xa2k",
    ],
)
def test_entries_of_others_mean_nothing(data: bytes) -> None:
    """An entry that does not start like ours has no changes, since a log may be shared."""
    assert CODEC.decode(data) == ()


@pytest.mark.parametrize(
    "data",
    [
        *(b"\x92\xa2kv" + rest for rest in (b"", b"\x93\x01\xc4\x01a", b"\x92\x01\xc4\x01a", b"\x01", b"\xc1")),
        *(b"\x92\xa2kv\x92" + rest for rest in (b"\x02\xc4\x01a", b"\x00\xc4\x00", b"\x00\xa1a", b"\x00\xa1\xff")),
        b"\x92\xa2kv\x93\x00\xc4\x01a\xc4\x01b",
        b"\x91\xa2kv\xc0",
    ],
)
def test_broken_entries_are_said_to_be_broken(data: bytes) -> None:
    """An entry that starts like ours and cannot be read is an error, and does not count as one without changes."""
    with pytest.raises(ProtocolError):
        CODEC.decode(data)


@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda rest: b"\x92\xa2kv" + rest))
def test_any_data_is_changes_or_a_protocol_error(data: bytes) -> None:
    """Any data gives changes or a ProtocolError."""
    with suppress(ProtocolError):
        assert all(isinstance(change, Change) for change in CODEC.decode(data))


KEYS = st.binary(min_size=1, max_size=20)
CHANGES = st.one_of(
    st.builds(Change, st.just(ChangeKind.SET), KEYS, st.binary(max_size=30)),
    st.builds(Change, st.just(ChangeKind.DELETE), KEYS),
)


@given(st.lists(CHANGES, min_size=1, max_size=40))
def test_changes_are_read_as_they_were_written(changes: list[Change]) -> None:
    """Changes are read as they were written, also more than fifteen of them, which have another array header."""
    data = KeyValueCodec.encode(changes)
    assert CODEC.decode(data) == tuple(changes)
    assert msgpack.unpackb(data)[0] == "kv"


@given(st.dictionaries(KEYS, st.binary(max_size=30), max_size=20), st.integers(1, 40), st.integers(1, 600))
def test_a_snapshot_is_read_from_chunks_of_any_size(items: dict[bytes, bytes], size: int, repeat: int) -> None:
    """A snapshot is read from chunks of any size, and from more items than fit into one piece."""
    pairs = [(b"%d-" % n + key, value) for n in range(1 + repeat % 40) for key, value in items.items()]
    whole = b"".join(KeyValueCodec.encode_snapshot(pairs))
    chunks = [whole[start : start + size] for start in range(0, len(whole), size)]
    assert list(CODEC.decode_snapshot(chunks)) == pairs


def test_a_snapshot_has_the_bytes_of_entries() -> None:
    """The pieces of a snapshot have the bytes of entries, one after the other."""
    piece = b"\x93\xa2kv\x93\x01\xc4\x01a\xc4\x01x\x93\x01\xc4\x01b\xc4\x01y"
    assert list(KeyValueCodec.encode_snapshot([(b"a", b"x"), (b"b", b"y")])) == [piece]
    assert list(CODEC.decode_snapshot([piece + piece])) == [(b"a", b"x"), (b"b", b"y")] * 2
    assert list(CODEC.decode_snapshot([])) == []


@pytest.mark.parametrize(
    "chunk",
    [
        *(b"\x92\xa2kv", b"\x92\xa2kv\x93\x01\xc4\x01a\xc4\x01", b"\xc1", b"\x01", b"\x92\xa2kv\x92\x00\xc4\x01a"),
        *(b"\x92\xa2kw\x01", b"\xc0"),
    ],
)
def test_a_broken_snapshot_is_refused(chunk: bytes) -> None:
    """A snapshot that ends in half a piece, has another format or a deletion is refused, so that nobody lists half a
    keyspace."""
    with pytest.raises(ProtocolError):
        list(CODEC.decode_snapshot([chunk]))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: KeyValueCodec.set(b"", b"x"), InvalidDataError),
        (lambda: KeyValueCodec.set("\ud800", b"x"), InvalidDataError),
        (lambda: KeyValueCodec.set(b"a", bytes(10 * 1024 * 1024)), InvalidDataError),
        (lambda: KeyValueCodec.encode([]), InvalidDataError),
        (lambda: KeyValueCodec.encode([Change(ChangeKind.SET, b"a")]), InvalidDataError),
        (lambda: KeyValueCodec.encode([Change(ChangeKind.DELETE, "a")]), InvalidDataError),
        (lambda: KeyValueCodec.set(1, b"x"), InvalidArgumentError),
    ],
)
def test_what_no_entry_can_hold_is_refused(make: Any, error: type[Exception]) -> None:
    """An empty key, a text without UTF-8, more than an entry takes, no change at all, and a number are refused."""
    with pytest.raises(error):
        make()
