"""What comes beside the payload of a reply: the version ``__ts``, and the status ``__stat`` of the official service."""

from __future__ import annotations

from statestore_client.errors import TimestampError, UnexpectedReplyError, UnknownServerError
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.messages import STATUS, STATUS_MESSAGE, TIMESTAMP, IncomingMessage

__all__ = ["reply_version"]


def reply_version(message: IncomingMessage) -> HlcTimestamp | None:
    """The version that a reply tells, if it tells one.

    Raises :class:`UnexpectedReplyError` where it cannot be read, and :class:`UnknownServerError` for a status that says
    that the request failed.
    """
    version = None
    for name, value in message.user_properties:
        if name == TIMESTAMP:
            try:
                version = HlcTimestamp.parse(value)
            except TimestampError as error:
                raise UnexpectedReplyError(f"the reply's {TIMESTAMP} cannot be read: {error}") from error
        elif name == STATUS and value not in ("200", "204"):
            _check_status(value, message)
    return version


def _check_status(status: str, message: IncomingMessage) -> None:
    """``__stat`` below 400 is success (state store facts, 1.2)."""
    if not status.isascii() or not status.isdigit():
        raise UnexpectedReplyError(f"the reply's {STATUS} is not a number: {status!r}")
    if len(status) > 3 or int(status) >= 400:  # HTTP: client and server errors
        raise UnknownServerError(f"status {status}: {message.user_property(STATUS_MESSAGE) or 'no message'}")
