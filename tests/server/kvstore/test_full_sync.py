"""A full sync between two stores: the document's example, what it costs, and any two stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sync_pair import Cost, SummedStore, full_sync, store_of

from statestore_client.errors import RemoteProtocolError
from statestore_client.server.kvstore import sync
from statestore_client.server.kvstore.sync import RangeSums, SyncSession
from statestore_client.wire.kvstore.messages import MAX_MESSAGE, Finalize, RangeSumsReply, SetResult, Sync, SyncReply
from statestore_client.wire.kvstore.value import Value

#: The document's example: key -> value, version.
A = {"k0": (b"a", 1), "k1": (b"a", 1), "k2": (b"a", 2), "k3": (b"a", 1)}
B = {"k1": (b"a", 1), "k2": (b"b", 1), "k3": (b"b", 2), "k4": (b"b", 1)}


def equal(first: SummedStore, second: SummedStore) -> bool:
    """The entries, and what the sums say of them."""
    return first.entries == second.entries and first.sums.total == second.sums.total


def parts(cost: Cost) -> tuple[set[str], set[str], set[str]]:
    """Keys of the values in the responses, keys to be updated, keys of the values in the finalizing messages."""
    replies = [message for message in cost.messages if isinstance(message, SyncReply)]
    last = [message for message in cost.messages if isinstance(message, Finalize)]
    return (
        {key for reply in replies for key in reply.entries},
        {key for reply in replies for key in reply.to_be_updated},
        {key for message in last for key in message.entries},
    )


@pytest.mark.parametrize("with_ranges", [True, False], ids=["ranges", "all hashes"])
@pytest.mark.parametrize(
    ("originators", "asks", "got", "gave"),
    [
        (("node", "node"), "a", {"k3", "k4"}, {"k0", "k2"}),
        (("node", "node"), "b", {"k0", "k2"}, {"k3", "k4"}),
        (("storeA", "storeB"), "a", {"k1", "k3", "k4"}, {"k0", "k2"}),
    ],
    ids=["a asks b", "b asks a", "a asks b, another originator"],
)
def test_the_example_of_the_document(
    with_ranges: bool, originators: tuple[str, str], asks: str, got: set[str], gave: set[str]
) -> None:
    """A gets k3 and k4 and gives k0 and k2, or the other way round; k1 comes as well if its originator is another one
    there. The stores become the same.
    """
    a, b = store_of(A, originators[0]), store_of(B, originators[1])
    cost = full_sync(a, b, with_ranges=with_ranges) if asks == "a" else full_sync(b, a, with_ranges=with_ranges)
    assert (parts(cost)[0], parts(cost)[2]) == (got, gave)
    assert equal(a, b)
    assert {key: (entry.value, entry.version) for key, entry in a.entries.items()} == {
        "k0": (b"a", 1), "k1": (b"a", 1), "k2": (b"a", 2), "k3": (b"b", 2), "k4": (b"b", 1),
    }  # fmt: skip


def test_without_ranges_the_messages_are_those_of_the_document() -> None:
    """One request with all hashes, one response with values and keys to be updated, one that finalizes."""
    cost = full_sync(store_of(A, "node"), store_of(B, "node"), with_ranges=False)
    request, reply, last, result = cost.messages
    assert isinstance(request, Sync)
    assert set(request.hashes) == set(A)
    assert isinstance(reply, SyncReply)
    assert (set(reply.entries), set(reply.to_be_updated)) == ({"k3", "k4"}, {"k0", "k2"})
    assert isinstance(last, Finalize)
    assert last.is_last
    assert isinstance(result, SetResult)


def many(number: int) -> dict[str, tuple[bytes, int]]:
    """Keys as they are in practice."""
    return {f"sites/berlin/machines/{n:06}/state": (b"value %d" % n, 1) for n in range(number)}


@pytest.mark.ci
def test_what_a_sync_of_100_000_keys_costs(figures: Callable[[str], None]) -> None:
    """1,000 different keys in both directions: below 500 kB besides the values, at most five round trips; none: one
    round trip, and hardly a byte; a single one: a few kB.
    """
    a, b = store_of(many(100_000), "berlin"), store_of(many(100_000), "berlin")
    for n, key in enumerate(list(many(100_000))[::100]):
        (a, b)[n % 2].merge({key: Value(2, "berlin", b"another value %d" % n)}, None, 0.0)
    for differing, most_trips, most_bytes in ((1_000, 5, 500_000), (0, 1, 100), (1, 5, 4_000)):
        if differing == 1:
            a.merge({"one more": Value(1, "berlin", b"x")}, None, 0.0)
        cost = full_sync(a, b)
        figures(f"{differing}: {cost.message_bytes:,} bytes, {cost.round_trips} round trips, largest {cost.largest:,}")
        assert equal(a, b)
        assert cost.round_trips <= most_trips
        assert cost.message_bytes < most_bytes


@pytest.mark.parametrize("full", [0, 1], ids=["this side is empty", "the other side is empty"])
@pytest.mark.ci
def test_an_empty_store_gets_all(full: int) -> None:
    """No message of it is larger than allowed, and no hashes are sent of what the other side cannot have."""
    stores = [SummedStore(), SummedStore()]
    stores[full] = store_of({f"key {n}": (bytes(2_000), 1) for n in range(600)}, "node")
    cost = full_sync(stores[1], stores[0])
    assert equal(*stores)
    assert cost.largest < MAX_MESSAGE // 4
    assert not any(message.hashes for message in cost.messages if isinstance(message, Sync))


def test_the_largest_values_fit() -> None:
    """Values of the greatest size go one by one."""
    a = store_of({f"key {n}": (bytes((1 << 20) - (1 << 17)), 1) for n in range(3)}, "node")
    b = SummedStore()
    assert full_sync(a, b).largest <= MAX_MESSAGE
    assert equal(a, b)
    c = SummedStore()
    assert full_sync(c, a).largest <= MAX_MESSAGE
    assert equal(a, c)


_ENTRIES = st.dictionaries(
    st.text(min_size=1, max_size=3),
    st.builds(
        Value, st.integers(1, 3), st.sampled_from(["x", "y"]), st.binary(max_size=2), ttl_version=st.integers(0, 2)
    ),
    max_size=30,
)


@given(_ENTRIES, _ENTRIES, st.booleans(), st.integers(1, 300))
def test_any_two_stores_are_equal_after_a_sync(
    first: dict[str, Value], second: dict[str, Value], with_ranges: bool, part_bytes: int
) -> None:
    """Whatever two stores have, one sync makes them equal, in parts of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync, "SYNC_BYTES", part_bytes)
        a, b = SummedStore(), SummedStore()
        a.merge(first, None, 0.0)
        b.merge(second, None, 0.0)
        full_sync(a, b, with_ranges=with_ranges)
        assert equal(a, b)


def session_of(store: SummedStore) -> SyncSession:
    """A sync that waits for its first reply, with the request id 7."""
    session = SyncSession("0", store, store.sums, lambda: 7, 2.5, with_ranges=True)
    session.next_request(0.0)
    return session


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(RangeSumsReply(7, False, (1,)), id="too few sums"),
        pytest.param(SyncReply(7, {}, ()), id="another kind of reply"),
        pytest.param(SetResult(7, {}), id="yet another kind"),
    ],
)
def test_a_reply_that_answers_something_else_is_an_error(reply: RangeSumsReply | SyncReply | SetResult) -> None:
    """A site that answers nonsense is told from one that has nothing to say."""
    with pytest.raises(RemoteProtocolError):
        session_of(SummedStore()).receive(reply, 0.0)


def test_a_part_that_does_not_go_on_is_an_error() -> None:
    """A site cannot keep another one asking for the same part for ever."""
    store = SummedStore()
    session = SyncSession("0", store, store.sums, lambda: 7, 2.5, with_ranges=False)
    session.next_request(0.0)
    with pytest.raises(RemoteProtocolError, match="does not go on"):
        session.receive(SyncReply(7, {}, (), 0), 0.0)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.none() | st.integers(1, 5)), max_size=60))
@pytest.mark.ci
def test_sums_are_those_of_what_is_there(changes: list[tuple[str, int | None]]) -> None:
    """After any changes each sum is the one that a new table of the same entries has."""
    sums, entries = RangeSums(), dict[str, Value]()
    for key, version in changes:
        entry = None if version is None else Value(version, "x", b"", ttl_version=version, hash=-version)
        sums.change(key, entry)
        if entry is None:
            entries.pop(key, None)
        else:
            entries[key] = entry
    fresh = RangeSums()
    for key, entry in entries.items():
        fresh.change(key, entry)
    assert len(sums) == len(entries)
    assert sums.total == fresh.total
    for level in (0, 8, 12):
        found = sums.sums_below(level, range(1 << level))
        assert found == fresh.sums_below(level, range(1 << level))
        assert sum(found) % (1 << 64) == sums.total
    assert sorted(key for _, key in sums.keys_in(0, (1 << 64) - 1)) == sorted(entries)
    assert (not entries) == (sums.total == 0)
