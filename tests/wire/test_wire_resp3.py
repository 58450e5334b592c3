"""RESP3: the bytes of the published document and of the official SDKs, what is refused and where, limits, and streams
that are cut anywhere."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statestore_client.errors import Resp3Error
from statestore_client.wire.resp3 import (
    DEFAULT_LIMITS,
    NEED_DATA,
    Decoder,
    ErrorString,
    Limits,
    SimpleString,
    Value,
    decode,
    encode,
    encode_array,
    encode_error,
    encode_number,
    encode_simple,
)

# state store protocol, "Request format", "Response format", "KEYNOTIFY ..."; official SDKs where the document has none.
PUBLISHED: list[tuple[bytes, Value]] = [
    (b"*3\r\n$3\r\nset\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n", (b"set", b"SETKEY2", b"VALUE5")),
    (b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$3\r\nabc\r\n", (b"NOTIFY", b"SET", b"VALUE", b"abc")),
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


def test_lines_cannot_be_smuggled_into_lines() -> None:
    """A text with CR or LF, or a number beyond 64 bits, is not written."""
    for text in ("a\r\nb", "\r", "\n"):
        with pytest.raises(ValueError, match="CR or LF"):
            encode_simple(text)
        with pytest.raises(ValueError, match="CR or LF"):
            encode_error(text)
    with pytest.raises(ValueError, match="64 bits"):
        encode_number(2**63)


@pytest.mark.parametrize(("data", "value"), [(b"_\r\n", None), (b"*-1\r\n", None), (b"*0\r\n", ())])
def test_other_nulls_and_empty_arrays_are_read(data: bytes, value: Value) -> None:
    """RESP3's own null and RESP2's null array are read as null."""
    assert decode(data) == value


# The rejects of the official Rust SDK's unit tests that are not RESP3 at all, then ours.
MALFORMED: list[tuple[bytes, int]] = [
    (b"1", 0),
    (b"11\r\nhello world\r\n", 0),
    (b"$11hello world\r\n", 1),
    (b"$11\r\nhello world", 16),
    (b"$not an integer\r\nhello world\r\n", 1),
    (b"$10\r\nhello world\r\n", 15),
    (b"$12\r\nhello world\r\n", 18),
    (b"-ERR description", 16),
    (b":", 1),
    (b":1234", 5),
    (b":not an integer\r\n", 1),
    (b"+", 1),
    (b"OK\r\n", 0),
    (b"+OK", 3),
    (b"", 0),
    (b"\r\n", 0),
    (b"*\r\n", 1),
    (b"$\r\n\r\n", 1),
    (b":\r\n", 1),
    (b":+1\r\n", 1),
    (b":01\r\n", 1),
    (b":-0\r\n", 1),
    (b":1_0\r\n", 1),
    (b": 1\r\n", 1),
    (b":1.5\r\n", 1),
    (b":9223372036854775808\r\n", 1),
    (b":-9223372036854775809\r\n", 1),
    (b"$-2\r\n", 1),
    (b"*-2\r\n", 1),
    (b"$03\r\nabc\r\n", 1),
    (b"$99999999999999999999999999999999\r\n", 1),
    (b"*99999999999999999999999999999999\r\n", 1),
    (b"_x\r\n", 1),
    (b"+O\rK\r\n", 2),
    (b"+O\nK\r\n", 2),
    (b"+\xff\r\n", 1),
    (b"-a\xc3\r\n", 2),
    (b"$3\r\nabcX\r\n", 7),
    (b"$3\r\nabc\rX", 7),
    (b"$3\nabc\r\n", 1),
    (b"*2\r\n$3\r\nGET\r\n", 13),
    (b"*2\r\n$3\r\nGET\r\n$3\r\nab\r\n", 21),
    (b"*1\r\n$3\r\nGET\r\n$1\r\nx\r\n", 13),
    (b"+OK\r\n ", 5),
    (b"+OK\r\n+OK\r\n", 5),
    (b"%1\r\n+a\r\n+b\r\n", 0),
    (b"#t\r\n", 0),
    (b",1.5\r\n", 0),
]


@pytest.mark.parametrize(("data", "offset"), MALFORMED)
def test_malformed_input_names_the_byte(data: bytes, offset: int) -> None:
    """Whatever is not RESP3 raises Resp3Error with the offset at which it stopped making sense."""
    with pytest.raises(Resp3Error) as caught:
        decode(data)
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    ("data", "limits", "message"),
    [
        (b"$5\r\nabcde\r\n", Limits(max_bytes=10), "more than 10 bytes"),
        (b"+abcdefgh\r\n", Limits(max_bytes=10), "more than 10 bytes"),
        (b"*2\r\n*2\r\n:1\r\n:2\r\n:3\r\n", Limits(max_items=3), "more than 3 elements"),
        (b"*1\r\n*1\r\n*1\r\n:1\r\n", Limits(max_depth=2), "deeper than 2"),
        (b"*1\r\n$1\r\nx\r\n", Limits(max_depth=0), "deeper than 0"),
        (b"+abcdef\r\n", Limits(max_line=5), "more than 5 bytes"),
        (b"-abcdef\r\n", Limits(max_line=5), "more than 5 bytes"),
    ],
)
def test_every_limit_holds(data: bytes, limits: Limits, message: str) -> None:
    """Size, count, depth and line length are each bounded."""
    decode(data)
    with pytest.raises(Resp3Error, match=message):
        decode(data, limits=limits)


def test_values_at_the_limit_pass() -> None:
    """A value that is exactly at a limit is read."""
    assert decode(b"$5\r\nabcde\r\n", limits=Limits(max_bytes=11)) == b"abcde"
    assert decode(b"+abcde\r\n", limits=Limits(max_line=5)) == SimpleString("abcde")
    assert decode(b"*1\r\n*1\r\n:1\r\n", limits=Limits(max_depth=2, max_items=2)) == ((1,),)


def test_a_limit_is_seen_before_the_bytes_arrive() -> None:
    """A stream that announces too much is refused at its header, before the bytes arrive."""
    decoder = Decoder(Limits(max_bytes=1000))
    decoder.feed(b"$1000000\r\n")
    with pytest.raises(Resp3Error, match="more than 1000 bytes"):
        decoder.next()
    decoder = Decoder(Limits(max_line=100))
    decoder.feed(b"+" + b"x" * 200)
    with pytest.raises(Resp3Error, match="more than 100 bytes"):
        decoder.next()


# -- properties -------------------------------------------------------------------------------------------------------

lines = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=30)
scalars = st.one_of(
    st.binary(max_size=60),
    st.just(b"\r\n$3\r\n"),
    st.binary(min_size=1000, max_size=1100),
    lines.map(SimpleString),
    lines.map(ErrorString),
    st.integers(-(2**63), 2**63 - 1),
    st.none(),
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=9).map(tuple), max_leaves=20)


def collect(data: bytes, cuts: list[int]) -> list[Value | str]:
    """What a Decoder makes of a stream that is cut at these places; an error is its text."""
    decoder = Decoder()
    collected: list[Value | str] = []
    places = sorted(cut % (len(data) + 1) for cut in cuts)
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        decoder.feed(data[start:end])
        try:
            while (value := decoder.next()) is not NEED_DATA:
                collected.append(value)
        except Resp3Error as error:
            return [*collected, str(error)]
    return [*collected, f"{decoder.buffered} bytes wait"]


@given(values)
def test_any_value_survives_the_round_trip(value: Value) -> None:
    """Any value is read back from the bytes it is written as."""
    assert decode(encode(value)) == value


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8))
def test_the_short_cut_reads_what_the_parser_reads(items: list[bytes]) -> None:
    """The fast path for requests and the stream decoder, which does not use it, read the same values."""
    data = encode_array(items)
    decoder = Decoder()
    decoder.feed(data)
    assert decode(data) == decoder.next() == tuple(items)


@given(st.binary(max_size=60), st.lists(st.integers(0, 1000), max_size=5))
@example(b"*1\r\n$3\r\nab\r\n\r\n", [])
@example(b"$1\r\n\r\n\r\n", [])
def test_arbitrary_bytes_raise_nothing_but_resp3error(data: bytes, cuts: list[int]) -> None:
    """Random bytes give a value or Resp3Error, and the two decoders agree on which of them."""
    collected = collect(data, cuts)
    if len(collected) == 2 and collected[1] == "0 bytes wait":
        assert decode(data) == collected[0]
    else:
        with pytest.raises(Resp3Error) as caught:
            decode(data)
        assert 0 <= caught.value.offset <= len(data)


grammar = st.lists(
    st.sampled_from(
        [b"*", b"$", b":", b"+", b"-", b"_", b"\r\n", b"\r", b"1", b"2", b"-1", b"3", b"abc", b"0", b"\xff"]
    ),
    max_size=20,
).map(b"".join)


@given(grammar, st.lists(st.integers(0, 1000), max_size=8))
def test_chunks_do_not_matter(data: bytes, cuts: list[int]) -> None:
    """A stream gives the same values and the same error however it is cut into chunks."""
    assert collect(data, cuts) == collect(data, list(range(len(data) + 1))) == collect(data, [])


@given(st.lists(values, max_size=5), st.lists(st.integers(0, 100_000), max_size=8))
def test_a_stream_of_values_comes_out_in_order(stream: list[Value], cuts: list[int]) -> None:
    """Several values in one stream come out one by one, in order."""
    assert collect(b"".join(map(encode, stream)), cuts) == [*stream, "0 bytes wait"]


@given(values, st.data())
def test_a_flipped_byte_does_no_other_harm(value: Value, data: st.DataObject) -> None:
    """A flipped byte gives another value or Resp3Error, and no other exception."""
    damaged = bytearray(encode(value))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Resp3Error):
        decode(bytes(damaged))


def test_an_error_stays() -> None:
    """After a malformed value the stream stays in its error; the values before it were returned."""
    decoder = Decoder()
    decoder.feed(b"+OK\r\n!")
    assert decoder.next() == SimpleString("OK")
    for _ in range(2):
        with pytest.raises(Resp3Error, match="no RESP3 type"):
            decoder.next()
    decoder.feed(b"+OK\r\n")
    with pytest.raises(Resp3Error):
        decoder.next()


@pytest.mark.parametrize("kind", [b"$200000\r\n", b"*1\r\n$200000\r\n", b"+"])
def test_small_pieces_cost_no_more_than_large_ones(kind: bytes) -> None:
    """A large value that arrives in small pieces is not read again with every piece."""
    data = kind + b"x" * (60_000 if kind == b"+" else 200_000) + b"\r\n"
    decoder = Decoder(DEFAULT_LIMITS)
    started = time.process_time()
    value: object = NEED_DATA
    for position in range(len(data)):
        decoder.feed(data[position : position + 1])
        value = decoder.next()
    assert value is not NEED_DATA
    assert time.process_time() - started < 5  # linear takes 0.3 s; reading everything again takes minutes


def test_many_values_in_one_piece_are_read_in_linear_time() -> None:
    """Returning a value does not move the rest of the buffer, so many values in one piece are read in linear time."""
    decoder = Decoder()
    decoder.feed(b":1\r\n" * 200_000)
    started = time.process_time()
    count = 0
    while decoder.next() is not NEED_DATA:
        count += 1
    assert count == 200_000
    assert time.process_time() - started < 10
