"""Commands: the exact bytes that the official SDKs and the document's examples send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.errors import (
    RequestSyntaxError,
    Resp3Error,
    ServerError,
    UnknownCommandError,
    WrongArgumentCountError,
)
from statestore_client.wire.commands import (
    MAX_EXPIRY_MS,
    Command,
    Condition,
    Del,
    Get,
    KeyNotify,
    Scan,
    Set,
    VDel,
    decode_command,
    encode_payload,
    is_key_notify,
)
from statestore_client.wire.protocol import Dialect
from statestore_client.wire.resp3 import Decoder

NX, NEX = Condition.NX, Condition.NEX

SDK_BYTES: list[tuple[bytes, Command]] = [
    (b"*3\r\n$3\r\nSET\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n", Set(b"SETKEY2", b"VALUE5")),
    (b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$0\r\n\r\n", Set(b"key", b"")),
    (b"*4\r\n$3\r\nSET\r\n$7\r\ntestkey\r\n$9\r\ntestvalue\r\n$2\r\nNX\r\n", Set(b"testkey", b"testvalue", NX)),
    (b"*4\r\n$3\r\nSET\r\n$7\r\ntestkey\r\n$9\r\ntestvalue\r\n$3\r\nNEX\r\n", Set(b"testkey", b"testvalue", NEX)),
    (
        b"*5\r\n$3\r\nSET\r\n$7\r\ntestkey\r\n$9\r\ntestvalue\r\n$2\r\nPX\r\n$2\r\n10\r\n",
        Set(b"testkey", b"testvalue", expiry_ms=10),
    ),
    (
        b"*6\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n$2\r\nNX\r\n$2\r\nPX\r\n$4\r\n1000\r\n",
        Set(b"key", b"value", NX, 1000),
    ),
    (
        b"*6\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n$3\r\nNEX\r\n$2\r\nPX\r\n$4\r\n1000\r\n",
        Set(b"key", b"value", NEX, 1000),
    ),
    (b"*2\r\n$3\r\nGET\r\n$7\r\nSETKEY2\r\n", Get(b"SETKEY2")),
    (b"*2\r\n$3\r\nDEL\r\n$7\r\nSETKEY2\r\n", Del(b"SETKEY2")),
    (b"*3\r\n$4\r\nVDEL\r\n$7\r\nSETKEY2\r\n$3\r\nABC\r\n", VDel(b"SETKEY2", b"ABC")),
    (b"*2\r\n$9\r\nKEYNOTIFY\r\n$7\r\nsomeKey\r\n", KeyNotify(b"someKey")),
    (b"*3\r\n$9\r\nKEYNOTIFY\r\n$7\r\nsomeKey\r\n$4\r\nSTOP\r\n", KeyNotify(b"someKey", stop=True)),
    (b"*2\r\n$4\r\nSCAN\r\n$4\r\nkey*\r\n", Scan(b"key*")),
    (b"*3\r\n$4\r\nSCAN\r\n$4\r\nkey*\r\n$3\r\n\x00\xffx\r\n", Scan(b"key*", b"\x00\xffx")),
]


@pytest.mark.parametrize(("data", "command"), SDK_BYTES)
def test_sdk_bytes_are_read_and_written(data: bytes, command: Command) -> None:
    """Both dialects read the bytes that the official SDKs send, and our client sends the same bytes."""
    assert decode_command(data, Dialect.SERVICE) == command
    assert decode_command(data, Dialect.DOCUMENT) == command
    assert command.encode() == data


DOCUMENT_EXAMPLES: list[tuple[bytes, Command]] = [
    (b"*3\r\n$3\r\nset\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n", Set(b"SETKEY2", b"VALUE5")),
    (b"*2\r\n$3\r\nget\r\n$7\r\nSETKEY2\r\n", Get(b"SETKEY2")),
    (b"*2\r\n$3\r\ndel\r\n$7\r\nSETKEY2\r\n", Del(b"SETKEY2")),
    (b"*3\r\n$4\r\nvdel\r\n$7\r\nSETKEY2\r\n$3\r\nABC\r\n", VDel(b"SETKEY2", b"ABC")),
]


@pytest.mark.parametrize(("data", "command"), DOCUMENT_EXAMPLES)
def test_the_documents_lower_case_examples(data: bytes, command: Command) -> None:
    """The document's dialect reads its lower-case examples; the service's dialect insists on upper case."""
    assert decode_command(data, Dialect.DOCUMENT) == command
    with pytest.raises(UnknownCommandError):
        decode_command(data, Dialect.SERVICE)


def request(*items: bytes) -> bytes:
    """An array of blobs, written here and not by the code under test."""
    return b"*%d\r\n" % len(items) + b"".join(b"$%d\r\n%b\r\n" % (len(item), item) for item in items)


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ((b"NEX",), Set(b"k", b"v", NEX)),
        ((b"NEX", b"old"), Set(b"k", b"v", NEX, expected=b"old")),
        ((b"NEX", b"PX", b"10000"), Set(b"k", b"v", NEX, 10_000)),
        ((b"NEX", b"old", b"PX", b"7"), Set(b"k", b"v", NEX, 7, b"old")),
        ((b"NEX", b"PX", b"PX", b"7"), Set(b"k", b"v", NEX, 7, b"PX")),
        ((b"NEX", b"PX"), Set(b"k", b"v", NEX, expected=b"PX")),
        ((b"PX", b"7", b"NEX", b"old"), Set(b"k", b"v", NEX, 7, b"old")),
        ((b"PX", b"7", b"NEX"), Set(b"k", b"v", NEX, 7)),
        ((b"PX", b"7", b"NX"), Set(b"k", b"v", NX, 7)),
    ],
)
def test_set_options_of_the_document(options: tuple[bytes, ...], command: Set) -> None:
    """The document's dialect reads ``NEX`` with a value (its list) or without (its lock example), and PX before or
    after it."""
    assert decode_command(request(b"SET", b"k", b"v", *options), Dialect.DOCUMENT) == command


def test_the_value_of_nex_stands_between_nex_and_px() -> None:
    """``NEX value PX`` is written in the order of the document's rules (state store protocol, "SET options", "Request
    format"); its dialect reads that, and the service's dialect refuses it, since no official SDK sends it."""
    data = (
        b"*7\r\n$3\r\nSET\r\n$8\r\nLockName\r\n$7\r\nClient2\r\n"
        b"$3\r\nNEX\r\n$7\r\nClient1\r\n$2\r\nPX\r\n$5\r\n10000\r\n"
    )
    command = Set(b"LockName", b"Client2", NEX, 10_000, b"Client1")
    assert decode_command(data, Dialect.DOCUMENT) == command
    assert command.encode() == data
    with pytest.raises(WrongArgumentCountError):
        decode_command(data, Dialect.SERVICE)
    short = b"*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n$3\r\nNEX\r\n$0\r\n\r\n"
    assert decode_command(short, Dialect.DOCUMENT) == Set(b"k", b"v", NEX, expected=b"")
    with pytest.raises(RequestSyntaxError):
        decode_command(short, Dialect.SERVICE)


def test_the_mark_of_persistence_is_not_in_the_payload() -> None:
    """The mark of persistence is a user property and not part of the payload (state store facts, 1.1)."""
    assert Set(b"k", b"v", persist=True).encode() == Set(b"k", b"v").encode() == request(b"SET", b"k", b"v")


def test_px_may_come_first_in_the_service_dialect() -> None:
    """The service's dialect reads PX before the condition too, although the SDKs write the condition first."""
    assert decode_command(request(b"SET", b"k", b"v", b"PX", b"5", b"NEX")) == Set(b"k", b"v", NEX, 5)


@pytest.mark.parametrize(
    ("text", "expiry_ms"),
    [(b"1", 1), (b"1.5", 2), (b"1000.0", 1000), (b"0.5", 1), (b"%d" % MAX_EXPIRY_MS, MAX_EXPIRY_MS)],
)
def test_px_may_be_a_double(text: bytes, expiry_ms: int) -> None:
    """A fractional PX, as the .NET SDK may print it, is rounded up to whole milliseconds."""
    assert decode_command(request(b"SET", b"k", b"v", b"PX", text)) == Set(b"k", b"v", expiry_ms=expiry_ms)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"GET key",
        b"*2\r\n$3\r\nGET\r\n",
        b"*2\r\n$3\r\nGET\r\n$9\r\nkey\r\n",
        b"*99999999999999999999\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"$3\r\nGET\r\n",
        b"+GET\r\n",
        b"*2\r\n$3\r\nGET\r\n:1\r\n",
        b"*2\r\n$3\r\nGET\r\n$-1\r\n",
        b"*2\r\n+GET\r\n$1\r\nk\r\n",
        b"*1\r\n*1\r\n$3\r\nGET\r\n",
        request(b"GET", b"k") + b"x",
        *(request(b"SET", b"k", b"v", option) for option in (b"nx", b"XX", b"", b"PX")),
        *(request(b"SET", b"k", b"v", b"NX", more) for more in (b"NX", b"NEX", b"old")),
        request(b"SET", b"k", b"v", b"NEX", b"old"),
        request(b"SET", b"k", b"v", b"PX", b"5", b"PX"),
        *(request(b"SET", b"k", b"v", b"PX", ms) for ms in (b"0", b"-5", b"+5", b"5s", b"", b" 5", b"1e3")),
        *(request(b"SET", b"k", b"v", b"PX", ms) for ms in (b"9223372036854775808", b"9" * 5000)),
        request(b"KEYNOTIFY", b"k", b"GET"),
        request(b"KEYNOTIFY", b"k", b"stop"),
    ],
)
def test_syntax_errors(payload: bytes) -> None:
    """Illegal RESP3, an integer overflow and an unknown option are syntax errors."""
    with pytest.raises(RequestSyntaxError):
        decode_command(payload, Dialect.SERVICE)


@pytest.mark.parametrize("verb", [b"set", b"Set", b"PING", b"MGET", b"", b"SET ", b"NOTIFY", b"\xff\x00"])
def test_unknown_commands(verb: bytes) -> None:
    """Any verb but the six known ones is an unknown command, with whatever number of arguments."""
    for arguments in ((), (b"k",), (b"k", b"v", b"NX")):
        with pytest.raises(UnknownCommandError):
            decode_command(request(verb, *arguments), Dialect.SERVICE)


def test_the_document_dialect_reads_no_mixed_case() -> None:
    """The document's dialect refuses ``Set``: its examples are lower case and its text asks for upper case."""
    with pytest.raises(UnknownCommandError):
        decode_command(request(b"Set", b"k", b"v"), Dialect.DOCUMENT)


@pytest.mark.parametrize(
    "items",
    [
        *((b"SET",), (b"SET", b"k"), (b"SET", b"k", b"v", b"NX", b"PX", b"5", b"x")),
        *(
            (b"GET",),
            (b"GET", b"k", b"x"),
            (b"DEL",),
            (b"DEL", b"k", b"x"),
            (b"VDEL", b"k"),
            (b"VDEL", b"k", b"v", b"x"),
        ),
        *((b"KEYNOTIFY",), (b"KEYNOTIFY", b"k", b"STOP", b"x"), (b"SCAN",), (b"SCAN", b"*", b"t", b"x")),
    ],
)
def test_wrong_numbers_of_arguments(items: tuple[bytes, ...]) -> None:
    """Each verb refuses a wrong number of arguments."""
    with pytest.raises(WrongArgumentCountError):
        decode_command(request(*items), Dialect.SERVICE)


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("verb", [b"SET", b"KEYNOTIFY", b"NONE"])
@pytest.mark.parametrize("count", [8, 16, 1_048_570, 2**62])
def test_more_words_than_any_command_has_are_refused_at_the_first_line(
    dialect: Dialect, verb: bytes, count: int
) -> None:
    """What follows an array of more than seven words is not looked at: it need not even be there."""
    for rest in (b"", b"$%d\r\n%b\r\n" % (len(verb), verb)):
        payload = b"*%d\r\n%b" % (count, rest)
        with pytest.raises(WrongArgumentCountError):
            decode_command(payload, dialect)
        assert not is_key_notify(payload)


@pytest.mark.parametrize("dialect", Dialect)
def test_arrays_among_the_words_are_refused_at_their_first_line(dialect: Dialect) -> None:
    """Elements of inner arrays count as words, so that they cost nothing either: what does not follow is not missed."""
    for payload in (b"*2\r\n*1000000\r\n$0\r\n", b"*7\r\n*1\r\n"):
        with pytest.raises(RequestSyntaxError) as refusal:
            decode_command(payload, dialect)
        assert "incomplete" not in str(refusal.value.__cause__)


def test_keynotify_get_of_the_document() -> None:
    """The document's example of a notification asks for values with GET; they are sent in any case."""
    assert decode_command(request(b"KEYNOTIFY", b"k", b"GET"), Dialect.DOCUMENT) == KeyNotify(b"k")
    with pytest.raises(RequestSyntaxError):
        decode_command(request(b"KEYNOTIFY", b"k", b"VALUE"), Dialect.DOCUMENT)


blobs = st.binary(max_size=30)
commands = st.one_of(
    st.builds(Set, blobs, blobs, st.sampled_from([None, NX, NEX]), st.none() | st.integers(1, MAX_EXPIRY_MS)),
    st.builds(Get, blobs),
    st.builds(Del, blobs),
    st.builds(VDel, blobs, blobs),
    st.builds(KeyNotify, blobs, stop=st.booleans()),
    st.builds(Scan, blobs, st.none() | blobs),
)


@given(commands, st.sampled_from(Dialect))
def test_any_command_survives_the_round_trip(command: Command, dialect: Dialect) -> None:
    """A command with arbitrary bytes as key and value survives being written and read."""
    assert decode_command(command.encode(), dialect) == command


@given(
    st.binary(max_size=80)
    | st.lists(st.sampled_from([b"SET", b"k", b"NX", b"NEX", b"PX", b"1", b""]), max_size=8).map(
        lambda items: request(*items)
    ),
    st.sampled_from(Dialect),
)
def test_any_payload_is_read_or_refused(payload: bytes, dialect: Dialect) -> None:
    """Any payload is read as a command or refused with one of the server's own errors."""
    refusals: list[str] = []
    try:
        decode_command(payload, dialect)
    except ServerError as error:
        refusals.append(error.wire_text)
    assert set(refusals) <= {"syntax error", "unknown command", "wrong number of arguments"}


def damaged(payload: bytes, position: int, replacement: bytes) -> bytes:
    position %= len(payload)
    return payload[:position] + replacement + payload[position + 1 :]


short_sets = st.builds(
    lambda key, value: b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(key), key, len(value), value),
    st.binary(max_size=20) | st.sampled_from([b"\r\n", b"a\r\n$1\r\nb", b"k" * 1023, b"k" * 1024]),
    st.binary(max_size=20) | st.sampled_from([b"\r\n", b"\r\n\r\n", b"v" * 1023, b"v" * 1024]),
)


@given(
    short_sets,
    st.integers(0, 100),
    st.sampled_from([b"", b"\r", b"\n", b"\r\n", b"0", b"1", b"9", b"-", b"+", b" ", b"$", b"*", b"S", b"s"]),
    st.sampled_from(Dialect),
)
def test_a_short_set_is_read_as_the_resp3_parser_reads_it(
    payload: bytes, position: int, replacement: bytes, dialect: Dialect
) -> None:
    """The fast path for a short SET reads what the RESP3 parser reads when it gets the payload in two pieces."""
    for data in (payload, damaged(payload, position, replacement)):
        decoder = Decoder()
        decoder.feed(data[:5])
        decoder.feed(data[5:])
        try:
            items = decoder.next()
        except Resp3Error:
            items = None
        is_set = isinstance(items, tuple) and len(items) == 3 and items[0] == b"SET" and not decoder.buffered
        try:
            command = decode_command(data, dialect)
        except ServerError:
            assert not is_set
        else:
            assert not isinstance(command, Set) or (is_set and items == (b"SET", command.key, command.value))


def test_a_large_value_is_a_piece_of_its_own() -> None:
    """A large value is sent as a piece of its own, and the pieces joined are the bytes of the usual encoding."""
    value = b"v" * 65_536
    start = b"*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$65536\r\n"
    pieces = encode_payload(Set(b"k", value, expiry_ms=10))
    assert pieces == (start, value, b"\r\n$2\r\nPX\r\n$2\r\n10\r\n")
    assert pieces[1] is value
    assert encode_payload(Set(b"k", value[:-1])) == b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$65535\r\n" + value[:-1] + b"\r\n"
    assert encode_payload(Get(b"k")) == b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
