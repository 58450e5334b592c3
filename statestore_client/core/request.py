"""One request: its life, what goes with its payload and with that of the reply, and the errors that it ends with.

Life of a request (state store protocol, "Overview"; MQTT 5.0, 4.4 for what survives a reconnect)::

    QUEUED --window has room, connected--> SENT --PUBACK--> ACCEPTED --reply--> DONE
      |                                      |                 |
      +-- deadline: certainly not applied    +-- deadline, session lost: may have been applied

Source of the properties: state store protocol, "State store system topic, QoS, and required MQTT5 properties". The size
of the PUBLISH is computed before anything is encoded: what is larger than the broker takes is not sent. A reply has the
version ``__ts``, the status ``__stat`` of the official service, and which store it is that answers, where the server
says so.

An error says what went wrong, whether the command may have been applied, and what to do about it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol, TypeAlias

import attrs

from statestore_client.core.actions import Waiter
from statestore_client.core.results import named, within
from statestore_client.errors import (
    CallbackReplacedError,
    ClosedError,
    ConnectionLostError,
    InvalidArgumentError,
    NoStateStoreError,
    NotAuthorizedError,
    RemoteProtocolError,
    RequestTimeoutError,
    StateStoreError,
    TimestampError,
    TransportError,
    UnexpectedReplyError,
    UnknownServerError,
)
from statestore_client.wire.commands import Command, Scan, Set
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.instant import Instant
from statestore_client.wire.messages import IncomingMessage, OutgoingMessage, RequestHeader
from statestore_client.wire.protocol import (
    COMMAND_TOPIC,
    CONTENT_TYPE,
    FENCING_TOKEN,
    HIGH_PRIORITY,
    PARTITION,
    PERSISTED,
    PROTOCOL_VERSION,
    SCAN_ENTRIES,
    SOURCE_ID,
    STATUS,
    STATUS_MESSAGE,
    STORE_ID,
    TIMESTAMP,
    response_topic,
)


class Stage(Enum):
    """How far a request has come; see the module's diagram."""

    QUEUED = "queued"
    SENT = "sent"
    ACCEPTED = "accepted"
    DONE = "done"


class RequestSpan(Protocol):
    """What a trace has of one request, from when it was submitted until it is answered, fails or is given up."""

    @property
    def properties(self) -> tuple[tuple[str, str], ...]:
        """User properties by which a receiver goes on with the trace."""

    def end(self, error: StateStoreError | None) -> None:
        """It is over; ``error`` says how it failed."""


#: Called with the result, or None and the error, of a request that the client sends for itself, and the moment.
OnAnswer: TypeAlias = Callable[[object, StateStoreError | None, Instant], None]


@attrs.define(eq=False)
class Request:
    """One command on its way. Made by :meth:`RequestTable.submit`."""

    command: Command
    waiter: Waiter | None  # of a caller; None if ``on_answer`` is called
    deadline: float  # monotonic seconds; inf for none
    timeout: float | None  # seconds, for messages
    fencing_token: HlcTimestamp | None
    stage: Stage = Stage.QUEUED
    delivery_id: int = 0
    message: OutgoingMessage | None = None
    sent_at: float = 0.0  # monotonic seconds, on the present connection
    resent: bool = False
    is_under_way: bool = False  # left on the present connection, and is not over
    has_subscribers: bool = True  # False: the last PUBACK said 0x10, no matching subscribers
    span: RequestSpan | None = None
    on_answer: OnAnswer | None = None


_Pair: TypeAlias = tuple[str, str]

#: Of a PUBLISH: fixed header 5, topic length 2, packet identifier 2, property length 4, payload format 2, message
#: expiry 5, identifier and length of content type, response topic and correlation data 9, correlation data 16
#: (MQTT 5.0, 3.3).
_FIXED_OVERHEAD: Final = 45 + len(CONTENT_TYPE)


class RequestProperties:
    """Those of one client's requests. ``envelope`` is what all of them share."""

    __slots__ = ("_last_fence", "_overhead", "envelope")

    def __init__(self, client_id: str, node_id: str, topic: str | None = None) -> None:
        """``node_id``: of the clock that versions come from. ``topic``: where answers go; None for the usual one."""
        self.envelope: RequestHeader = RequestHeader(
            COMMAND_TOPIC,
            response_topic(client_id, topic),
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
        elif type(command) is Scan and command.entries:
            properties = (*properties, SCAN_ENTRIES)
            size += _SCAN_ENTRIES_SIZE
        if span is not None:
            properties = (*properties, *span.properties)
            size += sum(map(_pair_size, span.properties))
        return properties, size


def _packet_overhead(envelope: RequestHeader, node_id: str) -> int:
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
_SCAN_ENTRIES_SIZE: Final = _pair_size(SCAN_ENTRIES)


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


_NOT_AUTHORIZED: Final = 0x87


def timed_out(
    request: Request,
    *,
    connected: bool,
    last_error: StateStoreError | str,
    owed: int = 0,
    complaint: str | None = None,
    is_away: bool = False,
    has_answered: bool = False,
) -> RequestTimeoutError:
    """Why a request found no answer in time, as far as it can be told.

    ``last_error``: what ended the last connection, or what was seen on this one.
    ``owed``: the number of PUBACKs for other requests that the broker must send before it takes any more.
    ``complaint``: what the application has done to the connection that it shares.
    ``is_away``: nobody takes requests just now; ``has_answered``: a store has answered earlier ones.
    """
    waited = f"no answer {within(request.timeout)}"
    if complaint is not None:
        was_sent = request.stage is not Stage.QUEUED
        return CallbackReplacedError(f"{waited}: {complaint}", may_have_been_applied=was_sent)
    if request.stage is Stage.QUEUED:
        if owed:
            reason = f"it was not sent: the broker takes {owed} at a time, and did not acknowledge those before it"
        elif connected and is_away:
            reason = f"it was not sent: {_nobody_there(has_answered)}"
        elif connected:
            reason = "it waited for others in flight (max_in_flight) and was not sent"
        else:
            reason = f"it was not sent: not connected ({last_error})"
        return RequestTimeoutError(f"{waited}: {reason}", may_have_been_applied=False)
    if not request.has_subscribers:
        reason = _nobody_there(has_answered)
    elif request.stage is Stage.ACCEPTED:
        reason = f"the broker took the request but no state store answered it ({last_error})"
    else:
        reason = f"the broker did not acknowledge it ({last_error})"
    return RequestTimeoutError(f"{waited}: {reason}", may_have_been_applied=True)


def _nobody_there(has_answered: bool) -> str:
    nobody = "the broker has no subscriber for the state store's topic"
    if has_answered:
        return f"{nobody}: the state store, which has answered before, is away, or may not subscribe any longer"
    return f"{nobody}, so it probably has no state store"


def no_store(url: str | None, request: Request) -> NoStateStoreError:
    """The broker has no subscriber for requests, and nothing has ever answered this client.

    A store inside a broker that says so all the same, and is very slow, may still execute what was sent.
    """
    broker = "the broker" if url is None else f"the broker at {url}"
    was_sent = request.stage is not Stage.QUEUED
    return NoStateStoreError(
        f"{broker} has no state store: nobody is subscribed to {COMMAND_TOPIC}. Start one beside it with "
        "statestore serve --broker, see whether the broker's access rules let it subscribe, or connect to the broker "
        f"that has the store{'' if was_sent else '; the request was not sent'}",
        may_have_been_applied=was_sent,
    )


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
