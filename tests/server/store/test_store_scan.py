"""SCAN: globs, pages, and tokens that outlive changes."""

from __future__ import annotations

import time
from contextlib import suppress
from fnmatch import fnmatchcase

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_driver import Driver, refusal

from statestore_client.errors import RequestSyntaxError
from statestore_client.server.store import StoreLimits
from statestore_client.server.store.glob import compile_glob
from statestore_client.server.store.scan import ScanLimits
from statestore_client.wire.replies import Keys


def page(driver: Driver, pattern: bytes, token: bytes | None = None) -> tuple[tuple[bytes, ...], bytes | None]:
    """One page."""
    reply = driver.scan(pattern, token).reply
    assert isinstance(reply, Keys), reply
    return reply.keys, reply.token


def everything(driver: Driver, pattern: bytes) -> list[bytes]:
    """All pages."""
    keys, token = page(driver, pattern)
    found = [*keys]
    while token is not None:
        keys, token = page(driver, pattern, token)
        found += keys
    return found


def filled(*keys: bytes, **limits: int) -> Driver:
    driver = Driver(limits=StoreLimits(scan=ScanLimits(**limits)))
    for key in keys:
        driver.set(key, b"v")
    return driver


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (b"key*", [b"key", b"key1", b"key/a\nb"], [b"ke", b"xkey", b"Key"]),
        (b"*key", [b"key", b"1key"], [b"key1"]),
        (b"*", [b"a", b"\x00", "ключ".encode()], [b"\xff", b"a\xc3"]),
        (b"k?y", [b"key", b"k?y", b"k\ny", "kéy".encode()], [b"ky", b"keey", b"k\xffy"]),
        (b"k[ab]", [b"ka", b"kb"], [b"kc", b"k", b"kab", b"k["]),
        (b"k[a-c]", [b"ka", b"kb", b"kc"], [b"kd", b"k-", b"kB"]),
        (b"k[!a-c]", [b"kd", b"k-", b"k!"], [b"ka", b"k", b"kdd"]),
        (b"k[a-]", [b"ka", b"k-"], [b"kb"]),
        (b"k[]a]", [b"k]", b"ka"], [b"kb"]),
        (b"k[!]a]", [b"kb"], [b"k]", b"ka"]),
        (b"k[^a]", [b"k^", b"ka"], [b"kb"]),
        (b"k[&&a]", [b"k&", b"ka"], [b"kb"]),
        (b"k[*]", [b"k*"], [b"ka"]),
        (b"k[?]", [b"k?"], [b"ka"]),
        (b"k[[]", [b"k["], [b"ka"]),
        (b"k]", [b"k]"], [b"k"]),
        (b"a.b+(c)|\\$^", [b"a.b+(c)|\\$^"], [b"axb"]),
        (b"a.b*", [b"a.b", b"a.bc"], [b"axbc"]),
        (b"a*b*c", [b"abc", b"axbxc", b"abbc", b"acbc"], [b"acb", b"ab", b"bc"]),
        (b"a**b", [b"ab", b"axb"], [b"a"]),
        (b"*a*", [b"a", b"bab"], [b"b"]),
        (b"?*", [b"a", b"ab"], []),
        ("[а-я]*".encode(), ["ж".encode(), "жx".encode()], [b"z"]),
        (b"exact", [b"exact"], [b"exact1", b"exac"]),
    ],
)
def test_globs(pattern: bytes, matching: list[bytes], other: list[bytes]) -> None:
    """Stars, question marks, sets, ranges, negation and brackets as literals match the whole key."""
    driver = filled(*matching, *other)
    assert everything(driver, pattern) == sorted(matching)


@pytest.mark.parametrize("pattern", [b"", b"[", b"a[", b"[]", b"[!]", b"[a", b"[z-a]", b"\xff*", b"x" * 10_000])
def test_bad_patterns_are_refused(pattern: bytes) -> None:
    """An empty, unclosed, reversed, non-UTF-8 or far too long pattern is refused."""
    assert refusal(filled(b"a").scan(pattern)) is RequestSyntaxError


def test_an_empty_store_has_one_empty_page() -> None:
    """An empty store gives one empty page without a token or a version."""
    outcome = Driver().scan(b"*")
    assert outcome.reply == Keys(())
    assert outcome.version is None


def test_pages_are_bounded_in_keys() -> None:
    """Three pages of at most four keys give all keys in order."""
    keys = [b"%02d" % number for number in range(10)]
    driver = filled(*keys, max_keys=4)
    first, token = page(driver, b"*")
    assert first == tuple(keys[:4])
    second, token = page(driver, b"*", token)
    assert second == tuple(keys[4:8])
    assert page(driver, b"*", token) == (tuple(keys[8:]), None)


def test_a_full_last_page_has_no_token() -> None:
    """A last page that is exactly full has no token."""
    assert page(filled(b"a", b"b", max_keys=2), b"*") == ((b"a", b"b"), None)


def test_pages_are_bounded_in_bytes() -> None:
    """A page is bounded in bytes, but one key longer than that is returned."""
    driver = filled(b"a" * 10, b"b" * 100, b"c" * 10, b"d" * 10, max_bytes=20)
    assert [len(k) for k in everything(driver, b"*")] == [10, 100, 10, 10]
    assert page(driver, b"*")[0] == (b"a" * 10,)


def test_pages_are_bounded_in_keys_looked_at() -> None:
    """A page is bounded in keys looked at, so that it may be empty and have a successor."""
    driver = filled(*[b"%03d" % number for number in range(30)], max_examined=10)
    keys, token = page(driver, b"*[!0]9")
    assert keys == ()
    assert token is not None
    assert everything(driver, b"*[!0]9") == [b"019", b"029"]


def test_only_keys_with_the_literal_prefix_are_looked_at() -> None:
    """With a literal prefix only keys that begin with it are looked at."""
    driver = filled(*[b"%03d" % number for number in range(300)], b"k1", b"k2", b"z", max_examined=3)
    assert page(driver, b"k*") == ((b"k1", b"k2"), None)
    assert page(driver, b"200") == ((b"200",), None)


def test_a_token_survives_changes() -> None:
    """Keys that stay between two pages are returned once, even if the token's key goes."""
    driver = filled(b"a", b"b", b"c", b"d", b"e", max_keys=2)
    first, token = page(driver, b"*")
    assert first == (b"a", b"b")
    driver.delete(b"b")
    driver.delete(b"c")
    driver.set(b"aa", b"v")
    driver.set(b"dd", b"v")
    second, token = page(driver, b"*", token)
    assert second == (b"d", b"dd")
    assert page(driver, b"*", token) == ((b"e",), None)


def test_a_token_can_be_used_again() -> None:
    """A token can be used again, and gives the same page."""
    driver = filled(b"a", b"b", b"c", max_keys=1)
    _, token = page(driver, b"*")
    assert page(driver, b"*", token) == page(driver, b"*", token)


@pytest.mark.parametrize("token", [b"", b"x", b"\x01", b"\x01abcd", b"\x01abcdkey", b"\x02" * 20])
def test_invented_tokens_are_refused(token: bytes) -> None:
    """An invented token is refused."""
    assert refusal(filled(b"a").scan(b"*", token)) is RequestSyntaxError


def test_a_token_of_another_pattern_is_refused() -> None:
    """A token of another pattern is refused, because it would skip keys."""
    driver = filled(b"a", b"b", max_keys=1)
    _, token = page(driver, b"*")
    assert refusal(driver.scan(b"?", token)) is RequestSyntaxError


def test_binary_keys_do_not_stop_a_scan() -> None:
    """A token may name a key that is not UTF-8."""
    driver = filled(b"\xf0", b"\xf1", b"\xf2", "\U0001f600".encode(), max_examined=1)
    assert everything(driver, b"*") == ["\U0001f600".encode()]


def test_hostile_patterns_take_no_time() -> None:
    """Many stars over a long key that does not match take no exponential time."""
    driver = filled(b"a" * 5_000)
    started = time.process_time()
    assert everything(driver, b"*a" * 500 + b"b") == []
    assert everything(driver, b"?*" * 500 + b"b") == []
    assert everything(driver, b"*" * 500 + b"b") == []
    assert time.process_time() - started < 5


def test_what_stands_between_stars_has_a_limit() -> None:
    """What stands between two stars has a limit in length, because it is compared at every place of the key."""
    driver = filled(b"a" * 1_000_000)
    started = time.process_time()
    assert everything(driver, b"*" + b"[ab]" * 127 + b"b*") == []
    assert everything(driver, b"*" + b"a" * 127 + b"b*") == []
    assert time.process_time() - started < 5
    for pattern in (b"*" + b"?" * 129 + b"*", b"*" + b"[a-z]" * 129 + b"*", b"*" + b"a" * 129 + b"*"):
        assert refusal(driver.scan(pattern)) is RequestSyntaxError
    assert everything(filled(b"a" * 1_000), b"a" * 1_000 + b"*") == [b"a" * 1_000]
    assert everything(filled(b"a" * 1_000), b"*" + b"a" * 1_000) == [b"a" * 1_000]


def test_pages_are_bounded_in_bytes_looked_at() -> None:
    """A page is bounded in bytes looked at, and one key of any length is looked at."""
    driver = filled(b"a" * 900, b"b" * 900, b"c" * 3_000, max_examined_bytes=2_000)
    _, token = page(driver, b"*x")
    assert token is not None
    assert token[5:] == b"b" * 900
    assert everything(driver, b"*") == [b"a" * 900, b"b" * 900, b"c" * 3_000]


def test_a_page_costs_the_same_at_any_depth() -> None:
    """The last page of many keys does not walk past the first ones."""
    driver = filled(*[b"%06d" % number for number in range(20_000)], max_keys=10)
    deep = driver.scan(b"*").reply
    assert isinstance(deep, Keys)
    assert deep.token is not None
    token = deep.token[:5] + b"019980"
    limits = attrs.evolve(driver.store._limits, scan=ScanLimits(max_examined=12, max_keys=10))
    driver.store._limits = limits
    assert page(driver, b"*", token)[0] == tuple(b"%06d" % number for number in range(19_981, 19_991))


pieces = st.sampled_from(["a", "b", "*", "?", "[ab]", "[!a]", "[a-b]", "é", "."])
texts = st.text("abcé.", max_size=8)


@given(st.lists(pieces, min_size=1, max_size=8).map("".join), st.lists(texts, max_size=20))
def test_globs_match_as_fnmatch_does(pattern: str, keys: list[str]) -> None:
    """Globs match as fnmatch does, which has the same rules."""
    glob = compile_glob(pattern.encode())
    for key in keys:
        assert glob.matches(key.encode()) is fnmatchcase(key, pattern)
        assert not glob.matches(key.encode()) or key.encode().startswith(glob.prefix)


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_any_pattern_compiles_or_is_refused(pattern: bytes, key: bytes) -> None:
    """Any pattern compiles or is refused."""
    with suppress(RequestSyntaxError):
        compile_glob(pattern).matches(key)
