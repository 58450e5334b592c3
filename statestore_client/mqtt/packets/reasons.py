"""Which reason code belongs to which packet, and what the codes are called in MQTT 3.1.1.

Source: MQTT 5.0 section 2.4 (the table of reason codes); MQTT 3.1.1 section 3.2.2.3 (CONNACK) and 3.9.3 (SUBACK).
"""

from __future__ import annotations

from typing import Final

from statestore_client.mqtt.packets.types import ReasonCode as R

__all__ = [
    "AUTH_CODES",
    "CONNACK_CODES",
    "CONNACK_FROM_3_1_1",
    "DISCONNECT_CODES",
    "PUBACK_CODES",
    "PUBREL_CODES",
    "SUBACK_CODES",
    "SUBACK_CODES_3_1_1",
    "UNSUBACK_CODES",
    "connack_return_code",
]

CONNACK_CODES: Final = frozenset(
    {R.SUCCESS, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F}
)
#: PUBACK and PUBREC.
PUBACK_CODES: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
#: PUBREL and PUBCOMP.
PUBREL_CODES: Final = frozenset({R.SUCCESS, R.PACKET_IDENTIFIER_NOT_FOUND})
SUBACK_CODES: Final = frozenset({0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2})
SUBACK_CODES_3_1_1: Final = frozenset({0x00, 0x01, 0x02, 0x80})
UNSUBACK_CODES: Final = frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91})
# 0x8C stands in the table of 2.4 and is missing in that of 3.14.2.1.
DISCONNECT_CODES: Final = frozenset(
    {0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, 0x8B, 0x8C, *range(0x8D, 0x91), *range(0x93, 0xA3)}
)
AUTH_CODES: Final = frozenset({R.SUCCESS, R.CONTINUE_AUTHENTICATION, R.REAUTHENTICATE})

#: CONNACK return code of 3.1.1 (the index) -> reason code.
CONNACK_FROM_3_1_1: Final = (
    R.SUCCESS,
    R.UNSUPPORTED_PROTOCOL_VERSION,
    R.CLIENT_IDENTIFIER_NOT_VALID,
    R.SERVER_UNAVAILABLE,
    R.BAD_USER_NAME_OR_PASSWORD,
    R.NOT_AUTHORIZED,
)

# The exact counterparts, then codes that only 5.0 tells apart, under the one that makes a client do the same.
_CONNACK_TO_3_1_1: Final[dict[int, int]] = {
    **{code: number for number, code in enumerate(CONNACK_FROM_3_1_1)},
    R.SERVER_BUSY: 3,
    R.QUOTA_EXCEEDED: 3,
    R.USE_ANOTHER_SERVER: 3,
    R.SERVER_MOVED: 3,
    R.CONNECTION_RATE_EXCEEDED: 3,
    R.BAD_AUTHENTICATION_METHOD: 4,
    R.BANNED: 5,
}


def connack_return_code(reason_code: int) -> int | None:
    """The 3.1.1 return code for a CONNACK reason code.

    None when 3.1.1 has no code for it: then the server closes without a CONNACK (MQTT 3.1.1, 3.2.2.3).
    """
    return _CONNACK_TO_3_1_1.get(reason_code)
