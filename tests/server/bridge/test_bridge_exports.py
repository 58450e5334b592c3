"""Which keys of the state store cross to other sites, with which version, and when they end there."""

from __future__ import annotations

import pytest
from bridged_pair import TTL_MS, WALL, BridgedPair

from statestore_client.server.bridge.bridge import BridgeOptions
from statestore_client.server.bridge.exports import NotExported
from statestore_client.server.bridge.names import exported_name, key_under, owner_of, version_of
from statestore_client.server.kvstore.admission import AreaLimits
from statestore_client.server.kvstore.own_keys import ERASE_TTL_MS
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.kvstore.value import MAX_KEY_BYTES, MAX_VALUE_BYTES, MAX_VERSION, Value

NAME = "sites/rome/line/1"


def test_a_chosen_key_appears_with_the_name_of_the_site() -> None:
    """It has the site as originator and the TTL of own keys, and is refreshed: it is there much later."""
    pair = BridgedPair()
    pair.join()
    pair.put(b"line/1", b"runs")
    pair.put(b"other/1", b"x")
    pair.work()
    pair.run(10 * TTL_MS / 1000)
    assert pair.said(NAME) == (b"runs", "rome", TTL_MS)
    assert list(pair.area.store) == [NAME]


def test_what_was_there_before_the_bridge_crosses_too() -> None:
    """More keys than one step of the first look takes, below two prefixes of which one holds the other."""
    pair = BridgedPair(BridgeOptions((b"line/", b"line/1", b"a")))
    keys = [b"line/%d" % n for n in range(200)] + [b"a"]
    for key in [*keys, b"b", b"lina", b"linf"]:
        pair.put(key)
    bridge = pair.join()
    assert pair.calls == 1
    pair.work()
    pair.run(3)
    assert set(pair.area.store) == {f"sites/rome/{key.decode()}" for key in keys}
    assert len(bridge.exports) == len(keys)


def test_a_new_value_follows_and_a_deletion_ends_it() -> None:
    """The version is in the order of the store's versions; after a DEL the key is gone within the TTL of an erasure."""
    pair = BridgedPair()
    bridge = pair.join()
    pair.put(b"line/1", b"1")
    pair.work()
    pair.run(0.3)
    first = pair.area.get(NAME)
    pair.put(b"line/1", b"2")
    pair.work()
    pair.run(0.3)
    second = pair.area.get(NAME)
    assert first is not None
    assert second is not None
    assert (WALL + 100_000) << 20 <= first.version < second.version
    assert second.value == b"2"
    assert second.ttl_version == WALL + 100_000  # the wall clock at the start
    pair.delete(b"line/1")
    pair.work()
    assert pair.said(NAME) == (b"2", "rome", ERASE_TTL_MS)
    pair.run(ERASE_TTL_MS / 1000 + 0.2)
    assert pair.said(NAME) is None
    assert len(bridge.exports) == 0


@pytest.mark.parametrize("way", ["expiry", "fence"])
def test_what_may_be_a_lock_never_crosses(way: str) -> None:
    """Neither a key with an expiry nor one with a fencing mark; a key that becomes one ends at the others."""
    pair = BridgedPair()
    pair.join()
    lock = {"expiry_ms": 60_000} if way == "expiry" else {"fenced": True}
    pair.put(b"line/2", b"holder", **lock)
    pair.put(b"line/1")
    pair.work()
    pair.run(1)
    assert list(pair.area.store) == [NAME]
    pair.put(b"line/1", b"holder", **lock)
    pair.work()
    pair.run(ERASE_TTL_MS / 1000 + 0.2)
    assert list(pair.area.store) == []


def test_what_comes_and_goes_before_it_is_looked_at_leaves_nothing() -> None:
    """Keys that are set and deleted at once do not pile up."""
    pair = BridgedPair()
    bridge = pair.join()
    for n in range(100):
        pair.put(b"line/%d" % n)
        pair.delete(b"line/%d" % n)
    assert (bridge.waiting, pair.calls) == (0, 1)
    pair.work()
    pair.run(1)
    assert list(pair.area.store) == []


def test_what_others_give_back_is_erased_unless_it_is_still_so() -> None:
    """A site that starts again hears what it has said before: it goes on with what its store has, and ends the rest."""
    pair = BridgedPair()
    pair.put(b"line/1", b"same")
    pair.put(b"line/2", b"new")
    pair.join()
    for key, value in (("line/1", b"same"), ("line/2", b"old"), ("line/3", b"deleted"), ("other", b"not chosen now")):
        pair.arrive(f"sites/rome/{key}", value, "rome", version=1 << 61)
    pair.work()
    pair.run(ERASE_TTL_MS / 1000 + 1)
    assert {name: pair.said(name) for name in pair.area.store} == {
        "sites/rome/line/1": (b"same", "rome", TTL_MS),
        "sites/rome/line/2": (b"new", "rome", TTL_MS),
    }
    entry = pair.area.get("sites/rome/line/2")
    assert entry is not None
    assert entry.version == (1 << 61) + 1


def test_what_another_site_says_below_the_own_name_is_overridden() -> None:
    """The own value comes back; a key that the store does not have is left to its time to live."""
    pair = BridgedPair()
    pair.put(b"line/1", b"mine")
    pair.join()
    pair.work()
    pair.run(1)
    pair.arrive(NAME, b"theirs", "zurich", version=1 << 61)
    pair.arrive("sites/rome/line/9", b"theirs", "zurich")
    pair.work()
    pair.run(1)
    assert pair.said(NAME) == (b"mine", "rome", TTL_MS)
    assert pair.said("sites/rome/line/9") == (b"theirs", "zurich", TTL_MS)
    assert pair.value(b"sites/rome/line/9") is None


def test_what_does_not_fit_is_counted_and_told_once() -> None:
    """Names that are not UTF-8 or too long, values that are too large: an older value ends, and the rest goes on."""
    pair = BridgedPair()
    bridge = pair.join()
    pair.put(b"line/1", b"small")
    pair.work()
    pair.run(1)
    pair.put(b"line/1", b"x" * (MAX_VALUE_BYTES + 1))
    for key in (b"line/\xff", b"line/\xfe", b"line/" + b"k" * MAX_KEY_BYTES):
        pair.put(key)
    pair.put(b"line/ok")
    pair.work()
    pair.run(ERASE_TTL_MS / 1000 + 1)
    assert list(pair.area.store) == ["sites/rome/line/ok"]
    assert bridge.exports.refused == {"name": 3, "value": 1, "room": 0, "version": 0}
    assert pair.events() == [NotExported(b"line/1", "value"), NotExported(b"line/\xff", "name")]
    assert not bridge.has_refused
    pair.put(b"line/1", b"small again")
    pair.delete(b"line/\xff")
    pair.work()
    assert bridge.exports.refused == {"name": 2, "value": 0, "room": 0, "version": 0}


def test_what_has_no_room_is_tried_again() -> None:
    """The area is full: the key crosses when there is room and it is asked to try again."""
    pair = BridgedPair(area_limits=AreaLimits(max_keys=1))
    bridge = pair.join()
    pair.put(b"line/1")
    pair.work()
    pair.run(1)
    pair.put(b"line/2")
    pair.work()
    assert (bridge.exports.refused["room"], bridge.has_refused) == (1, True)
    assert pair.events() == [NotExported(b"line/2", "room")]
    pair.delete(b"line/1")
    pair.work()
    pair.run(ERASE_TTL_MS / 1000 + 1)
    bridge.try_again()
    pair.work()
    pair.run(1)
    assert list(pair.area.store) == ["sites/rome/line/2"]
    assert not bridge.has_refused


def test_a_version_that_others_have_used_up_is_said() -> None:
    """Nothing can be put above the greatest version. The key does not cross, and the others do."""
    pair = BridgedPair()
    bridge = pair.join()
    pair.area.merge({NAME: Value(MAX_VERSION, "zurich", b"theirs")}, "oslo", pair.moment)
    pair.put(b"line/1")
    pair.work()
    assert bridge.exports.refused["version"] == 1
    assert pair.events() == [NotExported(b"line/1", "version")]


def test_a_bridge_that_is_closed_hears_nothing() -> None:
    """Another one goes on where it was."""
    pair = BridgedPair()
    pair.join().close()
    pair.put(b"line/1")
    pair.arrive("sites/oslo/k", b"v", "oslo")
    assert pair.work() == []
    pair.join()
    pair.work()
    pair.run(1)
    assert pair.said(NAME) is not None
    assert pair.value(b"sites/oslo/k") == b"v"


def test_names_go_there_and_back() -> None:
    """The key of a name is what the name was made of; what is not the name of an exported key has no owner."""
    name = exported_name("rome", "lïne/1".encode())
    assert name == "sites/rome/lïne/1"
    assert (owner_of(name), key_under("rome", name)) == ("rome", "lïne/1".encode())
    assert [owner_of(other) for other in ("line/1", "sites/", "sites/rome", "sites/rome/", "sites//k")] == [None] * 5
    assert exported_name("rome", b"") is None
    longest = b"k" * (MAX_KEY_BYTES - len("sites/rome/"))
    assert exported_name("rome", longest) is not None
    assert exported_name("rome", longest + b"k") is None


def test_versions_are_in_the_order_of_the_store() -> None:
    """By wall clock, then counter; and never so great that nothing could follow."""
    stamps = [HlcTimestamp(5, 0, "n"), HlcTimestamp(5, 1, "n"), HlcTimestamp(5, 1 << 19, "n"), HlcTimestamp(6, 0, "n")]
    numbers = [version_of(stamp) for stamp in stamps]
    assert numbers == sorted(set(numbers))
    assert version_of(HlcTimestamp(5, 1 << 40, "n")) < version_of(HlcTimestamp(6, 0, "n"))
    assert version_of(HlcTimestamp(1 << 60, 0, "n")) < MAX_VERSION
