"""The store of an area: what it takes, what it refuses, and what is left of TTLs."""

from __future__ import annotations

import pytest

from statestore_client.server.kvstore.area_store import (
    EXPIRY_SLICE,
    LEAST_TTL_MS,
    AreaLimits,
    AreaStore,
    AreaSummary,
    OriginatorNames,
)
from statestore_client.wire.kvstore.value import (
    INFINITE_TTL_MS,
    MAX_KEY_BYTES,
    MAX_ORIGINATOR_BYTES,
    MAX_TTL_MS,
    MAX_VALUE_BYTES,
    MAX_VERSION,
    NoMergeReason,
    Value,
    hash_of,
)

NOW = 1000.0


def stored(**entries: Value) -> AreaStore:
    """A store with these entries."""
    store = AreaStore("0")
    assert not store.merge(entries, None, NOW).reasons
    return store


def reason_of(key: str, entry: Value, *, sender: str | None = None) -> NoMergeReason | None:
    """Why an empty store does not take an entry."""
    return AreaStore("0").merge({key: entry}, sender, NOW).reasons.get(key)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (Value(1, "a", b"", ttl_ms=0), NoMergeReason.INVALID_TTL),
        (Value(1, "a", b"", ttl_ms=-1), NoMergeReason.INVALID_TTL),
        (Value(1, "a", b"", ttl_ms=INFINITE_TTL_MS - 1), NoMergeReason.INVALID_TTL),
        (Value(1, "a", b"", ttl_ms=MAX_TTL_MS + 1), NoMergeReason.INVALID_TTL),
        (Value(1, "a", None, ttl_ms=0), NoMergeReason.INVALID_TTL),
        (Value(1, "a", b"", ttl_ms=1), None),
        (Value(1, "a", b"", ttl_ms=MAX_TTL_MS), None),
        (Value(0, "a", b""), NoMergeReason.OLD_VERSION),
        (Value(MAX_VERSION + 1, "a", b""), NoMergeReason.INVALID_VERSION),
        (Value(2**63 - 1, "a", b""), NoMergeReason.INVALID_VERSION),
        (Value(MAX_VERSION, "a", b""), None),
        (Value(1, "a", b"", ttl_version=MAX_VERSION + 1), NoMergeReason.INVALID_VERSION),
        (Value(1, "a", b"", ttl_version=-1), NoMergeReason.INVALID_VERSION),
        (Value(1, "", b""), NoMergeReason.INVALID_ORIGINATOR),
        (Value(1, "", None), NoMergeReason.INVALID_ORIGINATOR),
        (Value(1, "é" * 128, b""), NoMergeReason.INVALID_ORIGINATOR),
        (Value(1, "a" * MAX_ORIGINATOR_BYTES, b""), None),
        (Value(1, "\ud800", b""), NoMergeReason.INVALID_ORIGINATOR),
        (Value(1, "a", b"x" * (MAX_VALUE_BYTES + 1)), NoMergeReason.VALUE_TOO_LARGE),
        (Value(1, "a", b"x" * MAX_VALUE_BYTES), None),
    ],
)
def test_what_can_never_be_right_has_a_reason(entry: Value, reason: NoMergeReason | None) -> None:
    """TTLs, versions, originators and values outside their limits are refused, each with its own reason."""
    assert reason_of("key", entry) is reason


@pytest.mark.parametrize("key", ["", "x" * (MAX_KEY_BYTES + 1), "é" * (MAX_KEY_BYTES // 2 + 1), "\udc80"])
def test_keys_have_a_size_and_can_be_sent(key: str) -> None:
    """A key is 1 to 4096 bytes of UTF-8."""
    assert reason_of(key, Value(1, "a", b"")) is NoMergeReason.INVALID_KEY
    assert reason_of("é" * (MAX_KEY_BYTES // 2), Value(1, "a", b"")) is None


def test_a_poisoned_entry_stops_none_of_the_others() -> None:
    """Of a request with good and bad entries, the good ones are taken, and each bad one has its reason."""
    store = stored(old=Value(5, "b", b"x"))
    entries = {
        "first": Value(1, "a", b"1"), "\ud800": Value(1, "a", b""), "huge": Value(1, "a", b"x" * (MAX_VALUE_BYTES + 1)),
        "old": Value(4, "b", b"y"), "version": Value(2**63, "a", b""), "nobody": Value(1, "", None),
        "missing": Value(1, "peer", None, ttl_version=1), "last": Value(1, "a", b"2"),
    }  # fmt: skip
    result = store.merge(entries, "peer", NOW)
    assert list(result.accepted) == ["first", "last"]
    assert result.reasons == {
        "\ud800": NoMergeReason.INVALID_KEY, "huge": NoMergeReason.VALUE_TOO_LARGE, "old": NoMergeReason.OLD_VERSION,
        "version": NoMergeReason.INVALID_VERSION, "nobody": NoMergeReason.INVALID_ORIGINATOR,
        "missing": NoMergeReason.INCONSISTENCY_DETECTED,
    }  # fmt: skip
    assert result.is_inconsistent
    assert set(store) == {"old", "first", "last"}


def test_a_refresh_without_sender_is_no_inconsistency() -> None:
    """A client that refreshes a key that is not there, whoever it says it is, sets off no sync."""
    for originator in ("a", "None"):
        result = AreaStore("0").merge({"key": Value(1, originator, None)}, None, NOW)
        assert result.reasons == {"key": NoMergeReason.NO_NEED_TO_UPDATE}
        assert not result.is_inconsistent


def test_what_is_accepted_is_as_it_came() -> None:
    """A TTL alone stays without a value, a full entry keeps it also where only its TTL was taken."""
    store = stored(ttl=Value(1, "a", b"x", 9000), full=Value(1, "a", b"x", 9000))
    result = store.merge({"ttl": Value(1, "a", None, 8000, 1), "full": Value(1, "a", b"x", 7000, 1)}, "peer", NOW)
    assert result.accepted == {"ttl": Value(1, "a", None, 8000, 1), "full": Value(1, "a", b"x", 7000, 1)}
    assert store.get("ttl") == Value(1, "a", b"x", 8000, 1, hash_of(1, "a", b"x"))


def test_a_hash_is_filled_in_and_one_that_came_is_kept() -> None:
    """A stored entry has a hash: its own where it came with one."""
    store = stored(none=Value(1, "a", b"x"), own=Value(1, "a", b"x", hash=7))
    assert [entry.hash for key in ("none", "own") if (entry := store.get(key))] == [hash_of(1, "a", b"x"), 7]


def test_an_area_has_room_for_so_many_keys() -> None:
    """A new key beyond the limit has the reason NO_ROOM; stored ones can change, and one that goes makes room."""
    store = AreaStore("0", AreaLimits(max_keys=1))
    assert not store.merge({"one": Value(1, "a", b"x", 1000)}, None, NOW).reasons
    assert store.merge({"two": Value(1, "a", b"x")}, None, NOW).reasons == {"two": NoMergeReason.NO_ROOM}
    assert store.refusal("two", Value(1, "a", b"x")) is NoMergeReason.NO_ROOM
    assert not store.merge({"one": Value(2, "a", b"y", 1000)}, None, NOW).reasons
    store.expire(NOW + 1)
    assert not store.merge({"two": Value(1, "a", b"x")}, None, NOW).reasons


def test_an_area_has_room_for_so_many_bytes() -> None:
    """Keys, originators and values count; a value may shrink, or grow as far as there is room."""
    store = AreaStore("0", AreaLimits(max_bytes=10))
    assert not store.merge({"key": Value(1, "a", b"123456")}, None, NOW).reasons
    assert store.merge({"key": Value(2, "a", b"1234567")}, None, NOW).reasons == {"key": NoMergeReason.NO_ROOM}
    assert not store.merge({"key": Value(2, "a", b"12345")}, None, NOW).reasons
    assert store.merge({"k": Value(1, "a", b"")}, None, NOW).reasons == {"k": NoMergeReason.NO_ROOM}


def test_a_summary_counts_keys_and_bytes() -> None:
    """The bytes are those of keys, originators and values in UTF-8, and follow every change."""
    store = stored(a=Value(1, "né", b"12", 1000), b=Value(1, "x", b""))
    assert store.summary() == AreaSummary("0", keys=2, expiring_keys=1, bytes=(1 + 3 + 2) + (1 + 1))
    store.merge({"a": Value(2, "x", b"1", 1000)}, None, NOW)
    assert store.summary().bytes == 3 + 2
    store.expire(NOW + 1)
    assert store.summary() == AreaSummary("0", keys=1, expiring_keys=0, bytes=2)


def test_counters_count_entries() -> None:
    """Received, replaced, refreshed, refused and expired entries are counted, and conflicts of one version."""
    store = stored(key=Value(1, "a", b"x", 1000))
    store.merge({"key": Value(1, "b", b"x", 1000)}, None, NOW)
    store.merge({"key": Value(1, "b", None, 1000, 1), "other": Value(1, "b", None)}, None, NOW)
    store.expire(NOW + 1)
    counters = store.counters
    assert (counters.received, counters.replaced, counters.refreshed, counters.refused) == (4, 2, 1, 1)
    assert (counters.conflicts, counters.expired) == (1, 1)


def test_each_change_is_told_to_one_place() -> None:
    """What mirrors the store hears of each entry that is replaced, refreshed or removed, and of nothing else."""
    changes: list[tuple[str, Value | None]] = []
    store = AreaStore("0", on_change=lambda key, entry: changes.append((key, entry)))
    store.merge({"key": Value(1, "a", b"x", 1000)}, None, NOW)
    store.merge({"key": Value(1, "a", None, 2000, 1)}, None, NOW)
    store.merge({"key": Value(1, "a", b"x", 9000, 1)}, None, NOW)
    store.expire(NOW + 2)
    hash_ = hash_of(1, "a", b"x")
    expected = [Value(1, "a", b"x", 1000, 0, hash_), Value(1, "a", b"x", 2000, 1, hash_), None]
    assert changes == [("key", entry) for entry in expected]


def test_names_of_originators_are_shared_and_bounded() -> None:
    """Entries of one originator share its name; a flood of names is not kept."""
    store = AreaStore("0")
    store.merge({str(n): Value(1, "".join(["no", "de"]), b"") for n in range(2)}, None, NOW)
    first, second = store.get("0"), store.get("1")
    assert first is not None
    assert second is not None
    assert first.originator is second.originator
    names = OriginatorNames()
    for number in range(10_000):
        names.shared(f"site{number}")
    assert len(names._names) <= 4096


# -- times to live -----------------------------------------------------------------------------------------------------


def test_a_key_expires_when_its_ttl_is_over_and_not_before() -> None:
    """The countdown begins when the entry is taken, and the key is gone when it ends."""
    store = stored(key=Value(1, "a", b"x", 1500), ever=Value(1, "a", b"x"))
    assert store.next_deadline() == NOW + 1.5
    assert store.expire(NOW + 1.499) == []
    assert store.expire(NOW + 1.5) == ["key"]
    assert set(store) == {"ever"}
    assert store.next_deadline() is None


@pytest.mark.parametrize(
    "change",
    [Value(2, "a", b"y", 9000), Value(1, "b", b"x", 9000), Value(1, "a", b"x", 9000, 1), Value(1, "a", None, 9000, 1)],
    ids=["version", "originator", "TTL version", "TTL only"],
)
def test_a_change_begins_another_countdown(change: Value) -> None:
    """The moment of the entry that was there before means nothing any more."""
    store = stored(key=Value(1, "a", b"x", 1000))
    assert not store.merge({"key": change}, None, NOW + 0.5).reasons
    assert store.expire(NOW + 1) == []
    assert store.expire(NOW + 9.5) == ["key"]


def test_an_infinite_ttl_ends_a_countdown() -> None:
    """A key whose TTL becomes infinite stays."""
    store = stored(key=Value(1, "a", b"x", 1000))
    store.merge({"key": Value(1, "a", None, INFINITE_TTL_MS, 1)}, None, NOW)
    assert store.expire(NOW + 1e6) == []


def test_many_keys_expire_in_slices() -> None:
    """A call removes a bounded number of keys; there is more to do as long as the next deadline is not later."""
    store = stored(**{str(n): Value(1, "a", b"", 1000) for n in range(2 * EXPIRY_SLICE + 1)})
    sizes = []
    while (deadline := store.next_deadline()) is not None and deadline <= NOW + 1:
        sizes.append(len(store.expire(NOW + 1)))
    assert sizes == [EXPIRY_SLICE, EXPIRY_SLICE, 1]


@pytest.mark.parametrize(
    ("left_ms", "is_sent", "is_read"),
    [(LEAST_TTL_MS, True, True), (499, False, True), (2, False, True), (1, False, False)],
)
def test_hardly_anything_left_is_read_but_not_sent(left_ms: int, is_sent: bool, is_read: bool) -> None:
    """With less than 500 ms left an entry goes to no peer and into no dump; who asks for the key gets it."""
    store = stored(key=Value(1, "a", b"x", left_ms))
    assert ("key" in store.outgoing(["key", "missing"], NOW)) is is_sent
    assert ("key" in store.read(["key"], NOW)) is is_read
    if is_read:
        assert store.read(["key"], NOW)["key"].ttl_ms == left_ms - 1


def test_what_leaves_is_rewritten_only_if_it_is_what_is_stored() -> None:
    """The TTL of an entry that was replaced meanwhile, or that never expires, goes as it is."""
    store = stored(key=Value(2, "a", b"x", 10_000), ever=Value(1, "a", b"x"))
    entries = {"key": Value(1, "a", b"x", 777), "ever": Value(1, "a", b"x"), "gone": Value(1, "a", b"x", 3)}
    assert store.leaving(entries, NOW + 5) == entries
    refresh = {"key": Value(2, "a", None, 10_000)}
    assert store.leaving(refresh, NOW + 5) == {"key": Value(2, "a", None, 4999)}
