"""Merging entries: two decision tables, in what sense it is a join, and a naive second implementation of the store."""

from __future__ import annotations

from itertools import permutations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore_client.server.kvstore.area_store import LEAST_TTL_MS, AreaStore, Decision, Update, decide
from statestore_client.wire.kvstore.value import (
    INFINITE_TTL_MS,
    MAX_VERSION,
    Comparison,
    NoMergeReason,
    Value,
    compare,
    hash_of,
)

REPLACE, UPDATE_TTL = Update.REPLACE, Update.UPDATE_TTL
OLD, NO_NEED = NoMergeReason.OLD_VERSION, NoMergeReason.NO_NEED_TO_UPDATE
RESYNC = NoMergeReason.INCONSISTENCY_DETECTED

CURRENT = Value(5, "node5", b"dummy", ttl_ms=1000, ttl_version=3)


@pytest.mark.parametrize(
    ("entry", "current", "expected"),
    [
        pytest.param(Value(0, "zoe", b"x"), None, OLD, id="A1 version 0"),
        pytest.param(Value(-1, "zoe", b"x"), CURRENT, OLD, id="A1 version below 0"),
        pytest.param(Value(4, "zoe", b"zzz", ttl_version=9), CURRENT, OLD, id="A2"),
        pytest.param(Value(1, "a", b""), None, REPLACE, id="A3 nothing stored"),
        pytest.param(Value(6, "a", b"a", ttl_version=0), CURRENT, REPLACE, id="A3"),
        pytest.param(Value(5, "node55", b"a", ttl_version=0), CURRENT, REPLACE, id="A4 a longer name"),
        pytest.param(Value(5, "node6", b"a"), CURRENT, REPLACE, id="A4"),
        pytest.param(Value(5, "node", b"zzz", ttl_version=9), CURRENT, NO_NEED, id="A5"),
        pytest.param(Value(5, "node5", b"dummyValue", ttl_version=0), CURRENT, REPLACE, id="A6 a longer value"),
        pytest.param(Value(5, "node5", b"\xff", ttl_version=2), CURRENT, REPLACE, id="A6 bytes have no sign"),
        pytest.param(Value(5, "node5", b"dumm", ttl_version=9), CURRENT, NO_NEED, id="A7"),
        pytest.param(Value(5, "node5", b"", ttl_version=9), CURRENT, NO_NEED, id="A7 an empty value is one"),
        pytest.param(Value(5, "node5", b"dummy", ttl_version=4), CURRENT, UPDATE_TTL, id="A8"),
        pytest.param(Value(5, "node5", b"dummy", ttl_ms=9, ttl_version=3), CURRENT, NO_NEED, id="A9 another TTL alone"),
        pytest.param(Value(5, "node5", b"dummy", ttl_version=2), CURRENT, NO_NEED, id="A9"),
    ],
)
@pytest.mark.parametrize("sender", [None, "node5", "zoe"])
def test_an_entry_with_a_value(entry: Value, current: Value | None, expected: Decision, sender: str | None) -> None:
    """Table A decides about an entry that carries a value, whoever has sent it."""
    assert decide(entry, current, sender) is expected


@pytest.mark.parametrize(
    ("entry", "current", "from_originator", "otherwise"),
    [
        pytest.param(Value(5, "node5", None, ttl_version=4), None, RESYNC, NO_NEED, id="B1"),
        pytest.param(Value(6, "node5", None, ttl_version=4), CURRENT, RESYNC, NO_NEED, id="B2 higher"),
        pytest.param(Value(4, "node5", None, ttl_version=4), CURRENT, RESYNC, NO_NEED, id="B2 lower"),
        pytest.param(
            Value(0, "node5", None, ttl_version=4), CURRENT, RESYNC, NO_NEED, id="B2 the version is not checked"
        ),
        pytest.param(Value(5, "node6", None, ttl_version=4), CURRENT, RESYNC, NO_NEED, id="B3"),
        pytest.param(Value(5, "node5", None, ttl_version=4), CURRENT, UPDATE_TTL, UPDATE_TTL, id="B4"),
        pytest.param(Value(5, "node5", None, ttl_version=3), CURRENT, NO_NEED, NO_NEED, id="B5 equal"),
        pytest.param(Value(5, "node5", None, ttl_version=2), CURRENT, NO_NEED, NO_NEED, id="B5 lower"),
    ],
)
def test_an_entry_without_a_value(
    entry: Value, current: Value | None, from_originator: Decision, otherwise: Decision
) -> None:
    """Table B decides about an entry without a value: its originator is told to sync, nobody else is."""
    assert decide(entry, current, entry.originator) is from_originator
    assert decide(entry, current, "another") is otherwise
    assert decide(entry, current, None) is otherwise


# -- in what sense merging is a join, and where it is not --------------------------------------------------------------


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


# -- the store beside a naive second implementation of the same rules: tables, TTLs, expiry ----------------------------


#: 5.001 + 0.001 is a little more than 5.002.
_ROUNDING_S = 1e-6

MODEL_KEYS = st.sampled_from(["k0", "k1", "k2"])
MODEL_TTLS = st.sampled_from([INFINITE_TTL_MS, 0, -1, 1, 400, 500, 501, 1000, 30_000])
#: Mostly entries that have to do with each other: changes and refreshes of what is stored.
MODEL_ENTRIES = st.one_of(
    *[
        st.builds(
            Value,
            version=st.integers(1, 2),
            originator=st.just("node5"),
            value=st.sampled_from([None, None, b"dummy", b"dummyValue"]),
            ttl_ms=MODEL_TTLS,
            ttl_version=st.integers(0, 3),
        )
    ]
    * 2,
    st.builds(
        Value,
        version=st.sampled_from([-1, 0, 1, 2, 3, MAX_VERSION, MAX_VERSION + 1]),
        originator=st.sampled_from(["", "node5", "node55"]),
        value=st.one_of(st.none(), st.sampled_from([b"", b"dummy", b"dummyValue"])),
        ttl_ms=MODEL_TTLS,
        ttl_version=st.sampled_from([-1, 0, 1, 2, MAX_VERSION + 1]),
    ),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.dictionaries(MODEL_KEYS, MODEL_ENTRIES, max_size=3), st.sampled_from([None, "node5", "node55", "zoe"])
        ),
        st.sampled_from([0.001, 0.25, 0.5, 0.999, 5.0]),
    ),
    max_size=20,
)


@attrs.define
class Model:
    """All in milliseconds; looks at everything each time."""

    now_ms: int = 0
    entries: dict[str, Value] = attrs.field(factory=dict)
    ends_ms: dict[str, int] = attrs.field(factory=dict)

    def merge_one(self, key: str, entry: Value, sender: str | None) -> NoMergeReason | None:
        """The tables, by comparing tuples."""
        if not entry.originator:
            return NoMergeReason.INVALID_ORIGINATOR
        if entry.ttl_ms != INFINITE_TTL_MS and entry.ttl_ms <= 0:
            return NoMergeReason.INVALID_TTL
        if entry.version > MAX_VERSION or entry.ttl_version not in range(MAX_VERSION + 1):
            return NoMergeReason.INVALID_VERSION
        current = self.entries.get(key)
        if entry.value is None:
            is_about_this = current and (current.version, current.originator) == (entry.version, entry.originator)
            if current is None or not is_about_this:
                from_originator = sender == entry.originator
                return NoMergeReason.INCONSISTENCY_DETECTED if from_originator else NoMergeReason.NO_NEED_TO_UPDATE
            new = attrs.evolve(current, ttl_ms=entry.ttl_ms, ttl_version=entry.ttl_version)
        elif entry.version <= 0 or (current is not None and entry.version < current.version):
            return NoMergeReason.OLD_VERSION
        else:
            new = entry
        if current is not None and rank(new) <= rank(current):
            return NoMergeReason.NO_NEED_TO_UPDATE
        self.entries[key] = new
        self.ends_ms.pop(key, None)
        if entry.ttl_ms != INFINITE_TTL_MS:
            self.ends_ms[key] = self.now_ms + entry.ttl_ms
        return None

    def expire(self) -> set[str]:
        """Keys whose time is over."""
        ended = {key for key, end_ms in self.ends_ms.items() if end_ms <= self.now_ms}
        for key in ended:
            del self.entries[key], self.ends_ms[key]
        return ended

    def outgoing(self) -> dict[str, int]:
        """The TTL that each key has on its way out."""
        left = {key: self.ends_ms[key] - self.now_ms if key in self.ends_ms else None for key in self.entries}
        return {
            key: INFINITE_TTL_MS if left_ms is None else left_ms - 1
            for key, left_ms in left.items()
            if left_ms is None or left_ms >= LEAST_TTL_MS
        }


def rank(entry: Value) -> tuple[int, str, bytes, int]:
    """The order of entries."""
    return entry.version, entry.originator, entry.value or b"", entry.ttl_version


@settings(max_examples=300)
@given(STEPS)
def test_a_store_does_what_the_rules_say(steps: list[tuple[dict[str, Value], str | None] | float]) -> None:
    """Whatever arrives, and however the time passes: entries, reasons, TTLs and expiry are the model's."""
    store, model = AreaStore("0"), Model()
    for step in steps:
        if isinstance(step, float):
            model.now_ms += round(step * 1000)
            assert set(store.expire(model.now_ms / 1000 + _ROUNDING_S)) == model.expire()
        else:
            requests, sender = step
            result = store.merge(requests, sender, model.now_ms / 1000)
            reasons = {key: model.merge_one(key, entry, sender) for key, entry in requests.items()}
            assert result.reasons == {key: reason for key, reason in reasons.items() if reason is not None}
            assert list(result.accepted) == [key for key, reason in reasons.items() if reason is None]
        assert {key: attrs.evolve(entry, hash=None) for key in store if (entry := store.get(key))} == model.entries
        leaving = store.outgoing(list(store), model.now_ms / 1000)
        assert {key: entry.ttl_ms for key, entry in leaving.items()} == model.outgoing()
        deadline = store.next_deadline()
        first_ms = min(model.ends_ms.values(), default=None)
        assert (None if deadline is None else round(deadline * 1000)) == first_ms
        assert store.summary().expiring_keys == len(model.ends_ms)
