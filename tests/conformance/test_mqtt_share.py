"""Shared subscriptions (4.8.2)."""

from __future__ import annotations

import pytest
from handmade import ack, subscribe
from handmade_peer import join
from normative import normative
from scenes import refused
from support.broker_driver import World

IDENTIFIER = 0x0B
NO_LOCAL = 0x04


@normative(v5="4.8.2-1 4.8.2-2")
@pytest.mark.parametrize(
    "name", ["$share/", "$share//t", "$share/g", "$share/g/", "$share/+/t", "$share/#/t", "$share/g+/t"]
)
def test_shared_filters_that_are_none(name: str) -> None:
    """An invalid shared filter is a protocol error."""
    refused(subscribe(1, name), 0x82)


@normative(v5="4.8.2-1 4.8.2-2")
def test_what_only_looks_like_a_share() -> None:
    """A filter with another prefix is ordinary; a share's own filter may have wildcards and begin with a slash."""
    world = World()
    peer = join(world)
    peer.subscribe("$shared/g/t", "$SHARE/g/t", "$share/g//t", "$share/h/+/u")
    for topic in ("$shared/g/t", "$SHARE/g/t", "/t", "a/u", "$a/u"):
        peer.publish(topic)
    assert [message.topic for message in peer.messages()] == ["$shared/g/t", "$SHARE/g/t", "/t", "a/u"]


@normative(v5="3.8.3-4")
def test_no_local_on_a_share() -> None:
    """No Local on a shared subscription is a protocol error."""
    refused(subscribe(1, ("$share/g/t", NO_LOCAL)), 0x82)


@normative(v5="4.8.2-3", more="K10")
def test_each_message_goes_to_one_member() -> None:
    """Each message goes to one member in turn, at that member's QoS and with its identifier, beside other
    subscriptions."""
    world = World()
    members = [join(world, f"m{number}") for number in range(3)]
    for number, member in enumerate(members):
        member.subscribe(("$share/g/t", number), props=[(IDENTIFIER, number + 1)])
    other, plain = join(world, "o"), join(world, "n")
    other.subscribe("$share/other/t")
    plain.subscribe("t")
    writer = join(world, "w")
    for number in range(6):
        writer.publish("t", b"%d" % number, 2)
    shares = [member.messages() for member in members]
    assert [len(share) for share in shares] == [2, 2, 2]
    for number, share in enumerate(shares):
        assert {(message.qos, message.prop(IDENTIFIER)) for message in share} == {(number, number + 1)}
    assert len(other.messages()) == len(plain.messages()) == 6


def test_a_member_that_also_subscribed_itself() -> None:
    """A member that also subscribed itself gets both copies."""
    peer = join(World())
    peer.subscribe(("$share/g/t", 1), ("t", 0))
    peer.publish("t", b"x", 1)
    assert sorted(message.qos for message in peer.messages()) == [0, 1]


def test_members_that_are_away() -> None:
    """A message goes to a connected member, and if there is none, to a session that stays."""
    world = World()
    away, here = join(world, "a", expiry=60), join(world, "h")
    away.subscribe(("$share/g/t", 1))
    here.subscribe(("$share/g/t", 1))
    away.lose()
    writer = join(world, "w")
    for _ in range(3):
        writer.publish("t", b"x", 1)
    assert len(here.messages()) == 3
    here.lose()
    writer.publish("t", b"y", 1)
    assert [message.payload for message in join(world, "a", expiry=60, clean=False).after] == [b"y"]


def test_members_that_are_slow() -> None:
    """Connected members with closed windows are preferred to members that are away, and take turns."""
    world = World()
    away = join(world, "a", expiry=60)
    slow = [join(world, f"s{number}", props=[(0x21, 1)]) for number in range(2)]
    for member in (away, *slow):
        member.subscribe(("$share/g/t", 1))
    away.lose()
    writer = join(world, "w")
    for number in range(6):
        writer.publish("t", b"%d" % number, 1)
    assert join(world, "a", expiry=60, clean=False).after == []
    for member in slow:
        for _ in range(3):
            (message,) = member.messages()
            member.send(ack(0x40, message.packet_id))
        assert not member.seen()


@normative(v5="4.8.2-4 4.8.2-5")
def test_qos_2_to_a_member_that_was_cut_off() -> None:
    """A QoS 2 message in flight to a member that was cut off is finished with it, and nobody else gets it even if its
    session ends."""
    world = World()
    member, other = join(world, "m", expiry=60), join(world, "o")
    member.subscribe(("$share/g/t", 2))
    writer = join(world, "w")
    writer.publish("t", b"x", 2)
    (message,) = member.messages()
    other.subscribe(("$share/g/t", 2))
    member.lose()
    assert not other.seen()
    member = join(world, "m", expiry=60, clean=False)
    assert [(again.packet_id, again.dup) for again in member.after] == [(message.packet_id, 1)]
    member.lose()
    world.sleep(61)
    assert world.broker.usage.sessions == 2
    assert not other.seen()


@normative(v5="4.8.2-6 4.4.0-2")
@pytest.mark.parametrize(("qos", "first"), [(1, 0x40), (2, 0x50)])
def test_a_message_that_a_member_refused(qos: int, first: int) -> None:
    """A message that a member refused goes to no other member and is not sent again."""
    world = World()
    member = join(world, "m", expiry=60)
    member.subscribe(("$share/g/t", 2))
    join(world, "w").publish("t", b"x", qos)
    (message,) = member.messages()
    other = join(world, "o")
    other.subscribe(("$share/g/t", 2))
    member.send(ack(first, message.packet_id, 0x80))
    assert not member.seen()
    assert not other.seen()
    member.lose()
    assert not join(world, "m", expiry=60, clean=False).after


def test_shares_in_3_1_1() -> None:
    """Shared subscriptions work for 3.1.1 clients, as in other brokers."""
    world = World()
    one, two = join(world, "1", 4), join(world, "2", 4)
    one.subscribe("$share/g/t")
    two.subscribe("$share/g/t")
    for _ in range(4):
        one.publish("t")
    assert (len(one.messages()), len(two.messages())) == (2, 2)


def test_leaving_a_share() -> None:
    """UNSUBSCRIBE with the whole filter leaves the share, and the other members take over; the last one ends it."""
    world = World()
    one, two = join(world, "1"), join(world, "2")
    one.subscribe("$share/g/t")
    two.subscribe("$share/g/t")
    assert one.unsubscribe("t", "$share/h/t", "$share/g/t").codes == (0x11, 0x11, 0x00)
    for _ in range(3):
        one.publish("t")
    assert len(two.messages()) == 3
    two.unsubscribe("$share/g/t")
    one.publish("t", b"x", 1)
    assert one.one("PUBACK").code == 0x10
