"""A running server, for ``statestore sessions`` and ``statestore retained``: one connection that asks and waits."""

from __future__ import annotations

import json
import selectors
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import attrs

from statestore_client.errors import (
    ConnectionLostError,
    NotAuthorizedError,
    RequestTimeoutError,
    UnexpectedReplyError,
    UnknownServerError,
)
from statestore_client.mqtt.driver import SyncDriver, sync_connector
from statestore_client.wire.administration import (
    CONTROL_TOPIC,
    NOT_AUTHORIZED,
    RetainedInfo,
    SessionInfo,
    control_response_topic,
    encode_json,
)
from statestore_client.wire.messages import (
    Closed,
    Connected,
    Envelope,
    Event,
    IncomingMessage,
    OutgoingMessage,
    Published,
)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from statestore_client.settings import ConnectionSettings

__all__ = ["RunningServer"]

#: The most names in one request, and the most characters of them together.
_NAMES: Final = 64
_NAMES_LENGTH: Final = 64 * 1024

_NO_SUBSCRIBERS: Final = 0x10
_FIRST_ERROR: Final = 0x80
_REFUSED: Final = 0x87
_ONLY_OURS: Final = "only statestore serve, and EmbeddedServer, know these requests"


class RunningServer:
    """Connected for the time of a ``with``. Raises TransportError without a connection or an answer, NotAuthorizedError
    without the right, UnexpectedReplyError from other brokers.
    """

    is_running = True

    def __init__(self, settings: ConnectionSettings) -> None:
        self._client_id = settings.client_id or f"statestore-admin-{uuid4().hex[:16]}"
        self._settings = settings.evolve(clean_start=True, session_expiry=0)
        self._connector = sync_connector(self._settings, client_id=self._client_id)
        self._driver: SyncDriver = self._connector.open(clean_start=True)
        self._numbers = count(1)
        self._envelope = Envelope(CONTROL_TOPIC, control_response_topic(self._client_id))
        self.where: str = f"at {settings.url}"

    def __enter__(self) -> Self:
        try:
            self._driver.connect()
            deadline = time.monotonic() + self._settings.connect_timeout
            for event in self._events(deadline):
                if isinstance(event, Connected):
                    return self
        finally:
            self._connector.close()  # what else was dialled
        raise ConnectionLostError(f"not connected to {self._settings.url} within {self._settings.connect_timeout:g} s")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.disconnect()
        self._driver.abort()

    # -- what is asked for --------------------------------------------------------------------------------------------

    def sessions(self) -> Iterator[SessionInfo]:
        """All of them except the one that asks, in the order of their client identifiers."""
        return (session for session in self._sessions() if session.client_id != self._client_id)

    def session(self, client_id: str) -> SessionInfo | None:
        """One session; None if there is none."""
        return next(self._sessions(client_id=client_id), None)

    def _sessions(self, **which: str) -> Iterator[SessionInfo]:
        last: SessionInfo | None = None
        for answer in self._pages("sessions.list", **which):
            for fields in _listed(answer, "sessions"):
                session = SessionInfo.decode(fields)
                if last is not None and last.client_id == session.client_id:  # more of its subscriptions
                    session = attrs.evolve(session, subscriptions=last.subscriptions + session.subscriptions)
                elif last is not None:
                    yield _in_order(last)
                last = session
        if last is not None:
            yield _in_order(last)

    def remove_sessions(self, client_ids: Iterable[str], *, force: bool = False) -> tuple[list[str], list[str]]:
        """Remove them; returns which were not there, and which were left because they are connected."""
        missing: list[str] = []
        connected: list[str] = []
        for answer in self._in_batches("sessions.remove", "client_ids", dict.fromkeys(client_ids), force=force):
            missing += _listed(answer, "missing")
            connected += _listed(answer, "connected")
        return missing, connected

    def prune_sessions(self, away_s: float | None) -> Iterator[str]:
        """Remove those that are over, or whose clients have been away for that long; returns which."""
        for answer in self._pages("sessions.prune", away_s=away_s):
            yield from _listed(answer, "removed")

    def retained(self, topic_filter: str | None, *, payloads: bool = False) -> Iterator[RetainedInfo]:
        """Those that the filter matches; None for all."""
        for answer in self._pages("retained.list", filter=topic_filter, payloads=payloads):
            for fields in _listed(answer, "messages"):
                message = RetainedInfo.decode(fields)
                if payloads and message.payload is None:
                    whole = self._whole(message.topic)
                    if whole is not None:  # otherwise it was removed meanwhile
                        yield whole
                else:
                    yield message

    def _whole(self, topic: str) -> RetainedInfo | None:
        """A large message, whose payload comes in parts."""
        parts: list[bytes] = []
        offset = 0
        while True:
            fields = self._ask("retained.payload", topic=topic, offset=offset).get("message")
            if fields is None:
                return None
            message = RetainedInfo.decode(fields)
            part = message.payload or b""
            parts.append(part)
            offset += len(part)
            if offset >= message.size or not part:
                return attrs.evolve(message, payload=b"".join(parts))

    def remove_retained(self, topics: Iterable[str]) -> int:
        """Remove those that are there; returns how many there were."""
        batches = self._in_batches("retained.remove", "topics", topics)
        return sum(len(_listed(answer, "removed")) for answer in batches)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _pages(self, command: str, **fields: Any) -> Iterator[dict[str, Any]]:
        place: object = None
        while True:
            answer = self._ask(command, **fields, **({} if place is None else {"at": place}))
            yield answer
            if answer.get("next") is None:
                return
            if answer["next"] == place:
                raise UnexpectedReplyError("the server's list does not end")
            place = answer["next"]

    def _in_batches(self, command: str, name: str, values: Iterable[str], **fields: Any) -> Iterator[dict[str, Any]]:
        for batch in _batches(values):
            rest: Sequence[str] = batch
            while rest:
                answer = self._ask(command, **{name: rest}, **fields)
                yield answer
                before, rest = len(rest), _listed(answer, "rest")
                if len(rest) >= before:
                    raise UnexpectedReplyError("the server did not do what was asked for")

    def _ask(self, command: str, **fields: Any) -> dict[str, Any]:
        """The answer to one request."""
        number, timeout = next(self._numbers), self._settings.request_timeout
        correlation = number.to_bytes(8, "big")
        payload = encode_json({"command": command, **fields})
        self._driver.publish(number, OutgoingMessage(self._envelope, payload, correlation, max(1, int(timeout)), ()))
        for event in self._events(time.monotonic() + timeout):
            if isinstance(event, Published) and event.delivery_id == number:
                self._check_taken(event.reason_code)
            elif isinstance(event, IncomingMessage):
                if event.ack_id:
                    self._driver.acknowledge(event.ack_id)
                if event.correlation_data == correlation:
                    return _read(bytes(event.payload))
        raise RequestTimeoutError(f"no answer within {timeout:g} s; {_ONLY_OURS}", may_have_been_applied=True)

    def _check_taken(self, reason_code: int) -> None:
        if reason_code == _NO_SUBSCRIBERS:
            raise UnexpectedReplyError(f"the broker cannot be administered: {_ONLY_OURS}")
        if reason_code == _REFUSED:
            raise NotAuthorizedError(f"the broker does not let this client publish to {CONTROL_TOPIC}; {_ONLY_OURS}")
        if reason_code >= _FIRST_ERROR:
            raise UnexpectedReplyError(f"the broker refused the request with MQTT reason code 0x{reason_code:02X}")

    def _events(self, deadline: float) -> Iterator[Event]:
        """What happens until then. Raises what ended the connection."""
        driver = self._driver
        with selectors.DefaultSelector() as selector:
            while True:
                driver.flush()
                events = driver.poll()
                for event in events:
                    if isinstance(event, Closed):
                        raise event.error
                    yield event
                now, fileno = time.monotonic(), driver.fileno()
                if now >= deadline:
                    return
                if events or fileno is None:
                    continue
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if driver.wants_write else 0)
                selector.register(fileno, wanted)
                selector.select(max(0.0, min(deadline, driver.next_deadline()) - now))
                selector.unregister(fileno)


def _read(payload: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise UnexpectedReplyError(f"the answer is not JSON: {error}") from error
    if not isinstance(answer, dict):
        raise UnexpectedReplyError("the answer is not a JSON object")
    if (kind := answer.get("error")) is not None:
        if kind == NOT_AUTHORIZED:
            raise NotAuthorizedError(f"not authorized: {answer.get('message')}")
        raise UnknownServerError(f"{kind}: {answer.get('message')}")
    return answer


def _listed(answer: dict[str, Any], name: str) -> list[Any]:
    found = answer.get(name)
    if not isinstance(found, list):
        raise UnexpectedReplyError(f"the answer has no list {name!r}")
    return found


def _in_order(session: SessionInfo) -> SessionInfo:
    """With its subscriptions as they are shown."""
    return attrs.evolve(session, subscriptions=tuple(sorted(dict(session.subscriptions).items())))


def _batches(values: Iterable[str]) -> Iterator[list[str]]:
    """As many as one request may have."""
    batch: list[str] = []
    length = 0
    for value in values:
        if batch and (len(batch) == _NAMES or length + len(value) > _NAMES_LENGTH):
            yield batch
            batch, length = [], 0
        batch.append(value)
        length += len(value)
    if batch:
        yield batch
