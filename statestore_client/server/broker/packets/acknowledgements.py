"""Acknowledgements of subscribers: what they end, and what they make room for (MQTT 5.0, 4.3, 4.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.packets import Puback, Pubcomp, Pubrec, Pubrel, ReasonCode
from statestore_client.mqtt.qos import PUBREL
from statestore_client.server.broker.session.qos_sender import Answer

if TYPE_CHECKING:
    from statestore_client.server.broker.connection import Connection
    from statestore_client.server.broker.routing.router import Router
    from statestore_client.server.broker.session.lifecycle import SessionLifecycle
    from statestore_client.server.broker.session.session import Session
    from statestore_client.wire.instant import Instant

__all__ = ["AcknowledgementHandler"]

_DONE: Final = Answer.DONE  # looking a member up in its enumeration takes as long as a call


@attrs.define(eq=False)
class AcknowledgementHandler:
    """Handles what subscribers say to the messages that they got."""

    _router: Router
    _lifecycle: SessionLifecycle

    def puback(self, connection: Connection, session: Session, packet: Puback, now: Instant) -> None:
        outbound = session.outbound
        answer = outbound.acknowledged(packet.packet_id)
        if answer is _DONE:
            if outbound.waiting.items or outbound.resend or session.walks or session.waits_in:
                self._router.pump(session, now)
        elif answer is Answer.WRONG:
            self._lifecycle.expel(connection, ReasonCode.PROTOCOL_ERROR, "PUBACK for QoS 2", now)

    def pubrec(self, connection: Connection, session: Session, packet: Pubrec, now: Instant) -> None:
        is_refused = packet.reason_code >= ReasonCode.UNSPECIFIED_ERROR
        answer = session.outbound.received(packet.packet_id, refused=is_refused)
        if answer is Answer.WRONG:
            self._lifecycle.expel(connection, ReasonCode.PROTOCOL_ERROR, "PUBREC for QoS 1", now)
        elif is_refused:
            self._router.pump(session, now)
        elif answer is Answer.UNKNOWN:
            connection.send(Pubrel(packet.packet_id, connection.detail(ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)))
        else:
            connection.acknowledge(packet.packet_id, PUBREL)

    def pubcomp(self, connection: Connection, session: Session, packet: Pubcomp, now: Instant) -> None:
        answer = session.outbound.completed(packet.packet_id)
        if answer is _DONE:
            self._router.pump(session, now)
        elif answer is Answer.WRONG:
            self._lifecycle.expel(connection, ReasonCode.PROTOCOL_ERROR, "PUBCOMP before PUBREL", now)
