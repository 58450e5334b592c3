"""The peers of a site: how they are forgotten, what is told of one that was started again, and what trouble costs."""

from __future__ import annotations

from itertools import pairwise

import attrs
import pytest
from site_pair import AREA, OneSite, Pair

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.kvstore import members
from statestore_client.server.kvstore.members import DOWN_S
from statestore_client.server.kvstore.peers import HelloRefused, PeerChanged, PeerState, Synced
from statestore_client.wire.kvstore.messages import (
    CompareRanges,
    Flood,
    Heartbeat,
    Hello,
    HelloWanted,
    Leave,
    Refusal,
    RefusalReason,
)
from statestore_client.wire.kvstore.value import Value

HELLO = Hello(1, "rome", 7, (AREA,), ("ranges",), True)
IN_USE = Refusal(RefusalReason.NAME_IN_USE, "another site has it")


def dialled() -> OneSite:
    """A site that dials Rome, which has answered."""
    one = OneSite()
    one.site.members.dial("out", one.now)
    one.hear("out", HELLO)
    return one


def test_sites_forget_each_other_when_one_hangs_up() -> None:
    """Nobody misses the other one afterwards, and a new connection begins anew."""
    bonn, rome = OneSite("bonn", 1), OneSite("rome", 2)
    pair = Pair(bonn, rome)
    pair.settle(3.0)
    assert (bonn.state("rome"), rome.state("bonn")) == (PeerState.INITIALIZED, PeerState.INITIALIZED)
    bonn.site.members.hang_up("out", bonn.now)
    assert bonn.replica.peers == {}
    pair.settle()
    assert rome.replica.peers == {}
    assert isinstance(pair.carried[-1], Leave)
    assert rome.told(PeerChanged)[-1] == PeerChanged(AREA, "bonn", PeerState.INITIALIZED, None)
    pair.settle(10.0)
    assert (bonn.replica.peers, rome.replica.peers) == ({}, {})
    bonn.site.members.dial("out", bonn.now)
    pair.settle(3.0)
    assert (bonn.state("rome"), rome.state("bonn")) == (PeerState.INITIALIZED, PeerState.INITIALIZED)


def test_a_peer_with_another_connection_stays() -> None:
    """At both sides, and what may be lost on the one that has ended is looked for."""
    one = OneSite()
    one.hear_hello(link="first")
    one.hear_hello(link="second")
    one.hear("second", Leave())
    assert one.peer().is_connected
    assert one.peer().has_missed
    assert one.hear("second", Heartbeat(7, 0)) == [HelloWanted()]
    one.hear("first", Leave())
    assert one.replica.peers == {}


def test_a_peer_that_is_dialled_elsewhere_is_lost_and_not_forgotten() -> None:
    """Its other address is dialled still: it is missing until somebody answers there, or that one is removed."""
    one = OneSite()
    for link in ("out", "other"):
        one.site.members.dial(link, one.now)
        one.hear(link, HELLO)
    one.wait(3.5)
    assert not one.peer().is_connected
    one.site.members.hang_up("out", one.now)
    assert not one.peer().is_connected
    one.site.members.hang_up("other", one.now)
    assert one.replica.peers == {}


def test_an_address_that_is_dialled_again_is_still_that_of_its_peer() -> None:
    """The line has broken and stands again, and nobody has said hello since: the peer goes with the address."""
    one = dialled()
    one.site.members.redial("out", one.now)
    assert [type(message) for message in one.said("out")][-1:] == [Hello]
    assert not one.peer().is_connected
    one.site.members.hang_up("out", one.now)
    assert one.replica.peers == {}
    one.site.members.hang_up("out", one.now)


def test_a_site_that_is_gone_for_good_is_forgotten_by_its_name() -> None:
    """One that is connected, or dialled, would come back: that is an error, which says what to do."""
    one = OneSite()
    one.hear_hello()
    with pytest.raises(InvalidArgumentError, match="remove this site there"):
        one.site.members.forget("rome")
    one.site.members.lost("in", one.now)
    assert "rome" in one.replica.peers
    assert one.site.members.forget("rome")
    assert one.replica.peers == {}
    assert not one.site.members.forget("rome")
    one.site.members.dial("out", one.now)
    one.hear("out", Hello(1, "oslo", 7, (AREA,), ("ranges",), True))
    one.wait(3.5)
    with pytest.raises(InvalidArgumentError, match="remove out"):
        one.site.members.forget("oslo")


def test_the_other_side_cannot_end_what_this_site_dials() -> None:
    """Whatever is said there: it is dialled until this site's own operator says otherwise."""
    one = dialled()
    assert one.hear("out", Leave()) == []
    assert one.peer().is_connected
    assert one.hear("stranger", Leave()) == [HelloWanted()]


@pytest.mark.parametrize("link", ["in", "out"])
def test_nothing_is_taken_from_a_connection_that_is_dead(link: str) -> None:
    """The site stood still, and has not noticed the silence yet. What comes may be as old; a hello begins anew."""
    one = dialled() if link == "out" else OneSite()
    hello = attrs.evolve(HELLO, is_reply=link == "out")
    one.hear(link, hello)
    one.now += DOWN_S
    said = one.hear(link, Flood(1, AREA, ("rome",), {"k": Value(1, "rome", b"v", 5_000)}))
    assert [type(each) for each in said] == [Hello if link == "out" else HelloWanted]
    assert one.areas[AREA].get("k") is None
    assert not one.peer().is_connected
    one.hear(link, hello)
    assert one.peer().is_connected


def test_an_answer_that_may_be_as_old_as_the_hello_is_not_taken() -> None:
    """The site stood still after it had said hello: it says so again, and the answer to that counts."""
    one = OneSite()
    one.site.members.dial("out", one.now)
    one.said("out")
    one.now += DOWN_S
    assert [type(each) for each in one.hear("out", HELLO)] == [Hello]
    assert one.replica.peers == {}
    one.hear("out", HELLO)
    assert one.peer().is_connected


def test_a_hello_that_is_said_again_is_answered_and_begins_nothing_anew() -> None:
    """The sync that has begun with the first one goes on. Once the other side has said something else it has the
    answer, and a hello of it begins anew.
    """
    one = OneSite()
    one.wait(0.0)
    first = one.hear_hello()
    assert [type(message) for message in first] == [Hello, CompareRanges]
    assert [type(message) for message in one.hear_hello()] == [Hello]
    assert one.state() is PeerState.SYNCING
    one.hear("in", Heartbeat(7, 0))
    one.hear_hello()
    assert one.state() is PeerState.IDLE


def test_a_second_answer_to_a_hello_begins_nothing_anew() -> None:
    """The site that dials had said it twice, as the line was slow."""
    one = OneSite("bonn")
    one.site.members.dial("out", one.now)
    one.wait(0.0, "out")
    assert any(isinstance(message, Hello) for message in one.wait(1.0, "out"))
    assert any(isinstance(message, CompareRanges) for message in one.hear_hello(link="out", is_reply=True))
    one.hear("out", Heartbeat(7, 0))
    assert one.hear_hello(link="out", is_reply=True) == []
    assert one.replica.counters.full_syncs == 1
    one.hear_hello(incarnation=8, link="out", is_reply=True)
    assert one.replica.counters.full_syncs == 2


def test_hellos_are_a_second_apart_whatever_the_other_side_says() -> None:
    """A site that answers as quickly as it can is no exception."""
    one = OneSite()
    one.site.members.dial("out", one.now)
    one.said("out")
    hellos = 0
    for _ in range(100):
        one.hear("out", HELLO)
        hellos += sum(isinstance(message, Hello) for message in one.hear("out", HelloWanted()))
        one.now += 0.02
    assert 1 <= hellos <= 2


def test_an_address_that_is_dialled_already_goes_on_as_it_is() -> None:
    """Nothing is said anew, and its peer is known."""
    one = dialled()
    one.said("out")
    one.site.members.dial("out", one.now)
    assert one.said("out") == []
    one.wait(3.5)
    assert not one.peer().is_connected
    one.site.members.hang_up("out", one.now)
    assert one.replica.peers == {}


def test_a_site_that_hangs_up_before_it_was_answered_is_forgotten() -> None:
    """Only the other side knows of the peering then."""
    bonn, rome = OneSite("bonn", 1), OneSite("rome", 2)
    bonn.site.members.dial("out", bonn.now)
    for message in bonn.said("out"):
        rome.hear("in", message)
    assert "bonn" in rome.replica.peers
    bonn.site.members.hang_up("out", bonn.now)
    for message in bonn.said("out"):
        rome.hear("in", message)
    assert rome.replica.peers == {}


def test_names_that_are_fought_over_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two connections that take ever new names, each in another incarnation."""
    monkeypatch.setattr(members, "MAX_LINKS", 10)
    one = OneSite()
    for number in range(100):
        one.hear_hello(f"rome{number}", 1, "first")
        one.hear_hello(f"rome{number}", 2, "second")
    assert len(one.site.members.links._rivals) <= 10


def test_a_site_that_was_started_again_is_refused_in_silence() -> None:
    """So long its former incarnation may be taken for living, no side tells of it, and the first syncs have not failed.
    What is refused for longer is told.
    """
    one = OneSite()
    one.site.members.dial("out", one.now)
    for _ in range(2):
        one.hear("out", IN_USE)
        one.wait(1.0)
    assert [event for event in one.site.events if isinstance(event, HelloRefused | Synced)] == []
    one.hear("out", IN_USE)
    one.wait(1.0)
    assert one.told(HelloRefused) == []
    one.hear("out", IN_USE)
    assert [event.reason for event in one.told(HelloRefused)] == [RefusalReason.NAME_IN_USE]


# -- what trouble costs: a site that is refused, or not answered, says less than one whose peers are there -------------


_WINDOW_S = 60
_STEP_S = 0.05


def _bytes_of_a_minute(one: OneSite, other: OneSite, *, is_heard: bool = True) -> int:
    """What both sides say in a minute, the first hello included, if the one dials the other."""
    one.site.members.dial("out", one.now)
    sides = {"out": (one, other, "in"), "in": (other, one, "out")}
    total = 0
    for _ in range(round(_WINDOW_S / _STEP_S)):
        for link, (sender, receiver, at) in sides.items():
            sender.now += _STEP_S
            sender.site.tick(sender.now)
            output, sender.site.output = sender.site.output, []
            for to, data in output:
                assert to == link
                total += len(data)
                if is_heard:
                    receiver.site.receive(at, data, receiver.now)
    return total


def _idle() -> int:
    """The same of two empty sites that are peers; nothing but heartbeats after their hellos and a digest."""
    one, other = OneSite("bonn"), OneSite("rome", 7)
    total = _bytes_of_a_minute(one, other)
    assert "rome" in one.replica.peers
    return total


@pytest.mark.parametrize(
    ("other", "is_heard"),
    [
        pytest.param(OneSite("bonn", 7), True, id="own name"),
        pytest.param(OneSite("rome", 7, areas=("elsewhere",)), True, id="no common area"),
        pytest.param(OneSite("rome", 7), False, id="not answered"),
    ],
)
def test_a_site_that_does_not_get_in_costs_at_most_twice_what_a_peer_costs(other: OneSite, is_heard: bool) -> None:
    """A minute of hellos and refusals, beside a minute of heartbeats."""
    assert 0 < _bytes_of_a_minute(OneSite("bonn"), other, is_heard=is_heard) <= 2 * _idle()


def test_hellos_become_rare_and_are_quick_again_after_a_good_one() -> None:
    """Three follow after a second each, the later ones after 2, 4 and 8 s at most; an answer begins anew."""
    one = OneSite("bonn")
    one.site.members.dial("out", one.now)
    begun = one.now
    said = [0.0 for _ in one.said("out")]
    while one.now < begun + 40:
        said += [one.now - begun for _ in one.wait(0.01, "out")]
    waits = [after - before for before, after in pairwise(said)]
    assert waits[:3] == pytest.approx([1, 1, 1], abs=0.02)
    assert all(full * 0.8 - 0.02 <= wait <= full + 0.02 for full, wait in zip((2, 4, 8, 8), waits[3:], strict=False))
    assert max(waits[5:]) - min(waits[5:]) > 0.05, "sites that lost a peer together would come back together"
    one.hear_hello("rome", 7, "out", is_reply=True)
    assert AREA in one.site.replicas
    assert one.site._links.get("out").hellos == 0
