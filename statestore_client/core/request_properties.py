"""What goes with the payload of a request: its envelope, its user properties, and how large the PUBLISH is with them.

Source: state store protocol, "State store system topic, QoS, and required MQTT5 properties". The size is told before
anything is encoded: what is larger than the broker takes is not sent.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from statestore_client.core.request import RequestSpan
from statestore_client.wire.commands import Command, Set
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.messages import (
    CONTENT_TYPE,
    FENCING_TOKEN,
    HIGH_PRIORITY,
    PARTITION,
    PERSISTED,
    PROTOCOL_VERSION,
    SOURCE_ID,
    TIMESTAMP,
    Envelope,
)
from statestore_client.wire.topics import COMMAND_TOPIC, response_topic

__all__ = ["RequestProperties"]

_Pair: TypeAlias = tuple[str, str]

#: Of a PUBLISH: fixed header 5, topic length 2, packet identifier 2, property length 4, payload format 2, message
#: expiry 5, identifier and length of content type, response topic and correlation data 9, correlation data 16
#: (MQTT 5.0, 3.3).
_FIXED_OVERHEAD: Final = 45 + len(CONTENT_TYPE)


class RequestProperties:
    """Those of one client's requests. ``envelope`` is what all of them share."""

    __slots__ = ("_last_fence", "_overhead", "envelope")

    def __init__(self, client_id: str, node_id: str) -> None:
        """``node_id``: of the clock that the versions come from."""
        self.envelope: Envelope = Envelope(
            COMMAND_TOPIC,
            response_topic(client_id),
            (
                (SOURCE_ID, client_id),
                (PROTOCOL_VERSION, "1.0"),
                (PARTITION, client_id),
                (HIGH_PRIORITY, ""),
            ),
        )
        self._overhead = _packet_overhead(self.envelope, node_id)
        self._last_fence: tuple[HlcTimestamp, _Pair, int] | None = None

    def of(
        self,
        command: Command,
        version: HlcTimestamp,
        fencing_token: HlcTimestamp | None,
        span: RequestSpan | None = None,
    ) -> tuple[tuple[_Pair, ...], int]:
        """This request's own user properties, and the bytes of its PUBLISH beside the payload (give or take 5)."""
        properties: tuple[_Pair, ...] = ((TIMESTAMP, str(version)),)
        size = self._overhead
        if fencing_token is not None:
            fence = self._last_fence
            if fence is None or fence[0] is not fencing_token:  # the requests of a batch share the token
                pair = (FENCING_TOKEN, str(fencing_token))
                fence = self._last_fence = (fencing_token, pair, _pair_size(pair))
            properties = (fence[1], *properties)
            size += fence[2]
        if type(command) is Set and command.persist:
            properties = (*properties, PERSISTED)
            size += _PERSISTED_SIZE
        if span is not None:
            properties = (*properties, *span.properties)
            size += sum(map(_pair_size, span.properties))
        return properties, size


def _packet_overhead(envelope: Envelope, node_id: str) -> int:
    size = _FIXED_OVERHEAD + _utf8_length(envelope.topic) + _utf8_length(envelope.response_topic)
    for pair in (*envelope.user_properties, (TIMESTAMP, str(HlcTimestamp(0, 0, node_id)))):
        size += _pair_size(pair)
    return size


def _pair_size(pair: _Pair) -> int:
    """A user property: its identifier, and two texts with their lengths (MQTT 5.0, 1.5.7)."""
    return 5 + _utf8_length(pair[0]) + _utf8_length(pair[1])


def _utf8_length(text: str) -> int:
    return len(text.encode())


_PERSISTED_SIZE: Final = _pair_size(PERSISTED)
