"""What was in flight when the connection was lost is sent again when the client is back."""

from __future__ import annotations

from support.broker_driver import Client, World

from statestore_client.mqtt.packets import (
    MQTT_3_1_1,
    Connack,
    Connect,
    ConnectProperties,
    Publish,
    Pubrec,
    Pubrel,
)


def test_unfinished_messages_come_again_in_order_with_dup() -> None:
    """QoS 1 and 2 messages in flight are repeated in order with their identifiers and DUP, and PUBREL is repeated
    too."""
    world = World()
    client = world.client("c", session_expiry=60)
    client.subscribe("t", qos=2)
    sender = world.client("p")
    for number, qos in enumerate([1, 2, 2, 1]):
        sender.publish("t", str(number).encode(), qos)
    first = client.messages()
    client.send(Pubrec(first[1].packet_id))
    assert client.one(Pubrel).packet_id == first[1].packet_id
    client.lose()
    again = Client(world)
    again.send(Connect("c", clean_start=False, properties=ConnectProperties(session_expiry=60)))
    _, release, *messages = again.received()
    assert release == Pubrel(first[1].packet_id)
    assert [(m.payload, m.packet_id, m.dup) for m in messages if isinstance(m, Publish)] == [
        (b"0", first[0].packet_id, True),
        (b"2", first[2].packet_id, True),
        (b"3", first[3].packet_id, True),
    ]


def test_no_redelivery_while_connected() -> None:
    """A message is sent again on a new connection only (MQTT-4.4.0-1)."""
    world = World()
    client = world.client("c", session_expiry=60)
    client.subscribe("t", qos=1)
    world.client("p").publish("t", b"x", 1)
    assert len(client.messages()) == 1
    world.sleep(3600)
    assert client.received() == []


def test_a_new_connection_may_speak_the_other_version() -> None:
    """A session may go on in the other version, and its messages are encoded for that."""
    world = World()
    client = world.client("c", session_expiry=0xFFFFFFFF)
    client.subscribe("t", qos=1, identifier=5)
    client.lose()
    world.client("p").publish("t", b"x", 1, user_properties=(("a", "b"),))
    again = Client(world, MQTT_3_1_1)
    again.send(Connect("c", version=MQTT_3_1_1, clean_start=False))
    connack, message = again.received()
    assert connack == Connack(True, 0)
    assert isinstance(message, Publish)
    assert message.payload == b"x"
