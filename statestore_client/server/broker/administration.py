"""Administration as an application of the broker: clients list and remove sessions and retained messages.

They need the right to it. :mod:`statestore_client.wire.administration` has the requests and the answers.

What becomes of a request:

==========================================  ==========================================================================
another topic below ``$CONTROL/``           the client is disconnected (0x87, not authorized)
no response topic                           dropped (PUBACK 0x83, a line in the log): there is nowhere to answer
its client is gone                          dropped: a will administers nothing
response topic that requests must not have  the client is disconnected, as the state store does it
not QoS 1, or no correlation data           ``bad request``
no right                                    ``not authorized``, and which right it takes. Its payload is not looked at
no JSON, unknown command, wrong types       ``bad request``, and what is wrong
==========================================  ==========================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import attrs

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import Publish, PublishProperties, ReasonCode, topic_filter_problem
from statestore_client.server.broker.application import (
    NO_RESPONSE_TOPIC,
    Deliver,
    DisconnectClient,
    Drop,
    ReportDenial,
    never,
    refuse_response_topic,
)
from statestore_client.server.broker.limits import NEVER_EXPIRES
from statestore_client.server.broker.retained import RetainedCursor
from statestore_client.server.broker.state import PendingDisconnect
from statestore_client.wire.administration import (
    BAD_REQUEST,
    CONTROL_PREFIX,
    CONTROL_TOPIC,
    NOT_AUTHORIZED,
    RetainedInfo,
    SessionInfo,
    encode_json,
)
from statestore_client.wire.protocol import QOS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from statestore_client.server.broker.application import Effect
    from statestore_client.server.broker.message import Message
    from statestore_client.server.broker.session import Session
    from statestore_client.server.broker.state import State
    from statestore_client.wire.instant import Instant

T = TypeVar("T")

# -- control -----------------------------------------------------------------------------------------------------------
#
# The sessions and retained messages of a running broker, for people: to look at, some at a time, and to remove.
#
# Each call takes about a millisecond, however much there is: it gives a page, or does a part, and says where to go on.
# What changes between two pages is seen as it is then; whatever is there all the time is seen once. A session that is
# removed ends as it would by itself: in one step, with all that it holds, and its will goes out.


#: What one call looks at, at most.
_SESSIONS: Final = 64
_SUBSCRIPTIONS: Final = 256  # of all sessions of a page
_TOPICS: Final = 64

#: Sessions that one call ends: until they held so much, messages and subscriptions. Each one ends as a whole.
_ENDED: Final = 32
_ENDED_HOLDINGS: Final = 128

#: Retained messages that one call removes. Each moves the topics behind it in a sorted list.
_REMOVED: Final = 32

#: Names and payloads of a page, in bytes; one more always goes.
_PAGE_BYTES: Final = 64 * 1024

#: A larger payload comes in parts of this size.
PAYLOAD_BYTES: Final = 64 * 1024


@attrs.define
class Removal:
    """What became of the sessions that were to be removed; ``rest`` is for the next call."""

    removed: list[str] = attrs.Factory(list)
    missing: list[str] = attrs.Factory(list)
    connected: list[str] = attrs.Factory(list)
    rest: list[str] = attrs.Factory(list)


@attrs.frozen(eq=False)
class Control:
    """A broker's. Like everything of the broker, one thread at a time may call it."""

    _state: State

    def is_here(self, client_id: str) -> bool:
        """Whether this client is connected."""
        session = self._state.sessions.get(client_id)
        return session is not None and session.connection is not None

    # -- sessions -----------------------------------------------------------------------------------------------------

    def session(self, client_id: str, skip: int, now: Instant) -> tuple[list[SessionInfo], tuple[str, int] | None]:
        """One of them, as :meth:`sessions` gives it."""
        session = self._state.sessions.get(client_id)
        if session is None:
            return [], None
        found, rest = _info(session, skip, _SUBSCRIPTIONS, now)
        return [found], None if rest is None else (client_id, rest)

    def sessions(self, at: str, skip: int, now: Instant) -> tuple[list[SessionInfo], tuple[str, int] | None]:
        """A page in the order of client identifiers, from ``at`` on, and the place of the next one.

        A session with many subscriptions comes in parts: ``skip`` are those of ``at`` that were given already.
        """
        found: list[SessionInfo] = []
        subscriptions = size = 0
        for session in self._state.sessions.in_order(at, _SESSIONS + 1):
            client_id = session.client_id
            if len(found) == _SESSIONS or subscriptions >= _SUBSCRIPTIONS or size >= _PAGE_BYTES:
                return found, (client_id, 0)
            info, rest = _info(session, skip if client_id == at else 0, _SUBSCRIPTIONS - subscriptions, now)
            found.append(info)
            if rest is not None:
                return found, (client_id, rest)
            subscriptions += len(info.subscriptions)
            size += _size(info)
        return found, None

    def remove_sessions(self, client_ids: Sequence[str], *, force: bool) -> Removal:
        """End those that are there. One with a client that is connected only by ``force``: its connection ends, too."""
        done = Removal()
        budget = _Budget()
        for number, client_id in enumerate(client_ids):
            if budget.is_spent:
                done.rest.extend(client_ids[number:])
                break
            session = self._state.sessions.get(client_id)
            if session is None:
                done.missing.append(client_id)
            elif session.connection is not None and not force:
                done.connected.append(client_id)
            else:
                done.removed.append(client_id)
                self._end(session)
                budget.spend(session)
        return done

    def prune_sessions(self, at: str, away_s: float | None, now: Instant) -> tuple[list[str], str | None]:
        """End those whose time is over and, if ``away_s`` is not None, those whose clients left before that. Which, and
        where to go on.
        """
        removed: list[str] = []
        budget = _Budget()
        for number, session in enumerate(self._state.sessions.in_order(at, _SESSIONS + 1)):
            if number == _SESSIONS or budget.is_spent:
                return removed, session.client_id
            info, _ = _info(session, 0, 0, now)
            if info.is_dispensable(now.wall_ms / 1000, away_s):
                removed.append(session.client_id)
                self._end(session)
                budget.spend(session)
        return removed, None

    def _end(self, session: Session) -> None:
        """When the present call into the broker is done."""
        code, reason = ReasonCode.ADMINISTRATIVE_ACTION, "the session was removed"
        self._state.pending_disconnects.append(PendingDisconnect(session, code, reason, ends_session=True))

    # -- retained messages --------------------------------------------------------------------------------------------

    def retained(
        self, topic_filter: str | None, at: str, now: Instant, *, payloads: bool
    ) -> tuple[list[RetainedInfo], str | None]:
        """A page of those that the filter matches; None for all that clients have published. And where the next one
        begins.
        """
        retained = self._state.retained
        cursor = RetainedCursor(topic_filter or "", 0, no_local=False, ids=(), at=at)
        found: list[RetainedInfo] = []
        size = 0
        for _ in range(_TOPICS):
            message = retained.step(cursor, now) if topic_filter is None else retained.advance(cursor, now)
            if message is not None:
                with_payload = payloads and len(message.payload) <= PAYLOAD_BYTES
                found.append(_message(message, message.payload if with_payload else None, now))
                size += len(message.topic) + (len(message.payload) if with_payload else 0)
            if cursor.at is None or size >= _PAGE_BYTES:
                break
        return found, cursor.at

    def message(self, topic: str) -> Message | None:
        """The retained message of a topic. It does not change: another one takes its place."""
        return self._state.retained.get(topic)

    def part(self, message: Message, offset: int, now: Instant) -> RetainedInfo:
        """A message with a part of its payload."""
        return _message(message, bytes(message.payload[offset : offset + PAYLOAD_BYTES]), now)

    def remove_retained(self, topics: Sequence[str]) -> tuple[list[str], Sequence[str]]:
        """Remove the messages of these topics: those that were there, and the topics that are for the next call."""
        retained = self._state.retained
        removed = []
        for topic in topics[:_REMOVED]:
            if retained.get(topic) is not None:
                retained.discard(topic)
                removed.append(topic)
        return removed, topics[_REMOVED:]


@attrs.define
class _Budget:
    """How much more one call may end."""

    sessions: int = _ENDED
    holdings: int = _ENDED_HOLDINGS

    @property
    def is_spent(self) -> bool:
        return self.sessions <= 0 or self.holdings <= 0

    def spend(self, session: Session) -> None:
        self.sessions -= 1
        self.holdings -= len(session.subscriptions) + sum(_holdings(session))


def _holdings(session: Session) -> tuple[int, int, int]:
    """Messages that wait for it, that are under way to it, and from it."""
    waiting = len(session.outbound.waiting.items) + len(session.waiting0.items)
    return waiting, len(session.outbound.in_flight), len(session.inbound.unreleased)


def _info(session: Session, skip: int, most: int, now: Instant) -> tuple[SessionInfo, int | None]:
    """The session with at most this many subscriptions, and how many have been given by then if there are more."""
    names: Iterable[str] = islice(session.subscriptions, skip, skip + most)
    given, size = [], 0
    for name in names:
        given.append((name, session.subscriptions[name].qos))
        size += len(name)
        if size >= _PAGE_BYTES:
            break
    end = skip + len(given)
    info = SessionInfo(
        session.client_id,
        session.user,
        None if session.expiry_s == NEVER_EXPIRES else session.expiry_s,
        session.connection is not None,
        _wall_s(session.left_at, now),
        None if session.will is None else session.will.topic,
        tuple(given),
        *_holdings(session),
    )
    return info, end if end < len(session.subscriptions) else None


def _size(info: SessionInfo) -> int:
    return (
        len(info.client_id)
        + len(info.user or "")
        + len(info.will_topic or "")
        + sum(len(n) for n, _ in info.subscriptions)
    )


def _message(message: Message, payload: bytes | None, now: Instant) -> RetainedInfo:
    expires_at = _wall_s(message.expires_at, now)
    return RetainedInfo(message.topic, message.qos, message.publisher, expires_at, len(message.payload), payload)


def _wall_s(monotonic: float | None, now: Instant) -> float | None:
    """Seconds since the Unix epoch, by the wall clock of now."""
    return None if monotonic is None else now.wall_ms / 1000 + monotonic - now.monotonic


# -- administration ----------------------------------------------------------------------------------------------------


#: Why this client may not administer, for people; None if it may.
Obstacle: TypeAlias = Callable[[str], str | None]

#: The longest request, in bytes. A name in it may have 65,535, and some of them two characters in JSON.
_LONGEST_REQUEST: Final = 512 * 1024

_JSON: Final = "application/json"


class Administration:
    """Answers requests for administration, as an application of the broker that ``control`` belongs to."""

    topics: Final = (CONTROL_TOPIC,)
    prefixes: Final = (CONTROL_PREFIX,)
    next_deadline = staticmethod(never)

    def __init__(self, control: Control, obstacle: Obstacle) -> None:
        self._control = control
        self._obstacle = obstacle
        self._reading: dict[str, Message] = {}  # by client: a large message that it takes in parts

    # -- Application --------------------------------------------------------------------------------------------------

    def handle(self, client_id: str, message: Publish, now: Instant) -> Sequence[Effect]:
        """Carry out a request."""
        control = self._control
        if message.topic != CONTROL_TOPIC:
            return (DisconnectClient(client_id, ReasonCode.NOT_AUTHORIZED, "this topic belongs to the server"),)
        response_topic = message.properties.response_topic
        if not control.is_here(client_id):
            return ()
        if response_topic is None:
            return (Drop(client_id, NO_RESPONSE_TOPIC),)
        if refusal := refuse_response_topic(client_id, response_topic):
            return (refusal,)
        answer = self._answer(control, client_id, message, now)
        properties = PublishProperties(None, None, _JSON, None, message.properties.correlation_data, ())
        packet = Publish(response_topic, encode_json(answer), QOS, False, False, 0, properties)
        response = Deliver(client_id, packet, is_fleeting=True)  # what it has removed is waited for all the same
        if answer.get("error") != NOT_AUTHORIZED:
            return (response,)
        return (response, ReportDenial(client_id, ReasonCode.NOT_AUTHORIZED, "administer", CONTROL_TOPIC))

    def client_disconnected(self, client_id: str, now: Instant) -> None:
        """Nobody takes the rest of a message."""
        del now
        self._reading.pop(client_id, None)

    def tick(self, now: Instant) -> Sequence[Effect]:
        """Do nothing: no time comes for anything here."""
        del now
        return ()

    # -- requests -----------------------------------------------------------------------------------------------------

    def _answer(self, control: Control, client_id: str, message: Publish, now: Instant) -> dict[str, Any]:
        if (obstacle := self._obstacle(client_id)) is not None:
            return {"error": NOT_AUTHORIZED, "message": obstacle}
        try:
            if message.qos != QOS or message.properties.correlation_data is None:
                raise InvalidArgumentError("requests need QoS 1 and correlation data")
            request = _Request.read(message.payload)
            command = request.text("command")
            if command == "retained.payload":
                return self._payload(control, client_id, request, now)
            if command not in _COMMANDS:
                raise InvalidArgumentError(f"there is no command {command[:100]!r}")
            return _COMMANDS[command](control, request, now)
        except InvalidArgumentError as error:
            return {"error": BAD_REQUEST, "message": error.message}

    def _payload(self, control: Control, client_id: str, request: _Request, now: Instant) -> dict[str, Any]:
        """A part of one message, always of that which was there when the first part was asked for."""
        topic, offset = request.text("topic"), request.whole_number("offset")
        message = self._reading.pop(client_id, None) if offset else control.message(topic)
        if message is None or message.topic != topic:
            return {"message": None}
        if offset + PAYLOAD_BYTES < len(message.payload):
            self._reading[client_id] = message
        return {"message": control.part(message, offset, now).encoded()}


@attrs.frozen
class _Request:
    """The fields of a request. Raises InvalidArgumentError for what is not of the right kind."""

    _fields: Mapping[str, Any]

    @classmethod
    def read(cls, payload: bytes) -> _Request:
        if len(payload) > _LONGEST_REQUEST:
            raise InvalidArgumentError(f"a request has at most {_LONGEST_REQUEST} bytes")
        try:
            fields = json.loads(payload)
        except (ValueError, RecursionError):
            raise InvalidArgumentError("the request is not JSON") from None
        if not isinstance(fields, dict):
            raise InvalidArgumentError("the request is not a JSON object")
        try:
            encode_json(fields)
        except UnicodeEncodeError:  # JSON has escapes for halves of a character
            raise InvalidArgumentError("the request has a lone surrogate in it, which is no character") from None
        return cls(fields)

    def text(self, name: str, default: str | None = None) -> str:
        return _checked(name, self._fields.get(name, default), str, "a text")

    def text_or_none(self, name: str) -> str | None:
        return None if self._fields.get(name) is None else self.text(name)

    def texts(self, name: str) -> list[str]:
        values: list[object] = _checked(name, self._fields.get(name), list, "a list of texts")
        return [_checked(name, value, str, "a list of texts") for value in values]

    def yes(self, name: str) -> bool:
        return _checked(name, self._fields.get(name, False), bool, "true or false")

    def whole_number(self, name: str) -> int:
        value = self._fields.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise InvalidArgumentError(f"{name} must be a whole number")
        return value

    def seconds_or_none(self, name: str) -> float | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**53:
            raise InvalidArgumentError(f"{name} must be seconds")
        return float(value)

    def place(self) -> tuple[str, int]:
        """Of a session in the list, and of a subscription in the session."""
        match self._fields.get("at"):
            case None:
                return "", 0
            case [str(client_id), int(skip)] if 0 <= skip < 2**31:
                return client_id, skip
        raise InvalidArgumentError("at must be the next of an earlier answer")


def _checked(name: str, value: object, kind: type[T], called: str) -> T:
    if not isinstance(value, kind):
        raise InvalidArgumentError(f"{name} must be {called}")
    return value


def _list_sessions(control: Control, request: _Request, now: Instant) -> dict[str, Any]:
    at, skip = request.place()
    client_id = request.text_or_none("client_id")
    found, after = control.sessions(at, skip, now) if client_id is None else control.session(client_id, skip, now)
    return {"sessions": [each.encoded() for each in found], "next": after}


def _remove_sessions(control: Control, request: _Request, now: Instant) -> dict[str, Any]:
    del now
    return attrs.asdict(control.remove_sessions(request.texts("client_ids"), force=request.yes("force")))


def _prune_sessions(control: Control, request: _Request, now: Instant) -> dict[str, Any]:
    removed, after = control.prune_sessions(request.text("at", ""), request.seconds_or_none("away_s"), now)
    return {"removed": removed, "next": after}


def _list_retained(control: Control, request: _Request, now: Instant) -> dict[str, Any]:
    topic_filter = request.text_or_none("filter")
    if topic_filter is not None and (problem := topic_filter_problem(topic_filter, shared=False)):
        raise InvalidArgumentError(f"filter is not a topic filter: {problem}")
    found, after = control.retained(topic_filter, request.text("at", ""), now, payloads=request.yes("payloads"))
    return {"messages": [each.encoded() for each in found], "next": after}


def _remove_retained(control: Control, request: _Request, now: Instant) -> dict[str, Any]:
    del now
    removed, rest = control.remove_retained(request.texts("topics"))
    return {"removed": removed, "rest": rest}


_COMMANDS: Final[dict[str, Callable[[Control, _Request, Instant], dict[str, Any]]]] = {
    "sessions.list": _list_sessions,
    "sessions.remove": _remove_sessions,
    "sessions.prune": _prune_sessions,
    "retained.list": _list_retained,
    "retained.remove": _remove_retained,
}
