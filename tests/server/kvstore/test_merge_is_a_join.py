"""In what sense merging is a join, and where it is not."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from statestore_client.server.kvstore.store import AreaStore
from statestore_client.wire.kvstore.comparison import Comparison, compare
from statestore_client.wire.kvstore.value import INFINITE_TTL_MS, NoMergeReason, Value, hash_of

KEYS = st.sampled_from(["k0", "k1"])
ENTRIES = st.builds(
    Value,
    version=st.integers(1, 3),
    originator=st.sampled_from(["node5", "node55"]),
    value=st.sampled_from([b"", b"dummy", b"dummyValue", b"\xff"]),
    ttl_ms=st.sampled_from([1, 600, 300_000, INFINITE_TTL_MS]),
    ttl_version=st.integers(0, 2),
)
REQUESTS = st.dictionaries(KEYS, ENTRIES)
SENDERS = st.sampled_from([None, "node5", "zoe"])


def holds(store: AreaStore) -> dict[str, tuple[int, str, bytes | None, int]]:
    """What the join is about: everything but the TTL."""
    found = {}
    for key in store:
        entry = store.get(key)
        assert entry is not None
        found[key] = (entry.version, entry.originator, entry.value, entry.ttl_version)
    return found


def merged(*requests: dict[str, Value]) -> AreaStore:
    """One after the other, at one moment."""
    store = AreaStore("0")
    for request in requests:
        store.merge(request, None, 0.0)
    return store


def everything(store: AreaStore) -> dict[str, Value]:
    """What the store would send."""
    return {key: entry for key in store if (entry := store.get(key)) is not None}


@given(st.lists(REQUESTS, max_size=4), st.data())
def test_entries_with_values_are_merged_in_any_order(requests: list[dict[str, Value]], data: st.DataObject) -> None:
    """Commutative: the order of requests makes no difference to version, originator, value and TTL version."""
    shuffled = data.draw(st.permutations(requests))
    assert holds(merged(*requests)) == holds(merged(*shuffled))


@given(REQUESTS, REQUESTS, REQUESTS)
def test_entries_with_values_are_merged_in_any_grouping(
    one: dict[str, Value], two: dict[str, Value], three: dict[str, Value]
) -> None:
    """Associative: what two stores have become is merged as their requests are, from either side."""
    expected = holds(merged(one, two, three))
    assert holds(merged(everything(merged(one, two)), three)) == expected
    assert holds(merged(one, everything(merged(two, three)))) == expected


@given(st.lists(REQUESTS, max_size=4), SENDERS)
def test_what_was_merged_changes_nothing_again(requests: list[dict[str, Value]], sender: str | None) -> None:
    """Idempotent: each request again, and the store's own entries, are refused without a change."""
    store = merged(*requests)
    before = everything(store)
    for request in (*requests, before):
        assert store.merge(request, sender, 1.0).accepted == {}
    assert everything(store) == before


@given(st.lists(ENTRIES, min_size=1, max_size=5))
def test_the_greatest_entry_wins(entries: list[Value]) -> None:
    """What stays is the greatest by version, originator, value and TTL version, in this order, each ascending."""
    store = merged(*({"key": entry} for entry in entries))
    greatest = max((entry.version, entry.originator, entry.value or b"", entry.ttl_version) for entry in entries)
    assert holds(store) == {"key": greatest}


@given(ENTRIES, ENTRIES)
def test_a_merge_agrees_with_a_comparison(one: Value, other: Value) -> None:
    """Of two entries with hashes, a store that has one takes the other exactly if comparing says that it is better."""
    first, second = (
        Value(
            entry.version,
            entry.originator,
            entry.value,
            1,
            entry.ttl_version,
            hash_of(entry.version, entry.originator, entry.value or b""),
        )
        for entry in (one, other)
    )
    taken = merged({"key": first}).merge({"key": second}, None, 0.0).accepted
    assert bool(taken) is (compare(first, second) is Comparison.SECOND)


@given(st.lists(REQUESTS, min_size=3, max_size=3))
def test_stores_that_send_each_other_everything_are_equal(requests: list[dict[str, Value]]) -> None:
    """Three stores that got one request each, in whatever order they exchange what they have, end up with the same."""
    results = []
    for order in permutations([(0, 1), (1, 2), (2, 0)]):
        stores = [merged(request) for request in requests]
        for _ in range(2):
            for one, other in order:
                stores[other].merge(everything(stores[one]), str(one), 0.0)
                stores[one].merge(everything(stores[other]), str(other), 0.0)
        results += [holds(store) for store in stores]
    assert all(result == results[0] for result in results)


# -- what is not a join ------------------------------------------------------------------------------------------------


def test_of_two_ttls_alone_the_first_stays() -> None:
    """Exception 1: entries that differ in the TTL alone are not ordered; a store keeps the one that came first."""
    short, long = {"key": Value(1, "a", b"x", 1000)}, {"key": Value(1, "a", b"x", 9000)}
    assert everything(merged(short, long))["key"].ttl_ms == 1000
    assert everything(merged(long, short))["key"].ttl_ms == 9000


def test_a_refresh_before_its_value_is_lost() -> None:
    """Exception 2: a TTL without a value needs the value to be there; before it, it is refused."""
    value, refresh = {"key": Value(1, "a", b"x", 1000)}, {"key": Value(1, "a", None, 9000, 1)}
    assert holds(merged(value, refresh))["key"] == (1, "a", b"x", 1)
    assert holds(merged(refresh, value))["key"] == (1, "a", b"x", 0)


@given(st.lists(REQUESTS, max_size=3), st.lists(st.integers(0, 3), max_size=6))
def test_refreshes_are_a_join_once_the_value_is_there(
    requests: list[dict[str, Value]], ttl_versions: list[int]
) -> None:
    """Beside exception 2: refreshes of what is stored can come in any order, and again."""
    for order in (ttl_versions, sorted(ttl_versions), [*reversed(ttl_versions), *ttl_versions]):
        store = merged(*requests)
        for key, entry in everything(store).items():
            for ttl_version in order:
                refresh = Value(entry.version, entry.originator, None, 5000, ttl_version)
                store.merge({key: refresh}, entry.originator, 0.0)
            found = store.get(key)
            assert found is not None
            assert found.ttl_version == max([entry.ttl_version, *ttl_versions])
            assert (found.value, found.hash) == (entry.value, entry.hash)


def test_what_expired_can_come_again() -> None:
    """Exception 3: time. A key that expired here is taken again from a store where it has some time left."""
    store = merged({"key": Value(5, "a", b"x", 1000)})
    store.expire(1.0)
    assert store.merge({"key": Value(1, "a", b"old", 1000)}, "peer", 1.0).accepted


def test_only_the_originator_itself_is_told_to_sync() -> None:
    """The reason depends on the sender; what is stored does not."""
    refresh = {"key": Value(1, "node5", None, 1000, 1)}
    reasons = {sender: AreaStore("0").merge(refresh, sender, 0.0).reasons["key"] for sender in (None, "node5", "zoe")}
    assert reasons == {
        None: NoMergeReason.NO_NEED_TO_UPDATE,
        "node5": NoMergeReason.INCONSISTENCY_DETECTED,
        "zoe": NoMergeReason.NO_NEED_TO_UPDATE,
    }
