"""What clients do, told to a program that asked for it, mostly a test. A broker that tells nobody runs none of this.

An event is told after it was accepted and done, in the order in which it was done, and in the middle of everything: the
receiver may take notes, and calls nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from statestore_client.server.broker.packets.publish import PublishHandler
from statestore_client.server.broker.packets.subscribe import SubscribeHandler
from statestore_client.server.broker.session.lifecycle import SessionLifecycle

if TYPE_CHECKING:
    from statestore_client.mqtt.packets import Publish, Subscribe, Unsubscribe
    from statestore_client.server.broker.connection import Connection
    from statestore_client.server.broker.session.session import Session
    from statestore_client.wire.instant import Instant

__all__ = ["BrokerEvents", "LifecycleWithEvents", "PublishHandlerWithEvents", "SubscribeHandlerWithEvents"]


class BrokerEvents(Protocol):
    """Receives them."""

    def connected(self, connection: Connection, client_id: str) -> None:
        """CONNECT was accepted."""

    def disconnected(self, connection: Connection, client_id: str) -> None:
        """A client that was connected is not any more; ``connection.ending`` says why."""

    def subscribed(self, client_id: str, topic_filter: str, qos: int | None) -> None:
        """One filter of a SUBSCRIBE: the granted QoS, None if it was refused."""

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """One filter of an UNSUBSCRIBE."""

    def published(self, client_id: str, topic: str, packet: Publish) -> None:
        """A message of a client, or its will, was accepted. ``topic`` is in full, where ``packet`` has an alias."""


@attrs.define(eq=False)
class LifecycleWithEvents(SessionLifecycle):
    """Tells who comes and goes."""

    _events: BrokerEvents = attrs.field(kw_only=True)

    def attach(self, session: Session, connection: Connection, window: int, now: Instant) -> None:
        super().attach(session, connection, window, now)
        self._events.connected(connection, session.client_id)

    def detach(self, connection: Connection, now: Instant, *, with_will: bool) -> None:
        session = connection.session
        if session is not None and session.connection is connection:
            self._events.disconnected(connection, session.client_id)
        super().detach(connection, now, with_will=with_will)


@attrs.define(eq=False)
class SubscribeHandlerWithEvents(SubscribeHandler):
    """Tells who subscribes to what."""

    _events: BrokerEvents = attrs.field(kw_only=True)

    def subscribe(self, connection: Connection, session: Session, packet: Subscribe, now: Instant) -> None:
        super().subscribe(connection, session, packet, now)
        for subscription in packet.subscriptions:
            grant = session.subscriptions.get(subscription.topic_filter)
            self._events.subscribed(session.client_id, subscription.topic_filter, None if grant is None else grant.qos)

    def unsubscribe(self, connection: Connection, session: Session, packet: Unsubscribe, now: Instant) -> None:
        super().unsubscribe(connection, session, packet, now)
        for topic_filter in packet.topic_filters:
            self._events.unsubscribed(session.client_id, topic_filter)


@attrs.define(eq=False)
class PublishHandlerWithEvents(PublishHandler):
    """Tells what is published."""

    _events: BrokerEvents = attrs.field(kw_only=True)

    def publish(self, connection: Connection, session: Session, packet: Publish, now: Instant) -> None:
        counters = self._state.counters
        refused = counters.refused_messages
        is_repeated = packet.qos == 2 and packet.packet_id in session.inbound.unreleased
        super().publish(connection, session, packet, now)
        if is_repeated or connection.ending is not None or counters.refused_messages != refused:
            return
        topic = packet.topic or connection.topic_aliases.get(packet.properties.topic_alias or 0, "")
        self._events.published(session.client_id, topic, packet)

    def publish_will(self, packet: Publish, client_id: str, now: Instant) -> None:
        super().publish_will(packet, client_id, now)
        session, application = self._state.sessions.get(client_id), self._application
        permissions = None if session is None else session.permissions
        is_request = application is not None and application.handles(packet.topic)
        if is_request or permissions is None or permissions.may_publish(packet.topic):
            self._events.published(client_id, packet.topic, packet)
