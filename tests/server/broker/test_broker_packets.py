"""What the broker decides by rules of its own: limits of CONNECT, PUBLISH and SUBSCRIBE, copies for many, and a server
that does not offer everything. What the standard says about packets is in ``tests/conformance/``.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.broker_driver import Client, World

from statestore_client.mqtt.packets import (
    MQTT_3_1_1,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    SubscribeProperties,
    Subscription,
    Will,
)

# -- connections -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connect", "limits", "code"),
    [
        ({"will": Will("a/b/c/d")}, {"topic_levels": 3}, ReasonCode.TOPIC_NAME_INVALID),
        ({}, {"connections": 0}, ReasonCode.SERVER_BUSY),
        ({}, {"sessions": 0}, ReasonCode.QUOTA_EXCEEDED),
    ],
)
def test_refused_connects(connect: dict[str, object], limits: dict[str, int], code: ReasonCode) -> None:
    """A CONNECT that cannot be served gets a CONNACK with the reason and a close; no session is left."""
    world = World(**limits)
    client = world.client(**{"client_id": "c", **connect})
    assert client.connack.reason_code == code
    assert client.is_ended
    client.lose()
    assert world.broker.usage.sessions == 0
    assert world.broker.counters.refused_connects == 1


def test_connect_must_come_in_time() -> None:
    """A connection without CONNECT in time is closed without an answer, even if bytes trickle in."""
    world = World(connect_timeout_s=5)
    client = Client(world)
    for _ in range(4):
        world.sleep(1)
        client.send()
    assert not client.is_ended
    world.sleep(1.1)
    assert client.is_ended
    assert client.received() == []


def test_the_first_packet_must_be_connect() -> None:
    """A first packet that is not CONNECT, which no decoder lets pass, is a protocol error without an answer."""
    client = Client(World())
    client.send(Pingreq())
    assert client.received() == []
    assert client.is_ended


def test_shut_down_says_goodbye() -> None:
    """At shutdown clients get 0x8B, and wills are not sent."""
    world = World()
    watcher, client = world.client("w"), world.client("c", will=Will("will"))
    watcher.subscribe("will")
    world.broker.shut_down()
    assert client.one(Disconnect).reason_code == ReasonCode.SERVER_SHUTTING_DOWN
    assert watcher.one(Disconnect).reason_code == ReasonCode.SERVER_SHUTTING_DOWN


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_qos_2_message_is_delivered_before_its_pubrel() -> None:
    """A QoS 2 message is delivered when its PUBLISH comes in, and PUBREL only frees its packet identifier."""
    world = World()
    reader, writer = world.client("r"), world.client("w")
    reader.subscribe("t", qos=2)
    packet_id = writer.publish("t", b"x", 2)
    writer.one(Pubrec)
    assert [message.payload for message in reader.messages()] == [b"x"]
    writer.send(Pubrel(packet_id))
    writer.one(Pubcomp)
    assert reader.messages() == []


def test_the_longest_expiry_survives_the_clocks_rounding() -> None:
    """An expiry of 0xFFFFFFFF seconds is forwarded as such, never as one more than four bytes hold."""
    world = World()
    world.sleep(0.1)
    client = world.client("c")
    client.subscribe("t")
    for _ in range(20):
        world.sleep(0.37)
        world.client("p").publish("t", b"x", message_expiry=0xFFFF_FFFF)
    assert {m.properties.message_expiry for m in client.messages()} == {0xFFFF_FFFF}


def test_an_expiry_of_zero_is_passed_on() -> None:
    """A message with an expiry of zero is delivered to those who can have it at once."""
    world = World()
    client = world.client("c")
    client.subscribe("t")
    world.client("p").publish("t", b"x", message_expiry=0)
    (message,) = client.messages()
    assert message.properties.message_expiry == 0


def test_fan_out_encodes_for_everybody() -> None:
    """In a fan-out each client gets its own version, QoS, subscription identifiers and packet identifier."""
    world = World()
    clients = [world.client(f"c{i}", version=5 if i % 2 else 4) for i in range(6)]
    for i, client in enumerate(clients):
        client.subscribe("t", qos=i % 3, identifier=i + 1 if i % 2 else None)
    for i, client in enumerate(clients):  # packet identifiers drift apart
        client.subscribe(f"only/{i}", qos=1)
        for _ in range(i):
            world.client("p").publish(f"only/{i}", b"", 1)
        client.received()
    world.client("p").publish("t", b"payload" * 100, 2, user_properties=(("k", "v"),))
    for i, client in enumerate(clients):
        (message,) = client.messages()
        assert message.payload == b"payload" * 100
        assert message.qos == i % 3
        assert message.packet_id == (i + 1 if i % 3 else 0)
        assert message.properties.subscription_ids == ((i + 1,) if i % 2 else ())


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("size", [0, 119, 120, 20_000, 3_000_000])
def test_fan_out_patches_the_packet_identifier(version: int, size: int) -> None:
    """Equal subscribers share one encoding in which only the packet identifier differs, whatever the size of its length
    field."""
    world = World()
    clients = [world.client(f"c{i}", version=version) for i in range(3)]
    sender = world.client("p")
    for i, client in enumerate(clients):
        client.subscribe("t/é", f"only/{i}", qos=1)
        for _ in range(i):
            sender.publish(f"only/{i}", b"", 1)
        client.received()
    payload = b"x" * size
    sender.publish("t/é", payload, 1)
    for i, client in enumerate(clients):
        (message,) = client.messages()
        assert (message.topic, message.payload, message.packet_id) == ("t/é", payload, i + 1)


def test_a_filter_of_a_share_is_no_topic() -> None:
    """A topic that looks like a shared filter gets 0x87, because a message there would reach nobody."""
    client = World().client("c")
    packet_id = client.publish("$share/g/t", b"x", 1)
    assert client.one(Puback) == Puback(packet_id, ReasonCode.NOT_AUTHORIZED)


def test_a_subscriber_that_wants_nothing_of_its_own_is_a_match() -> None:
    """A No Local subscriber that gets nothing of its own counts as a match, so PUBACK has no 0x10."""
    client = World().client()
    client.send(Subscribe(1, (Subscription("t", 1, no_local=True),)))
    client.received()
    packet_id = client.publish("t", b"x", 1)
    assert client.received() == [Puback(packet_id)]


def test_a_full_retained_store() -> None:
    """With a full retained store QoS 1 gets 0x97 and is not delivered; QoS 0 is delivered and counted as not
    retained."""
    world = World(retained_messages=1)
    reader, client = world.client("r"), world.client("c")
    reader.subscribe("#")
    client.publish("a", b"1", retain=True)
    packet_id = client.publish("b", b"2", 1, retain=True)
    assert client.one(Puback) == Puback(packet_id, ReasonCode.QUOTA_EXCEEDED)
    client.publish("c", b"3", retain=True)
    assert [m.payload for m in reader.messages()] == [b"1", b"3"]
    assert world.broker.counters.not_retained == 2


# -- filters -----------------------------------------------------------------------------------------------------------


TOO_DEEP = "/".join("a" * 202)


@pytest.mark.parametrize(
    "packet",
    [Publish(TOO_DEEP), Publish(TOO_DEEP, qos=1, packet_id=1), Subscribe(2, (Subscription(TOO_DEEP),))],
    ids=["topic", "topic of QoS 1", "filter"],
)
def test_topics_that_are_too_deep(packet: Packet) -> None:
    """A topic or filter of more than 201 levels is treated as malformed, and DISCONNECT says why."""
    client = World().client("c", request_problem_information=1)
    client.subscribe(TOO_DEEP[2:])
    client.publish(TOO_DEEP[2:])
    assert len(client.messages()) == 1
    client.send(packet)
    last = client.one(Disconnect)
    assert last.reason_code == ReasonCode.MALFORMED_PACKET
    assert last.properties.reason_string == "the topic has too many levels"


def test_a_filter_that_a_setting_refuses() -> None:
    """The filter that test suites want refused gets 0x80 by a setting alone, and others beside it are granted."""
    client = World(unsubscribable="test/nosubscribe").client()
    client.subscribe("test/nosubscribe", "a")
    assert client.granted == (0x80, 0)
    client = World().client()
    client.subscribe("test/nosubscribe")
    assert client.granted == (0,)


def test_no_filter_is_reserved() -> None:
    """A filter that servers on streams reserve for themselves can be subscribed to like any other."""
    client = World().client()
    client.subscribe("$MQTT.sub.x")
    client.publish("$MQTT.sub.x", b"x")
    assert [message.payload for message in client.messages()] == [b"x"]


def test_an_incomplete_share_of_a_3_1_1_client_is_refused() -> None:
    """``$share/name`` without a filter is refused for a 3.1.1 client; for 5.0 the codec refuses it before."""
    client = World().client(version=MQTT_3_1_1)
    client.send(Subscribe(1, (Subscription("$share/g"),)))
    assert client.one(Suback).reason_codes == (0x80,)


# -- a server that does not offer everything (3.2.2.3) -----------------------------------------------------------------


def _answer(world: World, packet: Packet, version: int = 5) -> Packet:
    client = world.client("c", version=version)
    client.send(packet)
    (answer,) = client.received()
    return answer


def test_connack_says_what_is_missing() -> None:
    """CONNACK says what is missing with properties 0x24, 0x25, 0x28, 0x29 and 0x2A (3.2.2.3)."""
    connack = (
        World(
            maximum_qos=1,
            retain_available=False,
            wildcards_available=False,
            subscription_ids_available=False,
            shared_subscriptions_available=False,
        )
        .client()
        .connack
    )
    told = connack.properties
    assert (told.maximum_qos, told.retain_available) == (1, 0)
    assert told.wildcard_subscription_available == 0
    assert told.subscription_ids_available == 0
    assert told.shared_subscription_available == 0


@pytest.mark.parametrize(
    ("limits", "packet", "code"),
    [
        ({"maximum_qos": 1}, Publish("t", b"x", 2, packet_id=1), 0x9B),
        ({"maximum_qos": 0}, Publish("t", b"x", 1, packet_id=1), 0x9B),
        ({"retain_available": False}, Publish("t", b"x", retain=True), 0x9A),
        ({"wildcards_available": False}, Subscribe(1, (Subscription("a"), Subscription("a/+"))), 0xA2),
        ({"shared_subscriptions_available": False}, Subscribe(1, (Subscription("$share/g/a"),)), 0x9E),
        (
            {"subscription_ids_available": False},
            Subscribe(1, (Subscription("a"),), SubscribeProperties(subscription_id=1)),
            0xA1,
        ),
    ],
    ids=["qos-2", "qos-1", "retain", "wildcard", "share", "identifier"],
)
def test_asking_for_what_is_missing_ends_the_connection(limits: dict[str, Any], packet: Packet, code: int) -> None:
    """A client that asks for something missing is disconnected with its own reason code (MQTT-3.2.2-11, -14; 3.2.2.3.11
    to 13)."""
    answer = _answer(World(**limits), packet)
    assert isinstance(answer, Disconnect)
    assert answer.reason_code == code


def test_what_is_offered_still_works() -> None:
    """Messages up to the maximum QoS pass, and no higher QoS is granted (MQTT-3.2.2-10)."""
    world = World(maximum_qos=1, retain_available=False, wildcards_available=False)
    client = world.client()
    client.subscribe("t", qos=2)
    assert client.granted == (1,)
    world.client("p").publish("t", b"x", 1)
    assert [message.qos for message in client.messages()] == [1]


@pytest.mark.parametrize("topic_filter", ["a/#", "$share/g/a"])
def test_an_older_client_hears_of_it_in_suback(topic_filter: str) -> None:
    """A 3.1.1 client, whose CONNACK cannot tell, gets the refusal in SUBACK."""
    world = World(wildcards_available=False, shared_subscriptions_available=False)
    answer = _answer(world, Subscribe(1, (Subscription(topic_filter), Subscription("b"))), MQTT_3_1_1)
    assert answer == Suback(1, (0x80, 0))


@pytest.mark.parametrize(("version", "code"), [(5, 0x87), (4, 0x80)])
@pytest.mark.parametrize(
    ("topic_filter", "is_refused"),
    [("secret", True), ("secret/a", True), ("secret/+", True), ("$share/g/secret/a", True), ("#", False), ("b", False)],
)
def test_refused_filters(version: int, code: int, topic_filter: str, is_refused: bool) -> None:
    """A refused filter refuses everything that it covers."""
    world = World(refused_filters=["secret/#"])
    answer = _answer(world, Subscribe(1, (Subscription(topic_filter, 1),)), version)
    assert answer == Suback(1, (code if is_refused else 1,))
