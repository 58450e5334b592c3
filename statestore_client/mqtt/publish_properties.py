"""The properties of a request, encoded at once; what never changes between requests is encoded once."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from statestore_client.mqtt.packets.primitives import encode_text, encode_variable
from statestore_client.wire.messages import CONTENT_TYPE, OutgoingMessage

__all__ = ["encode_request_properties"]

# Property identifiers of MQTT 5.0, 2.2.2.2.
_PAYLOAD_FORMAT_BYTES: Final = b"\x01\x00"
_MESSAGE_EXPIRY: Final = b"\x02"
_CONTENT_TYPE: Final = b"\x03" + encode_text(CONTENT_TYPE)
_RESPONSE_TOPIC: Final = b"\x08"
_CORRELATION_DATA: Final = b"\x09"
_USER_PROPERTY: Final = b"\x26"


def encode_request_properties(message: OutgoingMessage) -> bytes:
    """The property block of the PUBLISH for ``message``, with its length in front (MQTT 5.0, 3.3.2.3)."""
    parts = [
        _PAYLOAD_FORMAT_BYTES,
        _MESSAGE_EXPIRY,
        message.message_expiry_s.to_bytes(4, "big"),
        _CONTENT_TYPE,
        _response_topic(message.envelope.response_topic),
        _CORRELATION_DATA,
        len(message.correlation_data).to_bytes(2, "big"),
        message.correlation_data,
    ]
    parts += [_encode_pair(name, value) for name, value in message.user_properties]
    parts += [_constant_pair(name, value) for name, value in message.envelope.user_properties]
    block = b"".join(parts)
    return encode_variable(len(block)) + block


def _encode_pair(name: str, value: str) -> bytes:
    return _USER_PROPERTY + encode_text(name) + encode_text(value)


_constant_pair = lru_cache(maxsize=256)(_encode_pair)


@lru_cache(maxsize=64)
def _response_topic(topic: str) -> bytes:
    return _RESPONSE_TOPIC + encode_text(topic)
