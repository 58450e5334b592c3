"""A full sync is made of small pieces, and nothing that changes between two of them is missed."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from random import Random

import pytest
from site_pair import AREA, OneSite
from sync_pair import SummedStore, answer, full_sync, store_of

from statestore_client.server.kvstore import sync
from statestore_client.server.kvstore.area_store import SYNC_BYTES, SYNC_KEYS
from statestore_client.server.kvstore.peers import PeerState
from statestore_client.server.kvstore.sync import Phase, RangeSums, SyncSession
from statestore_client.wire.kvstore.codec import encode
from statestore_client.wire.kvstore.messages import (
    MAX_PREFIXES,
    CompareRanges,
    Finalize,
    RangeSumsReply,
    SetResult,
    Sync,
    SyncReply,
)
from statestore_client.wire.kvstore.value import Value


@pytest.mark.parametrize("with_ranges", [True, False], ids=["ranges", "all hashes"])
@pytest.mark.parametrize("theirs", [range(3_000, 6_000), range(3_000)], ids=["other keys", "other values"])
def test_each_message_is_a_small_piece_of_work(theirs: range, with_ranges: bool) -> None:
    """However much differs, no message has more than one piece of ranges, hashes, entries and keys."""
    a = store_of({f"key {n}": (b"a" * 20, 1) for n in range(3_000)}, "node")
    b = store_of({f"key {n}": (b"b" * 20, 1) for n in theirs}, "node")
    cost = full_sync(a, b, with_ranges=with_ranges)
    assert a.sums.total == b.sums.total
    assert cost.largest <= 2 * SYNC_BYTES
    for message in cost.messages:
        match message:
            case CompareRanges():
                assert len(message.prefixes) <= MAX_PREFIXES
            case Sync():
                assert len(message.ranges) <= SYNC_KEYS
                assert len(message.hashes) <= SYNC_KEYS
            case SyncReply():
                assert len(message.entries) + len(message.to_be_updated) <= 2 * SYNC_KEYS
            case Finalize():
                assert len(message.entries) <= SYNC_KEYS


class _Looks:
    """How often a step looks at a range, a sum, a key or an entry."""

    def __init__(self) -> None:
        self.number = 0
        self.most = 0

    def end_step(self) -> None:
        """What comes next is another step."""
        self.most = max(self.most, self.number)
        self.number = 0


def _count_looks(monkeypatch: pytest.MonkeyPatch) -> _Looks:
    """Of all sessions and stores from now on."""
    looks = _Looks()

    class Position(int):
        """Of a range; each comparison with another one is a look."""

        def __lt__(self, other: int) -> bool:
            looks.number += 1
            return int(self) < int(other)

    def positions_of(level: int, prefix: int) -> tuple[int, int]:
        first, last = inner_positions(level, prefix)
        return Position(first), last

    def sums_below(sums: RangeSums, level: int, prefixes: Iterable[int]) -> tuple[int, ...]:
        found = inner_sums(sums, level, prefixes)
        looks.number += len(found)
        return found

    def keys_in(sums: RangeSums, first: int, last: int) -> Iterator[tuple[int, str]]:
        for pair in inner_keys(sums, first, last):
            looks.number += 1
            yield pair

    def get(store: SummedStore, key: str) -> Value | None:
        looks.number += 1
        return inner_get(store, key)

    inner_positions = sync.positions_of
    inner_sums, inner_keys, inner_get = RangeSums.sums_below, RangeSums.keys_in, SummedStore.get
    monkeypatch.setattr(sync, "positions_of", positions_of)
    monkeypatch.setattr(RangeSums, "sums_below", sums_below)
    monkeypatch.setattr(RangeSums, "keys_in", keys_in)
    monkeypatch.setattr(SummedStore, "get", get)
    return looks


@pytest.mark.parametrize("theirs", [range(12_000), range(0)], ids=["other values", "nothing"])
@pytest.mark.ci
def test_each_step_looks_at_a_small_part_of_the_store(theirs: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much differs: each request, answer and reply looks at a bounded number of ranges, sums and keys."""
    a = store_of({f"key {n}": (b"a" * 20, 1) for n in range(12_000)}, "node")
    b = store_of({f"key {n}": (b"b" * 20, 1) for n in theirs}, "node")
    looks = _count_looks(monkeypatch)
    ids = itertools.count(1)
    session = SyncSession("0", a, a.sums, lambda: next(ids), 2.5, with_ranges=True)
    under_way = deque[CompareRanges | Sync | Finalize]()
    while session.phase is not Phase.DONE:
        if (request := session.next_request(0.0)) is not None:
            under_way.append(request)
        else:
            # What was asked first is answered last.
            reply = answer(b, under_way.pop(), "a")
            looks.end_step()
            assert isinstance(reply, RangeSumsReply | SyncReply | SetResult)
            if isinstance(reply, SyncReply):
                a.merge(reply.entries, "b", 0.0)
                looks.end_step()
            session.receive(reply, 0.0)
        looks.end_step()
    assert a.sums.total == b.sums.total
    assert looks.most < 1_500


def _under_way(session: SyncSession) -> int:
    """Requests that are made until one has to be answered."""
    number = 0
    while session.next_request(0.0) is not None:
        number += 1
    return number


def _finalizing(value: bytes) -> SyncSession:
    """A sync with a site that has nothing; the first question is answered."""
    store = store_of({f"key {n}": (value, 1) for n in range(600)}, "node")
    ids = iter(range(1, 1_000))
    session = SyncSession("0", store, store.sums, lambda: next(ids), 2.5, with_ranges=True)
    session.next_request(0.0)
    session.receive(RangeSumsReply(1, False, (0,) * 256), 0.0)
    return session


def test_few_large_values_are_under_way_at_once() -> None:
    """Megabytes do not wait on a line where heartbeats have to get through; of smaller values there are more."""
    assert _under_way(_finalizing(bytes(SYNC_BYTES // 4))) == 128
    assert _under_way(_finalizing(bytes(2 * SYNC_BYTES - 200))) == 64
    assert 25 <= _under_way(_finalizing(bytes(20_000))) <= 26
    assert _under_way(_finalizing(bytes(200_000))) == 4


def test_a_sync_waits_for_the_next_answer_not_for_all() -> None:
    """As long as the other side answers something in time the sync goes on, however much is under way."""
    session = _finalizing(bytes(SYNC_BYTES // 4))
    first = session.next_request(1.0)
    second = session.next_request(1.0)
    assert isinstance(first, Finalize)
    assert isinstance(second, Finalize)
    assert session.deadline == 3.5
    session.receive(SetResult(first.id, {}), 3.0)
    assert session.deadline == 5.5
    session.receive(SetResult(second.id, {}), 4.0)
    assert session.deadline is None


class _Wire:
    """Two sites; one message, one turn or one change at a time, in an order that chance decides."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.sites = (OneSite("bonn", 1), OneSite("rome", 2))
        self.links = ("out", "in")
        self._sent: tuple[list[bytes], list[bytes]] = ([], [])
        self.version = 2
        for n in range(400):
            self.sites[n % 2].set(f"key {n}")
            self.sites[0].set(f"both {n}", version=1 + n % 3 // 2)
            self.sites[1].set(f"both {n}", version=1 + n % 5 // 4)
        self.sites[0].site.members.dial("out", 100.0)

    def step(self, *, with_changes: bool) -> None:
        """Something happens at one of the sites."""
        index = self.random.randrange(2)
        one = self.sites[index]
        for each in self.sites:
            each.now += 0.0001
        if with_changes and self.random.random() < 0.3:
            self.version += 1
            kind = self.random.choice(["key", "both", "new"])
            entry = Value(self.version, one.site.settings.name, b"%d" % self.version)
            one.areas[AREA].set({f"{kind} {self.random.randrange(400)}": entry}, one.now)
        elif self._sent[index] and self.random.random() < 0.7:
            one.site.receive(self.links[index], self._sent[index].pop(0), one.now)
        else:
            one.site.tick(one.now)
        output, one.site.output = one.site.output, []
        self._sent[1 - index].extend(data for _, data in output)

    @property
    def is_calm(self) -> bool:
        """Nothing is on its way, and no sync runs."""
        peers = [peer for one in self.sites for peer in one.replica.peers.values()]
        states = {peer.status.state for peer in peers}
        return not any(self._sent) and states == {PeerState.INITIALIZED} and not any(peer.session for peer in peers)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_missed_that_is_written_between_two_pieces(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sites write while they sync, a few keys at a time; both are equal when it is calm, without another sync."""
    monkeypatch.setattr(sync, "SYNC_KEYS", 5)
    wire = _Wire(seed)
    for _ in range(2_000):
        wire.step(with_changes=True)
    left = 20_000
    while left and not wire.is_calm:
        wire.step(with_changes=False)
        left -= 1
    assert left
    first, second = ({key: one.areas[AREA].get(key) for key in one.areas[AREA].store} for one in wire.sites)
    assert first == second
    assert [one.replica.counters.full_syncs for one in wire.sites] == [1, 1]
    assert [one.replica.counters.failed_syncs for one in wire.sites] == [0, 0]


def test_a_sync_asks_once_in_a_turn() -> None:
    """Of several syncs that could go on, each gets its turn, one request after the other."""
    one = OneSite("bonn")
    one.site.sync_slots.limit = 4
    for n in range(1_000):
        one.set(f"key {n}")
    for name in ("rome", "siena"):
        one.hear_hello(name, link=name)
    asked = [peer.session for peer in one.replica.peers.values()]
    assert all(asked)
    for name in ("rome", "siena"):
        session = one.peer(name).session
        assert session is not None
        (request_id,) = session._waiting
        one.site.receive(name, _all_lacking(request_id), one.now)
    one.site.output.clear()
    order = []
    for _ in range(6):
        one.now += 0.001
        assert one.site.next_deadline(one.now) <= one.now
        one.site.tick(one.now)
        order += [link for link, _ in one.site.output]
        one.site.output.clear()
    assert order == ["rome", "siena"] * 3


def _all_lacking(request_id: int) -> bytes:
    """The other side has nothing."""
    return encode(RangeSumsReply(request_id, False, (0,) * 256))


def test_ranges_with_few_buckets_and_with_many_are_read_in_order() -> None:
    """Whatever part of a store is asked for, its keys come in the order of their positions."""
    for count in (0, 3, 50, 5_000):
        store = SummedStore()
        store.merge({f"key {n}": Value(1, "x", b"") for n in range(count)}, None, 0.0)
        pairs = list(store.sums.keys_in(0, (1 << 64) - 1))
        assert len(pairs) == count
        assert pairs == sorted(pairs)
        for first, last in ((1 << 62, 3 << 62), (1 << 63, (1 << 63) + (1 << 48)), (5, 5)):
            assert list(store.sums.keys_in(first, last)) == [pair for pair in pairs if first <= pair[0] <= last]


class _LookedUp(dict[int, dict[str, int]]):
    """Buckets, which count how often one is looked up."""

    lookups = 0

    def get(self, number: int, default: object = None) -> object:  # type: ignore[override]  # of a test
        self.lookups += 1
        return super().get(number, default)  # type: ignore[arg-type]

    def __getitem__(self, number: int) -> dict[str, int]:
        self.lookups += 1
        return super().__getitem__(number)


@pytest.mark.parametrize("with_ranges", [True, False], ids=["ranges", "all hashes"])
def test_a_sync_looks_at_no_buckets_without_keys(with_ranges: bool) -> None:
    """Of 65,536 buckets 2,000 keys use few: a sync looks for each of these a few times, and never for the others."""
    entries = {f"key {n}": (b"a", 1) for n in range(2_000)}
    for mine, theirs in (({}, entries), (entries, {}), (entries, dict.fromkeys(entries, (b"b", 2)))):
        stores = (store_of(mine, "a"), store_of(theirs, "b"))
        for store in stores:
            store.sums._buckets = _LookedUp(store.sums._buckets)
        full_sync(*stores, with_ranges=with_ranges)
        assert stores[0].entries == stores[1].entries
        # Changes of entries look, too, and so do the sums of the finest ranges, of which a part has 128.
        assert sum(store.sums._buckets.lookups for store in stores) < 12 * len(entries)
