"""Those that follow an area: streams, long polls, dumps in pages, and work in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.server.kvstore.area import Area
from statestore_client.server.kvstore.key_filter import ALL_KEYS, KeyFilter
from statestore_client.server.kvstore.long_polls import HOLD_S, LongPoll
from statestore_client.server.kvstore.slices import PART_BYTES, page, slices
from statestore_client.server.kvstore.subscribers import AreaSubscription, SubscriberOptions
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
    assert area.outgoing(area.take_news(), 0.0) == {}
    area.tick(0.001)
    assert [publication.expired_keys for publication in taken(subscription)] == [(), ("key",)]
    assert area.take_news() == {}


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


@pytest.mark.parametrize("options", [SubscriberOptions(max_queued=2), SubscriberOptions(max_queued_bytes=1100)])
def test_who_falls_behind_is_ended_and_told_so_after_what_was_queued(area: Area, options: SubscriberOptions) -> None:
    """A full queue ends a subscription: what is in it still comes, then its end. The others notice nothing."""
    slow, other = area.subscribers.subscribe(options), area.subscribers.subscribe(EVERYTHING)
    for number in range(1, 5):
        area.set({"key": Value(number, "a", b"x")}, 0.0)
    assert len(slow) == 2
    assert slow.has_fallen_behind
    assert not slow.is_over
    assert [publication.number for publication in taken(slow)] == [1, 2]
    assert slow.is_over
    area.set({"key": Value(5, "a", b"x")}, 0.0)
    assert len(slow) == 0
    assert [publication.number for publication in taken(other)] == [1, 2, 3, 4, 5]
    assert not other.is_over


def test_an_entry_that_is_too_large_for_one_queue_stops_no_other(area: Area) -> None:
    """The largest value ends a subscription that has no room for it, and is stored, sent on, and seen by the others."""
    small = area.subscribers.subscribe(SubscriberOptions(max_queued_bytes=1000))
    other = area.subscribers.subscribe(SubscriberOptions())
    area.set({"key": Value(1, "a", b"x" * MAX_VALUE_BYTES), "next": Value(1, "a", b"y")}, 0.0)
    assert small.is_over
    assert list(taken(other)[0].entries) == ["key", "next"]
    assert list(area.take_news()) == ["key", "next"]


def test_who_unsubscribes_gets_nothing_more(area: Area) -> None:
    """Twice is as good as once."""
    area.set({"before": Value(1, "a", b"x")}, 0.0)
    subscription = area.subscribers.subscribe(EVERYTHING)
    assert subscription.began_after == 1
    assert len(area.subscribers) == 1
    for _ in range(2):
        area.subscribers.unsubscribe(subscription)
    area.set({"key": Value(1, "a", b"x")}, 0.0)
    assert len(subscription) == 0
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
    monkeypatch.setattr("statestore_client.server.kvstore.slices._SLICE", 2)
    monkeypatch.setattr("statestore_client.server.kvstore.slices.PART_BYTES", 1000)
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


# -- long polls --------------------------------------------------------------------------------------------------------


def held(area: Area, snapshot: dict[str, Value], now: float = 0.0) -> LongPoll:
    """A poll of keys that begin with adj:, compared to its end."""
    poll = area.polls.hold(KeyFilter(["adj:"]), snapshot, list(area.store), now)
    while poll.check_some(area.store):
        pass
    return poll


@pytest.mark.parametrize(
    ("snapshot", "answer"),
    [
        ({"adj:1": Value(1, "a", b"x")}, None),
        ({"adj:1": Value(1, "a", None, hash=hash_of(1, "a", b"x"))}, None),
        ({}, True),
        ({"adj:1": Value(1, "a", b"x"), "adj:2": Value(1, "a", b"x")}, True),
        ({"adj:1": Value(2, "a", b"x")}, True),
        ({"adj:1": Value(1, "b", b"x")}, True),
        ({"adj:1": Value(1, "a", b"y")}, True),
        ({"adj:1": Value(1, "a", None, hash=7)}, True),
    ],
    ids=["equal", "equal hash", "missing", "extra", "version", "originator", "value", "hash"],
)
def test_a_poll_is_answered_at_once_if_something_differs(
    area: Area, snapshot: dict[str, Value], answer: bool | None
) -> None:
    """Extra, changed and missing keys are a difference; keys that the poll is not about, and TTLs, are not."""
    area.set({"adj:1": Value(1, "a", b"x", 5000, 4), "key": Value(1, "a", b"x")}, 0.0)
    assert held(area, snapshot).answer is answer


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (Value(2, "a", b"y"), True), (Value(1, "a", None, 5000, 1), None), (None, True),
    ],
    ids=["value", "TTL", "expired"],
)  # fmt: skip
def test_a_held_poll_is_answered_by_the_first_value(area: Area, change: Value | None, answer: bool | None) -> None:
    """A new value or an expired key answers it; a TTL alone, or another key, does not."""
    area.set({"adj:1": Value(1, "a", b"x", 4000)}, 0.0)
    poll = held(area, {"adj:1": Value(1, "a", b"x")})
    area.set({"other": Value(1, "a", b"x", 1000)}, 0.0)
    area.tick(1.0)
    assert poll.answer is None
    if change is not None:
        area.set({"adj:1": change}, 1.0)
    area.tick(4.5)
    assert poll.answer is answer
    assert (area.answered == [poll]) is bool(answer)
    assert len(area.polls) == (0 if answer else 1)


def test_a_held_poll_ends_by_its_own_timer(area: Area) -> None:
    """After 20 s without any change the answer is no, and nothing else is needed for that."""
    early, late = held(area, {}, 0.0), held(area, {}, 1.0)
    assert area.next_deadline() == HOLD_S
    area.tick(HOLD_S)
    assert (early.answer, late.answer) == (False, None)
    assert area.answered == [early]
    area.tick(HOLD_S + 1)
    assert area.answered == [early, late]
    assert area.next_deadline() is None


def test_a_poll_of_a_large_area_is_compared_in_pieces(area: Area) -> None:
    """A call compares 256 keys; a change in between answers the poll before all are compared."""
    entries = {f"adj:{number}": Value(1, "a", b"x") for number in range(2000)}
    for piece in slices(entries):
        area.set(piece, 0.0)
    poll = area.polls.hold(KeyFilter(["adj:"]), entries, list(area.store), 0.0)
    calls = 1
    while poll.check_some(area.store):
        calls += 1
    assert (poll.answer, calls) == (None, 8)
    again = area.polls.hold(KeyFilter(["adj:"]), entries, list(area.store), 0.0)
    assert again.check_some(area.store)
    area.set({"adj:0": Value(2, "a", b"y")}, 0.0)
    assert again.answer is True
    assert not again.check_some(area.store)


def test_a_reader_that_leaves_is_dropped(area: Area) -> None:
    """Twice is as good as once."""
    poll = held(area, {})
    for _ in range(2):
        area.polls.drop(poll)
    assert len(area.polls) == 0
