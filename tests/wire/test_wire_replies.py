"""Replies: strict in what is written, per dialect; liberal in what is read."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client import errors
from statestore_client.errors import FencingTokenTooOldError, RequestSyntaxError, Resp3Error, UnknownServerError
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.protocol import Dialect
from statestore_client.wire.replies import (
    COUNT_0,
    COUNT_1,
    MISSING,
    NOT_APPLIED,
    OK,
    Count,
    Entries,
    ErrorReply,
    Found,
    KeyEntry,
    Keys,
    Reply,
    decode_reply,
    encode_reply,
)
from statestore_client.wire.resp3 import encode_array, encode_blob

SERVICE_BYTES: list[tuple[bytes, Reply]] = [
    (b"+OK\r\n", OK),
    (b":-1\r\n", NOT_APPLIED),
    (b"$4\r\n1234\r\n", Found(b"1234")),
    (b"$0\r\n\r\n", Found(b"")),
    (b"$-1\r\n", MISSING),
    (b":1\r\n", COUNT_1),
    (b":0\r\n", COUNT_0),
    (b"*1\r\n*2\r\n$4\r\nkey1\r\n$4\r\nkey2\r\n", Keys((b"key1", b"key2"))),
    (b"*2\r\n*0\r\n$3\r\n\x00\xffx\r\n", Keys((), b"\x00\xffx")),
]


@pytest.mark.parametrize(("data", "reply"), SERVICE_BYTES)
def test_service_bytes_are_read_and_written(data: bytes, reply: Reply) -> None:
    """The replies that the official SDKs' unit tests accept are read, and written by the service's dialect."""
    assert decode_reply(data) == reply
    assert encode_reply(reply, Dialect.SERVICE) == data


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (b"+OK\r\n", OK),
        (b"-1\r\n", NOT_APPLIED),
        (b"$-1\r\n", MISSING),
        (b"$4\r\n1234\r\n", Found(b"1234")),
        (b":1\r\n", COUNT_1),
        (b":0\r\n", COUNT_0),
    ],
)
def test_the_documents_bytes_are_read_and_written(data: bytes, reply: Reply) -> None:
    """The document's dialect writes replies to the document's letter, and they are read."""
    assert decode_reply(data) == reply
    assert encode_reply(reply, Dialect.DOCUMENT) == data


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (b"_\r\n", MISSING),
        (b"-1", NOT_APPLIED),
        (b":-1", NOT_APPLIED),
        (b"$-1", MISSING),
        (b"+OK", OK),
        (b":1", COUNT_1),
        (b"$4\r\n1234", Found(b"1234")),
        (b":6\r\n", Count(6)),
        (b"*1\r\n*0\r\n", Keys(())),
    ],
)
def test_what_else_is_understood(data: bytes, reply: Reply) -> None:
    """The client also reads replies without the last CRLF, RESP3's null, and a count of several deletions."""
    assert decode_reply(data) == reply


VERSION = HlcTimestamp(1_696_374_425_000, 1, "StateStore")


@pytest.mark.parametrize("token", [None, b"", b"\x00\xff"])
@pytest.mark.parametrize(
    "entries",
    [
        (),
        (KeyEntry(b"k", b"", VERSION), KeyEntry(b"\xff\r\n", b"a\r\nb", VERSION, 5, HlcTimestamp(1, 2, "me"), 3)),
    ],
)
def test_pages_of_entries(entries: tuple[KeyEntry, ...], token: bytes | None) -> None:
    """A page of entries is read as it was written, whatever bytes are in it."""
    page = Entries(entries, token)
    assert decode_reply(encode_reply(page)) == page


@pytest.mark.parametrize(
    "data",
    [
        b"*1\r\n$7\r\nENTRIES\r\n",
        b"*2\r\n$7\r\nENTRIES\r\n$1\r\nx\r\n",
        b"*3\r\n$7\r\nENTRIES\r\n*0\r\n:1\r\n",
        b"*2\r\n$7\r\nENTRIES\r\n*1\r\n:1\r\n",
        b"*2\r\n$7\r\nENTRIES\r\n*1\r\n$1\r\nx\r\n",
        encode_array((b"ENTRIES", b"x")),
        b"*2\r\n$7\r\nENTRIES\r\n*1\r\n" + encode_blob(encode_array([b"k", b"v", b"1:0:a", b"x", b"", b"0"])),
        b"*2\r\n$7\r\nENTRIES\r\n*1\r\n" + encode_blob(encode_array([b"k", b"v", b"now", b"", b"", b"0"])),
        b"*2\r\n$7\r\nENTRIES\r\n*1\r\n" + encode_blob(encode_array([b"k", b"v", b"1:0:a", b"", b"\xff", b"0"])),
    ],
)
def test_malformed_pages_of_entries_are_refused(data: bytes) -> None:
    """What is no page of entries is refused as malformed, whatever is wrong with it."""
    with pytest.raises(Resp3Error):
        decode_reply(data)


WIRE_TEXTS = [
    (
        "the request timestamp is too far in the future; "
        "ensure that the client and broker system clocks are synchronized",
        errors.RequestClockSkewError,
    ),
    ("a fencing token is required for this request", errors.FencingTokenRequiredError),
    (
        "the request fencing token timestamp is too far in the future; "
        "ensure that the client and broker system clocks are synchronized",
        errors.FencingTokenClockSkewError,
    ),
    (
        "the request fencing token is a lower version than the fencing token protecting the resource",
        errors.FencingTokenTooOldError,
    ),
    ("the quota has been exceeded", errors.QuotaExceededError),
    ("syntax error", errors.RequestSyntaxError),
    ("not authorized", errors.NotAuthorizedError),
    ("unknown command", errors.UnknownCommandError),
    ("wrong number of arguments", errors.WrongArgumentCountError),
    ("missing timestamp", errors.MissingTimestampError),
    ("malformed timestamp", errors.MalformedTimestampError),
    ("the key length is zero", errors.EmptyKeyError),
]


@pytest.mark.parametrize(("text", "kind"), WIRE_TEXTS)
def test_each_error_string_is_its_class(text: str, kind: type[errors.ServerError]) -> None:
    """Each of the twelve error texts is read as its class in every form it may arrive in, and written as the service
    sends it."""
    for payload in (f"-ERR {text}\r\n", f"-ERR {text}", f"-ERR: {text}\r\n", f"-ERR: {text}"):
        reply = decode_reply(payload.encode())
        assert isinstance(reply, ErrorReply)
        assert type(reply.error) is kind
    assert encode_reply(ErrorReply(kind()), Dialect.SERVICE) == f"-ERR {text}\r\n".encode()


def test_the_documents_misspelling_is_read() -> None:
    """The document's misspelling "version that" is read as the same error as "version than"."""
    text = "the request fencing token is a lower version that the fencing token protecting the resource"
    reply = decode_reply(f"-ERR {text}\r\n".encode())
    assert isinstance(reply, ErrorReply)
    assert type(reply.error) is FencingTokenTooOldError
    assert encode_reply(ErrorReply(FencingTokenTooOldError()), Dialect.DOCUMENT) == f"-ERR {text}".encode()


def test_refusals_in_the_documents_dialect() -> None:
    """The document's dialect refuses with ``-ERR text`` without CRLF, and a KEYNOTIFY with ``-ERR: text`` and CRLF."""
    refused = ErrorReply(RequestSyntaxError())
    assert encode_reply(refused, Dialect.DOCUMENT) == b"-ERR syntax error"
    assert encode_reply(refused, Dialect.DOCUMENT, to_key_notify=True) == b"-ERR: syntax error\r\n"
    assert encode_reply(refused, Dialect.SERVICE, to_key_notify=True) == b"-ERR syntax error\r\n"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"-ERR something new\r\n", "something new"),
        (b"-ERR: oops\r\n", "oops"),
        (b"-ERR \r\n", ""),
        (b"-ERR\r\n", ""),
        (b"-ERR:\r\n", ""),
        (b"-WRONGTYPE no such thing\r\n", "WRONGTYPE no such thing"),
        (b"-ERRATIC\r\n", "ERRATIC"),
    ],
)
def test_unknown_errors_keep_their_text(data: bytes, text: str) -> None:
    """An unknown error keeps its text, so that a client can handle errors of a later server."""
    reply = decode_reply(data)
    assert isinstance(reply, ErrorReply)
    assert type(reply.error) is UnknownServerError
    assert reply.error.message == text


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\r\n", b"1", b"11\r\nhello world\r\n", b"$11hello world\r\n"),
        *(b"$not an integer\r\nhello world\r\n", b"$10\r\nhello world\r\n", b"$12\r\nhello world", b":"),
        *(b":not an integer\r\n", b"+hello world\r\n", b"+", b"OK\r\n", b":-2\r\n", b"*-1\r\n", b"*0\r\n"),
        *(b"*3\r\n*0\r\n$1\r\na\r\n$1\r\nb\r\n", b"*1\r\n*-1\r\n", b"*1\r\n*1\r\n$-1\r\n", b"*1\r\n$1\r\na\r\n"),
        *(b"*2\r\n*0\r\n:1\r\n", b"*2\r\n*0\r\n$-1\r\n", b"*1\r\n*1\r\n:1\r\n", b"*1\r\n*0\r\nx"),
        b"*1\r\n*1\r\n$1\r\na",
    ],
)
def test_what_is_no_reply(data: bytes) -> None:
    """A reply that the Rust SDK's unit tests reject, or that answers no command, is refused."""
    with pytest.raises(Resp3Error):
        decode_reply(data)


@given(st.binary(max_size=60))
def test_any_payload_is_a_reply_or_a_resp3_error(data: bytes) -> None:
    """Any payload is read as a reply or refused with a RESP3 error."""
    with suppress(Resp3Error):
        decode_reply(data)


@given(
    st.one_of(
        st.sampled_from([OK, MISSING, NOT_APPLIED]),
        st.builds(Found, st.binary(max_size=40)),
        st.builds(Count, st.integers(0, 2**63 - 1)),
        st.builds(Keys, st.lists(st.binary(max_size=9), max_size=5).map(tuple), st.none() | st.binary(max_size=9)),
    ),
    st.sampled_from(Dialect),
)
def test_any_reply_survives_the_round_trip(reply: Reply, dialect: Dialect) -> None:
    """Any reply survives being written and read in both dialects."""
    assert decode_reply(encode_reply(reply, dialect)) == reply


def test_a_large_value_is_read_from_memory_of_the_driver() -> None:
    """The bytes of a large value are copied out of the driver's memory, which may be used again; smaller parts are read
    as usual."""
    memory = bytearray(b"$100000\r\n" + b"v" * 100_000 + b"\r\n")
    reply = decode_reply(memoryview(memory))
    memory[:] = bytes(len(memory))
    assert reply == Found(b"v" * 100_000)
    for text in (b"$099999\r\n", b"$100001\r\n", b"+", b":"):
        data = text + b"v" * 100_000 + b"\r\n"
        outcomes = []
        for payload in (data, memoryview(data)):
            try:
                outcomes.append(decode_reply(payload))
            except Resp3Error as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
