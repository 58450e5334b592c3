"""Retained messages after a crash."""

from __future__ import annotations

import pytest
from support.durable_broker import DAY, DurableWorld, messages_in, texts_in

from statestore_client.mqtt.packets import (
    Puback,
    Publish,
    Subscription,
)
from statestore_client.server.journal import Stream


@pytest.fixture
def world() -> DurableWorld:
    return DurableWorld()


def test_retained_messages_survive_with_their_remaining_time(world: DurableWorld) -> None:
    """Replaced, deleted and expired retained messages are gone, and expiry goes on while the server is away."""
    sender = world.client("s")
    sender.publish("a", b"old", 1, retain=True)
    sender.publish("a", b"new", 1, retain=True, content_type="text/plain", user_properties=(("k", "v"),))
    sender.publish("b", b"b", 1, retain=True)
    sender.publish("b", b"", 1, retain=True)
    sender.publish("c", b"c", 1, retain=True, message_expiry=100)
    sender.publish("d", b"d", 1, retain=True, message_expiry=10)
    sender.publish("e", b"e", 0, retain=True)
    world.commit()
    world.crash(away_s=40)
    messages = world.client("r").subscribe("#", qos=1)
    assert [(m.topic, m.payload, m.properties.message_expiry) for m in messages if isinstance(m, Publish)] == [
        ("a", b"new", None), ("c", b"c", 60), ("e", b"e", None),
    ]  # fmt: skip
    assert isinstance(messages[0], Publish)
    assert messages[0].properties.user_properties == (("k", "v"),)
    assert messages[0].properties.content_type == "text/plain"
    world.commit()
    assert world.storage.count() == {"retained": 3}


def test_retained_messages_that_were_still_to_be_sent(world: DurableWorld) -> None:
    """An acknowledged subscription gets the retained messages that it did not get before the crash."""
    sender = world.client("s")
    for number in range(200):
        sender.publish(f"t/{number:03}", b"%d" % number, 1, retain=True)
    receiver = world.client("r", session_expiry=DAY, receive_maximum=5)
    first = [m.topic for m in receiver.subscribe("t/#", qos=1) if isinstance(m, Publish)]
    assert len(first) == 5
    world.crash()
    receiver, packets = world.back("r")
    found = messages_in(packets)
    assert [m.topic for m in found] == [f"t/{number:03}" for number in range(200)]
    assert [m.dup for m in found] == [True] * 5 + [False] * 195
    receiver.send(*[Puback(m.packet_id) for m in found])
    world.commit()
    assert world.storage.count() == {"sessions": 1, "subscriptions": 1, "retained": 200}


def test_a_subscription_that_was_replaced_by_one_of_qos_0(world: DurableWorld) -> None:
    """Retained messages still owed to a subscription that one of QoS 0 replaced are not sent after the restart."""
    reader = world.client("r", session_expiry=DAY)
    reader.subscribe(Subscription("t", 1), Subscription("t", 0))
    world.client("w").publish("t", b"x", 1, retain=True)
    world.work()
    world.crash()
    assert world.back("r")[1] == []
    assert Stream.WALKS.value not in world.storage.count()


def test_what_overtook_in_the_queue_stays_ahead(world: DurableWorld) -> None:
    """Retained messages stay ahead of new ones in the queue, and in flight they come again in that order."""
    sender = world.client("s")
    for number in range(3):
        sender.publish(f"t/{number}", b"retained", 1, retain=True)
    receiver = world.client("r", session_expiry=DAY, receive_maximum=2)
    first, second = messages_in(receiver.subscribe("t/#", qos=1))
    sender.publish("t/new", b"new", 1)
    receiver.send(Puback(first.packet_id), Puback(second.packet_id))
    assert texts_in(receiver.messages()) == [b"retained", b"new"]
    world.crash()
    assert texts_in(world.back("r")[1]) == [b"retained", b"new"]
