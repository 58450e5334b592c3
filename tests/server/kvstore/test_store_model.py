"""The store of an area beside a naive second implementation of the same rules: tables, TTLs, expiry."""

from __future__ import annotations

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore_client.server.kvstore.store import LEAST_TTL_MS, AreaStore
from statestore_client.wire.kvstore.value import INFINITE_TTL_MS, MAX_VERSION, NoMergeReason, Value

#: 5.001 + 0.001 is a little more than 5.002.
_ROUNDING_S = 1e-6

KEYS = st.sampled_from(["k0", "k1", "k2"])
TTLS = st.sampled_from([INFINITE_TTL_MS, 0, -1, 1, 400, 500, 501, 1000, 30_000])
ENTRIES = st.builds(
    Value,
    version=st.sampled_from([-1, 0, 1, 2, 3, MAX_VERSION, MAX_VERSION + 1]),
    originator=st.sampled_from(["", "node5", "node55"]),
    value=st.one_of(st.none(), st.sampled_from([b"", b"dummy", b"dummyValue"])),
    ttl_ms=TTLS,
    ttl_version=st.sampled_from([-1, 0, 1, 2, MAX_VERSION + 1]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.dictionaries(KEYS, ENTRIES, max_size=3), st.sampled_from([None, "node5", "node55", "zoe"])),
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
