"""What all messages of the state store have in common on the wire."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import statestore_client
from statestore_client.wire import topics

PACKAGE = Path(statestore_client.__file__).parent


def test_requests_use_qos_1() -> None:
    """Requests have QoS 1 (state store protocol, "State store system topic, QoS, and required MQTT5 properties")."""
    assert topics.QOS == 1


@pytest.mark.parametrize(
    "module",
    [
        "mqtt/messaging.py",
        "mqtt/paho_driver.py",
        "mqtt/paho_listener.py",
        "server/service/service.py",
        "server/service/administration.py",
    ],
)
def test_the_qos_is_chosen_in_one_place(module: str) -> None:
    """Both drivers, the state store and the administration take the QoS from one name."""
    names = [node.id for node in ast.walk(ast.parse((PACKAGE / module).read_text("utf-8"))) if type(node) is ast.Name]
    assert "QOS" in names
