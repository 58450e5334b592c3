"""PUBLISH from clients: check, acknowledge, then route, retain, or hand to the application (MQTT 5.0, 3.3, 4.3).

The order is part of the contract: subscribers and the retained store are asked for room, then the acknowledgement goes
out, then the copies. A publisher that subscribed to its own topic sees its PUBACK before its message, as real clients
expect.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.packets import (
    MQTT_5_0,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    ReasonCode,
)
from statestore_client.mqtt.qos import PUBCOMP, PUBREC, PUBREL
from statestore_client.server.broker.application import Application, Drop
from statestore_client.server.broker.memory import UNRELEASED_BYTES
from statestore_client.server.broker.message import message_of
from statestore_client.server.broker.outbound import Answer
from statestore_client.server.broker.reports import DENIALS
from statestore_client.server.broker.router import Acceptance, is_reserved
from statestore_client.server.broker.state import State
from statestore_client.server.broker.subscribe import TOO_MANY_LEVELS

if TYPE_CHECKING:
    from statestore_client.server.broker.lifecycle import SessionLifecycle
    from statestore_client.server.broker.message import Message
    from statestore_client.server.broker.overflow import Backpressure
    from statestore_client.server.broker.router import EffectRunner, Router
    from statestore_client.server.broker.session import Connection, Session
    from statestore_client.wire.instant import Instant

_NO_PROPERTIES: Final = Publish("").properties

_NOT_TAKEN: Final = "it publishes without taking the answers to its requests"

#: Why, for people.
_REASONS: Final = {
    ReasonCode.QUOTA_EXCEEDED: "there is no room for the message",
    ReasonCode.PAYLOAD_FORMAT_INVALID: "the payload is not UTF-8",
}


#: Looking a member up in its enumeration takes as long as a call.
_DONE: Final = Answer.DONE


@attrs.define(eq=False)
class PublishHandler:
    """Handles what clients publish, and what they say to the messages that they got."""

    _state: State
    _router: Router
    _lifecycle: SessionLifecycle
    _backpressure: Backpressure
    _effects: EffectRunner

    @property
    def handler(self) -> Callable[[Connection, Session, Publish, Instant], None]:
        """What a PUBLISH is given to: :meth:`publish`, or what asks before whether this server supports it."""
        return self.publish if self._state.capabilities.has_all_messages else self._publish_if_supported

    # -- from clients -------------------------------------------------------------------------------------------------

    def publish(self, connection: Connection, session: Session, packet: Publish, now: Instant) -> None:
        state = self._state
        state.counters.received_messages += 1
        properties = packet.properties
        if properties is not _NO_PROPERTIES and (
            properties.topic_alias is not None or properties.subscription_ids or properties.payload_format
        ):
            known = connection.topic_aliases.get(properties.topic_alias or 0)
            if known and not (packet.topic or properties.subscription_ids or properties.payload_format):
                packet = _without_alias(packet, known)
            else:
                checked = self._checked(connection, packet, now)
                if checked is None:
                    return
                packet = checked
        topic, levels = packet.topic, state.limits.topic_levels
        if len(topic) >= levels and topic.count("/") >= levels:
            self._state.counters.refused_messages += 1
            self._lifecycle.expel(connection, ReasonCode.MALFORMED_PACKET, TOO_MANY_LEVELS, now)
            return
        if packet.qos == 2 and not self._take_over(connection, session, packet, now):
            return
        applications = state.applications
        application = applications.by_topic.get(topic)
        if application is None and topic.startswith(applications.prefixes):
            application = applications.find(topic)
        if application is not None:
            # Mostly nothing waits for its client, and there is room for any answer.
            budget = state.budget
            is_tight = budget.total + self._backpressure.most > budget.limit
            has_queue = session.outbound.waiting.items or session.waiting0.items
            if (is_tight or has_queue) and self._backpressure.has_to_wait(session):
                state.counters.received_messages -= 1
                self.wait(connection, packet, now)
            else:
                self._serve(application, connection, session.client_id, packet, now)
        elif is_reserved(topic):
            self._refuse(connection, packet, ReasonCode.NOT_AUTHORIZED, now)
        elif session.permissions is None or session.permissions.may_publish(topic):
            self._route(connection, session, packet, now)
        else:
            self._refuse(connection, packet, ReasonCode.NOT_AUTHORIZED, now)

    def wait(self, connection: Connection, packet: Publish, now: Instant) -> None:
        """Carry it out later: :meth:`.Backpressure.next` says when. One with a topic alias may come as it was sent."""
        if not self._backpressure.hold(connection, packet, now):
            self._lifecycle.expel(connection, ReasonCode.QUOTA_EXCEEDED, _NOT_TAKEN, now)

    def _publish_if_supported(self, connection: Connection, session: Session, packet: Publish, now: Instant) -> None:
        refusal = self._state.capabilities.refuse_message(packet)
        if refusal is None:
            self.publish(connection, session, packet, now)
        else:
            self._lifecycle.expel(connection, refusal.reason_code, refusal.reason, now)

    def release(self, connection: Connection, session: Session, packet: Pubrel, now: Instant) -> None:
        """PUBREL: the client will not send this packet identifier again; it may be used anew."""
        del now
        is_known = session.inbound.release(packet.packet_id)
        if is_known:
            self._state.budget.total -= UNRELEASED_BYTES
            if session.persister is not None:
                session.persister.inbound_released(packet.packet_id)
        if is_known or not connection.wants_reasons:
            connection.acknowledge(packet.packet_id, PUBCOMP)
        else:
            connection.send(Pubcomp(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))

    def _take_over(self, connection: Connection, session: Session, packet: Publish, now: Instant) -> bool:
        """Whether a QoS 2 message is new. A known one gets its PUBREC again and goes no further (MQTT-4.3.3-10)."""
        inbound = session.inbound
        is_counted = inbound.unreleased.get(packet.packet_id)  # None: new. False: from an earlier connection
        if not is_counted and connection.version == MQTT_5_0 and inbound.used >= inbound.window:
            # Of this connection only: what an earlier one left unreleased is not in the client's count (4.9).
            self._lifecycle.expel(connection, ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, "receive maximum exceeded", now)
            return False
        if is_counted is None:
            if self._router.overflow.admits(UNRELEASED_BYTES, UNRELEASED_BYTES * len(inbound.unreleased), now):
                return True
            self._refuse(connection, packet, ReasonCode.QUOTA_EXCEEDED, now)
            return False
        inbound.publish(packet.packet_id)
        connection.acknowledge(packet.packet_id, PUBREC)
        return False

    def _route(self, connection: Connection, session: Session, packet: Publish, now: Instant) -> None:
        router = self._router
        message = message_of(packet, session.client_id, now)
        matches = self._state.subscriptions.match(message.topic)
        # A client that is subscribed, but not to its own messages, still matches.
        code = ReasonCode.SUCCESS if matches else ReasonCode.NO_MATCHING_SUBSCRIBERS
        if router.has_to_wait(matches, message.topic):
            accept = partial(self._accepts, connection, session, packet, message, code)
            refuse = partial(self._refuse, connection, packet, ReasonCode.QUOTA_EXCEEDED)
            router.fan_out(matches, message, Acceptance(accept, refuse), connection)
            return
        targets = router.plan(message, matches)
        if not router.admits(targets, message, now):
            self._refuse(connection, packet, ReasonCode.QUOTA_EXCEEDED, now)
            return
        if self._accepts(connection, session, packet, message, code, now):
            router.deliver(targets, message, now, is_promised=True)

    def _accepts(
        self,
        connection: Connection,
        session: Session,
        packet: Publish,
        message: Message,
        code: ReasonCode,
        now: Instant,
    ) -> bool:
        """The copies are planned: acknowledge. False if there is nothing to deliver."""
        if packet.qos == 2 and packet.packet_id in session.inbound.unreleased:
            # It was sent twice, on two connections, before this.
            connection.acknowledge(packet.packet_id, PUBREC)
            return False
        if packet.retain and not self._router.retain(message, now) and packet.qos:
            self._refuse(connection, packet, ReasonCode.QUOTA_EXCEEDED, now)
            return False
        if packet.qos == 1 and code is ReasonCode.SUCCESS:
            connection.acknowledge(packet.packet_id)
        elif packet.qos == 1:
            connection.send(Puback(packet.packet_id, code))
        elif packet.qos == 2 and not session.is_over:
            self._accept(connection, session, packet)
        if self._state.events is not None:
            self._state.events.published(session.client_id, packet)
        return True

    def _accept(self, connection: Connection, session: Session, packet: Publish) -> None:
        if session.inbound.publish(packet.packet_id):
            self._state.budget.total += UNRELEASED_BYTES
            if session.persister is not None:
                session.persister.inbound_received(packet.packet_id)
        connection.acknowledge(packet.packet_id, PUBREC)

    # -- what is wrong with it ----------------------------------------------------------------------------------------

    def _checked(self, connection: Connection, packet: Publish, now: Instant) -> Publish | None:
        """The packet with its topic in full, or None when it was refused."""
        properties = packet.properties
        if properties.subscription_ids:
            # MQTT-3.3.4-6: only servers send them.
            self._lifecycle.expel(connection, ReasonCode.PROTOCOL_ERROR, "subscription identifier in a PUBLISH", now)
            return None
        alias = properties.topic_alias
        if alias is not None:
            topic = packet.topic or connection.topic_aliases.get(alias)
            is_too_large = alias > self._state.limits.topic_alias_maximum
            if topic is None or is_too_large:
                # An alias that has no topic yet is a protocol error (MQTT 5.0, 3.3.4).
                code = ReasonCode.TOPIC_ALIAS_INVALID if is_too_large else ReasonCode.PROTOCOL_ERROR
                self._lifecycle.expel(connection, code, f"topic alias {alias}", now)
                return None
            if topic != connection.topic_aliases.get(alias) and not self._remember(connection, alias, topic, now):
                self._lifecycle.expel(connection, ReasonCode.QUOTA_EXCEEDED, "topic aliases hold too many bytes", now)
                return None
            packet = _without_alias(packet, topic)
        if properties.payload_format and not _is_text(packet.payload):
            self._refuse(connection, packet, ReasonCode.PAYLOAD_FORMAT_INVALID, now)
            return None
        return packet

    def _remember(self, connection: Connection, alias: int, topic: str, now: Instant) -> bool:
        """Keep the new topic of an alias, if there is room for it."""
        known = connection.topic_aliases.get(alias)
        more = len(topic) - len(known or "")
        if more > 0 and not self._router.overflow.admits(more, connection.alias_bytes, now):
            return False
        connection.topic_aliases[alias] = topic
        connection.alias_bytes += more
        self._state.budget.total += more
        return True

    def _refuse(self, connection: Connection, packet: Publish, code: ReasonCode, now: Instant) -> None:
        """Leave the message with its publisher. Where no acknowledgement can say so, the connection ends."""
        self._state.counters.refused_messages += 1
        if code in DENIALS and connection.session is not None:
            self._state.reports.note_denial(connection.session, code, "publish", packet.topic)
        if packet.qos == 0 or connection.version != MQTT_5_0:
            self._lifecycle.expel(connection, code, _REASONS.get(code, "the message was refused"), now)
            return
        if packet.qos == 1:
            connection.send(Puback(packet.packet_id, code))
        else:
            connection.send(Pubrec(packet.packet_id, code))

    # -- the application ----------------------------------------------------------------------------------------------

    def _serve(
        self, application: Application, connection: Connection, client_id: str, packet: Publish, now: Instant
    ) -> None:
        try:
            effects = application.handle(client_id, packet, now)
        except Exception as error:  # noqa: BLE001 - a fault of the application must not take the broker down
            self._state.reports.note_fault(error)
            self._refuse(connection, packet, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, now)
            return
        if packet.qos and connection.version == MQTT_5_0 and effects and type(effects[0]) is Drop:
            acknowledgement = Puback if packet.qos == 1 else Pubrec
            connection.send(acknowledgement(packet.packet_id, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR))
        elif packet.qos == 1:
            connection.acknowledge(packet.packet_id)
        elif packet.qos == 2 and connection.session is not None:
            self._accept(connection, connection.session, packet)
        self._effects.perform(effects, now, connection)
        if self._state.events is not None:
            self._state.events.published(client_id, packet)

    # -- acknowledgements of subscribers: what they end, and what they make room for (MQTT 5.0, 4.3, 4.9) ------------

    def puback(self, connection: Connection, session: Session, packet: Puback, now: Instant) -> None:
        outbound = session.outbound
        answer = outbound.acknowledged(packet.packet_id)
        if answer is _DONE:
            if outbound.waiting.items or outbound.resend or session.cursors or session.waits_in:
                self._router.send_pending(session, now)
        elif answer is Answer.WRONG:
            self._lifecycle.expel(connection, ReasonCode.PROTOCOL_ERROR, "PUBACK for QoS 2", now)

    def pubrec(self, connection: Connection, session: Session, packet: Pubrec, now: Instant) -> None:
        is_refused = packet.reason_code >= ReasonCode.UNSPECIFIED_ERROR
        answer = session.outbound.received(packet.packet_id, refused=is_refused)
        if answer is Answer.WRONG:
            self._lifecycle.expel(connection, ReasonCode.PROTOCOL_ERROR, "PUBREC for QoS 1", now)
        elif is_refused:
            self._router.send_pending(session, now)
        elif answer is Answer.UNKNOWN:
            connection.send(Pubrel(packet.packet_id, connection.detail(ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)))
        else:
            connection.acknowledge(packet.packet_id, PUBREL)

    def pubcomp(self, connection: Connection, session: Session, packet: Pubcomp, now: Instant) -> None:
        answer = session.outbound.completed(packet.packet_id)
        if answer is _DONE:
            self._router.send_pending(session, now)
        elif answer is Answer.WRONG:
            self._lifecycle.expel(connection, ReasonCode.PROTOCOL_ERROR, "PUBCOMP before PUBREL", now)


def _without_alias(packet: Publish, topic: str) -> Publish:
    """The packet with its topic in full: a topic alias ends at this hop (MQTT 5.0, 3.3.2.3.4)."""
    given = packet.properties
    properties = PublishProperties(
        given.payload_format,
        given.message_expiry,
        given.content_type,
        given.response_topic,
        given.correlation_data,
        given.user_properties,
    )
    return Publish(topic, packet.payload, packet.qos, packet.retain, packet.dup, packet.packet_id, properties)


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
