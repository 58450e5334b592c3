"""What the payload of a notification says: bytes <-> notifications.

Source: state store protocol, "KEYNOTIFY notification message format". The document's word for a deleted key is ``DEL``,
the real service sends ``DELETE``; both are read.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import attrs

from statestore_client.errors import Resp3Error
from statestore_client.wire.hot_value import hot_value
from statestore_client.wire.protocol import Dialect
from statestore_client.wire.resp3 import Limits, decode, encode_array, split_blobs


class Operation(StrEnum):
    """What happened to the key."""

    SET = "SET"
    DELETE = "DELETE"  # by DEL, VDEL, or because it expired


@hot_value
class Notification:
    """``value`` is what the key was set to; None after a deletion, and when a server leaves it out."""

    operation: Operation
    value: bytes | None = attrs.field(default=None, repr=False)


_DELETED: Final = Notification(Operation.DELETE)
_DELETE_PAYLOAD: Final = {
    Dialect.SERVICE: b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n",
    Dialect.DOCUMENT: b"*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n",
}


def encode_notification(notification: Notification, dialect: Dialect = Dialect.SERVICE) -> bytes:
    """The payload of the message."""
    if notification.operation is Operation.DELETE:
        return _DELETE_PAYLOAD[dialect]
    value = notification.value
    if value is None:
        return encode_array((b"NOTIFY", b"SET"))
    return b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$%d\r\n%b\r\n" % (len(value), value)


_WORDS: Final = Limits(max_items=4, max_depth=1)


def decode_notification(payload: bytes) -> Notification:
    """Read the payload of a message on a notification topic. Raises Resp3Error."""
    match split_blobs(payload) or decode(payload, limits=_WORDS):
        case (b"NOTIFY", b"SET", b"VALUE", bytes() as value):
            return Notification(Operation.SET, value)
        case (b"NOTIFY", b"SET"):
            return Notification(Operation.SET)
        case (b"NOTIFY", b"DELETE" | b"DEL"):
            return _DELETED
    raise Resp3Error("this is not a notification of a state store", offset=0)
