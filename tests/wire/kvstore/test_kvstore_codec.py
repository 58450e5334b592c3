"""Messages between sites: bytes written by hand from MessagePack's specification, round trips, and nonsense."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.errors import InvalidArgumentError, RemoteProtocolError
from statestore_client.server.kvstore.area_store import AreaStore
from statestore_client.wire.kvstore import codec
from statestore_client.wire.kvstore.codec import decode, encode, request_in
from statestore_client.wire.kvstore.messages import (
    MAX_ITEMS,
    MAX_MESSAGE,
    MAX_POSITION,
    MAX_PREFIXES,
    MAX_VALUES_BYTES,
    ChangeOwnKey,
    ChangePeer,
    CompareRanges,
    Failure,
    Finalize,
    Flood,
    Follow,
    Followed,
    Found,
    Get,
    GetFiltered,
    GetHashes,
    GetLostKeys,
    GetOwnKeys,
    GetPeers,
    GetSummary,
    Heartbeat,
    Hello,
    HelloWanted,
    Leave,
    LostKeys,
    Message,
    OwnKeys,
    OwnKeyState,
    PeerInfo,
    PeersReply,
    Piece,
    RangeSumsReply,
    Refusal,
    Set,
    SetResult,
    Summary,
    Sync,
    SyncReply,
    Wanted,
)
from statestore_client.wire.kvstore.value import INFINITE_TTL_MS, Value

FULL = Value(3, "rome", b"\x01", INFINITE_TTL_MS, 0)
REFRESH = Value(3, "rome", None, 1000, 2)
HASHED = Value(3, "rome", None, INFINITE_TTL_MS, 2, -1)

#: Message -> its bytes, by hand: 9x an array of x, 8x a map, ax a text, c4 bytes, c0 nil, c2 false, c3 true, cc to cf
#: unsigned integers of 1 to 8 bytes, d2 a signed one of 4 bytes, ff is -1.
GOLDEN: list[tuple[Message, str]] = [
    (
        Hello(1, "rome", 2**63, ("a", "b"), ("ranges",), True),
        "97 01 01 a4 726f6d65 cf 8000000000000000 92 a1 61 a1 62 91 a6 72616e676573 c3",
    ),
    (HelloWanted(), "91 02"),
    (Heartbeat(200, 300), "93 03 cc c8 cd 012c"),
    (Refusal(2, "no"), "93 04 02 a2 6e6f"),
    (Leave(), "91 06"),
    (
        Flood(1, "a", ("rome", "bonn"), {"k": FULL, "r": REFRESH}),
        "95 05 01 a1 61 92 a4 726f6d65 a4 626f6e6e 82"
        " a1 6b 95 03 a4 726f6d65 c4 01 01 d2 80000000 00 a1 72 95 03 a4 726f6d65 c0 cd 03e8 02",
    ),
    (Get(9, "a", ("k", "l")), "94 10 09 a1 61 92 a1 6b a1 6c"),
    (
        GetFiltered(9, "a", ("k.*",), ("rome",), True, False, 7),
        "98 11 09 a1 61 91 a3 6b2e2a 91 a4 726f6d65 c3 c2 07",
    ),
    (GetHashes(9, "a", (), 0), "95 12 09 a1 61 90 00"),
    (Set(9, "a", {"k": REFRESH}, ("rome",)), "95 13 09 a1 61 81 a1 6b 95 03 a4 726f6d65 c0 cd 03e8 02 91 a4 726f6d65"),
    (CompareRanges(9, "a", 0, (0,), 5), "96 14 09 a1 61 00 91 00 05"),
    (CompareRanges(9, "a", 8, (1, 255), None), "96 14 09 a1 61 08 92 01 cc ff c0"),
    (
        Sync(9, "a", ((0, 65535), (65537, MAX_POSITION)), {"k": HASHED}),
        "95 15 09 a1 61 92 92 00 cd ffff 92 ce 00010001 cf ffffffffffffffff 81 a1 6b 94 03 a4 726f6d65 02 ff",
    ),
    (Finalize(9, "a", {}, True), "95 16 09 a1 61 80 c3"),
    (ChangeOwnKey(9, "a", 1, "k", b"v", 300, 5000), "98 17 09 a1 61 01 a1 6b c4 01 76 cd 012c cd 1388"),
    (ChangeOwnKey(9, "a", 6, "k"), "98 17 09 a1 61 06 a1 6b c0 c0 c0"),
    (
        Follow(9, "a", Wanted(("k.*",), ("rome",), True, False, True), 300, 7, 20_000),
        "97 18 09 a1 61 95 91 a3 6b2e2a 91 a4 726f6d65 c3 c2 c3 cd 012c 07 cd 4e20",
    ),
    (Follow(9, "a", Wanted()), "97 18 09 a1 61 95 90 90 c2 c3 c2 00 c0 00"),
    (GetPeers(9, "a", 300, 7, 1000), "96 19 09 a1 61 cd 012c 07 cd 03e8"),
    (GetSummary(9), "92 1a 09"),
    (GetLostKeys(9, "a", 300, 7, 1000), "96 1d 09 a1 61 cd 012c 07 cd 03e8"),
    (LostKeys(9, 300, 8, {"k": ("rome", 3)}), "95 29 09 cd 012c 08 81 a1 6b 92 a4 726f6d65 03"),
    (GetOwnKeys(9, "a", 7), "94 1b 09 a1 61 07"),
    (ChangePeer(9, "tcp://h:1", True), "94 1c 09 a9 7463703a2f2f683a31 c3"),
    (Found(9, {"k": HASHED}, None), "94 20 09 81 a1 6b 96 03 a4 726f6d65 c0 d2 80000000 02 ff c0"),
    (SetResult(9, {"k": 4}), "93 21 09 81 a1 6b 04"),
    (RangeSumsReply(9, False, (1, MAX_POSITION)), "94 22 09 c2 c4 10 0000000000000001 ffffffffffffffff"),
    (RangeSumsReply(9, True, ()), "94 22 09 c3 c4 00"),
    (SyncReply(9, {}, ("k",), 7), "95 23 09 80 91 a1 6b 07"),
    (Failure(9, 2, "no"), "94 24 09 02 a2 6e6f"),
    (
        Followed(9, 300, 8, False, (Piece(8, "rome", {"k": REFRESH}, ("x",)),)),
        "96 25 09 cd 012c 08 c2 91 94 08 a4 726f6d65 81 a1 6b 95 03 a4 726f6d65 c0 cd 03e8 02 91 a1 78",
    ),
    (Followed(9, 300, 8, True), "96 25 09 cd 012c 08 c3 90"),
    (
        PeersReply(9, 300, 4, {"rome": PeerInfo(2, 1000, 0, True, ("tcp://h:1",))}, ("ipc://x",)),
        "96 26 09 cd 012c 04 81 a4 726f6d65 95 02 cd 03e8 00 c3 91 a9 7463703a2f2f683a31 91 a7 6970633a2f2f78",
    ),
    (Summary(9, "rome", 300, {"a": {"keys": 5}}), "95 27 09 a4 726f6d65 cd 012c 81 a1 61 81 a4 6b657973 05"),
    (
        OwnKeys(9, {"k": OwnKeyState(REFRESH, True, False)}, None),
        "94 28 09 81 a1 6b 93 95 03 a4 726f6d65 c0 cd 03e8 02 c3 c2 c0",
    ),
]


@pytest.mark.parametrize(("message", "data"), GOLDEN, ids=lambda value: type(value).__name__)
def test_the_bytes_of_each_message(message: Message, data: str) -> None:
    """Each message has the bytes that MessagePack's specification gives it, and is read from them."""
    assert encode(message).hex() == data.replace(" ", "")
    assert decode(bytes.fromhex(data)) == message


def test_each_message_is_in_the_table() -> None:
    """No code was forgotten above."""
    assert {type(message) for message, _ in GOLDEN} == set(codec._CODES)


def test_an_absent_value_is_not_an_empty_one() -> None:
    """A TTL-only entry and one with an empty value stay apart."""
    entries = {"none": Value(1, "x", None, 5), "empty": Value(1, "x", b"", 5)}
    message = decode(encode(Set(1, "a", entries)))
    assert isinstance(message, Set)
    assert (message.entries["none"].value, message.entries["empty"].value) == (None, b"")


_INT = st.integers(-(2**63), 2**63 - 1)
_UINT = st.integers(0, 2**64 - 1)
_TEXT = st.text(max_size=10)
_NAME = st.text(min_size=1, max_size=10)
_VALUES = st.builds(Value, _INT, _TEXT, st.binary(max_size=9), _INT, _INT, st.none())
_VALUES |= st.builds(Value, _INT, _TEXT, st.none(), _INT, _INT, st.none() | _INT)
_ENTRIES = st.dictionaries(_TEXT, _VALUES, max_size=4)
_HASHES = st.dictionaries(
    _TEXT, st.builds(Value, _INT, _TEXT, st.none(), st.just(INFINITE_TTL_MS), _INT, _INT), max_size=4
)
_NAMES = st.lists(_NAME, max_size=3).map(tuple)
_KEYS = st.lists(_TEXT, max_size=3).map(tuple)
_RANGES = st.lists(_UINT, unique=True, max_size=8).map(
    lambda ends: tuple(zip(sorted(ends)[::2], sorted(ends)[1::2], strict=False))
)
_POSITIONS = st.sets(_UINT, max_size=4).map(lambda p: tuple(sorted(p)))
_MAYBE = st.none() | _UINT
_WANTED = st.builds(Wanted, _KEYS, _KEYS, st.booleans(), st.booleans(), st.booleans())
_PIECES = st.builds(Piece, _UINT, st.none() | _NAME, _ENTRIES, _KEYS)
_PEERS = st.builds(PeerInfo, _UINT, _UINT, _UINT, st.booleans(), _KEYS)
_OWN_KEYS = st.builds(OwnKeyState, _VALUES, st.booleans(), st.booleans())
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Hello, _UINT, _NAME, _UINT, _NAMES, _NAMES, st.booleans()),
    st.builds(Heartbeat, _UINT, _UINT),
    st.builds(Refusal, _UINT, _TEXT),
    st.builds(Flood, _UINT, _TEXT, _NAMES, _ENTRIES),
    st.builds(Get, _UINT, _TEXT, _KEYS),
    st.builds(GetFiltered, _UINT, _TEXT, _KEYS, _KEYS, st.booleans(), st.booleans(), _UINT),
    st.builds(GetHashes, _UINT, _TEXT, _KEYS, _UINT),
    st.builds(Set, _UINT, _TEXT, _ENTRIES, _NAMES),
    st.builds(CompareRanges, _UINT, _TEXT, _UINT, _POSITIONS, _MAYBE),
    st.builds(Sync, _UINT, _TEXT, _RANGES, _HASHES),
    st.builds(Finalize, _UINT, _TEXT, _ENTRIES, st.booleans()),
    st.builds(ChangeOwnKey, _UINT, _TEXT, _UINT, _TEXT, st.none() | st.binary(max_size=9), _MAYBE, _MAYBE),
    st.builds(Found, _UINT, _ENTRIES, _MAYBE),
    st.builds(SetResult, _UINT, st.dictionaries(_TEXT, _UINT, max_size=4)),
    st.builds(RangeSumsReply, _UINT, st.booleans(), st.lists(_UINT, max_size=9).map(tuple)),
    st.builds(SyncReply, _UINT, _ENTRIES, _KEYS, _MAYBE),
    st.builds(Failure, _UINT, _UINT, _TEXT),
    st.builds(Follow, _UINT, _TEXT, _WANTED, _UINT, _MAYBE, _UINT),
    st.builds(GetPeers, _UINT, _TEXT, _UINT, _MAYBE, _UINT),
    st.builds(GetSummary, _UINT),
    st.builds(GetLostKeys, _UINT, _TEXT, _UINT, _MAYBE, _UINT),
    st.builds(LostKeys, _UINT, _UINT, _UINT, st.dictionaries(_TEXT, st.tuples(_TEXT, _UINT), max_size=3)),
    st.builds(GetOwnKeys, _UINT, _TEXT, _UINT),
    st.builds(ChangePeer, _UINT, _TEXT, st.booleans()),
    st.builds(Followed, _UINT, _UINT, _UINT, st.booleans(), st.lists(_PIECES, max_size=3).map(tuple)),
    st.builds(PeersReply, _UINT, _UINT, _UINT, st.dictionaries(_TEXT, _PEERS, max_size=3), _KEYS),
    st.builds(Summary, _UINT, _NAME, _UINT, st.dictionaries(_TEXT, st.dictionaries(_TEXT, _UINT, max_size=3))),
    st.builds(OwnKeys, _UINT, st.dictionaries(_TEXT, _OWN_KEYS, max_size=3), _MAYBE),
)


@given(MESSAGES)
def test_what_is_written_is_read_again(message: Message) -> None:
    """Any message comes back as it was."""
    assert decode(encode(message)) == message


@given(MESSAGES, st.lists(st.integers() | st.text(), max_size=3))
def test_fields_of_a_newer_release_are_ignored(message: Message, more: list[object]) -> None:
    """A message with more fields than are known is read as far as it is known."""
    array = msgpack.unpackb(encode(message), strict_map_key=False)
    array += [item if not isinstance(item, int) else item % 2**63 for item in more]
    assert decode(msgpack.packb(array)) == message


# -- nonsense ----------------------------------------------------------------------------------------------------------


def read(data: bytes) -> None:
    """Read it: a message, or the one error that may come."""
    try:
        decode(data)
    except RemoteProtocolError:
        request_in(data)


@given(st.binary(max_size=60))
def test_random_bytes_are_an_error_or_a_message(data: bytes) -> None:
    """No bytes raise anything else."""
    read(data)


@given(MESSAGES, st.data())
def test_a_damaged_message_is_an_error_or_a_message(message: Message, data: st.DataObject) -> None:
    """Bytes that are changed, cut or added raise nothing else."""
    damaged = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    read(bytes(damaged))
    read(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    read(bytes(damaged) + b"\x00")


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3),
    max_leaves=12,
)


@given(st.sampled_from([*codec._SHAPES, 0, 77]), st.lists(_ANYTHING, max_size=9))
def test_wrong_kinds_of_fields_are_errors(code: int, values: list[object]) -> None:
    """A known code with fields of any kind is a message or the error."""
    read(msgpack.packb([code, *values]))


BAD: list[tuple[str, str, str]] = [
    ("nothing", "", "not valid MessagePack"),
    ("no array", "05", "must be an array"),
    ("an empty array", "90", "must be an array"),
    ("a code that is true", "91 c3", "must be an array"),
    ("an unknown code", "91 4d", "does not know"),
    ("a field is missing", "92 03 01", "has 1 fields, 2 are needed"),
    ("true for a number", "93 03 c3 01", "incarnation must be an integer"),
    ("a negative number", "93 03 ff 01", "incarnation must be an integer"),
    ("a name of no length", "97 01 01 a0 01 90 90 c2", "name must be a name"),
    ("bytes for a name", "97 01 01 c4 01 61 01 90 90 c2", "name must be a name"),
    ("a text that is not UTF-8", "93 04 01 a1 ff", "must be a text"),
    ("a text for a value", "95 13 09 a1 61 81 a1 6b 95 03 a1 61 a1 62 05 00 90", "bytes or nil"),
    ("an entry that is too short", "95 13 09 a1 61 81 a1 6b 94 03 a1 61 c0 05 90", "five fields"),
    ("a version of 2^63", "95 13 09 a1 61 81 a1 6b 95 cf 8000000000000000 a1 61 c0 05 00 90", "64 bits with a sign"),
    ("bytes for a key", "95 13 09 a1 61 81 c4 01 6b 95 03 a1 61 c0 05 00 90", "texts as keys"),
    ("a number for a map", "93 21 09 05", "must be a map of keys"),
    ("a number for a key", "95 13 09 a1 61 81 01 95 03 a1 61 c0 05 00 90", "not valid MessagePack"),
    ("a range that goes back", "95 15 09 a1 61 91 92 05 04 80", "ascending"),
    ("ranges that overlap", "95 15 09 a1 61 92 92 01 05 92 05 06 80", "ascending"),
    ("a range twice", "96 14 09 a1 61 00 92 00 00 c0", "each once"),
    ("half a sum", "94 22 09 c2 c4 04 00000001", "eight for each"),
    ("an array that says to have 2^32 - 1 items", "dd ffffffff", "not valid MessagePack"),
    ("a map that says to have 2^32 - 1 items", "92 01 df ffffffff", "not valid MessagePack"),
    ("bytes that say to be 4 GB", "92 01 c6 ffffffff", "not valid MessagePack"),
    ("two messages", "91 02 91 02", "not valid MessagePack"),
    ("a date that cannot be", "92 02 c7 0c ff ffffffff ffffffffffffffff", "not valid MessagePack"),
]


@pytest.mark.parametrize(("data", "text"), [pytest.param(data, text, id=name) for name, data, text in BAD])
def test_a_malformed_message_says_what_is_wrong(data: str, text: str) -> None:
    """Each kind of mistake is the typed error, and names the field."""
    with pytest.raises(RemoteProtocolError, match=text):
        decode(bytes.fromhex(data))


def test_deep_nesting_is_an_error() -> None:
    """A message cannot exhaust the stack."""
    with pytest.raises(RemoteProtocolError):
        decode(b"\x91" * 100_000 + b"\x01")


def test_a_message_that_is_too_large_is_not_read() -> None:
    """More than 1 MiB is refused at both ends."""
    with pytest.raises(RemoteProtocolError, match="1048576 are allowed"):
        decode(bytes(MAX_MESSAGE + 1))
    with pytest.raises(InvalidArgumentError, match="1048576 are allowed"):
        encode(Set(1, "a", {"k": Value(1, "x", bytes(MAX_MESSAGE))}))


def test_too_many_ranges_are_an_error() -> None:
    """What one request may ask for is limited, and so is what its answer takes."""
    encode_many = encode(CompareRanges(1, "a", 12, tuple(range(MAX_PREFIXES))))
    assert isinstance(decode(encode_many), CompareRanges)
    with pytest.raises(RemoteProtocolError, match="at most 32 ranges"):
        decode(encode(CompareRanges(1, "a", 12, tuple(range(MAX_PREFIXES + 1)))))


def _many(number: int) -> dict[str, Value]:
    return {f"key {n}": Value(1, "x", None, 5, 0, 7) for n in range(number)}


@pytest.mark.parametrize(
    "message_of",
    [
        pytest.param(lambda number: Set(1, "a", _many(number)), id="entries"),
        pytest.param(lambda number: Sync(1, "a", (), _many(number)), id="hashes"),
        pytest.param(lambda number: Sync(1, "a", tuple((2 * n, 2 * n) for n in range(number)), {}), id="ranges"),
        pytest.param(lambda number: Get(1, "a", tuple(_many(number))), id="keys"),
        pytest.param(lambda number: SyncReply(1, {}, tuple(_many(number))), id="keys to be updated"),
    ],
)
def test_a_message_has_a_bounded_number_of_items(message_of: Callable[[int], Message]) -> None:
    """What one message has a site do is limited; how many it may be is said. Far more are not even read."""
    decode(encode(message_of(MAX_ITEMS)))
    with pytest.raises(RemoteProtocolError, match="at most 256, and not 257"):
        decode(encode(message_of(MAX_ITEMS + 1)))
    with pytest.raises(RemoteProtocolError, match="exceeds max_"):
        decode(encode(message_of(5_000)))


def test_only_a_single_value_may_be_large() -> None:
    """Many bytes in several entries are several messages."""
    half, whole = bytes(MAX_VALUES_BYTES // 2), bytes(MAX_VALUES_BYTES + 1)
    decode(encode(Set(1, "a", {"k": Value(1, "x", half), "l": Value(1, "x", half)})))
    decode(encode(Set(1, "a", {"k": Value(1, "x", whole)})))
    with pytest.raises(RemoteProtocolError, match="131072 bytes together"):
        decode(encode(Set(1, "a", {"k": Value(1, "x", whole), "l": Value(1, "x", None)})))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        *(("93 1f 07 01", (31, 7)), ("92 14 07", (20, 7)), ("95 13 07 a1 61 df ffffffff", (19, 7)), ("92 03 07", None)),
        *(("92 10 c0", None), ("92 10 ff", None), ("91 10 07", None), ("92 10", None), ("ff", None)),
    ],
)
def test_a_request_that_cannot_be_read_can_be_answered(data: str, expected: tuple[int, int] | None) -> None:
    """Code and id of an unknown or malformed request are found, whatever follows; what is not a request has none."""
    assert request_in(bytes.fromhex(data)) == expected


# -- entries that cannot be read, in messages that can: bytes by hand. c4 bytes, c0 nil, ff -1 ------------------------

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
