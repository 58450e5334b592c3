"""What a client looks at in the header of a large packet before the rest of it has come.

A broker's packet may be large by its payload only. Whatever else is in it becomes objects, and whatever a state store
says about a message takes a few hundred bytes. An endless list of properties would be collected to its end, 268 MB,
only to be refused for their number then.
"""

from __future__ import annotations

from typing import Final

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets.primitives import decode_variable
from statestore_client.mqtt.packets.types import ReasonCode

__all__ = ["LONGEST_HEADER", "check_header"]

#: Bytes of a packet of a broker beside the payload of a message. Smaller packets need no look.
LONGEST_HEADER: Final = 1024 * 1024
_PUBLISH: Final = 0x30


def check_header(first: int, data: bytes | bytearray, body: int, end: int) -> int | None:
    """Look at an unfinished packet, of which ``data`` has the beginning; its body is from ``body`` to ``end``.

    None when its header is small; otherwise how far ``data`` has to reach until that can be said.

    :raises PacketError: too large (0x95), or a property length of too many bytes. The offset counts in ``data``.
    """
    if first & 0xF0 != _PUBLISH:
        raise _too_large(f"a packet of {end - body} bytes that is not a message", body)
    at = body + 2  # after the topic and the packet identifier, where the length of the properties is
    if at <= len(data):
        at += (data[body] << 8 | data[body + 1]) + (2 if first & 6 else 0)
        found = decode_variable(bytes(data[at : at + 4]), 0, min(4, len(data) - at)) if at < len(data) else None
        if found is not None and found[0] > LONGEST_HEADER:
            raise _too_large(f"a message with {found[0]} bytes of properties", at)
        if found is not None:
            return None
    return min(max(at, len(data)) + 1, end)


def _too_large(text: str, offset: int) -> PacketError:
    return PacketError(text, reason_code=ReasonCode.PACKET_TOO_LARGE, offset=offset)
