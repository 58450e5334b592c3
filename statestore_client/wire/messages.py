"""What crosses the border between ``core`` and an MQTT driver: messages, events, and property names.

The driver turns messages into PUBLISH packets and packets into events; ``core`` never sees packets. Source: state store
protocol ("State store system topic, QoS, and required MQTT5 properties"); the names below include what the official
SDKs add.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, Protocol, TypeAlias

import attrs

from statestore_client.errors import StateStoreError
from statestore_client.wire.hot_value import hot_value

__all__ = [
    "ANY_BYTES",
    "CONTENT_TYPE",
    "FENCING_TOKEN",
    "FIRST_ERROR",
    "HIGH_PRIORITY",
    "MAX_PACKET_SIZE",
    "METRIC_CATEGORY",
    "PARTITION",
    "PERSIST",
    "PERSISTED",
    "PROTOCOL_VERSION",
    "SOURCE_ID",
    "STATUS",
    "STATUS_MESSAGE",
    "STORE_ID",
    "TIMESTAMP",
    "Alternatives",
    "Closed",
    "Connected",
    "Envelope",
    "Event",
    "IncomingMessage",
    "OneAddress",
    "Others",
    "OutgoingMessage",
    "Payload",
    "Published",
    "Subscribed",
    "whole",
]

#: The bytes of a payload; in pieces where a large value is among them, which nobody copies then.
Payload: TypeAlias = bytes | tuple[bytes, ...]


def whole(payload: Payload) -> bytes:
    """The payload in one piece."""
    return payload if isinstance(payload, bytes) else b"".join(payload)


TIMESTAMP: Final = "__ts"
FENCING_TOKEN: Final = "__ft"  # noqa: S105 - the name of a user property, not a secret
STATUS: Final = "__stat"
STATUS_MESSAGE: Final = "__stMsg"
PROTOCOL_VERSION: Final = "__protVer"
SOURCE_ID: Final = "__srcId"
#: Of responses of this package's server: which store this is, another one when it has begun empty. The name is none of
#: the protocol's: the official SDKs ignore such properties, or hand them to the application.
STORE_ID: Final = "statestore-id"
PARTITION: Final = "$partition"
HIGH_PRIORITY: Final = "$high_priority"
PERSIST: Final = "aio-persistence"
#: The whole property, of a SET and of CONNECT. It is left out where nothing is asked for; ``false`` is never sent.
PERSISTED: Final = (PERSIST, "true")
METRIC_CATEGORY: Final = "metriccategory"  # of CONNECT
CONTENT_TYPE: Final = "application/octet-stream"
ANY_BYTES: Final = 0  # the payload format indicator of that: it need not be text
#: The longest MQTT packet, in bytes: a fixed header of 5 and a remaining length of 268,435,455 (MQTT 5.0, 2.1.4).
MAX_PACKET_SIZE: Final = 268_435_460
#: Reason codes from here on are errors (MQTT 5.0, 2.4).
FIRST_ERROR: Final = 0x80


@attrs.frozen(eq=False)
class Envelope:
    """What all requests of one client have in common. A driver encodes it once, hence the identity as equality."""

    topic: str
    response_topic: str
    user_properties: tuple[tuple[str, str], ...] = ()


@hot_value
class OutgoingMessage:
    """A request to publish at QoS 1. ``user_properties`` are those of this request alone."""

    envelope: Envelope
    payload: Payload = attrs.field(repr=False)
    correlation_data: bytes
    message_expiry_s: int
    user_properties: tuple[tuple[str, str], ...]


# -- events: what a driver reports, in the order in which it happened --------------------------------------------------


@hot_value
class IncomingMessage:
    """A received PUBLISH. ``ack_id`` is what the driver wants back to acknowledge it; 0 for QoS 0.

    A large ``payload`` is a view of the memory that it was received into: code that needs bytes copies them.
    """

    topic: str
    payload: bytes | memoryview = attrs.field(repr=False)
    correlation_data: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    ack_id: int = 0

    def user_property(self, name: str) -> str | None:
        """The first value under ``name``, or None."""
        for key, value in self.user_properties:
            if key == name:
                return value
        return None


@attrs.frozen
class Connected:
    """CONNACK with success."""

    session_present: bool
    receive_maximum: int = 65_535  # how many QoS 1 messages the broker takes unacknowledged
    maximum_packet_size: int | None = None  # bytes; None means no limit


@hot_value
class Published:
    """PUBACK for the publication with this id; ``reason_code`` is MQTT's."""

    delivery_id: int
    reason_code: int = 0


@attrs.frozen
class Subscribed:
    """SUBACK for the subscription with this id, one reason code per filter."""

    subscribe_id: int
    reason_codes: tuple[int, ...]


@attrs.frozen
class Closed:
    """The connection is gone. ``fatal`` means that connecting again the same way is pointless."""

    error: StateStoreError
    fatal: bool = False
    reason_code: int | None = None  # of the broker's DISCONNECT or CONNACK


class Others(Enum):
    """What is left of a round of all addresses, when an attempt to connect has failed."""

    UNTRIED = auto()  # at least one that was not dialled yet, or is open
    PENDING = auto()  # none of these, but at least one that has neither answered nor failed
    NONE = auto()


class Alternatives(Protocol):
    """What a driver knows of the addresses of its client."""

    @property
    def several(self) -> bool:
        """Whether another machine may answer."""

    @property
    def others(self) -> Others:
        """Asked when an attempt has failed, or a connection has ended."""


@attrs.frozen
class OneAddress:
    """There are no others."""

    several: bool = False
    others: Others = Others.NONE


Event: TypeAlias = Connected | IncomingMessage | Published | Subscribed | Closed
