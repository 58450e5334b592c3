"""An area that has no room for what a peer has: what it costs, and who is told."""

from __future__ import annotations

import pytest
from site_pair import AREA, OneSite, Pair

from statestore_client.server.kvstore import replica
from statestore_client.server.kvstore.area_store import AreaLimits
from statestore_client.server.kvstore.peers import AreaFull, PeerState
from statestore_client.server.kvstore.replica import CHECK_S, FULL_S
from statestore_client.wire.kvstore.messages import Finalize, SyncReply

KEYS = 40


def full_pair(limits: AreaLimits) -> Pair:
    """Bonn keeps 40 keys alive with a TTL of 20 s; Rome has not room for all of them."""
    bonn, rome = OneSite("bonn", 1, key_ttl_ms=20_000), OneSite("rome", 2, limits=limits)
    pair = Pair(bonn, rome)
    for number in range(KEYS):
        bonn.areas[AREA].own.persist(f"key {number}", b"x" * 100, bonn.now)
    run(pair, 5.0)
    return pair


def run(pair: Pair, seconds: float) -> None:
    """In steps of a tenth of a second."""
    for _ in range(round(10 * seconds)):
        pair.settle(0.1)


def syncs(pair: Pair) -> list[int]:
    """How many each side has begun."""
    return [one.replica.counters.full_syncs for one in (pair.bonn, pair.rome)]


def test_what_has_no_room_costs_next_to_nothing() -> None:
    """Its refreshes begin no syncs, and where a sync finds it the next one is five minutes later."""
    for limits in (AreaLimits(max_keys=10), AreaLimits(max_bytes=1_500)):
        pair = full_pair(limits)
        begun = syncs(pair)
        run(pair, 2 * CHECK_S)
        assert max(now - before for now, before in zip(syncs(pair), begun, strict=True)) <= 2, "one to find out"
        assert pair.rome.state("bonn") is PeerState.INITIALIZED
        pair.carried.clear()
        run(pair, CHECK_S)
        assert [
            message for message in pair.carried if isinstance(message, Finalize | SyncReply) and message.entries
        ] == []
        assert len(pair.rome.areas[AREA].store) >= 9


def test_the_program_is_told_once_and_again_after_a_calm() -> None:
    """With what the area holds, and what it may."""
    pair = full_pair(AreaLimits(max_keys=10))
    run(pair, CHECK_S)
    (told,) = pair.rome.told(AreaFull)
    assert (told.area, told.holds.keys, told.limits.max_keys) == (AREA, 10, 10)
    for number in range(KEYS):
        pair.bonn.areas[AREA].own.erase(f"key {number}", pair.bonn.now)
    run(pair, FULL_S + 2 * CHECK_S)
    assert pair.rome.told(AreaFull) == []
    pair.bonn.areas[AREA].own.persist("large", b"x", pair.bonn.now)
    for number in range(KEYS):
        pair.bonn.areas[AREA].own.persist(f"key {number}", b"x", pair.bonn.now)
    run(pair, 2.0)
    assert len(pair.rome.told(AreaFull)) == 1


def test_room_that_becomes_free_is_used() -> None:
    """What was refused is there after the next comparison."""
    pair = full_pair(AreaLimits(max_keys=10))
    run(pair, CHECK_S)
    there = set(pair.rome.areas[AREA].store)
    for key in there:
        pair.bonn.areas[AREA].own.erase(key, pair.bonn.now)
    run(pair, FULL_S + CHECK_S)
    assert len(pair.rome.areas[AREA].store) == 10
    assert not there & set(pair.rome.areas[AREA].store)


@pytest.mark.parametrize("capabilities", [("ranges",), ()])
def test_a_key_that_was_missed_is_not_taken_for_one_without_room(capabilities: tuple[str, ...]) -> None:
    """While one large value is refused again and again, a small one that is lost on its way is found, and comes."""
    limits = AreaLimits(max_bytes=5_000)
    bonn = OneSite("bonn", 1, key_ttl_ms=20_000, capabilities=capabilities)
    rome = OneSite("rome", 2, limits=limits, capabilities=capabilities)
    pair = Pair(bonn, rome)
    run(pair, 3.0)
    own = bonn.areas[AREA].own
    for number in range(4):
        own.persist("large", bytes([number]) * 6_000, bonn.now)
        run(pair, 2.0)
    own.persist("small", b"x", bonn.now)
    run(pair, 2.0)
    rome_store = rome.areas[AREA].store
    rome.replica.sums.change("small", None)
    del rome_store._entries["small"]
    for number in range(5):
        own.persist("large", bytes([number]) * 6_000, bonn.now)
        run(pair, 2.0)
    assert "small" in rome_store
    assert "large" not in rome_store


def test_more_keys_than_can_be_remembered_cost_no_syncs_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made of refreshes then."""
    monkeypatch.setattr(replica, "_MOST", 8)
    pair = full_pair(AreaLimits(max_keys=10))
    begun = sum(syncs(pair))
    run(pair, 2 * CHECK_S)
    assert sum(syncs(pair)) - begun <= 4
    assert len(pair.rome.replica._without_room._until) <= 8
