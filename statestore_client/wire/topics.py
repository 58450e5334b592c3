"""The topics of the state store.

Source: state store protocol, "State store system topic, QoS, and required MQTT5 properties" and "KEYNOTIFY notification
topics and lifecycle". Hexadecimal is RFC 4648 base 16; we write upper case and read either.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "COMMAND_TOPIC",
    "QOS",
    "is_state_store_topic",
    "notification_filter",
    "notification_topic",
    "parse_notification_topic",
    "response_topic",
]

_SERVICE: Final = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
_NOTIFICATIONS: Final = f"clients/{_SERVICE}"

#: Where every request is published.
COMMAND_TOPIC: Final = f"{_SERVICE}/command/invoke"

#: The quality of service of every request, response and notification, and of the subscriptions to them.
QOS: Final = 1

_NOTIFICATION_TOPIC: Final = re.compile(
    rf"{_NOTIFICATIONS}/((?:[0-9A-Fa-f]{{2}})+)/command/notify/((?:[0-9A-Fa-f]{{2}})+)"
)


def response_topic(client_id: str) -> str:
    """Where the answers to this client's requests go (the one of the official Rust SDK)."""
    return f"clients/{client_id}/services/{COMMAND_TOPIC}/response"


def notification_topic(client_id: str, key: bytes) -> str:
    """Where this client hears of changes of ``key``."""
    return f"{_NOTIFICATIONS}/{client_id.encode().hex().upper()}/command/notify/{key.hex().upper()}"


def notification_filter(client_id: str) -> str:
    """The subscription for the notifications of all keys that this client observes."""
    return f"{_NOTIFICATIONS}/{client_id.encode().hex().upper()}/command/notify/+"


def parse_notification_topic(topic: str) -> tuple[str, bytes] | None:
    """Client id and key of a notification topic; None for any other topic."""
    match = _NOTIFICATION_TOPIC.fullmatch(topic)
    if match is None:
        return None
    try:
        return bytes.fromhex(match[1]).decode(), bytes.fromhex(match[2])
    except UnicodeDecodeError:
        return None


def is_state_store_topic(topic: str) -> bool:
    """Whether a topic is the state store's: where requests go, and everything below (and beside) what begins like a
    notification topic, well-formed or not. A subscription with ``+`` matches whatever is there.

    Clients publish requests on the first and nothing on the others. No request may name one as its response topic: the
    answer would be a request to the state store itself, or a counterfeit notification.
    """
    return topic == COMMAND_TOPIC or topic.startswith(_NOTIFICATIONS)
