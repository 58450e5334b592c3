"""The arguments of the clients' methods: what is taken, what becomes of it, and each complaint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.core import arguments
from statestore_client.core.actions import WatchOptions
from statestore_client.core.arguments import FencedCommand, SetItem
from statestore_client.core.event_queue import WatchTerms
from statestore_client.errors import BatchError, InvalidArgumentError, RequestTimeoutError
from statestore_client.wire.commands import Command, Condition, Del, Get, Scan, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp

# State store protocol, "Versioning and hybrid logical clocks".
TOKEN_TEXT = "1696374425000:0:CLIENT"
TOKEN = HlcTimestamp(1_696_374_425_000, 0, "CLIENT")
NAN, INF = float("nan"), float("inf")
EMPTY = "is empty; keys have at least one byte"


def complaint(call: Callable[..., Any], *arguments: Any) -> str:
    """The words with which the arguments are refused."""
    with pytest.raises(InvalidArgumentError) as caught:
        call(*arguments)
    assert not caught.value.may_have_been_applied
    return str(caught.value)


# -- keys and values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_key", "key"),
    [(b"k", b"k"), ("k", b"k"), ("é", b"\xc3\xa9"), (bytearray(b"k"), b"k"), (memoryview(b"k"), b"k"), (b"\0", b"\0")],
)
def test_keys_are_bytes_or_text(given_key: Any, key: bytes) -> None:
    """A key is bytes or text; text is encoded as UTF-8, and a buffer that could change later is copied."""
    result = arguments.key_bytes(given_key)
    assert (result, type(result)) == (key, bytes)


@pytest.mark.parametrize("key", [None, 7, 1.5, ["k"], object])
def test_keys_are_nothing_else(key: Any) -> None:
    """A key of any other type is refused, numbers in particular: bytes(7) would be seven zeros."""
    assert complaint(arguments.key_bytes, key) == f"the key must be bytes or text, not {type(key).__name__}"
    assert complaint(arguments.value_bytes, key) == f"the value must be bytes or text, not {type(key).__name__}"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        *(
            (partial(arguments.key_bytes, empty), f"the key {EMPTY}")
            for empty in (b"", "", bytearray(), memoryview(b""))
        ),
        (partial(arguments.set_command, "", "v", None, None), f"the key {EMPTY}"),
        (partial(arguments.get_command, ""), f"the key {EMPTY}"),
        (partial(arguments.delete_command, ""), f"the key {EMPTY}"),
        (partial(arguments.vdelete_command, "", "v"), f"the key {EMPTY}"),
        (partial(arguments.watched_key, "", "me"), f"the key {EMPTY}"),
        (partial(arguments.scan_command, "", None), f"the pattern {EMPTY}"),  # as the official SDKs do: facts, 1.6
        (partial(arguments.key_bytes, "a\ud800"), "the key is not valid text: 'utf-8' codec can't encode"),
        (partial(arguments.watched_prefix, b"\xff"), "the prefix is not UTF-8"),
        (partial(arguments.watched_prefix, "ü".encode()[:1]), "the prefix is not UTF-8"),
        (partial(arguments.watched_prefix, 7), "the prefix must be bytes or text"),
    ],
)
def test_a_key_that_no_server_could_use_is_refused(make: Callable[[], object], words: str) -> None:
    """An empty key (state store protocol: "the key length is zero"), text with half of a surrogate pair and a prefix
    that cannot be listed are refused before the server would."""
    assert complaint(make).startswith(words)


def test_values_may_be_empty_and_fit_into_a_packet() -> None:
    """A value may be empty, and has at most 268,435,455 bytes, the limit of an MQTT packet (MQTT 5.0, 2.1.4)."""
    assert arguments.value_bytes("") == b""
    assert len(arguments.value_bytes(bytes(268_000_000))) == 268_000_000
    words = "the value has 268000001 bytes; one MQTT packet holds 268000000"
    assert complaint(arguments.value_bytes, bytes(268_000_001)) == words


def test_a_watched_key_fits_into_a_topic() -> None:
    """Client id and watched key in hexadecimal have at most 65,535 bytes (MQTT 5.0, 1.5.4); the error says how long."""
    # State store protocol, "KEYNOTIFY notification topics": clients/{service}/{client id}/command/notify/{key}
    rest = len("clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/6D65/command/notify/")
    longest = (65_535 - rest) // 2
    assert arguments.watched_key(b"x" * longest, "me") == b"x" * longest
    assert complaint(arguments.watched_key, b"x" * (longest + 1), "me") == (
        f"a key of {longest + 1} bytes cannot be watched; at most {longest} fit into a topic"
    )
    assert f"at most {longest} fit" in complaint(arguments.watched_key, b"x" * 100_000, "me")


# -- numbers, tokens, words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(None, None), (1, 1.0), (0.001, 0.001), (1e9, None), (INF, None), (1e8, 1e8)]
)
def test_a_timeout_is_seconds_or_none(timeout: float | None, seconds: float | None) -> None:
    """A time-out is a number of seconds, or None for no end; thirty years count as no end."""
    assert arguments.check_timeout(timeout) == seconds


@pytest.mark.parametrize("timeout", [0, -1, -0.0, NAN, "5", True, b"1"])
def test_a_timeout_is_positive(timeout: Any) -> None:
    """A time-out of zero is refused, since no request could meet it, and so is True, which is not a number."""
    words = f"must be a positive number of seconds or None, not {timeout!r}"
    assert complaint(arguments.check_timeout, timeout) == f"timeout {words}"
    assert complaint(arguments.prefix_terms, timeout, 1) == f"rescan {words}"


@pytest.mark.parametrize(("expiry", "expiry_ms"), [(None, None), (1, 1000), (0.001, 1), (1.0015, 1002), (60.0, 60_000)])
def test_an_expiry_is_seconds(expiry: float | None, expiry_ms: int | None) -> None:
    """An expiry is given in seconds and sent in whole milliseconds (state store protocol, "SET options": PX)."""
    assert arguments.set_command("k", "v", None, expiry) == Set(b"k", b"v", None, expiry_ms)


@given(st.floats(0.001, 2**53 // 1000))
def test_an_expiry_keeps_its_milliseconds(expiry: float) -> None:
    """The expiry that is sent differs from the one given by less than a millisecond, whatever its size."""
    expiry_ms = arguments.set_command("k", "v", None, expiry).expiry_ms
    assert expiry_ms is not None
    assert expiry_ms >= 1
    assert abs(expiry_ms - expiry * 1000) <= 0.5


@pytest.mark.parametrize("expiry", [0, 0.0009, -1, 9007199254741, 1e300, NAN, INF, "60", True])
def test_an_expiry_has_bounds(expiry: Any) -> None:
    """An expiry that would be zero on the wire, or too long for exact milliseconds, is refused."""
    words = f"expiry must be seconds, from 0.001 to 9007199254740, not {expiry!r}"
    assert complaint(arguments.set_command, "k", "v", None, expiry) == words
    assert complaint(arguments.set_commands, [("k", "v")], expiry) == words


def test_a_fencing_token_is_a_timestamp_or_its_text() -> None:
    """A fencing token is a timestamp, as a lease has it, or its text, as it was stored somewhere."""
    assert arguments.token_of(None) is None
    assert arguments.token_of(TOKEN) is TOKEN
    assert arguments.token_of(TOKEN_TEXT) == arguments.token_of(str(TOKEN)) == TOKEN


@pytest.mark.parametrize("token", ["", "1:2", "x:0:n", "-1:0:n", "1:2:3:4", 5, b"1:0:n", True, 1.5])
def test_a_fencing_token_that_cannot_be_read_is_refused(token: Any) -> None:
    """What is no fencing token, bytes included, is refused before anything is sent: without it the write would be
    unprotected; who passes a lease gets told of its attribute."""
    must = f"fencing_token must be a timestamp or its text, not {type(token).__name__}"
    words = complaint(arguments.token_of, token)
    assert words.startswith("fencing_token: ") if isinstance(token, str) else words == must

    class Lease: ...

    assert complaint(arguments.token_of, Lease()).endswith("not Lease; pass lease.fencing_token")


def test_the_bounds_of_a_queue_are_checked() -> None:
    """A queue holds at least one event and has one of three policies for when it is full."""
    options = WatchOptions()
    of_key = partial(arguments.watch_terms, "k", "client", options)
    of_prefix = partial(arguments.prefix_watch_terms, "p", options, max_keys=10)
    for overflow in ("latest", "error", "block"):
        assert of_key(max_queued=1, overflow=overflow) == WatchTerms(b"k", options, 1, overflow)
        assert of_prefix(max_queued=1, overflow=overflow) == WatchTerms(b"p", options, 11, overflow)
    for terms in (of_key, of_prefix):
        for max_queued in (0, -1, True, 1.5, "1", None):
            words = f"max_queued must be a number of events, at least 1, not {max_queued!r}"
            assert complaint(partial(terms, max_queued=max_queued, overflow="latest")) == words
        words = "overflow must be 'latest', 'error' or 'block', not 'drop'"
        assert complaint(partial(terms, max_queued=1, overflow="drop")) == words
    for max_keys in (0, True, 1.5, None, "7"):
        assert complaint(arguments.prefix_terms, 1, max_keys).startswith("max_keys must be")


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "command"),
    [
        (arguments.set_command("k", b"v", None, None), Set(b"k", b"v")),
        (arguments.set_command("k", "", "NX", 1), Set(b"k", b"", Condition.NX, 1000)),
        (arguments.set_command(b"k", "v", "NEX", None), Set(b"k", b"v", Condition.NEX)),
        (arguments.set_command("k", "v", "NEX", 1, "old"), Set(b"k", b"v", Condition.NEX, 1000, b"old")),
        (arguments.set_command("k", "v", "NEX", None, b""), Set(b"k", b"v", Condition.NEX, None, b"")),
        (arguments.set_command("k", "v", "NEX", None, "v"), Set(b"k", b"v", Condition.NEX)),  # says the same everywhere
        (arguments.set_command("k", "v", None, None, persist=True), Set(b"k", b"v", persist=True)),
        (arguments.get_command("k"), Get(b"k")),
        (arguments.delete_command(b"k"), Del(b"k")),
        (arguments.vdelete_command("k", ""), VDel(b"k", b"")),
        (arguments.scan_command("k*", None), Scan(b"k*")),
        (arguments.scan_command(b"k*", b"\0"), Scan(b"k*", b"\0")),
    ],
)
def test_arguments_become_commands(made: Command, command: Command) -> None:
    """The arguments of each method become its command."""
    assert made == command


@pytest.mark.parametrize("condition", ["nx", "XX", "", True, 0])
def test_a_condition_is_one_of_two_words(condition: Any) -> None:
    """A condition is NX or NEX, in upper case as on the wire."""
    words = f"condition must be 'NX', 'NEX' or None, not {condition!r}"
    assert complaint(arguments.set_command, "k", "v", condition, None) == words


@pytest.mark.parametrize("condition", ["NX", None])
def test_an_expected_value_goes_with_nex(condition: Any) -> None:
    """An expected value is accepted with the condition NEX only."""
    words = f"expected is what condition='NEX' compares with; condition is {condition!r}"
    assert complaint(arguments.set_command, "k", "v", condition, None, b"old") == words


@pytest.mark.parametrize("persist", ["false", 1, None])
def test_persist_is_true_or_false(persist: Any) -> None:
    """``persist`` is true or false, and a text is refused: it would be true whatever it says."""
    words = f"persist must be True or False, not {persist!r}"
    assert complaint(arguments.set_command, "k", "v", None, None, None, persist) == words
    assert complaint(arguments.set_commands, [], None, persist) == words


# -- batches -----------------------------------------------------------------------------------------------------------


def test_batches_become_commands_in_order() -> None:
    """A batch becomes commands in order and one at a time, so that its items may come from an endless iterable."""
    assert list(arguments.get_commands(["a", b"b"])) == [Get(b"a"), Get(b"b")]
    assert list(arguments.delete_commands(iter(["a"]))) == [Del(b"a")]
    assert list(arguments.vdelete_commands([("a", "1"), [b"b", b"2"]])) == [VDel(b"a", b"1"), VDel(b"b", b"2")]
    endless = arguments.set_commands((("k", str(n)) for n in iter(int, 1)), None)
    assert next(endless) == next(endless) == Set(b"k", b"0")


def test_items_of_a_set_may_have_their_own_terms() -> None:
    """An item of a batch of sets may have its own terms, token and mark included; for the others it has the batch's."""
    items = [("a", "1"), SetItem("b", "2"), SetItem("c", "3", expiry=2), SetItem("d", "4", fencing_token=TOKEN_TEXT)]
    assert list(arguments.set_commands([*items, SetItem("e", "5", persist=False)], 1, True)) == [
        Set(b"a", b"1", None, 1000, persist=True),
        Set(b"b", b"2", None, 1000, persist=True),
        Set(b"c", b"3", None, 2000, persist=True),
        FencedCommand(Set(b"d", b"4", None, 1000, persist=True), TOKEN),
        Set(b"e", b"5", None, 1000),
    ]


def test_an_item_that_cannot_be_used_becomes_its_error() -> None:
    """An item that cannot be used becomes an error in its place, and the items after it are still used."""
    items: list[Any] = [("a", "1"), ("", "2"), "xy", ("c", "3", "4"), SetItem("d", "4", expiry=0), None]
    wrong: Any = "no"
    items += [SetItem("k", "v", persist=wrong), SetItem("k", "v", fencing_token="x"), ("e", "5")]
    first, *errors, last = arguments.set_commands(items, None)
    assert (first, last) == (Set(b"a", b"1"), Set(b"e", b"5"))
    assert all(isinstance(error, InvalidArgumentError) for error in errors)
    assert [str(error).partition(":")[0] for error in errors] == [
        f"the key {EMPTY}",
        "an item must be a pair of key and value, not str",
        "an item must be a pair of key and value, not tuple",
        "expiry must be seconds, from 0.001 to 9007199254740, not 0",
        "an item must be a pair of key and value, not NoneType",
        "persist must be True or False, not 'no'",
        "fencing_token",
    ]


@pytest.mark.parametrize("items", ["pump", b"pump", bytearray(b"pump"), memoryview(b"pump"), None, 5])
def test_a_batch_is_an_iterable_of_items(items: Any) -> None:
    """A batch is an iterable of items, and text is refused, at the call, although it can be iterated."""
    words = f"a batch must be an iterable of its items, not {type(items).__name__}"
    for make in (arguments.get_commands, arguments.delete_commands, arguments.vdelete_commands, arguments.check_batch):
        assert complaint(make, items) == words
    assert complaint(arguments.set_commands, items, None) == words


def test_a_dictionary_is_a_batch_of_its_pairs() -> None:
    """A mapping stands for its keys and values where pairs are wanted, as in redis-py's ``mset``."""
    assert list(arguments.set_commands({"k": "v", b"l": b"w"}, None)) == [Set(b"k", b"v"), Set(b"l", b"w")]
    assert list(arguments.vdelete_commands({"k": "v"})) == [VDel(b"k", b"v")]
    assert list(arguments.set_commands({"k": "v"}.items(), None)) == [Set(b"k", b"v")]
    assert list(arguments.get_commands({"k": "v"})) == [Get(b"k")]


def test_an_error_of_the_callers_own_iterable_is_his() -> None:
    """An exception of the caller's own iterable is raised as it is, and does not become a result of the batch."""

    def keys() -> Iterator[str]:
        yield "a"
        raise LookupError("mine")

    commands = arguments.get_commands(keys())
    assert next(commands) == Get(b"a")
    with pytest.raises(LookupError, match="mine"):
        next(commands)


def test_failures_of_a_batch_are_raised_together() -> None:
    """The failures of a batch are raised as one error with all results; without failures nothing is raised."""
    arguments.raise_failures([])
    arguments.raise_failures([None, 1, "x"])
    first, second = RequestTimeoutError("late"), InvalidArgumentError("empty")
    with pytest.raises(BatchError) as caught:
        arguments.raise_failures([1, first, None, second])
    assert str(caught.value) == "2 of 4 items failed; the first is number 1: late"
    assert caught.value.results == (1, first, None, second)
    assert caught.value.failures == {1: first, 3: second}
