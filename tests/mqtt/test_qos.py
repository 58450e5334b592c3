"""What both ends share of QoS 1 and 2: packet identifiers, and the receiver."""

from __future__ import annotations

from statestore_client.mqtt.qos import Inbound, next_packet_id


def test_packet_identifiers_go_round_and_skip_those_in_use() -> None:
    """After identifier 65,535 comes 1, and never 0; SUBSCRIBE and PUBLISH draw from the same numbers (MQTT 5.0,
    2.2.1)."""
    assert next_packet_id(0, {}) == 1
    assert next_packet_id(65_535, {}) == 1
    assert next_packet_id(65_534, {65_535: "publish", 2: "publish"}, {1: "subscribe"}) == 3


def test_inbound_remembers_until_released() -> None:
    """A QoS 2 identifier is new once, until PUBREL."""
    receiver = Inbound()
    assert receiver.publish(5)
    assert not receiver.publish(5)
    assert receiver.release(5)
    assert not receiver.release(5)
    assert receiver.publish(5)
