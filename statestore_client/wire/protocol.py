"""The protocol of the state store around its payloads: dialects, names of properties, topics.

Source: state store protocol, "State store system topic, QoS, and required MQTT5 properties" and "KEYNOTIFY notification
topics and lifecycle"; the names of properties include what the official SDKs add. Hexadecimal is RFC 4648 base 16; we
write upper case and read either.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final


class Dialect(StrEnum):
    """``SERVICE`` answers as the real service does; ``DOCUMENT`` answers to the letter of the published document.

    They differ in a handful of words; each difference is handled where the word is written. Clients read both.
    """

    SERVICE = "service"
    DOCUMENT = "document"


TIMESTAMP: Final = "__ts"
FENCING_TOKEN: Final = "__ft"  # noqa: S105 - the name of a user property, not a secret
STATUS: Final = "__stat"
STATUS_MESSAGE: Final = "__stMsg"
PROTOCOL_VERSION: Final = "__protVer"
SOURCE_ID: Final = "__srcId"
#: Of responses of this package's server: which store this is, another one when it has begun empty. The name is none of
#: the protocol's: the official SDKs ignore such properties, or hand them to the application.
STORE_ID: Final = "statestore-id"
#: The whole property of a SCAN that asks this package's server for entries, not for keys alone. Others ignore it, and
#: answer with keys.
SCAN_ENTRIES: Final = ("statestore-scan", "entries")
PARTITION: Final = "$partition"
HIGH_PRIORITY: Final = "$high_priority"
PERSIST: Final = "aio-persistence"
#: The whole property, of a SET and of CONNECT. It is left out where nothing is asked for; ``false`` is never sent.
PERSISTED: Final = (PERSIST, "true")
METRIC_CATEGORY: Final = "metriccategory"  # of CONNECT
CONTENT_TYPE: Final = "application/octet-stream"
UNSPECIFIED_BYTES: Final = 0  # the payload format indicator of that: it need not be text
#: The longest MQTT packet, in bytes: a fixed header of 5 and a remaining length of 268,435,455 (MQTT 5.0, 2.1.4).
MAX_PACKET_SIZE: Final = 268_435_460
#: Reason codes from here on are errors (MQTT 5.0, 2.4).
FIRST_ERROR: Final = 0x80

_SERVICE: Final = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
NOTIFICATIONS: Final = f"clients/{_SERVICE}"

#: Where every request is published.
COMMAND_TOPIC: Final = f"{_SERVICE}/command/invoke"

#: The quality of service of every request, response and notification, and of the subscriptions to them.
QOS: Final = 1

_RESPONSE_TOPIC: Final = f"clients/{{client_id}}/services/{COMMAND_TOPIC}/response"
_NOTIFICATION_TOPIC: Final = re.compile(
    rf"{NOTIFICATIONS}/((?:[0-9A-Fa-f]{{2}})+)/command/notify/((?:[0-9A-Fa-f]{{2}})+)"
)


def response_topic(client_id: str, topic: str | None = None) -> str:
    """Where the answers to this client's requests go; by default, as with the official Rust SDK. ``{client_id}`` in
    ``topic`` stands for the client's own.
    """
    return (topic or _RESPONSE_TOPIC).replace("{client_id}", client_id)


def notification_topic(client_id: str, key: bytes) -> str:
    """Where this client hears of changes of ``key``."""
    return f"{NOTIFICATIONS}/{client_id.encode().hex().upper()}/command/notify/{key.hex().upper()}"


def notification_filter(client_id: str) -> str:
    """The subscription for the notifications of all keys that this client observes."""
    return f"{NOTIFICATIONS}/{client_id.encode().hex().upper()}/command/notify/+"


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
    return topic == COMMAND_TOPIC or topic.startswith(NOTIFICATIONS)
