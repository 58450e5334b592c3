"""What a server saw, for tests: the messages that were published, and who waits for one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from statestore_client.mqtt.packets import ReasonCode, split_shared_filter, validate_topic_filter
from statestore_client.server.broker.topic_tree import FilterTree
from statestore_client.server.checks import function
from statestore_client.server.runtime.observability.logs import contained
from statestore_client.thread_locks import Mutex

if TYPE_CHECKING:
    from statestore_client.mqtt.packets import Publish, PublishProperties
    from statestore_client.server.broker import Connection
    from statestore_client.wire.kvstore.messages import LostKey

# -- hooks -------------------------------------------------------------------------------------------------------------
#
# Events of a server as values, and the functions that a program wants to have called for them.


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


@attrs.frozen
class SiteSynced:
    """The syncs of a site's start are over: with these ``peers``, none if no other site could be reached in time."""

    site: str
    peers: tuple[str, ...]


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
    on_site_synced: Callable[[SiteSynced], object] | None = attrs.field(default=None, validator=function)
    #: A key that was ``set`` at this site was overridden by another one.
    on_lost_key: Callable[[LostKey], object] | None = attrs.field(default=None, validator=function)


#: A function of :class:`Hooks`, and what to give it.
_Call: TypeAlias = tuple[Callable[[Any], object], object]


@attrs.define(eq=False)
class EventDispatcher:
    """Receives the events of a broker (:class:`~statestore_client.server.broker.reports.BrokerEvents`), and of a site.

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

    def synced(self, event: SiteSynced) -> None:
        if self.hooks.on_site_synced is not None:
            self._call(self.hooks.on_site_synced, event)

    def lost_key(self, loss: LostKey) -> None:
        if self.hooks.on_lost_key is not None:
            self._call(self.hooks.on_lost_key, loss)

    def _call(self, hook: Callable[[Any], object], event: object) -> None:
        if not self._calls:
            asyncio.get_running_loop().call_soon(self._make_calls)
        self._calls.append((hook, event))

    def _make_calls(self) -> None:
        """What they cause is called in the next round."""
        calls, self._calls = self._calls, deque()
        for hook, event in calls:
            with contained("a hook failed"):  # a mistake of the program
                hook(event)


# -- recording ---------------------------------------------------------------------------------------------------------


#: What one recorded message holds beside payload and topic, roughly.
_OVERHEAD_BYTES: Final = 512


@attrs.frozen
class PublishedMessage:
    """A message that the server accepted. ``client_id`` is empty for one that the server itself published.

    ``topic`` is in full, whatever alias the client used. ``properties`` has what else MQTT 5.0 sent along:
    ``content_type``, ``response_topic``, ``correlation_data``, ``message_expiry`` (seconds), ``user_properties``.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    client_id: str
    properties: PublishProperties = attrs.field(repr=False)

    @property
    def text(self) -> str:
        """The payload as UTF-8. Raises UnicodeDecodeError if it is something else."""
        return self.payload.decode()

    @property
    def user_properties(self) -> tuple[tuple[str, str], ...]:
        """Name and value pairs in the order of the packet; names may repeat."""
        return self.properties.user_properties

    @classmethod
    def of(cls, client_id: str, packet: Publish) -> PublishedMessage:
        return cls(packet.topic, packet.payload, packet.qos, packet.retain, client_id, packet.properties)


@attrs.define(eq=False)
class _Entry:
    message: PublishedMessage
    is_taken: bool = False

    @property
    def size(self) -> int:
        return len(self.message.payload) + len(self.message.topic) + _OVERHEAD_BYTES


@attrs.frozen(eq=False)
class _Waiter:
    matches: Callable[[str], bool]
    future: Future[PublishedMessage]


class Recorder:
    """The last messages, up to a number and a number of bytes; older ones are forgotten.

    Each message can be taken once, by whoever waits for it first. Any thread may call it.
    Invariant: no waiter waits for a message that is there and not taken.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._entries: deque[_Entry] = deque()
        self._bytes = 0
        self._waiters: list[_Waiter] = []
        self._guard = Mutex()  # of all the above; no foreign code runs under it

    def messages(self) -> list[PublishedMessage]:
        """All that are remembered, the oldest first."""
        with self._guard:
            return [entry.message for entry in self._entries]

    def clear(self) -> None:
        """Forget them. Callers that wait go on waiting."""
        with self._guard:
            self._entries.clear()
            self._bytes = 0

    def add(self, message: PublishedMessage) -> None:
        entry = _Entry(message)
        with self._guard:
            waiter = self._first_waiter(message.topic)
            entry.is_taken = waiter is not None
            self._entries.append(entry)
            self._bytes += entry.size
            while len(self._entries) > self._max_messages or self._bytes > self._max_bytes:
                self._bytes -= self._entries.popleft().size
        if waiter is not None:
            waiter.future.set_result(message)

    def _first_waiter(self, topic: str) -> _Waiter | None:
        for waiter in self._waiters:
            if waiter.matches(topic):
                self._waiters.remove(waiter)
                if waiter.future.set_running_or_notify_cancel():
                    return waiter
                return self._first_waiter(topic)
        return None

    def take(self, topic_filter: str) -> Future[PublishedMessage]:
        """The oldest message that matches and was not taken, now or when it comes. Raises InvalidArgumentError for a
        filter that is none.
        """
        matches = topic_matcher(topic_filter)
        future: Future[PublishedMessage] = Future()
        with self._guard:
            for entry in self._entries:
                if not entry.is_taken and matches(entry.message.topic):
                    entry.is_taken = True
                    future.set_result(entry.message)
                    return future
            self._waiters.append(_Waiter(matches, future))
        return future

    def give_up(self, future: Future[PublishedMessage]) -> bool:
        """Wait no longer; False if the message came in the last moment."""
        with self._guard:
            self._waiters = [waiter for waiter in self._waiters if waiter.future is not future]
        return future.cancel()


def topic_matcher(topic_filter: str) -> Callable[[str], bool]:
    """Whether a topic matches, as the broker sees it. A shared filter matches as the filter in it."""
    validate_topic_filter(topic_filter)
    shared = split_shared_filter(topic_filter)
    tree: FilterTree[bool] = FilterTree()
    tree.insert(topic_filter if shared is None else shared[1], True)
    return lambda topic: bool(tree.match(topic))
