"""Wills: the message that goes out when a client is gone without a word (MQTT 5.0, 3.1.2.5, 3.1.3.2).

The delay of a will and the expiry of its session both start when the connection is lost; the will goes out at the
earlier of the two, and not at all when the client is back before, with or without its session.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import attrs

from statestore_client.mqtt.packets import Publish, PublishProperties
from statestore_client.server.broker.message import OVERHEAD_BYTES, property_bytes
from statestore_client.wire.instant import Instant

if TYPE_CHECKING:
    from statestore_client.mqtt.packets import Will
    from statestore_client.server.broker.session.session import Session
    from statestore_client.server.broker.state import State

__all__ = ["PublishWill", "Wills", "will_bytes", "will_packet"]

#: Publish a will: the packet, the client identifier it is from, now.
PublishWill: TypeAlias = Callable[[Publish, str, Instant], None]


@attrs.define(eq=False)
class Wills:
    """Keeps the wills of sessions, counts what they hold, and sends them."""

    _state: State
    _publish: PublishWill

    def put(self, session: Session, will: Will | None) -> None:
        """Replace the session's will."""
        self._state.budget.total += will_bytes(will) - will_bytes(session.will)
        session.will = will
        if will is None and self._state.persistence is not None:
            self._state.persistence.forget_will(session.client_id)

    def connection_lost(self, session: Session, now: Instant) -> None:
        """The will of a session that goes on: now, or after its delay, unless the end of the session is earlier."""
        delay_s = 0 if session.will is None else session.will.properties.will_delay or 0
        if delay_s:
            session.will_timer = self._state.timers.add(now.monotonic + delay_s, partial(self.send, session))
        elif session.will is not None:
            self.send(session, now)

    def send(self, session: Session, now: Instant) -> None:
        """The session's will goes out, if it has one."""
        will = session.will
        self.put(session, None)
        session.will_timer = None
        if session.persister is not None:
            session.persister.save(session)
        if will is not None:
            self._publish(will_packet(will), session.client_id, now)


def will_packet(will: Will) -> Publish:
    """The PUBLISH that a will stands for (MQTT 5.0, 3.1.3.2)."""
    given = will.properties
    properties = PublishProperties(
        payload_format=given.payload_format,
        message_expiry=given.message_expiry,
        content_type=given.content_type,
        response_topic=given.response_topic,
        correlation_data=given.correlation_data,
        user_properties=given.user_properties,
    )
    return Publish(will.topic, will.payload, will.qos, will.retain, properties=properties, block=will.block)


def will_bytes(will: Will | None) -> int:
    """What a will holds, roughly; its properties twice, as read and as they came."""
    if will is None:
        return 0
    packet = will_packet(will)
    block = will.block or b""
    return len(packet.payload) + len(packet.topic) + OVERHEAD_BYTES + property_bytes(packet.properties) + len(block)
