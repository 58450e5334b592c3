"""The value types of a frame: the vectors of the published document and of the Node library, and malformed input."""

from __future__ import annotations

import math
from contextlib import suppress

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft_client.errors import InvalidArgumentError, ProtocolError
from raft_client.wire import frames as f

#: ØMQ Raft protocol ("zmq frame body as an uint") and the Node library's own tests (facts §4).
UINTS = [
    ("00", 0),
    ("02", 2),
    ("ff", 255),
    ("0001", 256),
    ("ffff", 65535),
    ("000001", 65536),
    ("000000000080", 0x800000000000),
    ("000100000080", 0x800000000100),
    ("010000000080", 0x800000000001),
    ("010001000080", 0x800000010001),
    ("000100010080", 0x800001000100),
    ("ffffffffffff1f", 9007199254740991),
    ("feffffffffff1f", 9007199254740990),
]


@pytest.mark.parametrize(("text", "number"), UINTS)
def test_the_published_integers_are_written_and_read(text: str, number: int) -> None:
    """An integer has the bytes of the document, little endian and as few as possible."""
    assert f.encode_uint(number).hex() == text
    assert f.decode_uint(bytes.fromhex(text)) == number
    assert f.encode_nuint(number).hex() == text
    assert f.decode_nuint(bytes.fromhex(text)) == number


@pytest.mark.parametrize(("text", "number"), [("ffffffffffff1f000000", 2**53 - 1), ("00" * 10, 0), ("ff0000", 255)])
def test_padded_integers_are_read(text: str, number: int) -> None:
    """Integers of any length that are padded with zeros are read, as by the Node library."""
    assert f.decode_uint(bytes.fromhex(text)) == number


@pytest.mark.parametrize("text", ["", "0000000000000001", "00000000000020", "ff" * 3000])
def test_impossible_integers_are_refused(text: str) -> None:
    """An empty frame and a number beyond 2^53 - 1 break the protocol."""
    with pytest.raises(ProtocolError):
        f.decode_uint(bytes.fromhex(text))


@pytest.mark.parametrize(
    "value", [2**53, -1, 10.5, math.nan, math.inf, None, "0", [], True, 2.0, pytest.param(10**5000, id="huge")]
)
def test_what_is_no_unsigned_integer_is_not_sent(value: object) -> None:
    """The values that the Node library refuses, and a bool, never become a frame."""
    with pytest.raises(InvalidArgumentError, match="unsigned integer"):
        f.encode_uint(value)


def test_null_is_the_empty_frame() -> None:
    """Only the nullable integer may be an empty frame."""
    assert f.encode_nuint(None) == b""
    assert f.decode_nuint(b"") is None


def test_request_ids_end_at_32_bits() -> None:
    """The ids of requests have one to four bytes."""
    assert f.encode_uint32(2**32 - 1) == b"\xff\xff\xff\xff"
    with pytest.raises(InvalidArgumentError):
        f.encode_uint32(2**32)


def test_bools_have_the_documents_bytes() -> None:
    """True is 01 and false is empty; any first byte but 0 is true."""
    assert f.encode_bool(True) == b"\x01"
    assert f.encode_bool(False) == b""
    assert [f.decode_bool(frame) for frame in (b"\x01", b"", b"\x00", b"\xff", b"\x00\x01")] == [
        True, False, False, True, False,
    ]  # fmt: skip


def test_strings_are_utf8() -> None:
    """A string frame is the document's bytes in UTF-8, and other bytes are refused."""
    assert f.encode_string("foo").hex() == "666f6f"
    assert f.decode_string(bytes.fromhex("666f6f")) == "foo"
    with pytest.raises(ProtocolError, match="byte 1"):
        f.decode_string(b"a\xff")
    with pytest.raises(InvalidArgumentError):
        f.encode_string("\ud800")


#: ØMQ Raft protocol ("zmq frame body as a json") and facts §4.
JSON = [
    ("c0", None),
    ("932aa3666f6fc2", [42, "foo", False]),
    ("81a36d6f6fa3626565", {"moo": "bee"}),
    ("81a3626565a36d6f6f", {"bee": "moo"}),
    ("cd012c", 300),
    ("a133", "3"),
    ("93ce00010000ce0002c36c1e", [65536, 181100, 30]),
]


@pytest.mark.parametrize(("text", "value"), JSON)
def test_the_published_json_is_written_and_read(text: str, value: f.JsonValue) -> None:
    """Json is MessagePack, byte for byte as the peers write it."""
    assert f.encode_json(value).hex() == text
    assert f.decode_json(bytes.fromhex(text)) == value


def test_doubles_that_hold_integers_are_integers() -> None:
    """A Node 0.5.0 peer sends the index 2^31 as a double; it is an integer all the same, and at any depth."""
    index = f.decode_json(bytes.fromhex("cb41e0000000000000"))
    assert (index, type(index)) == (2**31, int)
    nested = f.decode_json(bytes.fromhex("91cb41e0000000000000"))
    assert isinstance(nested, list)
    assert type(nested[0]) is int
    assert f.decode_json(bytes.fromhex("cb3fe0000000000000")) == 0.5
    huge = f.decode_json(bytes.fromhex("cb4340000000000000"))
    assert (huge, type(huge)) == (2.0**53, float)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "c1",  # never used
        "92c0",  # an item is missing
        "c0c0",  # bytes behind the value
        "a2ff61",  # no UTF-8
        "c403666f6f",  # binary is not json
        "81c0c0",  # a name that is not text
        "8193010203c0",
        "d50102",  # an extension
        "d6ff00000000",  # a timestamp
        "cb7ff8000000000000",  # not a number
        "cbfff0000000000000",
        "cfffffffffffffffff",
        "dfffffffff",
        "ddffffffff",
        "91" * 33 + "c0",
        "91" * 100_000 + "c0",
    ],
)
def test_broken_json_is_refused(text: str) -> None:
    """Whatever a peer sends, reading json ends with a value or a ProtocolError."""
    with pytest.raises(ProtocolError):
        f.decode_json(bytes.fromhex(text))


@pytest.mark.parametrize("value", [b"x", {1: 2}, {"a": object()}, math.nan, math.inf, 2**53, {"\ud800": 1}, "\ud800"])
def test_what_json_does_not_know_is_not_sent(value: object) -> None:
    """Binary data, names that are not texts, and numbers that JavaScript cannot hold never become a frame."""
    with pytest.raises(InvalidArgumentError):
        f.encode_json(value)


@given(st.binary(max_size=60))
def test_any_bytes_are_json_or_a_protocol_error(frame: bytes) -> None:
    """No input makes the reader raise anything but ProtocolError."""
    for decode in (f.decode_json, f.decode_uint, f.decode_nuint, f.decode_string, f.decode_bool):
        with suppress(ProtocolError):
            decode(frame)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_json_is_read_as_it_was_written(value: f.JsonValue) -> None:
    """The JSON that we write is read alike by MessagePack's own reader and by ours."""
    frame = f.encode_json(value)
    assert f.decode_json(frame) == value
    assert msgpack.unpackb(frame) == value


@given(st.integers(0, 2**53 - 1))
def test_integers_are_read_as_they_were_written(number: int) -> None:
    """Integers round-trip in at most seven bytes, without padding."""
    frame = f.encode_uint(number)
    assert len(frame) <= 7
    assert len(frame) == 1 or frame[-1]
    assert f.decode_uint(frame) == f.decode_uint(memoryview(frame)) == number
