"""RESP3: the bytes of the published document and of the official SDKs, and how each type is written."""

from __future__ import annotations

import pytest

from statestore_client.wire.resp3 import (
    ErrorString,
    SimpleString,
    Value,
    encode,
    encode_array,
    encode_blob,
    encode_error,
    encode_null,
    encode_number,
    encode_simple,
)
from statestore_client.wire.resp3_decoder import decode

# state store protocol, "Request format", "Response format", "KEYNOTIFY ..."; official SDKs where the document has none.
PUBLISHED: list[tuple[bytes, Value]] = [
    (b"*3\r\n$3\r\nset\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n", (b"set", b"SETKEY2", b"VALUE5")),
    (b"*2\r\n$3\r\nget\r\n$7\r\nSETKEY2\r\n", (b"get", b"SETKEY2")),
    (b"*2\r\n$3\r\ndel\r\n$7\r\nSETKEY2\r\n", (b"del", b"SETKEY2")),
    (b"*3\r\n$4\r\nvdel\r\n$7\r\nSETKEY2\r\n$3\r\nABC\r\n", (b"vdel", b"SETKEY2", b"ABC")),
    (b"*2\r\n$9\r\nKEYNOTIFY\r\n$7\r\nSOMEKEY\r\n", (b"KEYNOTIFY", b"SOMEKEY")),
    (
        b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$3\r\nabc\r\n",
        (b"NOTIFY", b"SET", b"VALUE", b"abc"),
    ),
    (b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$0\r\n\r\n", (b"SET", b"key", b"")),
    (b"*2\r\n*0\r\n$3\r\n\x00\xffx\r\n", ((), b"\x00\xffx")),
    (b"*1\r\n*2\r\n$4\r\nkey1\r\n$4\r\nkey2\r\n", ((b"key1", b"key2"),)),
    (b"+OK\r\n", SimpleString("OK")),
    (b"$4\r\n1234\r\n", b"1234"),
    (b"$0\r\n\r\n", b""),
    (b"$-1\r\n", None),
    (b":1\r\n", 1),
    (b":0\r\n", 0),
    (b":-1\r\n", -1),
    (b"-ERR syntax error\r\n", ErrorString("ERR syntax error")),
    (b"-ERR \r\n", ErrorString("ERR ")),
]


@pytest.mark.parametrize(("data", "value"), PUBLISHED)
def test_published_bytes_are_read_and_written(data: bytes, value: Value) -> None:
    """The examples of the document and of the SDKs are read and written with their published bytes."""
    assert decode(data) == value
    assert encode(value) == data


def test_each_type_has_its_encoder() -> None:
    """The encoder of each single type gives the document's bytes."""
    assert encode_array((b"GET", b"SETKEY2")) == b"*2\r\n$3\r\nGET\r\n$7\r\nSETKEY2\r\n"
    assert encode_array(()) == b"*0\r\n"
    assert encode_blob(b"1234") == b"$4\r\n1234\r\n"
    assert encode_simple("OK") == b"+OK\r\n"
    assert encode_error("ERR syntax error") == b"-ERR syntax error\r\n"
    assert encode_number(-1) == b":-1\r\n"
    assert encode_null() == b"$-1\r\n"


def test_lines_cannot_be_smuggled_into_lines() -> None:
    """A text with CR or LF, or a number beyond 64 bits, is not written."""
    for text in ("a\r\nb", "\r", "\n"):
        with pytest.raises(ValueError, match="CR or LF"):
            encode_simple(text)
        with pytest.raises(ValueError, match="CR or LF"):
            encode_error(text)
    with pytest.raises(ValueError, match="64 bits"):
        encode_number(2**63)
