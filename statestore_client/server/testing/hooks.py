"""Events of a server as values, and the functions that a program wants to have called for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from statestore_client.mqtt.packets import ReasonCode
from statestore_client.server.checks import function
from statestore_client.server.runtime.observability.event_log import LOGGER
from statestore_client.server.testing.recording import PublishedMessage, Recorder

if TYPE_CHECKING:
    from statestore_client.mqtt.packets import Publish
    from statestore_client.server.broker import Connection

__all__ = [
    "ClientConnected",
    "ClientDisconnected",
    "ClientSubscribed",
    "ClientUnsubscribed",
    "EventDispatcher",
    "Hooks",
]


@attrs.frozen
class ClientConnected:
    """``version`` is 4 for MQTT 3.1.1 and 5 for 5.0; ``user`` is None for nobody in particular."""

    client_id: str
    version: int
    user: str | None
    peer: str


@attrs.frozen
class ClientDisconnected:
    """``by_client``: it said DISCONNECT with this reason code, or it went away; otherwise the server ended it."""

    client_id: str
    reason_code: int
    reason: str
    by_client: bool


@attrs.frozen
class ClientSubscribed:
    """``qos`` was granted; None if the subscription was refused."""

    client_id: str
    topic_filter: str
    qos: int | None


@attrs.frozen
class ClientUnsubscribed:
    """Whether or not there was such a subscription."""

    client_id: str
    topic_filter: str


@attrs.define(eq=False)
class Hooks:
    """Functions that are called with an event, in the order of the events, in the thread of the server.

    They may call the server, and must not wait: nobody is served meanwhile. What they raise is logged.
    """

    on_connect: Callable[[ClientConnected], object] | None = attrs.field(default=None, validator=function)
    on_disconnect: Callable[[ClientDisconnected], object] | None = attrs.field(default=None, validator=function)
    on_subscribe: Callable[[ClientSubscribed], object] | None = attrs.field(default=None, validator=function)
    on_unsubscribe: Callable[[ClientUnsubscribed], object] | None = attrs.field(default=None, validator=function)
    on_publish: Callable[[PublishedMessage], object] | None = attrs.field(default=None, validator=function)


#: A function of :class:`Hooks`, and what to give it.
_Call: TypeAlias = tuple[Callable[[Any], object], object]


@attrs.define(eq=False)
class EventDispatcher:
    """Receives the events of a broker (:class:`~statestore_client.server.broker.events.BrokerEvents`).

    Notes are taken at once. Functions are called a moment later, when the broker is done with what it is at: they may
    make it do something else.
    """

    recorder: Recorder | None
    hooks: Hooks
    _calls: deque[_Call] = attrs.Factory(deque)

    def connected(self, connection: Connection, client_id: str) -> None:
        if self.hooks.on_connect is not None:
            user = None if connection.session is None else connection.session.user
            self._call(self.hooks.on_connect, ClientConnected(client_id, connection.version, user, connection.peer))

    def disconnected(self, connection: Connection, client_id: str) -> None:
        if self.hooks.on_disconnect is not None:
            ending = connection.ending
            code = ReasonCode.UNSPECIFIED_ERROR if ending is None else ending.reason_code
            reason, by_client = ("", True) if ending is None else (ending.reason, ending.by_peer)
            self._call(self.hooks.on_disconnect, ClientDisconnected(client_id, code, reason, by_client))

    def lost(self, client_id: str) -> None:
        """A client whose session went together with its connection: there was nobody left to tell of it."""
        if self.hooks.on_disconnect is not None:
            code = ReasonCode.SERVER_SHUTTING_DOWN
            self._call(self.hooks.on_disconnect, ClientDisconnected(client_id, code, "server restarting", False))

    def subscribed(self, client_id: str, topic_filter: str, qos: int | None) -> None:
        if self.hooks.on_subscribe is not None:
            self._call(self.hooks.on_subscribe, ClientSubscribed(client_id, topic_filter, qos))

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        if self.hooks.on_unsubscribe is not None:
            self._call(self.hooks.on_unsubscribe, ClientUnsubscribed(client_id, topic_filter))

    def published(self, client_id: str, packet: Publish) -> None:
        recorder, hook = self.recorder, self.hooks.on_publish
        if recorder is None and hook is None:
            return
        message = PublishedMessage.of(client_id, packet)
        if recorder is not None:
            recorder.add(message)
        if hook is not None:
            self._call(hook, message)

    def _call(self, hook: Callable[[Any], object], event: object) -> None:
        if not self._calls:
            asyncio.get_running_loop().call_soon(self._make_calls)
        self._calls.append((hook, event))

    def _make_calls(self) -> None:
        """What they cause is called in the next round."""
        calls, self._calls = self._calls, deque()
        for hook, event in calls:
            try:
                hook(event)
            except Exception:  # noqa: BLE001 - a mistake of the program; the server goes on
                LOGGER.exception("a hook failed")
