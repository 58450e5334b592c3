"""Peers: their states, when they are synced with, what is done about lost and late messages."""

from __future__ import annotations

from random import Random

import pytest
from site_pair import AREA, OneSite, Pair

from statestore_client.server.kvstore.peers import PeerChanged, PeerEvent, PeerState, PeerStatus, SyncBackoff, SyncWaits
from statestore_client.server.kvstore.sync import SyncSession
from statestore_client.wire.kvstore.messages import (
    CompareRanges,
    Finalize,
    Flood,
    Heartbeat,
    RangeSumsReply,
    SetResult,
    Sync,
    SyncReply,
)
from statestore_client.wire.kvstore.value import Value

IDLE, SYNCING, INITIALIZED = PeerState
#: Facts §3.2, row by row; None: not defined.
TABLE = {
    IDLE: (SYNCING, None, None, IDLE, IDLE),
    SYNCING: (None, None, INITIALIZED, IDLE, IDLE),
    INITIALIZED: (None, None, INITIALIZED, IDLE, IDLE),
}


@pytest.mark.parametrize("state", PeerState)
@pytest.mark.parametrize("event", PeerEvent)
def test_the_table_of_states(state: PeerState, event: PeerEvent) -> None:
    """Each state and event gives the state of the table, and what is not in it is an error."""
    expected = TABLE[state][list(PeerEvent).index(event)]
    status = PeerStatus(0.0, state)
    if expected is None:
        with pytest.raises(KeyError):
            status.happens(event, 5.0)
        return
    assert status.happens(event, 5.0) is (expected is not state)
    assert (status.state, status.since) == (expected, 0.0 if expected is state else 5.0)


def test_flaps_count_each_time_that_a_peer_is_won_or_lost() -> None:
    """-1 when it is added, 0 for one that never failed, 2 after a loss and a recovery."""
    status = PeerStatus(0.0)
    seen = [status.flaps]
    for event in (PeerEvent.PEER_ADD, PeerEvent.SYNC_RESP_RCVD, PeerEvent.API_ERROR) * 2:
        status.happens(event, 1.0)
        seen.append(status.flaps)
    assert seen == [-1, -1, 0, 1, 1, 2, 3]


def test_the_wait_after_errors_doubles_and_a_success_begins_anew() -> None:
    """4, 8, ... 256 s, less up to a quarter, and 4 s again after a success."""
    backoff, random = SyncBackoff(), Random(3)
    for full in (4, 8, 16, 32, 64, 128, 256, 256, 256):
        backoff.fail(1000.0, random)
        assert 1000.0 + 0.75 * full <= backoff.retry_at <= 1000.0 + full
    backoff.succeed()
    assert backoff.retry_at <= 0.0
    backoff.fail(0.0, random)
    assert backoff.retry_at <= 4.0
    backoff = SyncBackoff(SyncWaits(1.0, 3.0))
    for full in (1, 2, 3, 3):
        backoff.fail(1000.0, random)
        assert 1000.0 + 0.75 * full <= backoff.retry_at <= 1000.0 + full


def greeted(**more: object) -> OneSite:
    """Bonn, which Rome has just said hello to: Bonn begins, its name is the smaller one."""
    one = OneSite("bonn")
    one.wait(0.0)
    said = one.hear_hello(**more)  # type: ignore[arg-type]  # of a hello
    assert isinstance(said[1], CompareRanges | Sync)
    return one


def synced(**more: object) -> OneSite:
    """The same after a first sync."""
    one = greeted(**more)
    one.hear("in", RangeSumsReply(one.site._last_id, True, ()))
    assert one.state() is INITIALIZED
    return one


def kept(one: OneSite, seconds: float) -> list[object]:
    """What is said while the peer's heartbeats go on."""
    said: list[object] = []
    for _ in range(round(seconds)):
        said += one.wait(1.0)
        link = one.site._links.get("in")
        said += one.hear("in", Heartbeat(7, link.received if link else 0))
    return [message for message in said if not isinstance(message, Heartbeat)]


def test_a_request_that_is_not_answered_costs_a_wait() -> None:
    """After 2.5 s the peer is idle; the next sync begins 3 to 4 s later."""
    one = greeted()
    kept(one, 3)
    assert one.state() is IDLE
    assert one.peer().backoff.errors == 1
    assert kept(one, 2) == []
    assert [type(message) for message in kept(one, 2)] == [CompareRanges]


def test_a_request_that_was_lost_with_the_line_costs_no_wait_once() -> None:
    """Nothing came since: that was the line. The next connection brings a sync at once. A sync that fails again with
    the line may be too much for it, and waits.
    """
    one = OneSite("bonn")
    for attempt, begins in (("first", True), ("second", False)):
        assert any(isinstance(message, CompareRanges) for message in one.hear_hello(link=attempt))
        one.wait(2.6)
        one.wait(0.6)
        assert not one.peer().is_connected
        said = one.hear_hello(link=f"after the {attempt}")
        assert any(isinstance(message, CompareRanges) for message in said) is begins
        one.wait(300.0)


def test_a_late_reply_of_an_older_sync_is_ignored() -> None:
    """It comes while a new sync runs, and is not taken for the new one's."""
    one = greeted()
    old = one.site._last_id
    kept(one, 7)
    assert one.state() is SYNCING
    one.hear("in", RangeSumsReply(old, True, ()))
    assert one.state() is SYNCING
    assert one.site.late_replies == 1


def test_a_success_resets_the_wait() -> None:
    """A peer that failed and was synced with then begins anew at 4 s."""
    one = greeted()
    kept(one, 7)
    one.hear("in", RangeSumsReply(one.site._last_id, True, ()))
    assert one.peer().backoff.errors == 0


def test_a_new_incarnation_is_synced_with_at_once() -> None:
    """Whatever the old one's failures have cost."""
    one = greeted()
    kept(one, 3)
    one.site.members.lost("in", one.now)
    assert [type(m).__name__ for m in one.hear_hello("rome", 8, "again")] == ["Hello", "CompareRanges"]


def test_the_site_with_the_greater_name_waits_for_the_other_one() -> None:
    """It asks when the other one has finished, or after 2.5 s."""
    one = OneSite("zurich")
    one.wait(0.0)
    assert len(one.hear_hello()) == 1
    assert [type(m) for m in one.hear("in", Finalize(1, AREA, {}, False))] == [SetResult]
    assert [type(m) for m in one.hear("in", Finalize(2, AREA, {}, True))] == [SetResult, CompareRanges]
    other = OneSite("zurich")
    other.hear_hello()
    assert [type(m) for m in kept(other, 3)] == [CompareRanges]


def test_syncs_at_the_same_time_are_limited_and_more_after_each_success() -> None:
    """Two at first, then twice as many after each success, 32 at most."""
    one = OneSite("bonn")
    ids = []
    for n in range(40):
        one.hear_hello(f"site{n:02}", 7, n)
        ids.append(one.site._last_id)
    running = [name for name, peer in one.replica.peers.items() if peer.session is not None]
    assert len(running) == 2
    for limit in (4, 8, 16, 32, 32):
        name, peer = next((n, p) for n, p in one.replica.peers.items() if p.session is not None)
        assert peer.session is not None
        one.hear(int(name[4:]), RangeSumsReply(next(iter(peer.session._waiting)), True, ()))
        assert one.site.sync_slots.limit == limit
        assert sum(peer.session is not None for peer in one.replica.peers.values()) == min(limit, 39)


def test_the_limit_is_that_of_the_site_and_not_of_each_area() -> None:
    """Two areas that have ten peers each begin two syncs together; one that ends gives its place to another area."""
    areas = ("one", "two")
    one = OneSite("bonn", areas=areas)
    for n in range(10):
        one.hear_hello(f"site{n:02}", 7, n, areas=areas)

    def running(area: str) -> list[SyncSession]:
        peers = one.site.replicas[area].peers.values()
        return [peer.session for peer in peers if peer.session is not None]

    assert sum(len(running(area)) for area in areas) == 2
    assert one.site.sync_slots.running == 2
    for _ in range(200):
        for n in range(10):
            for area in areas:
                session = one.site.replicas[area].peers[f"site{n:02}"].session
                if session is not None and session._waiting:
                    one.hear(n, RangeSumsReply(next(iter(session._waiting)), True, ()))
        one.wait(0.001)
        there = sum(len(running(area)) for area in areas)
        assert there == one.site.sync_slots.running <= one.site.sync_slots.limit
    for area in areas:
        assert {peer.status.state for peer in one.site.replicas[area].peers.values()} == {INITIALIZED}
    assert one.site.sync_slots.running == 0


def test_a_peer_whose_syncs_last_long_holds_no_other_up() -> None:
    """It answers each question in time, with hardly anything, and has the only two places; another peer comes in."""
    areas = ("one", "two")
    one = OneSite("bonn", areas=areas)
    one.hear_hello("slow", 7, "slow", areas=areas)
    one.hear_hello("honest", 8, "honest", areas=areas)
    assert {name for area in areas for name, peer in one.site.replicas[area].peers.items() if peer.session} == {"slow"}
    for at in range(1, 40):
        one.wait(1.0)
        one.hear("honest", Heartbeat(8, 0))
        one.hear("slow", Heartbeat(7, 0))
        for area in areas:
            session = one.site.replicas[area].peers["slow"].session
            assert session is not None, "it is in time"
            for request_id, request in tuple(session._waiting.items()):
                sums = (1,) * 256
                is_first = isinstance(request, CompareRanges)
                reply = RangeSumsReply(request_id, False, sums) if is_first else SyncReply(request_id, {}, (), at)
                one.hear("slow", reply)
    assert all(one.site.replicas[area].peers["honest"].session is not None for area in areas)
    assert one.site.sync_slots.running == 2


def test_a_gap_in_the_numbers_of_floods_is_repaired_at_once() -> None:
    """The update in the gap is found by a sync, and the peer stays INITIALIZED."""
    one = synced()
    kept(one, 2)
    said = one.hear("in", Flood(2, AREA, ("rome",), {"k": Value(1, "rome", b"")}))
    assert [type(message) for message in said] == [CompareRanges]
    assert one.state() is INITIALIZED


def test_a_flood_that_was_the_last_one_is_missed_by_the_heartbeat() -> None:
    """Its number in the heartbeat is greater than the last that came."""
    one = synced()
    kept(one, 2)
    assert [type(message) for message in one.hear("in", Heartbeat(7, 1))] == [CompareRanges]


def test_stores_are_compared_every_minute() -> None:
    """With ranges one question a minute; without them nothing, for it would send all hashes."""
    assert [type(message) for message in kept(synced(), 61)] == [CompareRanges]
    one = greeted(capabilities=())
    one.hear("in", SyncReply(one.site._last_id, {}, ()))
    one.hear("in", SetResult(one.site._last_id, {}))
    assert one.peer().session is None
    assert kept(one, 130) == []


def test_what_changes_during_a_sync_goes_with_its_end() -> None:
    """The peer is not INITIALIZED, so there is no flood; this holds also if the stores were found equal before."""
    one = greeted()
    one.set("k")
    assert one.said("in") == []
    said = one.hear("in", RangeSumsReply(one.site._last_id, True, ()))
    assert [(type(message), set(getattr(message, "entries", ()))) for message in said] == [(Finalize, {"k"})]


def test_an_update_of_a_ttl_that_does_not_fit_brings_a_sync_without_a_wait() -> None:
    """From the originator itself: the peer is idle and synced with at once. Good entries beside it are taken."""
    one = synced()
    one.sync_with("oslo", link="oslo")
    kept(one, 2)
    entries = {"bad": Value(1, "rome", None, 60_000, 4), "good": Value(1, "rome", b"x", 60_000)}
    one.site.receive("oslo", b"", one.now)
    said = one.hear("in", Flood(1, AREA, ("rome",), entries))
    assert [type(message) for message in said] == [CompareRanges]
    assert one.state() is SYNCING
    assert one.peer().backoff.errors == 0
    assert one.areas[AREA].get("good") is not None


def test_the_program_is_told_of_each_state() -> None:
    """Of a peer that comes, is synced with, and goes."""
    one = synced()
    one.site.members.lost("in", one.now)
    changes = [(event.before, event.after) for event in one.told(PeerChanged)]
    assert changes == [(None, IDLE), (IDLE, SYNCING), (SYNCING, INITIALIZED), (INITIALIZED, IDLE)]


def test_a_missing_key_is_repaired_along_a_line() -> None:
    """Facts §5.5: B gets A's refresh of a key that it lacks, and all have it in the end; B's flaps for A are 2."""
    pair = Pair(OneSite("a"), OneSite("b"))
    pair.bonn.areas[AREA].own.persist("own", b"x", pair.bonn.now)
    pair.settle(0.2)
    assert pair.rome.areas[AREA].get("own") is not None
    store = pair.rome.areas[AREA].store
    store.merge({"own": Value(20, "z", b"foreign", 60_000)}, None, pair.rome.now)
    refresh = Value(1, "a", None, 300_000, 9)
    pair.settle(1.5)
    link = pair.rome.site._links.of("a")
    assert link is not None
    pair.rome.hear("in", Flood(link.received + 1, AREA, ("a",), {"own": refresh}))
    assert pair.rome.peer("a").status.flaps == 1
    pair.rome.site.output.clear()
    for _ in range(8):
        pair.settle(1.0)
    for one in (pair.bonn, pair.rome):
        stored = one.areas[AREA].get("own")
        assert stored is not None
        assert (stored.version, stored.originator, stored.value) == (21, "a", b"x")
    assert pair.rome.peer("a").status.flaps == 2
