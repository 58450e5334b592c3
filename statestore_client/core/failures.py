"""The errors of requests: what went wrong, whether the command may have been applied, and what to do about it."""

from __future__ import annotations

import copy
from typing import Final

from statestore_client.core.request import Request, Stage
from statestore_client.core.results import named
from statestore_client.core.waiting import within
from statestore_client.errors import (
    CallbackReplacedError,
    ClosedError,
    ConnectionLostError,
    InvalidArgumentError,
    NotAuthorizedError,
    RemoteProtocolError,
    RequestTimeoutError,
    StateStoreError,
    TransportError,
    UnexpectedReplyError,
)
from statestore_client.wire.commands import Command

__all__ = [
    "broke_connection",
    "closed",
    "ended",
    "not_answered",
    "refused_publication",
    "refused_subscription",
    "timed_out",
    "too_large",
    "unreadable",
]

_NOT_AUTHORIZED: Final = 0x87


def timed_out(
    request: Request,
    *,
    connected: bool,
    last_error: StateStoreError | str,
    owed: int = 0,
    complaint: str | None = None,
) -> RequestTimeoutError:
    """Why a request found no answer in time, as far as it can be told.

    ``last_error``: what ended the last connection, or what was seen on this one.
    ``owed``: the number of PUBACKs for other requests that the broker must send before it takes any more.
    ``complaint``: what the application has done to the connection that it shares.
    """
    waited = f"no answer {within(request.timeout)}"
    if complaint is not None:
        was_sent = request.stage is not Stage.QUEUED
        return CallbackReplacedError(f"{waited}: {complaint}", may_have_been_applied=was_sent)
    if request.stage is Stage.QUEUED:
        if owed:
            reason = f"it was not sent: the broker takes {owed} at a time, and did not acknowledge those before it"
        elif connected:
            reason = "it waited for others in flight (max_in_flight) and was not sent"
        else:
            reason = f"it was not sent: not connected ({last_error})"
        return RequestTimeoutError(f"{waited}: {reason}", may_have_been_applied=False)
    if not request.has_subscribers:
        reason = "the broker has no subscriber for the state store's topic, so it probably has no state store"
    elif request.stage is Stage.ACCEPTED:
        reason = f"the broker took the request but no state store answered it ({last_error})"
    else:
        reason = f"the broker did not acknowledge it ({last_error})"
    return RequestTimeoutError(f"{waited}: {reason}", may_have_been_applied=True)


def too_large(size: int, limit: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the request takes {size} bytes and the broker accepts {limit}; "
        "store a smaller value or raise the broker's maximum packet size"
    )


def refused_publication(reason_code: int, resent: bool, command: Command) -> StateStoreError:
    """The first copy of a request that was sent twice may have been taken, whatever became of the second."""
    if reason_code == _NOT_AUTHORIZED and not resent:
        return named(
            NotAuthorizedError("the broker does not let this client publish to the state store's topic"), command
        )
    return TransportError(
        f"the broker refused the request with MQTT reason code 0x{reason_code:02X}", may_have_been_applied=resent
    )


def refused_subscription(topic_filter: str, reason_code: int) -> StateStoreError:
    """SUBACK has an error for this filter."""
    text = f"the broker refused the subscription to {topic_filter} with MQTT reason code 0x{reason_code:02X}"
    return NotAuthorizedError(text) if reason_code == _NOT_AUTHORIZED else TransportError(text)


def unreadable(error: RemoteProtocolError) -> UnexpectedReplyError:
    if isinstance(error, UnexpectedReplyError):
        return error
    return UnexpectedReplyError(f"the reply cannot be read: {error}")


def broke_connection(error: StateStoreError) -> TransportError:
    """``error`` ended the connection, and says that one of our packets was to blame."""
    return TransportError(
        f"the broker closed the connection because of a packet from this client: {error}", may_have_been_applied=True
    )


def closed(reason: StateStoreError | None) -> StateStoreError:
    """What those get that wait when the client is closed: by ``reason``, or by its user (None)."""
    # A copy for each caller: raising one instance again and again would make its traceback longer and longer.
    return ended(None) if reason is None else copy.copy(reason)


def ended(reason: StateStoreError | None) -> ClosedError:
    """What every call gets once the client is closed: by ``reason``, or by its user (None).

    Not the reason itself, which may be a TransportError: a program that tries again after those would never end.
    """
    if reason is None:
        return ClosedError("the client is closed; make a new one")
    error = ClosedError(f"the client has ended; open() begins anew ({reason})")
    error.__cause__ = reason
    return error


def not_answered(reason: StateStoreError | None, may_have_been_applied: bool) -> StateStoreError:
    """What a request gets that the end of the client (see :func:`closed`) leaves without an answer."""
    if not may_have_been_applied:
        return closed(reason)
    why = "the client was closed" if reason is None else str(reason)
    return ConnectionLostError(f"{why} before the answer came", may_have_been_applied=True)
