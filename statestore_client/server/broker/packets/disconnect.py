"""DISCONNECT from clients (MQTT 5.0, 3.14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from statestore_client.mqtt.packets import ReasonCode

if TYPE_CHECKING:
    from statestore_client.mqtt.packets import Disconnect
    from statestore_client.server.broker.connection import Connection
    from statestore_client.server.broker.session.lifecycle import SessionLifecycle
    from statestore_client.server.broker.session.session import Session
    from statestore_client.server.broker.state import State
    from statestore_client.wire.instant import Instant

__all__ = ["DisconnectHandler"]


@attrs.define(eq=False)
class DisconnectHandler:
    """Lets clients go."""

    _state: State
    _lifecycle: SessionLifecycle

    def disconnect(self, connection: Connection, session: Session, packet: Disconnect, now: Instant) -> None:
        """The client's last packet. Only the normal one discards the will (MQTT-3.14.4-3)."""
        expiry_s = packet.properties.session_expiry
        if expiry_s is not None:
            if expiry_s and session.ends_with_connection:
                # MQTT 5.0, 3.14.2.2.2: a session that was to end cannot be prolonged at its end.
                self._lifecycle.expel(connection, ReasonCode.PROTOCOL_ERROR, "session expiry was 0", now)
                return
            session.expiry_s = min(expiry_s, self._state.limits.session_expiry_s)
        with_will = packet.reason_code != ReasonCode.SUCCESS
        self._lifecycle.leave(connection, packet.reason_code, now, with_will=with_will)
