"""What crosses the border between ``core`` and an MQTT driver: messages one way, events the other.

The driver turns messages into PUBLISH packets and packets into events; ``core`` never sees packets.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol, TypeAlias

import attrs

from statestore_client.errors import StateStoreError
from statestore_client.wire.hot_value import hot_value

#: The bytes of a payload; in pieces where a large value is among them, which nobody copies then.
Payload: TypeAlias = bytes | tuple[bytes, ...]


def whole(payload: Payload) -> bytes:
    """The payload in one piece."""
    return payload if isinstance(payload, bytes) else b"".join(payload)


@attrs.frozen(eq=False)
class RequestHeader:
    """What all requests of one client have in common. A driver encodes it once, hence the identity as equality."""

    topic: str
    response_topic: str
    user_properties: tuple[tuple[str, str], ...] = ()


@hot_value
class OutgoingMessage:
    """A request to publish at QoS 1. ``user_properties`` are those of this request alone."""

    envelope: RequestHeader
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
class BrokerMistakes:
    """So many more mistakes of the broker harmed nobody and were let pass; ``first`` of this connection's, in words."""

    count: int
    first: str


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

    def what_all_said(self, error: StateStoreError) -> StateStoreError:
        """An attempt has ended with this error: what each address has said, the most telling first."""


@attrs.frozen
class OneAddress:
    """There are no others."""

    several: bool = False
    others: Others = Others.NONE

    def what_all_said(self, error: StateStoreError) -> StateStoreError:
        return error


Event: TypeAlias = Connected | IncomingMessage | Published | Subscribed | BrokerMistakes | Closed
