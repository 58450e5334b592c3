"""What lives inside the broker and answers requests: the state store, seen from the broker.

An application is a pure machine. It is asked about a topic, given the message and the moment, and hands back *effects*;
it never touches a connection. The broker decides when an effect is carried out: always after it acknowledged the
request, so that a publisher sees PUBACK before the reply to it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import attrs

from statestore_client.mqtt.packets import ReasonCode
from statestore_client.wire.hot_value import hot_value
from statestore_client.wire.protocol import is_state_store_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Sequence

    from statestore_client.mqtt.packets import Publish
    from statestore_client.wire.hlc import HlcTimestamp
    from statestore_client.wire.instant import Instant


@hot_value
class Route:
    """Publish a message as a client would: to whoever subscribed. A *fleeting* one may be lost with the server: it is
    not written down, and does not wait for the disk by itself.
    """

    message: Publish
    is_fleeting: bool = False


@hot_value
class Deliver:
    """Give a message to one client, whether or not it subscribed, and only once if it did.

    Dropped when the client is not connected: what is pushed this way belongs to the connection, not to the session.
    Subscriptions of other clients do not see it. Fleeting: as of :class:`Route`.
    """

    client_id: str
    message: Publish
    is_fleeting: bool = False


@attrs.frozen
class DisconnectClient:
    """Disconnect a client. ``reason`` is for people; it goes into DISCONNECT (MQTT 5.0) and the log."""

    client_id: str
    reason_code: int
    reason: str


@attrs.frozen
class ReportDenial:
    """A client did not get something, and its answer says so: a line for the log. ``reason_code`` is that of MQTT that
    comes nearest: 0x87, it may not, or 0x97, there was no room. ``action`` and ``what`` are words for people.
    """

    client_id: str
    reason_code: int
    action: str
    what: str


@attrs.frozen
class Drop:
    """A request comes to nothing, and there is nowhere to answer: a line for the log, and reason code 0x83 in the
    acknowledgement where the version has reasons. It is the only effect then. ``why`` is for people.
    """

    client_id: str
    why: str


@attrs.frozen
class ReportClock:
    """A client's clock is ahead of the server's by so many seconds, as its request tells: a line for the log."""

    client_id: str
    ahead_s: float


@hot_value
class Told:
    """One change as the observers of its key get it: the payload of the notifications, and the version."""

    key: bytes
    payload: bytes
    version: HlcTimestamp


@hot_value
class InOrder:
    """Any number of effects, made while they are carried out, some at a time; others are served in between.

    What has the same ``subject`` is carried out one after the other. Its client is not served before the end. ``told``
    is the change that they tell of, if it is there after a crash.
    """

    subject: Hashable
    effects: Iterable[Effect]
    told: Told | None = None


Effect: TypeAlias = "Route | Deliver | ReportDenial | ReportClock | Drop | DisconnectClient | InOrder"


# -- requests ----------------------------------------------------------------------------------------------------------


#: Why a request is dropped, for people.
NO_RESPONSE_TOPIC: Final = "the request has no response topic: there is nowhere to answer"


@lru_cache(maxsize=256)
def refuse_response_topic(client_id: str, topic: str) -> DisconnectClient | None:
    """Remembered, because every request of a client names the same topic."""
    if not topic or "+" in topic or "#" in topic:
        return DisconnectClient(
            client_id, ReasonCode.PROTOCOL_ERROR, "a response topic is a topic name without wildcards"
        )
    if is_state_store_topic(topic) or topic.startswith("$"):
        return DisconnectClient(client_id, ReasonCode.TOPIC_NAME_INVALID, "this response topic belongs to the server")
    return None


# -- applications ------------------------------------------------------------------------------------------------------


class Application(Protocol):
    """A service inside the broker. Messages on its topics are not routed to subscribers and not retained."""

    @property
    def topics(self) -> Collection[str]:
        """The topics of its requests."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """All topics that begin with one of these are its own as well."""

    def handle(self, client_id: str, message: Publish, now: Instant) -> Sequence[Effect]:
        """Carry out one request of a client and say what follows. ``message.topic`` is always the full topic.

        An exception refuses the request (PUBACK 0x83) and is reported to the runtime; it must have changed nothing.
        """

    def client_disconnected(self, client_id: str, now: Instant) -> None:
        """The client's connection is gone. Its session may live on, or its successor may already be waiting."""

    def tick(self, now: Instant) -> Sequence[Effect]:
        """Do what is due."""

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do (monotonic seconds), None for never. An application that does nothing
        by itself has the function :func:`never` here, which is not asked.
        """


def never() -> None:
    """The ``next_deadline`` of an application that does nothing by itself."""


@attrs.define(eq=False)
class Applications:
    """The applications of one broker, found by topic. Invariant: no two of them have a topic in common."""

    all: tuple[Application, ...] = ()
    by_topic: dict[str, Application] = attrs.Factory(dict)
    prefixes: tuple[str, ...] = ()
    #: Those that do something by themselves.
    timed: tuple[Application, ...] = ()

    def add(self, application: Application) -> None:
        self.all = (*self.all, application)
        self.by_topic |= dict.fromkeys(application.topics, application)
        self.prefixes = (*self.prefixes, *application.prefixes)
        if application.next_deadline is not never:
            self.timed = (*self.timed, application)

    def find(self, topic: str) -> Application | None:
        """Whose topic it is; None for a topic that messages are routed on."""
        found = self.by_topic.get(topic)
        if found is None and topic.startswith(self.prefixes):
            found = next(each for each in self.all if topic.startswith(each.prefixes))
        return found
