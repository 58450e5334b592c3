"""Those that follow an area: streams, dumps in pages, and work in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.server.kvstore.area import (
    KEPT_S,
    Area,
    AreaSubscribers,
    AreaSubscription,
    HistoryLimits,
    SubscriberOptions,
)
from statestore_client.server.kvstore.area_store import PART_BYTES, page, slices
from statestore_client.server.kvstore.patterns import ALL_KEYS, KeyFilter
from statestore_client.wire.kvstore.value import MAX_VALUE_BYTES, Publication, Value, hash_of

EVERYTHING = SubscriberOptions(ignore_ttl=False)


@pytest.fixture
def area() -> Area:
    """An empty area of site a."""
    return Area("north", "a")


def taken(subscription: AreaSubscription) -> list[Publication]:
    """All that waits."""
    found = []
    while publication := subscription.take():
        found.append(publication)
    return found


# -- streams -----------------------------------------------------------------------------------------------------------


def test_publications_are_numbered_without_a_gap(area: Area) -> None:
    """What peers and clients bring, and what expires, has the next number; what changes nothing has none."""
    subscription = area.subscribers.subscribe(EVERYTHING)
    area.merge({"key": Value(1, "b", b"x", 1000)}, "b", 0.0)
    area.merge({"key": Value(1, "b", b"x", 1000)}, "c", 0.0)
    area.set({"key": Value(1, "b", None, 2000, 1)}, 0.0)
    area.tick(2.0)
    hash_ = hash_of(1, "b", b"x")
    assert taken(subscription) == [
        Publication("north", 1, {"key": Value(1, "b", b"x", 1000, 0, hash_)}, (), "b"),
        Publication("north", 2, {"key": Value(1, "b", None, 2000, 1)}, (), None),
        Publication("north", 3, {}, ("key",), None),
    ]


def test_expiry_is_told_here_and_never_sent(area: Area) -> None:
    """A key whose time is over, however short it was, is announced to subscribers; peers find out for themselves."""
    subscription = area.subscribers.subscribe(SubscriberOptions())
    area.set({"key": Value(1, "a", b"x", 1)}, 0.0)
    assert area.outgoing(area.take_local_changes(), 0.0) == {}
    area.tick(0.001)
    assert [publication.expired_keys for publication in taken(subscription)] == [(), ("key",)]
    assert area.take_local_changes() == {}


def test_a_stream_has_a_filter(area: Area) -> None:
    """Keys and originators are filtered, TTLs alone left out, values replaced by hashes, each if that is asked for."""
    options = SubscriberOptions(KeyFilter(["adj:"]), omit_values=True)
    subscription = area.subscribers.subscribe(options)
    area.set({"adj:1": Value(1, "a", b"x", 1000), "key": Value(1, "a", b"x", 1000)}, 0.0)
    area.set({"adj:1": Value(1, "a", None, 1000, 1)}, 0.0)
    area.set({"key": Value(2, "a", b"y", 1000)}, 0.0)
    area.tick(1.0)
    first, second = taken(subscription)
    assert first.entries == {"adj:1": Value(1, "a", None, 1000, 0, hash_of(1, "a", b"x"))}
    assert (first.number, second.number) == (1, 4)
    assert second.expired_keys == ("adj:1",)


def test_a_full_entry_that_changes_only_a_ttl_passes(area: Area) -> None:
    """Only entries without a value count as TTLs alone."""
    subscription = area.subscribers.subscribe(SubscriberOptions())
    area.set({"key": Value(1, "a", b"x", 1000)}, 0.0)
    area.set({"key": Value(1, "a", b"x", 1000, 1)}, 0.0)
    assert len(taken(subscription)) == 2


@pytest.mark.parametrize("limits", [HistoryLimits(max_publications=2), HistoryLimits(max_bytes=1100)])
def test_who_falls_behind_is_told_so_and_the_others_notice_nothing(area: Area, limits: HistoryLimits) -> None:
    """The history has an end: a reader that is too slow gets no more, and must begin again with a snapshot."""
    area.subscribers = AreaSubscribers("north", limits)
    slow, other = area.subscribers.subscribe(EVERYTHING), area.subscribers.subscribe(EVERYTHING)
    seen = []
    for number in range(1, 4):
        assert not slow.has_fallen_behind
        area.set({"key": Value(number, "a", b"x")}, 0.0)
        seen += taken(other)
    assert slow.has_fallen_behind
    assert taken(slow) == []
    assert [publication.number for publication in seen] == [1, 2, 3]
    assert not other.has_fallen_behind


def test_an_entry_that_is_too_large_for_the_history_is_stored_and_sent_on(area: Area) -> None:
    """Its subscribers have fallen behind, and take it from a snapshot."""
    area.subscribers = AreaSubscribers("north", HistoryLimits(max_bytes=1000))
    subscription = area.subscribers.subscribe(SubscriberOptions())
    area.set({"key": Value(1, "a", b"x" * MAX_VALUE_BYTES), "next": Value(1, "a", b"y")}, 0.0)
    assert subscription.has_fallen_behind
    assert list(area.take_local_changes()) == ["key", "next"]
    assert sorted(area.store) == ["key", "next"]


def test_a_large_publication_is_cut(area: Area) -> None:
    """Each part has a number, at most 128 entries, and room in a message."""
    subscription = area.subscribers.subscribe(EVERYTHING)
    area.set({str(number): Value(1, "a", b"x") for number in range(300)}, 0.0)
    parts = taken(subscription)
    assert [(part.number, len(part.entries)) for part in parts] == [(1, 128), (2, 128), (3, 44)]


def test_nothing_is_kept_while_nobody_follows(area: Area) -> None:
    """What came meanwhile is a gap for who says that he was here before, and not for who begins."""
    area.set({"key": Value(1, "a", b"x")}, 0.0)
    assert area.subscribers.follow(EVERYTHING, 0, 0.0).has_fallen_behind
    area.set({"key": Value(2, "a", b"x")}, KEPT_S - 1)
    reader = area.subscribers.follow(EVERYTHING, 1, KEPT_S)
    assert [publication.number for publication in taken(reader)] == [2]
    assert area.next_deadline() == 2 * KEPT_S
    area.tick(2 * KEPT_S)
    assert area.next_deadline() is None
    area.set({"key": Value(3, "a", b"x")}, 2 * KEPT_S)
    assert not area.subscribers.follow(EVERYTHING, 3, 200.0).has_fallen_behind
    assert area.subscribers.follow(EVERYTHING, 2, 200.0).has_fallen_behind
    assert area.subscribers.follow(EVERYTHING, 4, 200.0).has_fallen_behind


def test_who_unsubscribes_gets_nothing_more(area: Area) -> None:
    """Twice is as good as once."""
    area.set({"before": Value(1, "a", b"x")}, 0.0)
    subscription = area.subscribers.subscribe(EVERYTHING)
    assert subscription.at == 1
    assert len(area.subscribers) == 1
    for _ in range(2):
        area.subscribers.unsubscribe(subscription)
    area.set({"key": Value(1, "a", b"x")}, 0.0)
    assert taken(subscription) == []
    assert len(area.subscribers) == 0


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 9)), max_size=30), st.data())
def test_a_snapshot_and_its_stream_have_no_gap(changes: list[tuple[str, int]], data: st.DataObject) -> None:
    """Subscribe, then read pages, while entries change and expire: together they are what the area holds in the end."""
    area = Area("north", "a")
    area.set({key: Value(1, "a", b"x", 5000) for key in "abc"}, 0.0)
    subscription = area.subscribers.subscribe(SubscriberOptions(ignore_ttl=False))
    keys = sorted(area.store)
    mirror: dict[str, int] = {}
    now, at = 0.0, 0
    for key, version in changes:
        if data.draw(st.booleans()):
            found = page(area.store, keys[at : at + 1], ALL_KEYS, now)
            mirror.update({key: entry.version for key, entry in found.entries.items()})
            at += 1
        area.set({key: Value(version, "b", b"y", 5000)}, now)
        now += data.draw(st.sampled_from([0.0, 0.5, 3.0]))
        area.tick(now)
    mirror.update({key: entry.version for key, entry in page(area.store, keys[at:], ALL_KEYS, now).entries.items()})
    for publication in taken(subscription):
        mirror.update({key: entry.version for key, entry in publication.entries.items()})
        for key in publication.expired_keys:
            mirror.pop(key, None)
    assert mirror == {key: entry.version for key in area.store if (entry := area.get(key))}


# -- pages and pieces --------------------------------------------------------------------------------------------------


def test_a_dump_comes_in_pages() -> None:
    """A page fits into a message, a call looks at a bounded number of keys, and all pages together are the area."""
    area = Area("north", "a")
    for number in range(1500):
        area.set({f"key{number:04}": Value(1, "a", b"x" * (40_000 if number < 50 else 10), 5000)}, 0.0)
    keys, pages = sorted(area.store), []
    rest = keys
    while rest:
        found = page(area.store, rest, ALL_KEYS, 0.0)
        pages.append(found.entries)
        rest = [] if found.next_key is None else keys[keys.index(found.next_key) :]
    assert [key for entries in pages for key in entries] == keys
    assert {entry.ttl_ms for entries in pages for entry in entries.values()} == {4999}
    assert max(len(entries) for entries in pages) <= 256
    assert all(sum(len(entry.value or b"") for entry in entries.values()) < PART_BYTES for entries in pages)
    assert len(pages) >= 5


def test_a_page_of_what_nobody_wants_is_empty_and_says_where_to_go_on() -> None:
    """Keys that do not pass cost time as well: the call ends after so many of them."""
    area = Area("north", "a")
    area.set({f"key{number:04}": Value(1, "a", b"x") for number in range(600)}, 0.0)
    found = page(area.store, sorted(area.store), KeyFilter(["adj"]), 0.0)
    assert found.entries == {}
    assert found.next_key == "key0256"


def test_a_page_of_hashes_has_no_values(area: Area) -> None:
    """Hash dumps have version, originator, TTLs and hash; what has hardly any time left is left out."""
    area.set({"key": Value(1, "a", b"x", 5000, 3), "short": Value(1, "a", b"x", 400)}, 0.0)
    found = page(area.store, area.store, ALL_KEYS, 0.0, omit_values=True)
    assert found.entries == {"key": Value(1, "a", None, 4999, 3, hash_of(1, "a", b"x"))}


def test_one_entry_that_is_larger_than_a_part_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices make progress whatever the sizes are, in order, and lose nothing."""
    monkeypatch.setattr("statestore_client.server.kvstore.area_store._SLICE", 2)
    monkeypatch.setattr("statestore_client.server.kvstore.area_store.PART_BYTES", 1000)
    entries = {str(n): Value(1, "a", b"x" * size) for n, size in enumerate([5000, 10, 5000, 10, 10, 10])}
    found = list(slices(entries))
    assert [list(part) for part in found] == [["0"], ["1"], ["2"], ["3", "4"], ["5"]]
    assert list(slices({})) == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.sampled_from(["a", "b"])), max_size=6))
def test_merging_in_slices_is_merging(changes: list[tuple[str, int, str]]) -> None:
    """What is merged piece by piece gives the same store, the same entries taken, and the same reasons."""
    entries = {f"{key}{n}": Value(version, name, b"x" * 90_000) for n, (key, version, name) in enumerate(changes)}
    whole, piecewise = Area("north", "z"), Area("north", "z")
    expected = whole.merge(entries, "b", 0.0)
    accepted, reasons = {}, {}
    for piece in slices(entries):
        result = piecewise.merge(piece, "b", 0.0)
        accepted |= result.accepted
        reasons |= result.reasons
    assert (accepted, reasons) == (expected.accepted, expected.reasons)
    assert [whole.get(key) for key in sorted(whole.store)] == [piecewise.get(key) for key in sorted(piecewise.store)]


def test_a_slice_is_bounded() -> None:
    """A slice has at most 128 entries and 128 KiB."""
    small = {str(number): Value(1, "a", b"") for number in range(1000)}
    assert [len(piece) for piece in slices(small)] == [128] * 7 + [104]
    large = {str(number): Value(1, "a", b"x" * 50_000) for number in range(5)}
    assert [len(piece) for piece in slices(large)] == [2, 2, 1]
