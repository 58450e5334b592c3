"""What the broker does otherwise than the document about streams says (docs/decisions/0029)."""

from __future__ import annotations

import attrs
from support.broker_driver import World

from statestore_client.mqtt.packets import Pubcomp, Pubrec, Pubrel
from statestore_client.server.broker.message import Message
from statestore_client.server.broker.persistence.records import MessageRecord


def test_the_record_of_a_message_has_no_user() -> None:
    """A retained message and its record hold the client identifier of the publisher and no user."""
    names = {field.name for field in attrs.fields(Message)} | {field.name for field in attrs.fields(MessageRecord)}
    assert "publisher" in names
    assert not any("user" in name for name in names)


def test_a_qos_2_message_is_delivered_before_its_pubrel() -> None:
    """A QoS 2 message is delivered when its PUBLISH comes in, and PUBREL only frees its packet identifier."""
    world = World()
    reader, writer = world.client("r"), world.client("w")
    reader.subscribe("t", qos=2)
    packet_id = writer.publish("t", b"x", 2)
    assert [type(packet) for packet in writer.received()] == [Pubrec]
    assert [message.payload for message in reader.messages()] == [b"x"]
    writer.send(Pubrel(packet_id))
    assert [type(packet) for packet in writer.received()] == [Pubcomp]
    assert reader.messages() == []


def test_no_filter_is_reserved() -> None:
    """A filter that the document reserves for itself can be subscribed to like any other."""
    world = World()
    reader, writer = world.client("r"), world.client("w")
    reader.subscribe("$MQTT.sub.x")
    writer.publish("$MQTT.sub.x", b"x")
    assert [message.payload for message in reader.messages()] == [b"x"]
