"""What a site answers to clients, which say no hello: get, get filtered, get hashes, set."""

from __future__ import annotations

import attrs
import pytest
from site_pair import AREA, OneSite, Pair, failed

from statestore_client.server.kvstore.sync import position
from statestore_client.wire.kvstore.codec import encode
from statestore_client.wire.kvstore.messages import (
    MAX_MESSAGE,
    ChangeOwnKey,
    FailureReason,
    Found,
    Get,
    GetFiltered,
    GetHashes,
    Message,
    OwnKeyAction,
    Set,
    SetResult,
)
from statestore_client.wire.kvstore.value import INFINITE_TTL_MS, NoMergeReason, Value, hash_of


def ask(one: OneSite, request: Message) -> Message:
    """The one reply."""
    one.site.receive("client", encode(request), one.now)
    (reply,) = one.said("client")
    return reply


def filled(number: int = 3, size: int = 1) -> OneSite:
    """A site with some keys."""
    one = OneSite()
    for n in range(number):
        one.set(f"key{n}", bytes(size))
    return one


def all_of(one: OneSite, request: GetFiltered | GetHashes | Get) -> dict[str, Value]:
    """What all parts of a reply have, as a client puts them together."""
    entries: dict[str, Value] = {}
    while True:
        reply = ask(one, request)
        assert isinstance(reply, Found)
        assert len(encode(reply)) <= MAX_MESSAGE
        assert not entries.keys() & reply.entries.keys()
        entries |= reply.entries
        if reply.next is None:
            return entries
        after = reply.next
        if isinstance(request, Get):
            request = attrs.evolve(request, keys=tuple(key for key in request.keys if position(key) >= after))
        else:
            request = attrs.evolve(request, start=after)


def test_get() -> None:
    """Keys that are there, and no error for one that is not."""
    reply = ask(filled(), Get(5, AREA, ("key1", "nothing", "key0")))
    assert reply == Found(5, {key: Value(1, "bonn", b"\0", INFINITE_TTL_MS) for key in ("key0", "key1")})


def test_get_filtered() -> None:
    """By patterns, which begin where the key does, and by originators."""
    one = filled()
    one.set("other")
    assert set(all_of(one, GetFiltered(5, AREA, ("key[01]",)))) == {"key0", "key1"}
    assert set(all_of(one, GetFiltered(5, AREA, ("ey",)))) == set()
    assert set(all_of(one, GetFiltered(5, AREA, ("key0",), ("bonn",)))) == {"key0", "key1", "key2", "other"}
    assert set(all_of(one, GetFiltered(5, AREA, ("key0",), ("bonn",), match_all=True))) == {"key0"}
    assert all_of(one, GetFiltered(5, AREA, ("other",), omit_values=True))["other"].value is None


def test_get_hashes() -> None:
    """Hashes in place of values, with the time that is left."""
    one = filled(1)
    entry = all_of(one, GetHashes(5, AREA))["key0"]
    assert (entry.value, entry.hash) == (None, hash_of(1, "bonn", b"\0"))


@pytest.mark.parametrize(
    ("request_of", "number"), [(GetFiltered(5, AREA), 700), (Get(5, AREA, tuple(f"key{n}" for n in range(250))), 250)]
)
def test_what_does_not_fit_comes_in_parts(request_of: GetFiltered | Get, number: int) -> None:
    """Values of 2 kB: each part fits into a message, and together they are all keys, each once."""
    assert len(all_of(filled(700, 2000), request_of)) == number


def test_a_pattern_that_is_not_allowed_is_an_error() -> None:
    """It does not let everything pass, as Open/R does."""
    reply = ask(filled(), GetFiltered(5, AREA, ("(",)))
    assert failed(reply) == FailureReason.BAD_REQUEST


@pytest.mark.parametrize(
    "request_of",
    [Get(5, "x", ()), GetFiltered(5, "x"), GetHashes(5, "x"), Set(5, "x", {}), ChangeOwnKey(5, "x", 1, "k", b"v")],
)
def test_an_unknown_area_is_an_error(request_of: Message) -> None:
    """Always, and not an empty reply."""
    reply = ask(filled(), request_of)
    assert failed(reply) == FailureReason.UNKNOWN_AREA


def test_set_tells_what_was_not_taken_and_sends_the_rest_to_peers() -> None:
    """Each entry is decided about for itself."""
    pair = Pair(OneSite("bonn"), OneSite("rome"))
    entries = {"good": Value(1, "client", b"x"), "bad": Value(0, "client", b"x")}
    pair.bonn.site.receive("client", encode(Set(5, AREA, entries)), pair.bonn.now)
    assert pair.bonn.said("client") == [SetResult(5, {"bad": NoMergeReason.OLD_VERSION})]
    pair.settle()
    assert pair.rome.areas[AREA].get("good") is not None


def test_set_with_a_path() -> None:
    """An update that was here is not taken; another one is not sent to those in its path."""
    pair = Pair(OneSite("bonn"), OneSite("rome"))
    entries = {"k": Value(1, "client", b"x")}
    pair.bonn.site.receive("client", encode(Set(5, AREA, entries, ("bonn", "x"))), pair.bonn.now)
    assert pair.bonn.said("client") == [SetResult(5, {"k": NoMergeReason.LOOP_DETECTED})]
    pair.bonn.site.receive("client", encode(Set(6, AREA, entries, ("rome", "x"))), pair.bonn.now)
    pair.settle()
    assert pair.bonn.areas[AREA].get("k") is not None
    assert pair.rome.areas[AREA].get("k") is None


def test_a_key_is_kept_alive_for_a_client_and_ended_for_it() -> None:
    """Each action does what the site does, at the peers as well; the reply names the key if nothing was done."""
    pair = Pair(OneSite("bonn"), OneSite("rome"))
    pair.settle()

    def change(action: int, value: bytes | None = None, version: int | None = None, ttl_ms: int | None = None) -> int:
        reply = ask(pair.bonn, ChangeOwnKey(5, AREA, action, "k", value, version, ttl_ms))
        assert isinstance(reply, SetResult)
        pair.settle(0.5)
        return reply.reasons.get("k", 0)

    def at_rome() -> tuple[int, bytes | None] | None:
        entry = pair.rome.areas[AREA].get("k")
        return None if entry is None else (entry.version, entry.value)

    assert change(OwnKeyAction.CLEAR) == change(OwnKeyAction.ERASE) == NoMergeReason.NO_NEED_TO_UPDATE
    assert change(OwnKeyAction.REFRESH, ttl_ms=9000) == NoMergeReason.NO_NEED_TO_UPDATE
    assert change(OwnKeyAction.SET, b"1", version=7, ttl_ms=60_000) == 0
    assert at_rome() == (7, b"1")
    assert change(OwnKeyAction.SET, b"0", version=6) == NoMergeReason.OLD_VERSION
    assert change(OwnKeyAction.REFRESH, ttl_ms=90_000) == 0
    assert (entry := pair.rome.areas[AREA].get("k")) is not None
    assert (entry.originator, entry.ttl_version, 80_000 < entry.ttl_ms <= 90_000) == ("bonn", 1, True)
    assert change(OwnKeyAction.PERSIST, b"2") == 0
    assert at_rome() == (8, b"2")
    assert change(OwnKeyAction.UNSET, b"gone") == 0
    assert at_rome() == (9, b"gone")
    assert pair.bonn.areas[AREA].own.get("k") is None
    assert change(OwnKeyAction.SET, b"3") == change(OwnKeyAction.CLEAR) == 0
    assert change(OwnKeyAction.ERASE) == 0
    for _ in range(12):
        pair.settle(0.5)
    assert at_rome() is pair.bonn.areas[AREA].get("k") is None


@pytest.mark.parametrize(
    "wrong",
    [
        ChangeOwnKey(5, AREA, OwnKeyAction.SET, "k"),
        ChangeOwnKey(5, AREA, OwnKeyAction.SET, "k", b"v", None, 1),
        ChangeOwnKey(5, AREA, OwnKeyAction.PERSIST, "k"),
        ChangeOwnKey(5, AREA, OwnKeyAction.UNSET, "k"),
        ChangeOwnKey(5, AREA, OwnKeyAction.REFRESH, "k"),
        ChangeOwnKey(5, AREA, 0, "k", b"v"),
        ChangeOwnKey(5, AREA, 7, "k", b"v"),
    ],
)
def test_what_cannot_be_done_with_a_key_is_an_error_and_changes_nothing(wrong: ChangeOwnKey) -> None:
    """A value, a TTL or an action that is missing or not known: the reply says so."""
    one = OneSite()
    reply = ask(one, wrong)
    assert failed(reply) == FailureReason.BAD_REQUEST
    assert not len(one.areas[AREA].own)


@pytest.mark.parametrize(
    "wrong",
    [
        Set(5, AREA, {"k": Value(1, "x", b"v"), "sites/rome/k": Value(1, "rome", b"v")}),
        ChangeOwnKey(5, AREA, OwnKeyAction.PERSIST, "sites/rome/k", b"v"),
        ChangeOwnKey(5, AREA, OwnKeyAction.ERASE, "sites/bonn/k"),
    ],
)
def test_what_sites_export_is_not_for_clients(wrong: Message) -> None:
    """A client that would speak for a site, this one or another, is told what to do; nothing of it is stored. A site
    without a bridge has nothing to protect there.
    """
    one = OneSite("bonn")
    assert failed(ask(one, wrong)) is None
    one = OneSite("bonn")
    one.areas[AREA].is_bridged = True
    reply = ask(one, wrong)
    assert failed(reply) == FailureReason.BAD_REQUEST
    assert "in that site's state store" in reply.text
    assert not one.areas[AREA].store.summary().keys


@pytest.mark.parametrize(
    ("version", "reason"), [(0, "OLD_VERSION"), (2**62 + 1, "INVALID_VERSION"), (2**64 - 1, "INVALID_VERSION")]
)
def test_a_version_that_cannot_be_is_refused(version: int, reason: str) -> None:
    """A client learns why, and the key is not kept alive."""
    one = OneSite()
    reply = ask(one, ChangeOwnKey(5, AREA, OwnKeyAction.SET, "k", b"v", version))
    assert reply == SetResult(5, {"k": NoMergeReason[reason]})
    assert not len(one.areas[AREA].own)
