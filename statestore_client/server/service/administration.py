"""Administration as an application of the broker: who has the right to it looks at sessions and retained messages, and
removes some. :mod:`statestore_client.wire.administration` has the requests and the answers.

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
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import attrs

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import Publish, PublishProperties, ReasonCode, topic_filter_problem
from statestore_client.server.broker.application import Deliver, Deny, Drop, Kick, never
from statestore_client.server.broker.control import PAYLOAD_BYTES
from statestore_client.server.service.service import NO_RESPONSE_TOPIC, refuse_response_topic
from statestore_client.wire.administration import (
    BAD_REQUEST,
    CONTROL_PREFIX,
    CONTROL_TOPIC,
    NOT_AUTHORIZED,
    encode_json,
)
from statestore_client.wire.protocol import QOS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore_client.server.broker.application import Effect
    from statestore_client.server.broker.control import Control
    from statestore_client.server.broker.message import Message
    from statestore_client.wire.instant import Instant

__all__ = ["Administration"]

T = TypeVar("T")

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
            return (Kick(client_id, ReasonCode.NOT_AUTHORIZED, "this topic belongs to the server"),)
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
        return (response, Deny(client_id, ReasonCode.NOT_AUTHORIZED, "administer", CONTROL_TOPIC))

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
