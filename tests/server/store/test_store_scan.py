"""SCAN: globs, pages, and tokens that outlive changes."""

from __future__ import annotations

import struct
import time
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import pairwise

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from store_driver import Driver, refusal

from statestore_client.errors import RequestSyntaxError
from statestore_client.server.store import StoreLimits
from statestore_client.server.store.glob import Glob, Progress, compile_glob
from statestore_client.server.store.keyspace import ScanLimits
from statestore_client.wire.commands import Scan
from statestore_client.wire.replies import Entries, KeyEntry, Keys


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


@pytest.mark.parametrize("token", [b"", b"x", b"\x00key", b"\x03key", b"\x02" * 20])
def test_invented_tokens_are_refused(token: bytes) -> None:
    """An invented token is refused."""
    assert refusal(filled(b"a").scan(b"*", token)) is RequestSyntaxError


def test_binary_keys_do_not_stop_a_scan() -> None:
    """A token may name a key that is not UTF-8."""
    driver = filled(b"\xf0", b"\xf1", b"\xf2", "\U0001f600".encode(), max_examined=1)
    assert everything(driver, b"*") == ["\U0001f600".encode()]


def test_keys_that_no_listing_has_are_counted() -> None:
    """Keys that are not UTF-8 are counted as long as they are there: by SET, SET again, and DEL."""
    driver = filled(b"\xff", b"a\xc3", b"text", "ключ".encode())
    driver.set(b"\xff", b"again")
    assert driver.store.usage.unlisted_keys == 2
    driver.delete(b"a\xc3")
    driver.delete(b"text")
    assert (driver.store.usage.keys, driver.store.usage.unlisted_keys) == (2, 1)
    assert everything(driver, b"*") == ["ключ".encode()]
    driver.delete(b"\xff")
    assert driver.store.usage.unlisted_keys == 0


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
    assert token[1:] == b"b" * 900
    assert everything(driver, b"*") == [b"a" * 900, b"b" * 900, b"c" * 3_000]


def test_a_page_costs_the_same_at_any_depth() -> None:
    """The last page of many keys does not walk past the first ones."""
    driver = filled(*[b"%06d" % number for number in range(20_000)], max_keys=10)
    deep = driver.scan(b"*").reply
    assert isinstance(deep, Keys)
    assert deep.token is not None
    token = deep.token[:1] + b"019980"
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


# -- globs over long keys ----------------------------------------------------------------------------------------------

slice_pieces = st.sampled_from(["a", "b", "*", "*", "?", "[ab]", "[!a]", "é", "[!𐀀a-b𐀂]"])
patterns = st.lists(slice_pieces, min_size=1, max_size=12).map("".join)
slice_texts = st.text("abé𐀀", max_size=16)
positions = st.integers(0, 20)

#: Beyond U+FFFF, none next to another.
ASTRAL = "".join(chr(0x10000 + 2 * offset) for offset in range(505))


def in_slices(glob: Glob, key: bytes, steps: int) -> tuple[bool, int]:
    """The answer, and how many slices it took."""
    progress = None
    for slices in range(1, 1_000):
        answer = glob.match_on(key, progress, steps)
        if not isinstance(answer, Progress):
            return answer, slices
        assert progress != answer
        progress = answer
    raise AssertionError("no end")


@given(patterns, slice_texts, st.sampled_from([1, 20_001, 60_001, 10**6]))
def test_slices_come_to_what_fnmatch_does(pattern: str, key: str, steps: int) -> None:
    """Matching in slices of any size gives what the standard library's matcher gives."""
    answer, slices = in_slices(compile_glob(pattern.encode()), key.encode(), steps)
    assert answer is fnmatchcase(key, pattern)
    assert slices <= len(key) + 1 + pattern.count("*")


@given(patterns, slice_texts, st.lists(positions, max_size=4), positions)
def test_made_up_progress_shows_no_other_key(pattern: str, key: str, found: list[int], position: int) -> None:
    """A made-up token with progress within a key shows no key that the rules hide."""
    assume("*" in pattern)
    glob = compile_glob(pattern.encode())
    with suppress(RequestSyntaxError):
        if glob.match_on(key.encode(), Progress(tuple(found), position), 10**6) is True:
            assert fnmatchcase(key, pattern)


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        (b"*" + b"[ab]" * 127 + b"c*", b"a" * 100_000),
        (b"*" + b"a" * 127 + b"b*", b"a" * 100_000),
        (b"*" + b"?" * 100 + b"b*z", "é".encode() * 50_000 + b"z"),
        (f"*[!{ASTRAL[:127]}]b*".encode(), b"a" * 100_000),
        (f"*[{ASTRAL[:60]}a][{ASTRAL[60:120]}a]b*".encode(), b"a" * 100_000),
    ],
)
def test_a_slice_takes_a_bounded_number_of_steps(pattern: bytes, key: bytes) -> None:
    """Each slice goes on where the one before stopped, by as many places as its steps allow."""
    glob = compile_glob(pattern)
    places, steps = [0], glob.steps_per_character
    answer = glob.match_on(key, None, 200_000)
    while isinstance(answer, Progress):
        places.append(answer.position)
        answer = glob.match_on(key, answer, 200_000)
    assert answer is False
    advances = [after - before for before, after in pairwise(places)]
    assert len(advances) >= 20
    assert max(advances) * steps <= 200_000
    assert steps >= 100


def test_what_a_set_lists_beyond_the_tables_of_regular_expressions_counts() -> None:
    """Each character and range of a set costs a step where regular expressions have no table, up to U+FFFF for a whole
    set."""
    for pattern, steps in (
        (f"*[!{ASTRAL[:127]}]b*", 128),
        (f"*[a-z{ASTRAL[:3]}𝐀-𝐙]*b*", 4),
        ("*[a-𝐙]*", 1),
        ("*[a-zа-яﬀ-\uffff]*", 1),
        (f"*[{ASTRAL[:20]}]?[{ASTRAL[:20]}]*{ASTRAL[:30]}*", 41),
    ):
        assert compile_glob(pattern.encode()).steps_per_character == steps
    for pattern in (f"*[!{ASTRAL}]b*", f"*[!{ASTRAL[:128]}]b*", f"*[{ASTRAL[:64]}]?[{ASTRAL[64:128]}]*"):
        with pytest.raises(RequestSyntaxError):
            compile_glob(pattern.encode())
    assert compile_glob(f"[{ASTRAL}]*".encode()).matches(f"{ASTRAL[-1]}x".encode())


def test_what_comes_last_is_looked_for_at_the_end_only() -> None:
    """The last part of a pattern is matched at the end of the key only, so it may be long and costs no steps."""
    glob = compile_glob(b"*" + b"[ab]" * 500)
    assert glob.steps_per_character == 0
    assert glob.matches(b"a" * 100_000)
    assert not glob.matches(b"a" * 100_000 + b"c")
    assert not glob.matches(b"a" * 499)


def all_pages(driver: Driver, pattern: bytes) -> list[tuple[bytes, ...]]:
    found, token = [], None
    while True:
        reply = driver.scan(pattern, token).reply
        assert isinstance(reply, Keys), reply
        found.append(reply.keys)
        token = reply.token
        if token is None:
            return found


def test_a_long_key_takes_several_pages() -> None:
    """A long key comes once, in its place among the others, after empty pages."""
    long = b"b" + b"x" * 3_000 + b"end"
    driver = filled(b"a-end-", b"b-end", long, b"c-end", b"d-other", max_steps=60_000)
    found = all_pages(driver, b"*" + b"[a-z]" * 97 + b"end*")
    assert [key for page in found for key in page] == [long]
    assert 4 < len(found) < 20
    assert [key for page in all_pages(driver, b"*e*d*") for key in page] == [b"a-end-", b"b-end", long, b"c-end"]


def test_a_long_key_may_go_while_it_is_looked_at() -> None:
    """If a long key is removed between two of its pages, the next page goes on after it and leaves nothing out."""
    driver = filled(b"a" * 5_000, b"b" * 600, b"c" * 600, max_steps=60_000)
    pattern = b"*" + b"[a-c]" * 100 + b"*"
    driver.set(b"a" * 4_000 + b"!", b"v")
    reply = driver.scan(b"*" + b"[!z]" * 99 + b"c*").reply
    assert isinstance(reply, Keys)
    assert reply.token is not None
    assert reply.token.endswith(b"a" * 4_000 + b"!")
    driver.delete(b"a" * 4_000 + b"!")
    rest = driver.scan(b"*" + b"[!z]" * 99 + b"c*", reply.token).reply
    assert isinstance(rest, Keys)
    found = [*rest.keys]
    while rest.token is not None:
        rest = driver.scan(b"*" + b"[!z]" * 99 + b"c*", rest.token).reply
        assert isinstance(rest, Keys)
        found += rest.keys
    assert found == [b"c" * 600]
    assert [key[:1] for page in all_pages(driver, pattern) for key in page] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("done", [b"", b"\x00", b"\x00\x01\x00\x00\x00\x09", struct.pack(">HI", 65_535, 0) + b"k" * 9])
def test_invented_tokens_within_a_key_are_refused(done: bytes) -> None:
    """A token within a key that is cut short, or has more places than there are, is refused."""
    assert refusal(filled(b"k").scan(b"*a*", b"\x02" + done)) is RequestSyntaxError


def test_progress_that_a_key_contradicts_is_refused() -> None:
    """A token whose progress the key contradicts is refused."""
    driver, pattern = filled(b"xaxbx"), b"*a*b*"
    reply = driver.scan(pattern, b"\x02" + struct.pack(">HII", 1, 2, 1) + b"xaxbx").reply
    assert reply == Keys((b"xaxbx",))
    for count, position, found in ((1, 2, [3]), (1, 1, [1]), (2, 4, [1, 3]), (1, 9, [5])):
        token = b"\x02" + struct.pack(f">HI{count}I", count, position, *found) + b"xaxbx"
        assert refusal(driver.scan(pattern, token)) is RequestSyntaxError


# -- entries -----------------------------------------------------------------------------------------------------------


def entries(driver: Driver, pattern: bytes) -> list[KeyEntry]:
    """All pages."""
    found: list[KeyEntry] = []
    token: bytes | None = None
    while True:
        reply = driver.apply(Scan(pattern, token, entries=True)).reply
        assert isinstance(reply, Entries), reply
        found += reply.entries
        token = reply.token
        if token is None:
            return found


def test_an_entry_tells_all_that_is_known_of_a_key() -> None:
    """An entry has the key's value, version, what is left of its time, its fence, and how many clients observe it."""
    driver = Driver()
    first = driver.set(b"a", b"1", expiry_ms=1500)
    fence = driver.stamp(-5)
    second = driver.set(b"b", b"\xff", ft=fence)
    for client in ("alice", "bob"):
        driver.notify(b"a", client=client)
    driver.advance(1.0)
    assert entries(driver, b"*") == [
        KeyEntry(b"a", b"1", first.version, 500, None, 2),
        KeyEntry(b"b", b"\xff", second.version, None, fence, 0),
    ]
    driver.advance(0.5)
    assert [entry.key for entry in entries(driver, b"*")] == [b"b"]


def test_a_prefix_and_a_star_find_entries_that_are_no_text() -> None:
    """Keys that are not UTF-8 are among the entries below a prefix, in byte order; other patterns are about text."""
    keys = [b"a", b"a\x00", b"a\xc3", b"a\xff/x", b"a\xff/y", b"b\xff"]
    driver = filled(*reversed(keys), max_keys=4)  # one entry in a page
    assert [entry.key for entry in entries(driver, b"*")] == keys
    assert [entry.key for entry in entries(driver, b"a*")] == keys[:-1]
    assert [entry.key for entry in entries(driver, b"a?")] == [b"a\x00"]
    assert [entry.key for entry in entries(driver, b"*x")] == []


def test_pages_of_entries_are_bounded_in_bytes() -> None:
    """Values count for the size of a page of entries; one that is larger is alone in it."""
    driver = filled(max_bytes=100)
    for number in range(5):
        driver.set(b"k%d" % number, bytes(1000 if number == 2 else 30))
    pages: list[int] = []
    token: bytes | None = None
    while token is not None or not pages:
        reply = driver.apply(Scan(b"*", token, entries=True)).reply
        assert isinstance(reply, Entries)
        pages.append(len(reply.entries))
        token = reply.token
    assert pages == [2, 1, 2]
