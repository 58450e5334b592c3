"""Entries that cannot be read, in messages that can: bytes by hand. c4 bytes, c0 nil, ff -1."""

from __future__ import annotations

import attrs
import pytest

from statestore_client.errors import RemoteProtocolError
from statestore_client.server.kvstore.store import AreaStore
from statestore_client.wire.kvstore.codec import decode
from statestore_client.wire.kvstore.messages import Finalize, Flood, Sync, SyncReply
from statestore_client.wire.kvstore.value import Value

#: What is wrong with an entry or its key -> the bytes of both.
UNREADABLE = [
    ("no array", "a1 6b 05"),
    ("four fields", "a1 6b 94 03 a1 61 c4 00 05"),
    ("a text as value", "a1 6b 95 03 a1 61 a1 78 05 00"),
    ("a version that is a text", "a1 6b 95 a1 33 a1 61 c4 00 05 00"),
    ("a version of 65 bits", "a1 6b 95 cf ffffffffffffffff a1 61 c4 00 05 00"),
    ("an originator that is a number", "a1 6b 95 03 07 c4 00 05 00"),
    ("an originator that is not UTF-8", "a1 6b 95 03 a1 ff c4 00 05 00"),
    ("an originator that is too long", "a1 6b 95 03 da 0100" + "61" * 256 + "c4 00 05 00"),
    ("a TTL that is a fraction", "a1 6b 95 03 a1 61 c4 00 cb 3ff8000000000000 00"),
]
#: The same for keys, of a good entry.
NO_KEYS = [("a key that is not UTF-8", "a1 ff"), ("a key of bytes", "c4 01 6b")]
_GOOD = "a1 67 95 03 a1 61 c4 01 78 05 00"
_GOOD_ENTRY = {"g": Value(3, "a", b"x", 5, 0)}
#: A message of a site to another one, with two entries.
_SAID = {
    "flood": "95 05 01 a1 61 91 a1 72 82",
    "sync reply": "95 23 09 82",
    "finalize": "95 16 09 a1 61 82",
}
_ENDS = {"flood": "", "sync reply": "90 c0", "finalize": "c3"}


@pytest.mark.parametrize("kind", _SAID)
@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in UNREADABLE])
def test_an_entry_that_cannot_be_read_says_nothing_about_the_others(kind: str, data: str) -> None:
    """In its place is one that no store takes."""
    for both in (f"{data} {_GOOD}", f"{_GOOD} {data}"):
        message = decode(bytes.fromhex(f"{_SAID[kind]} {both} {_ENDS[kind]}"))
        store = AreaStore("a")
        assert isinstance(message, Flood | SyncReply | Finalize)
        result = store.merge(message.entries, "r", 0.0)
        assert [attrs.evolve(entry, hash=None) for entry in result.accepted.values()] == [_GOOD_ENTRY["g"]]
        assert list(result.reasons) == ["k"]
        assert store.counters.refused == 1


@pytest.mark.parametrize("kind", _SAID)
@pytest.mark.parametrize("key", [pytest.param(key, id=name) for name, key in NO_KEYS])
def test_an_entry_under_something_that_is_no_key_is_left_out(kind: str, key: str) -> None:
    """An answer could not name it."""
    message = decode(bytes.fromhex(f"{_SAID[kind]} {key} 95 03 a1 61 c4 00 05 00 {_GOOD} {_ENDS[kind]}"))
    assert isinstance(message, Flood | SyncReply | Finalize)
    assert message.entries == _GOOD_ENTRY


def test_a_client_whose_entries_cannot_be_read_is_told() -> None:
    """Nothing of its request is done."""
    for _, data in UNREADABLE[:8]:
        with pytest.raises(RemoteProtocolError, match="entries must have"):
            decode(bytes.fromhex(f"95 13 09 a1 61 82 {data} {_GOOD} 90"))
    with pytest.raises(RemoteProtocolError, match="entries must be a map with texts"):
        decode(bytes.fromhex(f"95 13 09 a1 61 82 a1 ff 95 03 a1 61 c4 00 05 00 {_GOOD} 90"))


def test_hashes_that_cannot_be_read_are_left_out() -> None:
    """The other side is sent what it may have already."""
    bad = ["a1 6b 93 03 a1 61 02", "a1 6b 05", "a1 ff 94 03 a1 61 02 05", "a1 6b 94 03 a1 ff 02 05"]
    for data in bad:
        message = decode(bytes.fromhex(f"95 15 09 a1 61 90 82 {data} a1 67 94 03 a1 61 02 05"))
        assert isinstance(message, Sync)
        assert list(message.hashes) == ["g"]
