"""Notification topics are the server's: nothing that a client publishes gets there, however it is spelled."""

from __future__ import annotations

from typing import Any

import pytest
from service_driver import Server
from support.broker_driver import World
from support.durable_broker import DurableWorld

from statestore_client.mqtt.packets import Disconnect, Publish, PublishProperties, ReasonCode, Will
from statestore_client.wire.topics import COMMAND_TOPIC, notification_topic

_TRUE = notification_topic("victim", b"k")
_BELOW = _TRUE.rpartition("/")[0]
#: Malformed in ways that a subscription with ``+`` or ``#`` does not mind.
TOPICS = [
    _TRUE,
    f"{_BELOW}/zz",
    f"{_BELOW}/5",
    f"{_BELOW}/",
    _BELOW,
    f"{_TRUE}/more",
    _TRUE.replace("/command/", "/Command/"),
    notification_topic("x", b"k").replace("/78/", "/FF/"),  # no UTF-8, so no client id
    notification_topic("x", b"k").replace("/78/", "//"),
]
_FILTERS = (f"{_BELOW}/+", "clients/statestore/#", f"$share/g/{_BELOW}/+")


@pytest.fixture
def world() -> World:
    return World(application=Server().service)


def _victim(world: World) -> Any:
    victim = world.client("victim")
    victim.subscribe(*_FILTERS, qos=1)
    return victim


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic", TOPICS)
def test_a_counterfeit_ends_its_connection(world: World, topic: str, qos: int) -> None:
    """A counterfeit notification, well-formed or not, ends its connection and is not retained."""
    victim, forger = _victim(world), world.client("forger")
    forger.publish(topic, b"forged", qos, retain=True)
    *_, last = forger.received()
    assert isinstance(last, Disconnect)
    assert last.reason_code == ReasonCode.NOT_AUTHORIZED
    assert (victim.messages(), world.broker.usage.retained_messages) == ([], 0)


@pytest.mark.parametrize("topic", TOPICS)
def test_no_detour_leads_to_notification_topics(world: World, topic: str) -> None:
    """A will, a topic alias, the topic of a share and a response topic cannot be used to publish on a notification
    topic."""
    victim = _victim(world)
    world.client("dying", will=Will(topic, b"forged", 1, retain=True)).lose()
    for name, packet in {
        "alias": Publish(topic, b"forged", properties=PublishProperties(topic_alias=1)),
        "share": Publish(f"$share/g/{topic}", b"forged"),
        "request": Publish(
            COMMAND_TOPIC,
            b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
            1,
            packet_id=1,
            properties=PublishProperties(response_topic=topic, correlation_data=b"1"),
        ),
    }.items():
        forger = world.client(name)
        forger.send(packet)
        assert forger.is_ended
    assert (victim.messages(), world.broker.usage.retained_messages) == ([], 0)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_counterfeit_that_an_earlier_release_retained_is_gone(topic: str) -> None:
    """A counterfeit that an earlier release retained is removed from memory and disk at the restart."""
    earlier = DurableWorld()
    earlier.client("forger", session_expiry=0).publish(topic, b"forged", 1, retain=True)
    earlier.work()
    assert earlier.storage.count() == {"retained": 1}
    world = DurableWorld(application=Server().service)
    world.storage = earlier.storage
    world.crash()
    assert world.broker.usage.retained_messages == 0
    world.commit()
    assert world.storage.count() == {}
