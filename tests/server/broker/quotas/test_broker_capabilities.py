"""A server that does not offer everything: what CONNACK says, and what becomes of clients that ask (3.2.2.3)."""

from __future__ import annotations

from typing import Any

import pytest
from support.broker_driver import Client, World

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import (
    MQTT_3_1_1,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscribeProperties,
    Subscription,
    Will,
)
from statestore_client.server import BrokerLimits


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


def test_connack_does_not_mention_what_is_there() -> None:
    """CONNACK does not mention what is offered, which by default is everything."""
    told = World().client().connack.properties
    assert (told.maximum_qos, told.retain_available, told.wildcard_subscription_available) == (None, None, None)
    assert (told.subscription_ids_available, told.shared_subscription_available) == (None, None)


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


@pytest.mark.parametrize(
    ("limits", "will", "code"),
    [({"maximum_qos": 0}, Will("t", qos=1), 0x9B), ({"retain_available": False}, Will("t", retain=True), 0x9A)],
    ids=["qos", "retain"],
)
def test_a_will_that_is_not_possible_is_refused(limits: dict[str, Any], will: Will, code: int) -> None:
    """A will that is not possible is refused in CONNACK (MQTT-3.2.2-12, -13)."""
    client = Client(World(**limits))
    client.send(Connect("c", will=will))
    assert client.one(Connack).reason_code == code


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


def test_impossible_limits_are_refused() -> None:
    """A maximum QoS of 3, and an invalid filter to refuse, are refused as settings."""
    with pytest.raises(ValueError, match="maximum_qos"):
        BrokerLimits(maximum_qos=3)
    with pytest.raises(InvalidArgumentError, match="stands alone"):
        BrokerLimits(refused_filters=["a#"])
