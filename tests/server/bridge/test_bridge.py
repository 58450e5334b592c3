"""The bridge between a state store and an area: which keys cross to other sites, and which of theirs come in."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from statestore_client.server.bridge import (
    Bridge,
    BridgeEvent,
    BridgeOptions,
    ImportQuota,
    NotExported,
    NotImported,
    exported_name,
    key_under,
    owner_of,
    version_of,
)
from statestore_client.server.kvstore.area import Area
from statestore_client.server.kvstore.area_store import DEFAULT_LIMITS, AreaLimits
from statestore_client.server.kvstore.own_keys import ERASE_TTL_MS
from statestore_client.server.store import Change, RequestContext, SiteStore, StoreLimits
from statestore_client.server.store.keyspace import KEY_OVERHEAD_BYTES
from statestore_client.wire.commands import Command, Del, KeyNotify, Set
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.kvstore.value import MAX_KEY_BYTES, MAX_VALUE_BYTES, MAX_VERSION, Value
from statestore_client.wire.replies import Notification, Operation

WALL = 1_696_374_425_000
TTL_MS = 8_000
_OPTIONS = BridgeOptions((b"line/",), imports=True)


class BridgedPair:
    """The site is rome. It exports ``line/``, and imports."""

    def __init__(
        self,
        options: BridgeOptions = _OPTIONS,
        *,
        store_limits: StoreLimits | None = None,
        area_limits: AreaLimits = DEFAULT_LIMITS,
    ) -> None:
        self.moment = 100.0
        self.calls = 0
        self.options = options
        self.area = Area("a", "rome", limits=area_limits, key_ttl_ms=TTL_MS, started_ms=self.now.wall_ms)
        self.store = SiteStore(
            clock=HybridLogicalClock("StateStore", guard=nullcontext()), limits=store_limits or StoreLimits()
        )
        self.bridge: Bridge | None = None

    def join(self) -> Bridge:
        """Make the bridge."""

        def count() -> None:
            self.calls += 1

        self.bridge = Bridge(self.store, self.area, "rome", self.options, count)
        return self.bridge

    @property
    def now(self) -> Instant:
        """By the clocks of the state store."""
        return Instant(self.moment, WALL + int(self.moment * 1000))

    def work(self) -> list[Change]:
        """All that there is to do. Returns what observers are told."""
        changes: list[Change] = []
        while self.bridge is not None and self.bridge.has_work:
            changes += self.bridge.step(self.now, self.moment)
        return changes

    def run(self, seconds: float) -> None:
        """Let the time pass, a tenth of a second at a time."""
        for _ in range(round(seconds * 10)):
            self.moment += 0.1
            self.area.tick(self.moment)
            self.work()

    def events(self) -> list[BridgeEvent]:
        """What the program is told."""
        return [] if self.bridge is None else self.bridge.take_events()

    # -- clients -------------------------------------------------------------------------------------------------------

    def apply(self, command: Command, token: HlcTimestamp | None = None) -> None:
        """As a client that is called alice."""
        stamp = HlcTimestamp(self.now.wall_ms, 0, "alice")
        self.store.apply(command, RequestContext("alice", stamp, token, self.now))

    def put(self, key: bytes, value: bytes = b"v", *, expiry_ms: int | None = None, fenced: bool = False) -> None:
        """A SET."""
        token = HlcTimestamp(self.now.wall_ms, 0, "alice") if fenced else None
        self.apply(Set(key, value, expiry_ms=expiry_ms), token)

    def delete(self, key: bytes) -> None:
        """A DEL."""
        self.apply(Del(key))

    def observe(self, key: bytes) -> None:
        """A KEYNOTIFY."""
        self.apply(KeyNotify(key))

    def value(self, key: bytes) -> bytes | None:
        """What a GET finds."""
        entry = self.store.entry(key, self.now)
        return None if entry is None else entry.value

    # -- other sites ---------------------------------------------------------------------------------------------------

    def arrive(self, name: str, value: bytes, originator: str, version: int = 1, ttl_ms: int = TTL_MS) -> None:
        """An entry of another site."""
        self.area.merge({name: Value(version, originator, value, ttl_ms)}, "oslo", self.moment)

    def said(self, name: str) -> tuple[bytes | None, str, int] | None:
        """What the KvStore has: value, originator, TTL."""
        entry = self.area.get(name)
        return None if entry is None else (entry.value, entry.originator, entry.ttl_ms)


# -- which keys of the state store cross to other sites, with which version, and when they end there -------------------

NAME = "sites/rome/line/1"


def test_a_chosen_key_appears_with_the_name_of_the_site() -> None:
    """It has the site as originator and the TTL of own keys, and is refreshed: it is there much later."""
    pair = BridgedPair()
    pair.join()
    pair.put(b"line/1", b"runs")
    pair.put(b"other/1", b"x")
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
    pair.run(3)
    assert set(pair.area.store) == {f"sites/rome/{key.decode()}" for key in keys}
    assert len(bridge.exports) == len(keys)


def test_a_new_value_follows_and_a_deletion_ends_it() -> None:
    """The version is in the order of the store's versions; after a DEL the key is gone within the TTL of an erasure."""
    pair = BridgedPair()
    bridge = pair.join()
    pair.put(b"line/1", b"1")
    pair.run(0.3)
    first = pair.area.get(NAME)
    pair.put(b"line/1", b"2")
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
    pair.run(1)
    assert list(pair.area.store) == [NAME]
    pair.put(b"line/1", b"holder", **lock)
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
    pair.run(1)
    pair.arrive(NAME, b"theirs", "zurich", version=1 << 61)
    pair.arrive("sites/rome/line/9", b"theirs", "zurich")
    pair.run(1)
    assert pair.said(NAME) == (b"mine", "rome", TTL_MS)
    assert pair.said("sites/rome/line/9") == (b"theirs", "zurich", TTL_MS)
    assert pair.value(b"sites/rome/line/9") is None


def test_what_does_not_fit_is_counted_and_told_once() -> None:
    """Names that are not UTF-8 or too long, values that are too large: an older value ends, and the rest goes on."""
    pair = BridgedPair()
    bridge = pair.join()
    pair.put(b"line/1", b"small")
    pair.run(1)
    pair.put(b"line/1", b"x" * (MAX_VALUE_BYTES + 1))
    for key in (b"line/\xff", b"line/\xfe", b"line/" + b"k" * MAX_KEY_BYTES):
        pair.put(key)
    pair.put(b"line/ok")
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
    pair.run(1)
    pair.put(b"line/2")
    pair.work()
    assert (bridge.exports.refused["room"], bridge.has_refused) == (1, True)
    assert pair.events() == [NotExported(b"line/2", "room")]
    pair.delete(b"line/1")
    pair.run(ERASE_TTL_MS / 1000 + 1)
    bridge.try_again()
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
    closed = pair.join()
    assert pair.area.is_bridged
    pair.work()
    closed.close()
    pair.calls = 0
    pair.put(b"line/1")
    pair.arrive("sites/oslo/k", b"v", "oslo")
    assert (closed.has_work, pair.calls) == (False, 0)
    assert not pair.area.is_bridged
    pair.join()
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


# -- what other sites export, in this site's state store ---------------------------------------------------------------

KEY = b"sites/oslo/k"
_QUOTA = ImportQuota(max_keys=3, max_bytes=4000, max_keys_of_a_site=2, max_bytes_of_a_site=2000)


def limited() -> BridgedPair:
    """With room for three imports, two of one site."""
    return BridgedPair(BridgeOptions((), imports=True, quota=_QUOTA))


def test_an_import_comes_changes_and_ends_with_its_entry() -> None:
    """Those that observe the key are told each time, with versions that rise; without refreshes it ends."""
    pair = BridgedPair()
    bridge = pair.join()
    pair.observe(KEY)
    pair.arrive("sites/oslo/k", b"1", "oslo")
    changes = pair.work()
    assert pair.value(KEY) == b"1"
    pair.arrive("sites/oslo/k", b"2", "oslo", version=2)
    changes += pair.work()
    assert pair.value(KEY) == b"2"
    pair.moment += TTL_MS / 1000 + 0.1
    pair.area.tick(pair.moment)
    changes += pair.work()
    assert pair.value(KEY) is None
    told = [(change.client_id, change.key, change.notification) for change in changes]
    expected = [Notification(Operation.SET, b"1"), Notification(Operation.SET, b"2"), Notification(Operation.DELETE)]
    assert told == [("alice", KEY, each) for each in expected]
    versions = [change.version for change in changes]
    assert versions == sorted(set(versions))
    assert (len(bridge.imports), bridge.imports.used_bytes) == (0, 0)


def test_a_refresh_is_nothing_new() -> None:
    """The TTL alone, or the same value with another version: observers hear nothing."""
    pair = BridgedPair()
    pair.join()
    pair.observe(KEY)
    pair.arrive("sites/oslo/k", b"1", "oslo")
    assert len(pair.work()) == 1
    pair.area.merge({"sites/oslo/k": Value(1, "oslo", None, TTL_MS, 1)}, "oslo", pair.moment)
    pair.arrive("sites/oslo/k", b"1", "oslo", version=2)
    assert pair.work() == []


def test_only_the_site_itself_is_believed() -> None:
    """An entry of another originator, or one that is not the name of a key, is nothing; one that takes over ends it."""
    pair = BridgedPair()
    pair.join()
    pair.arrive("sites/oslo/k", b"1", "bern")
    pair.arrive("sites/oslo", b"1", "oslo")
    pair.arrive("line/1", b"1", "oslo")
    pair.arrive("sites/bern/k", b"1", "bern")
    pair.work()
    assert [*pair.store.keys_from(b"", inclusive=True)] == [b"sites/bern/k"]
    pair.arrive("sites/bern/k", b"2", "oslo", version=2)
    pair.work()
    assert pair.store.usage.keys == 0


def test_imports_do_not_leave_again() -> None:
    """They stay although a chosen prefix takes all that begins with an s."""
    pair = BridgedPair(BridgeOptions((b"s", b"sit"), imports=True))
    bridge = pair.join()
    pair.arrive("sites/oslo/k", b"1", "oslo")
    pair.put(b"sit/1")
    pair.run(1)
    assert set(pair.area.store) == {"sites/oslo/k", "sites/rome/sit/1"}
    assert len(bridge.exports) == 1


def test_without_imports_nothing_arrives() -> None:
    """A site that only exports keeps its state store to itself."""
    pair = BridgedPair(BridgeOptions((b"line/",)))
    pair.join()
    pair.arrive("sites/oslo/k", b"1", "oslo")
    assert pair.work() == []
    assert pair.value(KEY) is None


def test_a_value_that_a_client_had_set_there_is_replaced() -> None:
    """Its expiry and its mark too: nothing of it comes back."""
    pair = BridgedPair()
    pair.put(KEY, b"old", expiry_ms=5_000, fenced=True)
    pair.join()
    pair.arrive("sites/oslo/k", b"1", "oslo", ttl_ms=60_000)
    pair.work()
    pair.moment += 10
    assert pair.store.tick(pair.now) == ()
    entry = pair.store.entry(KEY, pair.now)
    assert entry is not None
    assert (entry.value, entry.fence, entry.expires_at) == (b"1", None, None)
    assert pair.store.next_deadline() is None


def test_the_quota_of_one_site_leaves_room_for_the_others() -> None:
    """The third key of a site is missing and told of once; another site's key comes in."""
    pair = limited()
    bridge = pair.join()
    for n in range(4):
        pair.arrive(f"sites/oslo/{n}", b"v", "oslo")
    pair.arrive("sites/bern/0", b"v", "bern")
    pair.work()
    assert [*pair.store.keys_from(b"", inclusive=True)] == [b"sites/bern/0", b"sites/oslo/0", b"sites/oslo/1"]
    assert (bridge.imports.without_room, bridge.has_refused) == (2, True)
    assert pair.events() == [NotImported("sites/oslo/2", is_store_full=False)]
    assert bridge.imports.used_bytes == 3 * (len("sites/oslo/0") + 1 + KEY_OVERHEAD_BYTES)


def test_what_did_not_fit_comes_when_there_is_room() -> None:
    """As soon as a key of the same site has ended."""
    pair = limited()
    bridge = pair.join()
    for n in range(3):
        pair.arrive(f"sites/oslo/{n}", b"v", "oslo", ttl_ms=1_000 if n == 0 else TTL_MS)
    pair.run(1.2)
    assert [*pair.store.keys_from(b"", inclusive=True)] == [b"sites/oslo/1", b"sites/oslo/2"]
    assert not bridge.has_refused


def test_a_value_that_grows_too_large_takes_the_old_one_away() -> None:
    """A missing value is better than one that is not so any more."""
    pair = limited()
    pair.join()
    pair.arrive("sites/oslo/k", b"small", "oslo")
    pair.work()
    assert pair.value(KEY) == b"small"
    pair.arrive("sites/oslo/k", b"x" * 2000, "oslo", version=2)
    pair.work()
    assert pair.value(KEY) is None
    pair.arrive("sites/oslo/k", b"small again", "oslo", version=3)
    pair.work()
    assert pair.value(KEY) == b"small again"


def test_a_full_state_store_refuses_imports_too() -> None:
    """The quota of the store holds for all keys; its clients' keys stay."""
    pair = BridgedPair(store_limits=StoreLimits(max_keys=1))
    bridge = pair.join()
    pair.put(b"mine")
    pair.arrive("sites/oslo/k", b"1", "oslo")
    pair.work()
    assert (pair.value(b"mine"), pair.value(KEY)) == (b"v", None)
    assert pair.events() == [NotImported("sites/oslo/k", is_store_full=True)]
    pair.delete(b"mine")
    bridge.try_again()
    pair.work()
    assert pair.value(KEY) == b"1"


def test_room_is_used_as_soon_as_it_is_there() -> None:
    """Of many keys that do not fit, as many come in as others end; the WARNING is repeated only after all did fit."""
    pair = BridgedPair(BridgeOptions((), imports=True, quota=ImportQuota(max_keys=10)))
    bridge = pair.join()
    for n in range(10):
        pair.arrive(f"sites/oslo/short{n}", b"v", "oslo", ttl_ms=1_000)
    pair.work()
    for n in range(500):
        pair.arrive(f"sites/oslo/long{n}", b"v", "oslo", ttl_ms=60_000)
    pair.work()
    assert (len(bridge.imports), bridge.imports.without_room) == (10, 500)
    assert len(pair.events()) == 1
    pair.run(1.2)
    assert (len(bridge.imports), bridge.imports.without_room) == (10, 490)
    bridge.try_again()
    pair.work()
    assert (len(bridge.imports), bridge.imports.without_room, pair.events()) == (10, 490, [])
    pair.run(60)
    assert (len(bridge.imports), bridge.imports.without_room) == (0, 0)
    for n in range(11):
        pair.arrive(f"sites/oslo/{n}", b"v", "oslo")
    pair.work()
    assert len(pair.events()) == 1
