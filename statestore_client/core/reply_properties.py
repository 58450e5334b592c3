"""What comes beside the payload of a reply: the version ``__ts``, the status ``__stat`` of the official service, and
which store it is that answers, where the server says so.
"""

from __future__ import annotations

from statestore_client.errors import TimestampError, UnexpectedReplyError, UnknownServerError
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.messages import STATUS, STATUS_MESSAGE, STORE_ID, TIMESTAMP, IncomingMessage

__all__ = ["reply_properties"]


def reply_properties(message: IncomingMessage) -> tuple[HlcTimestamp | None, str | None]:
    """The version that a reply tells and the store that gave it, None where it does not say.

    Raises :class:`UnexpectedReplyError` where it cannot be read, and :class:`UnknownServerError` for a status that says
    that the request failed.
    """
    version = store = None
    for name, value in message.user_properties:
        if name == TIMESTAMP:
            try:
                version = HlcTimestamp.parse(value)
            except TimestampError as error:
                raise UnexpectedReplyError(f"the reply's {TIMESTAMP} cannot be read: {error}") from error
        elif name == STATUS and value not in ("200", "204"):
            _check_status(value, message)
        elif name == STORE_ID:
            store = value
    return version, store


def _check_status(status: str, message: IncomingMessage) -> None:
    """``__stat`` below 400 is success (state store facts, 1.2)."""
    if not status.isascii() or not status.isdigit():
        raise UnexpectedReplyError(f"the reply's {STATUS} is not a number: {status!r}")
    if len(status) > 3 or int(status) >= 400:  # HTTP: client and server errors
        raise UnknownServerError(f"status {status}: {message.user_property(STATUS_MESSAGE) or 'no message'}")
