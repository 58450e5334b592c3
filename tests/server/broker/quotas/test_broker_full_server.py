"""A server that is full as a whole: the queue that holds most gives room."""

from __future__ import annotations

from typing import Any

import pytest
from full_queues import DROPS, away, back, codes, made_world
from support.broker_driver import World
from support.durable_broker import DAY

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import (
    MQTT_3_1_1,
    Puback,
    Publish,
    PublishProperties,
    ReasonCode,
    Will,
)
from statestore_client.server.broker import BrokerLimits

__all__ = ["made_world"]


@pytest.mark.parametrize("when_full", DROPS)
def test_who_holds_most_makes_room(make: Any, when_full: str) -> None:
    """When one session fills the server, its queue gives room, and clients that read lose nothing, whatever the message
    size."""
    world = make(held_bytes=1_000_000, reserved_bytes=2_000, when_full=when_full)
    away(world, "hoarder", "hoard")
    healthy, sender = world.client("healthy"), world.client("p")
    healthy.subscribe("t", qos=1)
    for number in range(12):
        sender.publish("hoard", b"%d" % number + bytes(99_000), 1)
    got = 0
    for _ in range(20):
        sender.publish("t", bytes(50_000), 1)
        for message in healthy.messages():
            got += 1
            healthy.send(Puback(message.packet_id))
    assert set(codes(sender)) <= {0, ReasonCode.NO_MATCHING_SUBSCRIBERS}  # of a session that ended
    assert (got, world.broker.usage.held_bytes <= 1_000_000) == (20, True)
    told, kept = back(world, "hoarder")
    assert told is not None
    if when_full == "drop-new":
        assert kept[0].startswith(b"0")
    if when_full == "drop-old":
        assert kept[-1].startswith(b"11")


def test_the_one_that_holds_most_bears_its_own_messages() -> None:
    """The session that holds most loses its own messages, and no other gives it room."""
    world = World(held_bytes=500_000, reserved_bytes=2_000)
    away(world, "small", "small")
    away(world, "large", "large")
    sender = world.client("p")
    for _ in range(3):
        sender.publish("small", bytes(50_000), 1)
    for _ in range(20):
        sender.publish("large", bytes(50_000), 1)
    assert set(codes(sender)) == {0}
    assert back(world, "small") == (None, [bytes(50_000)] * 3)
    assert back(world, "large")[0] == "14 since 1970-01-01T00:16:40.000Z"


def test_who_holds_much_in_flight_bears_it_as_well() -> None:
    """What is in flight counts too: a session that holds much of it takes nothing from a smaller queue."""
    world = World(held_bytes=300_000, reserved_bytes=2_000)
    away(world, "small", "small")
    large, sender = world.client("large", session_expiry=DAY), world.client("p")
    large.subscribe("large", qos=1)
    for _ in range(2):
        sender.publish("small", bytes(20_000), 1)
    for _ in range(20):  # they are all on their way at once
        sender.publish("large", bytes(15_000), 1)
        large.received()
    assert set(codes(sender)) == {0}
    assert back(world, "small") == (None, [bytes(20_000)] * 2)
    large.lose()
    assert back(world, "large")[0] is not None


def test_a_full_server_still_takes_wills_aliases_and_qos_2() -> None:
    """Wills, aliases and QoS 2 messages are accepted on a full server as long as a queue can give room for them."""
    world = World(held_bytes=300_000, reserved_bytes=0)
    away(world, "hoarder", "hoard")
    sender = world.client("p")
    for _ in range(5):
        sender.publish("hoard", bytes(70_000), 1)
    assert set(codes(sender)) == {0}
    assert world.client("w", will=Will("w", bytes(30_000))).connack.reason_code == 0
    sender.send(Publish("a" * 60_000, b"x", properties=PublishProperties(topic_alias=1)))
    assert not sender.is_ended
    sender.publish("hoard", b"x", 2)
    assert codes(sender) == [0]
    assert world.broker.usage.held_bytes <= 300_000


def test_with_the_strict_choice_nobody_loses_anything(make: Any) -> None:
    """With the strict choice nobody loses anything: the publisher is refused, whoever holds most."""
    world = make(held_bytes=300_000, reserved_bytes=2_000, when_full="refuse")
    away(world, "hoarder", "hoard")
    away(world, "other", "t")
    sender = world.client("p")
    for _ in range(4):
        sender.publish("hoard", bytes(90_000), 1)
    sender.publish("t", bytes(90_000), 1)
    assert codes(sender) == [0, 0, 0, 0x97, 0x97]
    assert back(world, "hoarder") == (None, [bytes(90_000)] * 3)


# -- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["", "drop", "DROP-NEW", None, 1])
def test_another_choice_is_refused(choice: Any) -> None:
    """The error about another choice names the choices."""
    with pytest.raises(InvalidArgumentError, match="when_full must be one of 'drop-new', 'drop-old'"):
        BrokerLimits(when_full=choice)


def test_endless_sessions_end_after_a_week_unless_somebody_says_so() -> None:
    """A session ends after a week at most unless a setting says otherwise, and CONNACK tells a client that asked for
    more."""
    world = World()
    client = world.client("c", session_expiry=0xFFFF_FFFF)
    assert client.connack.properties.session_expiry == 7 * DAY
    client.lose()
    world.client("old", version=MQTT_3_1_1, clean_start=False).lose()
    world.sleep(7 * DAY - 1)
    assert world.broker.usage.sessions == 2
    world.sleep(2)
    assert world.broker.usage.sessions == 0
