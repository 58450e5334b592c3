"""The properties of a request. What all requests of a client share is encoded once; the rest is put in between.

Order: payload format, expiry, content type, response topic, topic alias, correlation data; then the user properties of
the request, then those of its envelope. The order means nothing in MQTT 5.0 (2.2.2.2); that of user properties is kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from statestore_client.mqtt.packets.pairs import encode_pairs
from statestore_client.mqtt.packets.primitives import encode_binary, encode_text, encode_unsigned, encode_variable
from statestore_client.wire.messages import CONTENT_TYPE, Envelope, OutgoingMessage

__all__ = ["encode_request_properties", "leading_properties"]

# Property identifiers of MQTT 5.0, 2.2.2.2.
_PAYLOAD_FORMAT_BYTES: Final = b"\x01\x00"
_MESSAGE_EXPIRY: Final = b"\x02"
_CONTENT_TYPE: Final = b"\x03" + encode_text(CONTENT_TYPE)
_RESPONSE_TOPIC: Final = b"\x08"
_CORRELATION_DATA: Final = b"\x09"
_TOPIC_ALIAS: Final = b"\x23"


def leading_properties(envelope: Envelope, expiry_s: int, topic_alias: int = 0) -> bytes:
    """All that stands before the correlation data. Alias 0 stands for none."""
    alias = _TOPIC_ALIAS + encode_unsigned(topic_alias, 2) if topic_alias else b""
    expiry = _MESSAGE_EXPIRY + encode_unsigned(expiry_s, 4)
    response = _RESPONSE_TOPIC + encode_text(envelope.response_topic)
    return b"".join((_PAYLOAD_FORMAT_BYTES, expiry, _CONTENT_TYPE, response, alias))


def encode_request_properties(message: OutgoingMessage) -> bytes:
    """The property block of the PUBLISH for ``message``, with its length in front (MQTT 5.0, 3.3.2.3)."""
    block = b"".join(
        (
            _leading(message.envelope, message.message_expiry_s),
            _CORRELATION_DATA,
            encode_binary(message.correlation_data),
            encode_pairs(message.user_properties),
            _trailing(message.envelope),
        )
    )
    return encode_variable(len(block)) + block


_leading = lru_cache(maxsize=64)(leading_properties)


@lru_cache(maxsize=64)
def _trailing(envelope: Envelope) -> bytes:
    return encode_pairs(envelope.user_properties)
