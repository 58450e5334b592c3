"""What all messages of the state store have in common on the wire."""

from __future__ import annotations

from statestore_client.wire import topics


def test_requests_use_qos_1() -> None:
    """Requests have QoS 1 (state store protocol, "State store system topic, QoS, and required MQTT5 properties")."""
    assert topics.QOS == 1
