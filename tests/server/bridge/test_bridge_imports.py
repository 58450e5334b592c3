"""What other sites export, in this site's state store: read-only, bounded, and gone when it ends there."""

from __future__ import annotations

from bridged_pair import TTL_MS, BridgedPair

from statestore_client.server.bridge.bridge import BridgeOptions
from statestore_client.server.bridge.imports import ImportQuota, NotImported
from statestore_client.server.store import StoreLimits
from statestore_client.server.store.keyspace import KEY_OVERHEAD_BYTES
from statestore_client.wire.kvstore.value import Value
from statestore_client.wire.notifications import Notification, Operation

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
    pair.work()
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
    pair.work()
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
