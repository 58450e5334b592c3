"""How large the PUBLISH of a request is, told before it is encoded: larger than the broker takes, it is not sent."""

from __future__ import annotations

from typing import Final

from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.messages import CONTENT_TYPE, TIMESTAMP, Envelope

__all__ = ["packet_overhead", "pair_size"]

#: Of a PUBLISH: fixed header 5, topic length 2, packet identifier 2, property length 4, payload format 2, message
#: expiry 5, identifier and length of content type, response topic and correlation data 9, correlation data 16
#: (MQTT 5.0, 3.3).
_FIXED_OVERHEAD: Final = 45 + len(CONTENT_TYPE)


def packet_overhead(envelope: Envelope, node_id: str) -> int:
    """The bytes of a request's PUBLISH beside its payload and its fencing token, give or take 5."""
    size = _FIXED_OVERHEAD + _utf8_length(envelope.topic) + _utf8_length(envelope.response_topic)
    for pair in (*envelope.user_properties, (TIMESTAMP, str(HlcTimestamp(0, 0, node_id)))):
        size += pair_size(pair)
    return size


def pair_size(pair: tuple[str, str]) -> int:
    """A user property: its identifier, and two texts with their lengths (MQTT 5.0, 1.5.7)."""
    return 5 + _utf8_length(pair[0]) + _utf8_length(pair[1])


def _utf8_length(text: str) -> int:
    return len(text.encode())
