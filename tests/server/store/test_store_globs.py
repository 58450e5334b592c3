"""Globs over long keys: matched in slices, of which each takes a bounded number of steps."""

from __future__ import annotations

import struct
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from store_driver import Driver, refusal

from statestore_client.errors import RequestSyntaxError
from statestore_client.server.store import StoreLimits
from statestore_client.server.store.glob import Glob, Progress, compile_glob
from statestore_client.server.store.scan import ScanLimits
from statestore_client.wire.replies import Keys

pieces = st.sampled_from(["a", "b", "*", "*", "?", "[ab]", "[!a]", "é", "[!𐀀a-b𐀂]"])
patterns = st.lists(pieces, min_size=1, max_size=12).map("".join)
texts = st.text("abé𐀀", max_size=16)
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


@given(patterns, texts, st.sampled_from([1, 20_001, 60_001, 10**6]))
def test_slices_come_to_what_fnmatch_does(pattern: str, key: str, steps: int) -> None:
    """Matching in slices of any size gives what the standard library's matcher gives."""
    answer, slices = in_slices(compile_glob(pattern.encode()), key.encode(), steps)
    assert answer is fnmatchcase(key, pattern)
    assert slices <= len(key) + 1 + pattern.count("*")


@given(patterns, texts, st.lists(positions, max_size=4), positions)
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


def filled(*keys: bytes, **limits: int) -> Driver:
    driver = Driver(limits=StoreLimits(scan=ScanLimits(**limits)))
    for key in keys:
        driver.set(key, b"v")
    return driver


def pages(driver: Driver, pattern: bytes) -> list[tuple[bytes, ...]]:
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
    found = pages(driver, b"*" + b"[a-z]" * 97 + b"end*")
    assert [key for page in found for key in page] == [long]
    assert 4 < len(found) < 20
    assert [key for page in pages(driver, b"*e*d*") for key in page] == [b"a-end-", b"b-end", long, b"c-end"]


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
    assert [key[:1] for page in pages(driver, pattern) for key in page] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("done", [b"", b"\x00", b"\x00\x01\x00\x00\x00\x09", struct.pack(">HI", 65_535, 0) + b"k" * 9])
def test_invented_tokens_within_a_key_are_refused(done: bytes) -> None:
    """A token within a key that is cut short, or has more places than there are, is refused."""
    token = b"\x02" + crc32(b"*a*").to_bytes(4) + done
    assert refusal(filled(b"k").scan(b"*a*", token)) is RequestSyntaxError


def test_progress_that_a_key_contradicts_is_refused() -> None:
    """A token whose progress the key contradicts is refused."""
    driver, pattern = filled(b"xaxbx"), b"*a*b*"
    head = b"\x02" + crc32(pattern).to_bytes(4)
    reply = driver.scan(pattern, head + struct.pack(">HII", 1, 2, 1) + b"xaxbx").reply
    assert reply == Keys((b"xaxbx",))
    for count, position, found in ((1, 2, [3]), (1, 1, [1]), (2, 4, [1, 3]), (1, 9, [5])):
        token = head + struct.pack(f">HI{count}I", count, position, *found) + b"xaxbx"
        assert refusal(driver.scan(pattern, token)) is RequestSyntaxError
