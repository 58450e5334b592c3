"""What a site says on its connections: hellos, refusals, heartbeats, and what it makes of nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from site_pair import AREA, OneSite, Pair, failed

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.kvstore import members
from statestore_client.server.kvstore.peers import (
    HelloRefused,
    MalformedMessage,
    NameInUse,
    PeerChanged,
    PeerState,
    Synced,
)
from statestore_client.wire.kvstore.codec import encode
from statestore_client.wire.kvstore.messages import (
    MAX_ITEMS,
    CompareRanges,
    Failure,
    FailureReason,
    Finalize,
    Flood,
    Found,
    Heartbeat,
    Hello,
    HelloWanted,
    RangeSumsReply,
    Refusal,
    RefusalReason,
    Set,
    SetResult,
    Sync,
)
from statestore_client.wire.kvstore.value import MAX_KEY_BYTES, MAX_VALUE_BYTES, Value


def test_one_connection_makes_both_sides_peers() -> None:
    """Bonn dials, Rome does not; each is the other's peer, and an update of either side reaches the other one."""
    pair = Pair(OneSite("bonn"), OneSite("rome"))
    assert (pair.bonn.state("rome"), pair.rome.state("bonn")) == (PeerState.INITIALIZED,) * 2
    pair.rome.set("from rome")
    pair.bonn.set("from bonn")
    pair.settle()
    for one in (pair.bonn, pair.rome):
        assert set(one.areas[AREA].store) == {"from rome", "from bonn"}


def test_equal_stores_are_synced_with_one_question_of_each_side() -> None:
    """Two empty stores: each side asks once, and nothing else is said but hellos."""
    pair = Pair(OneSite("bonn"), OneSite("rome"))
    kinds = [type(message) for message in pair.carried]
    assert kinds == [Hello, Hello, CompareRanges, RangeSumsReply, CompareRanges, RangeSumsReply]


def test_a_hello_carries_what_the_other_side_has_to_know() -> None:
    """Name, incarnation, areas, version, capabilities; again each second until it is answered."""
    one = OneSite("bonn", 5)
    one.site.members.dial("out", one.now)
    hello = Hello(1, "bonn", 5, (AREA,), ("ranges",), False)
    assert one.said("out") == [hello]
    assert one.wait(0.9, "out") == []
    assert one.wait(0.1, "out") == [hello]


def test_what_comes_before_a_hello_is_answered_and_not_kept() -> None:
    """A connection that says anything else is asked for a hello."""
    one = OneSite()
    for message in (Heartbeat(7, 0), Flood(1, AREA, ("rome",), {"k": Value(1, "rome", b"")}), Sync(1, AREA, (), {})):
        assert one.hear("in", message) == [HelloWanted()]
    assert not one.areas[AREA].store
    assert list(one.site._links) == []


def test_a_side_that_hears_hello_wanted_says_hello_again() -> None:
    """The other side was started again, or ØMQ has connected again: the peer is idle until that is done."""
    pair = Pair(OneSite("bonn"), OneSite("rome"))
    pair.settle(1.0)
    answer = pair.bonn.hear("out", HelloWanted())
    assert [type(message) for message in answer] == [Hello]
    assert pair.bonn.state("rome") is PeerState.IDLE


def test_ones_own_name_is_refused() -> None:
    """A site that reaches itself, or another one of its name, has no peer; both hear why."""
    one = OneSite("bonn")
    assert [m.reason for m in one.hear_hello("bonn") if isinstance(m, Refusal)] == [RefusalReason.OWN_NAME]
    one.site.members.dial("out", one.now)
    one.hear("out", Hello(1, "bonn", 1, (AREA,), is_reply=True))
    assert [event.reason for event in one.told(HelloRefused)] == [RefusalReason.OWN_NAME] * 2
    assert one.replica.peers == {}


def test_two_living_incarnations_of_one_name() -> None:
    """The second one is refused as long as the first one lives, and the program is told when both do."""
    one = OneSite()
    one.hear_hello("rome", 7, "first")
    assert [m.reason for m in one.hear_hello("rome", 8, "second") if isinstance(m, Refusal)] == [
        RefusalReason.NAME_IN_USE
    ]
    assert one.told(NameInUse) == []
    one.hear("first", Heartbeat(7, 0))
    assert one.told(NameInUse) == [NameInUse("rome")]


def test_a_site_that_was_started_again_is_taken_when_the_old_one_is_silent() -> None:
    """A new incarnation is refused for 3 s at most, then synced with at once; nobody is told of two sites."""
    one = OneSite()
    one.hear_hello("rome", 7, "first")
    one.wait(0.5)
    assert isinstance(one.hear_hello("rome", 8, "second")[0], Refusal)
    one.wait(2.5)
    answer = one.hear_hello("rome", 8, "second")
    assert [type(message) for message in answer] == [Hello, CompareRanges]
    assert one.told(NameInUse) == []


def test_a_connection_that_is_closed_frees_the_name_at_once() -> None:
    """Where the shell sees the end of a connection, nobody waits 3 s."""
    one = OneSite()
    one.hear_hello("rome", 7, "first")
    one.site.members.lost("first", one.now)
    assert isinstance(one.hear_hello("rome", 8, "second")[0], Hello)


def test_several_connections_are_one_peer() -> None:
    """Two URLs of one name: one peer. When one connection dies the peer stays, and what may be lost is looked for."""
    one = OneSite("bonn")
    one.hear_hello("rome", 7, "first")
    reply = one.hear("first", RangeSumsReply(one.site._last_id, True, ()))
    assert one.state() is PeerState.INITIALIZED
    one.hear_hello("rome", 7, "second")
    assert list(one.replica.peers) == ["rome"]
    one.set("k")
    assert [type(message) for message in one.said("second")] == [Flood]
    one.wait(1.0)
    one.site.members.lost("second", one.now)
    assert one.state() is PeerState.INITIALIZED
    assert [type(m) for m in one.wait(0.0, "first") if not isinstance(m, Heartbeat)] == [CompareRanges], reply


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello(0, "rome", 7, (AREA,)), RefusalReason.VERSION),
        (Hello(1, "rome", 7, ("another",)), RefusalReason.NO_COMMON_AREA),
    ],
)
def test_a_hello_that_cannot_be_taken_says_why(hello: Hello, reason: RefusalReason) -> None:
    """An old version and areas that this site has not."""
    answer = OneSite().hear("in", hello)
    assert isinstance(answer[0], Refusal)
    assert answer[0].reason == reason


def test_a_newer_version_and_unknown_capabilities_are_taken() -> None:
    """A newer site speaks the version of this one, and what this one does not know is not used."""
    one = OneSite("bonn")
    answer = one.hear("in", Hello(9, "rome", 7, (AREA, "more"), ("telepathy",)))
    assert [type(message) for message in answer if not isinstance(message, Heartbeat)] == [Hello, Sync]


def test_too_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others can make a site remember is limited."""
    monkeypatch.setattr(members, "MAX_LINKS", 2)
    one = OneSite()
    one.hear_hello("a", 1, "first")
    one.hear_hello("b", 2, "second")
    answer = one.hear_hello("c", 3, "third")
    assert [m.reason for m in answer if isinstance(m, Refusal)] == [RefusalReason.TOO_MANY_CONNECTIONS]


def test_names_that_come_and_go_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of peers that are gone a limited number is remembered; one that is there is never forgotten."""
    monkeypatch.setattr(members, "MAX_LINKS", 3)
    one = OneSite()
    one.hear_hello("first", 1, "first")
    for n in range(20):
        one.hear_hello(f"rome{n}", n, n)
        one.site.members.lost(n, one.now)
    assert len(one.replica.peers) == 3
    assert "first" in one.replica.peers


@pytest.mark.parametrize("name", ["", "x" * 256, "\N{SNOWMAN}" * 100])
def test_a_name_that_no_peer_would_take_is_an_error(name: str) -> None:
    """A site's name has 1 to 255 bytes."""
    with pytest.raises(InvalidArgumentError, match="1 to 255 bytes"):
        OneSite(name)


@pytest.mark.parametrize(("names", "is_taken", "is_sent"), [(254, True, True), (258, True, False), (259, False, False)])
def test_the_largest_value_fits_beside_the_longest_path(names: int, is_taken: bool, is_sent: bool) -> None:
    """An update whose path is as long as it may be is taken and not sent on; a longer one is malformed."""
    one = OneSite("bonn")
    for name in ("rome", "york"):
        one.sync_with(name, link=name)
    path = (*(f"{n:0254}" for n in range(names)), "rome")
    key = "k" * MAX_KEY_BYTES
    entries = {key: Value(1, "x" * 255, bytes(MAX_VALUE_BYTES))}
    one.site.receive("rome", encode(Flood(1, AREA, path, entries)), one.now)
    assert (one.areas[AREA].get(key) is not None) == is_taken
    assert bool([message for message in one.said("york") if isinstance(message, Flood)]) == is_sent
    assert bool(one.told(MalformedMessage)) != is_taken


def test_a_silent_peer_is_down_after_three_seconds() -> None:
    """Heartbeats keep a peer; without them it is idle, and a dialled connection says hello again."""
    one = OneSite("bonn")
    one.site.members.dial("out", one.now)
    one.hear("out", Hello(1, "rome", 7, (AREA,), ("ranges",), True))
    one.hear("out", RangeSumsReply(one.site._last_id, True, ()))
    for _ in range(5):
        one.wait(2.9)
        one.hear("out", Heartbeat(7, 0))
        assert one.state() is PeerState.INITIALIZED
    said = one.wait(3.0, "out")
    assert one.state() is PeerState.IDLE
    assert Hello in [type(message) for message in said]


def test_heartbeats_carry_the_incarnation_and_the_number_of_floods() -> None:
    """Each second one, with the number of the last flood on this connection."""
    one = OneSite("bonn", 5)
    one.sync_with()
    one.set("k")
    floods = one.wait(1.0)
    assert [message for message in floods if isinstance(message, Heartbeat)] == [Heartbeat(5, 1)]


def test_another_incarnation_in_a_heartbeat_ends_the_connection() -> None:
    """What was said on it belongs to a site that is no longer there."""
    one = OneSite("bonn")
    one.hear_hello("rome", 7)
    one.hear("in", Heartbeat(8, 0))
    assert not one.peer().is_connected
    assert one.hear("in", Heartbeat(8, 0)) == [HelloWanted()]


def test_requests_for_an_area_that_is_not_shared_fail() -> None:
    """Each is answered with an error."""
    one = OneSite()
    one.hear_hello()
    for request in (CompareRanges(1, "x", 0, (0,), 5), Sync(1, "x", (), {}), Finalize(1, "x", {}, True)):
        answer = one.hear("in", request)
        assert failed(answer[0]) == FailureReason.UNKNOWN_AREA


def test_ranges_that_do_not_exist_fail() -> None:
    """A level or a number that there is not is an error of the request, and of nothing else."""
    one = OneSite()
    one.hear_hello()
    for level, prefixes in ((3, (0,)), (16, (0,)), (8, (256,)), (2**63, (0,)), (0, (1,)), (0, (0, 5))):
        answer = one.hear("in", CompareRanges(1, AREA, level, prefixes))
        assert failed(answer[0]) == FailureReason.BAD_REQUEST


def test_an_unknown_request_is_answered_and_other_nonsense_is_reported() -> None:
    """A request of a newer release fails there at once; malformed messages change nothing."""
    one = OneSite()
    one.hear_hello()
    one.told(PeerChanged)
    assert one.hear("in", bytes.fromhex("931f0701")) == [
        Failure(
            7, FailureReason.UNKNOWN_REQUEST, "a message between sites with code 31, which this release does not know"
        )
    ]
    assert one.hear("in", b"\xff") == []
    assert len(one.told(MalformedMessage)) == 2


@pytest.mark.parametrize("number", [MAX_ITEMS + 1, 6_000])
def test_a_set_that_would_keep_others_waiting_is_refused(number: int) -> None:
    """A client that sends too many entries at once is told so, and nothing of it is stored."""
    one = OneSite()
    entries = {f"key {n}": Value(1, "client", b"x" * 100) for n in range(number)}
    (answer,) = one.hear("client", Set(7, AREA, entries))
    assert isinstance(answer, Failure)
    assert (answer.id, answer.reason) == (7, FailureReason.BAD_REQUEST)
    assert not one.areas[AREA].store.summary().keys
    (answer,) = one.hear("client", Set(8, AREA, dict(list(entries.items())[:MAX_ITEMS])))
    assert answer == SetResult(8, {})
    assert one.areas[AREA].store.summary().keys == MAX_ITEMS


@pytest.mark.parametrize("path", [(), ("bonn", "oslo")])
def test_a_flood_whose_path_does_not_end_at_its_sender_is_not_taken(path: tuple[str, ...]) -> None:
    """Nobody can speak in the name of another site."""
    one = OneSite()
    one.hear_hello()
    one.hear("in", Flood(1, AREA, path, {"k": Value(1, "rome", b"")}))
    assert not one.areas[AREA].store
    assert one.told(MalformedMessage)


def test_a_flood_that_was_here_already_is_not_taken() -> None:
    """Loop detection: one's own name in the path."""
    one = OneSite("bonn")
    one.hear_hello()
    one.hear("in", Flood(1, AREA, ("bonn", "rome"), {"k": Value(1, "rome", b"")}))
    assert not one.areas[AREA].store
    assert one.replica.counters.looped_publications == 1


def test_the_end_of_the_initial_syncs_is_told_once() -> None:
    """When every peer is synced with, or has failed once."""
    pair = Pair(OneSite("bonn"), OneSite("rome"))
    assert len(pair.bonn.told(Synced)) == 1
    pair.settle(60.0)
    assert pair.bonn.told(Synced) == []


def test_without_peers_the_end_of_the_initial_syncs_is_told_at_once_or_when_asked_for() -> None:
    """With a time-out it waits that long for a first peer."""
    one = OneSite()
    one.wait(0.0)
    assert one.told(Synced) == [Synced()]
    one = OneSite(sync_timeout_s=5.0)
    one.wait(4.9)
    assert one.told(Synced) == []
    one.wait(0.1)
    assert one.told(Synced) == [Synced()]


def test_a_peer_that_does_not_answer_holds_up_the_signal_for_its_time_out_only() -> None:
    """A connection that nobody answers counts after 2.5 s; a sync that fails counts at once."""
    one = OneSite()
    one.site.members.dial("out", one.now)
    one.wait(2.0)
    assert one.told(Synced) == []
    one.wait(1.0)
    assert one.told(Synced) == [Synced()]


def test_a_site_that_waits_for_a_first_peer_goes_on_with_it_or_when_the_time_is_over() -> None:
    """An address where nobody answers is not enough; a sync is, and so is the time-out, which names no peer."""
    one = OneSite(sync_timeout_s=10.0)
    one.site.members.dial("out", one.now)
    one.wait(9.0)
    assert one.told(Synced) == []
    assert not one.site.is_synced
    one.wait(1.0)
    assert one.told(Synced) == [Synced()]
    one = OneSite(sync_timeout_s=10.0)
    one.site.members.dial("out", one.now)
    one.wait(4.0)
    one.sync_with("rome")
    assert one.told(Synced) == [Synced(("rome",))]
    one.wait(20.0)
    assert one.told(Synced) == []


def test_a_sync_that_is_under_way_is_not_cut_by_the_time_out() -> None:
    """What the peer has is not all here yet. When the sync fails the time is over."""
    one = OneSite(sync_timeout_s=1.0)
    one.hear_hello()
    one.wait(2.0)
    assert (one.state(), one.told(Synced)) == (PeerState.SYNCING, [])
    one.hear("in", Failure(one.site._last_id, FailureReason.BAD_REQUEST, ""))
    assert one.told(Synced) == [Synced()]


def test_what_does_not_fit_into_a_reply_is_said_shortly() -> None:
    """However long what a peer asks for is: nothing is raised, and it is told."""
    one = OneSite()
    one.hear_hello()
    (reply,) = [
        each for each in one.hear("in", CompareRanges(3, "\x01" * 300_000, 0, (0,), 1)) if isinstance(each, Failure)
    ]
    assert reply.reason == FailureReason.UNKNOWN_AREA
    one.site.answer("in", Found(5, {str(n): Value(1, "a", bytes(100_000)) for n in range(20)}))
    (reply,) = one.said("in")
    assert isinstance(reply, Failure)
    assert (reply.id, reply.reason) == (5, FailureReason.BAD_REQUEST)


def test_a_peer_that_is_removed_is_forgotten() -> None:
    """Its connections too; if it says something more, it has to say hello."""
    one = OneSite()
    one.hear_hello()
    one.site.members.remove_peer("rome")
    assert one.replica.peers == {}
    assert PeerChanged(AREA, "rome", PeerState.SYNCING, None) in one.told(PeerChanged)
    assert one.hear("in", Heartbeat(7, 0)) == [HelloWanted()]


_FRAMES = st.sampled_from([
    encode(Hello(1, "rome", 7, (AREA,), ("ranges",))), encode(Hello(1, "rome", 8, (AREA,))), encode(HelloWanted()),
    encode(Heartbeat(7, 3)), encode(Refusal(2, "no")), encode(Flood(5, AREA, ("rome",), {"k": Value(1, "rome", b"")})),
    encode(Flood(1, AREA, ("rome",), {"k": Value(1, "rome", None, 5)})), encode(CompareRanges(1, AREA, 8, (1,))),
    encode(CompareRanges(1, AREA, 0, (0,) * 1024)),
    encode(Sync(1, AREA, ((0, 9),), {"k": Value(1, "x", None, hash=3)})), encode(Failure(1, 1, "")),
    encode(Finalize(1, AREA, {"k": Value(-1, "", b"", 0)}, True)), encode(RangeSumsReply(1, False, (1, 2))),
]) | st.binary(max_size=30)  # fmt: skip


@given(
    st.lists(st.tuples(st.sampled_from(["in", "out", "other"]), _FRAMES, st.sampled_from([0, 0, 1, 4])), max_size=25)
)
@settings(max_examples=200)
@pytest.mark.ci
def test_nothing_that_arrives_stops_a_site(frames: list[tuple[str, bytes, int]]) -> None:
    """Any frames in any order on any connection: no exception, and a peer that behaves is served after them."""
    one = OneSite("bonn")
    one.site.members.dial("out", one.now)
    for link, data, seconds in frames:
        one.hear(link, data)
        one.wait(seconds)
    one.wait(4.0)
    assert isinstance(one.hear_hello("oslo", 9, "good")[0], Hello)
    answer = one.hear("good", CompareRanges(1, AREA, 0, (0,), 5))
    assert isinstance(answer[0], RangeSumsReply)
