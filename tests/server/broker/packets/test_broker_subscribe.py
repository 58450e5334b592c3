"""SUBSCRIBE and UNSUBSCRIBE: options, overlaps, retained messages, shares."""

from __future__ import annotations

import pytest
from support.broker_driver import Client, World

from statestore_client.mqtt.packets import (
    MQTT_3_1_1,
    Connect,
    Disconnect,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)


def test_granted_qos_is_answered_in_order() -> None:
    """SUBACK has one code for each filter, in order."""
    client = World().client()
    client.subscribe(Subscription("a", 0), Subscription("b", 1), Subscription("c", 2))
    assert client.granted == (0, 1, 2)


@pytest.mark.parametrize(("published", "granted", "delivered"), [(0, 2, 0), (2, 1, 1), (1, 1, 1), (1, 0, 0), (2, 2, 2)])
def test_delivered_at_the_lower_qos(published: int, granted: int, delivered: int) -> None:
    """A message is delivered at the lower of its QoS and the granted one (MQTT-3.8.4-8)."""
    world = World()
    client = world.client("c")
    client.subscribe("t", qos=granted)
    world.client("p").publish("t", b"x", published)
    (message,) = client.messages()
    assert message.qos == delivered


@pytest.mark.parametrize("version", [5, 4])
def test_overlapping_filters_give_one_copy(version: int) -> None:
    """Overlapping filters give one copy, at the highest QoS, with all identifiers (MQTT 5.0, 3.3.4)."""
    world = World()
    client = world.client("c", version=version)
    client.subscribe("a/+", qos=1, identifier=11)
    client.subscribe("a/#", qos=2, identifier=12)
    client.subscribe("a/b", qos=0, identifier=13)
    client.subscribe("other", qos=2, identifier=14)
    world.client("p").publish("a/b", b"x", 2)
    (message,) = client.messages()
    assert message.qos == 2
    assert sorted(message.properties.subscription_ids) == ([11, 12, 13] if version == 5 else [])


def test_a_repeated_filter_replaces_the_subscription() -> None:
    """QoS, options and identifier are those of the last SUBSCRIBE for the filter (MQTT-3.8.4-3)."""
    world = World()
    client = world.client("c")
    client.subscribe("t", qos=2, identifier=1)
    client.subscribe("t", qos=0)
    world.client("p").publish("t", b"x", 2)
    (message,) = client.messages()
    assert (message.qos, message.properties.subscription_ids) == (0, ())


def test_no_local() -> None:
    """A No Local subscription gets no messages of its own client, and others get them (MQTT-3.8.3-3)."""
    world = World()
    client, other = world.client("c"), world.client("o")
    client.subscribe(Subscription("t", no_local=True))
    other.subscribe("t")
    client.publish("t", b"mine")
    other.publish("t", b"theirs")
    assert [m.payload for m in client.messages()] == [b"theirs"]
    assert [m.payload for m in other.messages()] == [b"mine", b"theirs"]


@pytest.mark.parametrize("as_published", [False, True])
def test_retain_as_published(as_published: bool) -> None:
    """A live message keeps its RETAIN flag only if the subscription asks for it (MQTT 5.0, 3.3.1.3)."""
    world = World()
    client = world.client("c")
    client.subscribe(Subscription("t", retain_as_published=as_published))
    sender = world.client("p")
    sender.publish("t", b"1", retain=True)
    sender.publish("t", b"2")
    assert [m.retain for m in client.messages()] == [as_published, False]


@pytest.mark.parametrize(("handling", "first", "second"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
def test_retain_handling(handling: int, first: int, second: int) -> None:
    """Retain handling 0 sends always, 1 to a new subscription only, 2 never (MQTT 5.0, 3.8.3.1)."""
    world = World()
    world.client("p").publish("t", b"x", retain=True)
    client = world.client("c")
    subscription = Subscription("t", retain_handling=handling)
    assert len(client.subscribe(subscription)) == first
    assert len(client.subscribe(subscription)) == second


def test_retained_messages_follow_the_suback() -> None:
    """Retained messages follow SUBACK with RETAIN, at the lower QoS, with the identifier; wildcards find all."""
    world = World()
    sender = world.client("p")
    sender.publish("a/1", b"1", 2, retain=True)
    sender.publish("a/2", b"2", 0, retain=True)
    sender.publish("$x/2", b"hidden", 0, retain=True)
    client = world.client("c")
    messages = client.subscribe("+/+", qos=1, identifier=3)
    assert {
        (m.topic, m.payload, m.qos, m.retain, m.properties.subscription_ids) for m in messages if isinstance(m, Publish)
    } == {("a/1", b"1", 1, True, (3,)), ("a/2", b"2", 0, True, (3,))}


def test_an_empty_retained_message_deletes_and_is_delivered() -> None:
    """An empty retained message is delivered, and then nothing is retained (MQTT-3.3.1-6)."""
    world = World()
    client, sender = world.client("c"), world.client("p")
    client.subscribe("t")
    sender.publish("t", b"x", retain=True)
    sender.publish("t", b"", retain=True)
    assert [m.payload for m in client.messages()] == [b"x", b""]
    assert world.client("d").subscribe("t") == []


def test_retained_outlives_its_publisher() -> None:
    """A retained message outlives its publisher, because it belongs to no session."""
    world = World()
    sender = world.client("p")
    sender.publish("t", b"x", 1, retain=True)
    sender.lose()
    assert len(world.client("c").subscribe("t", qos=1)) == 1


def test_no_local_hides_own_retained_messages() -> None:
    """No Local also hides the client's own retained messages."""
    world = World()
    client = world.client("c")
    client.publish("t", b"x", retain=True)
    assert client.subscribe(Subscription("t", no_local=True)) == []


# -- refused filters --------------------------------------------------------------------------------------------------


def test_filters_beyond_the_limits_are_refused_one_by_one() -> None:
    """A filter too many gets 0x97 and one that test suites want refused 0x80; others of the same SUBSCRIBE are
    granted."""
    client = World(subscriptions_per_session=2, unsubscribable="test/nosubscribe").client()
    client.subscribe("test/nosubscribe", "a", "b", "c", "a")
    assert client.granted == (0x80, 0, 0, ReasonCode.QUOTA_EXCEEDED, 0)


def test_no_filter_is_refused_for_its_name_alone() -> None:
    """Every legal filter is granted, unless a setting refuses it."""
    client = World().client()
    client.subscribe("test/nosubscribe")
    assert client.granted == (0,)
    client.publish("test/nosubscribe", b"x")
    assert [packet.topic for packet in client.messages()] == ["test/nosubscribe"]


def test_filters_that_are_too_deep() -> None:
    """A filter that is too deep is treated as malformed."""
    client = World(topic_levels=3).client()
    client.send(Subscribe(1, (Subscription("a"), Subscription("a/b/c/d"))))
    assert client.one(Disconnect).reason_code == ReasonCode.MALFORMED_PACKET


def test_a_refusal_is_0x80_in_3_1_1() -> None:
    """A refused filter is 0x80 in 3.1.1, which knows no other code."""
    client = World(subscriptions_per_session=1).client(version=MQTT_3_1_1)
    client.subscribe("a", "b")
    assert client.granted == (0, 0x80)


# -- UNSUBSCRIBE ------------------------------------------------------------------------------------------------------


def test_unsubscribe() -> None:
    """UNSUBSCRIBE answers each filter, no new messages come, and those in flight are finished (MQTT 5.0, 3.10.4)."""
    world = World()
    client, sender = world.client("c", receive_maximum=1), world.client("p")
    client.subscribe("a/#", "b", qos=1)
    sender.publish("a/x", b"1", 1)
    sender.publish("a/x", b"2", 1)
    (first,) = client.messages()
    client.send(Unsubscribe(9, ("a/#", "nothing")))
    assert client.one(Unsuback) == Unsuback(9, (0, ReasonCode.NO_SUBSCRIPTION_EXISTED))
    sender.publish("a/x", b"3", 1)
    sender.publish("b", b"4", 1)
    acknowledge(client, first)
    assert [m.payload for m in drain(client)] == [b"2", b"4"]


def acknowledge(client: Client, message: Publish) -> None:
    client.send(Puback(message.packet_id))


def drain(client: Client) -> list[Publish]:
    """Take and acknowledge until nothing comes any more."""
    found: list[Publish] = []
    while messages := client.messages():
        for message in messages:
            found.append(message)
            acknowledge(client, message)
    return found


# -- shares -----------------------------------------------------------------------------------------------------------


def test_a_share_gets_each_message_once_in_turn() -> None:
    """Members of a group share the messages; another group and a plain subscriber get them all (MQTT 5.0, 4.8.2)."""
    world = World()
    members = [world.client(f"m{i}") for i in range(3)]
    for member in members:
        member.subscribe("$share/g/jobs/+", qos=1)
    other, plain = world.client("o"), world.client("x")
    other.subscribe("$share/h/jobs/+", qos=1)
    plain.subscribe("jobs/+", qos=1)
    sender = world.client("p")
    for i in range(9):
        sender.publish("jobs/a", str(i).encode(), 1)
    shares = [[m.payload for m in member.messages()] for member in members]
    assert [len(share) for share in shares] == [3, 3, 3]
    assert len({payload for share in shares for payload in share}) == 9
    assert len(other.messages()) == len(plain.messages()) == 9


def test_a_member_that_is_away_is_passed_over() -> None:
    """A member that is away is passed over while another is connected; if none is, the message waits."""
    world = World()
    away, here = world.client("away", session_expiry=99), world.client("here", session_expiry=99)
    for client in (away, here):
        client.subscribe("$share/g/t", qos=1)
    away.lose()
    sender = world.client("p")
    for _ in range(4):
        sender.publish("t", b"x", 1)
    assert len(here.messages()) == 4
    here.lose()
    sender.publish("t", b"later", 1)
    found = []
    for name in ("away", "here"):
        again = Client(world)
        again.send(Connect(name, clean_start=False))
        found += [m.payload for m in again.messages() if not m.dup]
    assert found == [b"later"]


def test_a_share_gets_no_retained_messages() -> None:
    """A shared subscription gets no retained messages (MQTT 5.0, 4.8.2)."""
    world = World()
    world.client("p").publish("t", b"x", retain=True)
    assert world.client("c").subscribe("$share/g/t") == []


def test_an_incomplete_share_of_a_3_1_1_client_is_refused() -> None:
    """``$share/name`` without a filter is refused for a 3.1.1 client; for 5.0 the codec refuses it before."""
    client = World().client(version=MQTT_3_1_1)
    client.send(Subscribe(1, (Subscription("$share/g"),)))
    assert client.one(Suback).reason_codes == (0x80,)


def test_the_last_member_takes_the_group_with_it() -> None:
    """After all members of a group have left, a message finds nobody."""
    world = World()
    client = world.client("c")
    client.subscribe("$share/g/t", qos=1)
    client.send(Unsubscribe(5, ("$share/g/t",)))
    assert client.one(Unsuback).reason_codes == (0,)
    sender = world.client("p")
    sender.publish("t", b"x", 1)
    (answer,) = sender.received()
    assert getattr(answer, "reason_code", None) == ReasonCode.NO_MATCHING_SUBSCRIBERS
