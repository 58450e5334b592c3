"""CONNECT: who may in, which session is theirs, and what CONNACK tells them (MQTT 5.0, 3.1, 3.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.packets import (
    DEFAULT_RECEIVE_MAXIMUM,
    MQTT_5_0,
    Connack,
    ConnackProperties,
    Connect,
    ReasonCode,
)
from statestore_client.server.broker.limits import NEVER_EXPIRES

if TYPE_CHECKING:
    from random import Random

    from statestore_client.server.broker.connection import Connection
    from statestore_client.server.broker.presence import Presence
    from statestore_client.server.broker.sessions import Session
    from statestore_client.server.broker.state import State
    from statestore_client.wire.instant import Instant

__all__ = ["Connecting"]

#: A client may be silent for one and a half keep-alives (MQTT-3.1.2-22).
_KEEP_ALIVE_GRACE: Final = 1.5


@attrs.define(eq=False)
class Connecting:
    """Turns a connection into the connection of a session."""

    _state: State
    _presence: Presence
    _random: Random

    def connect(self, connection: Connection, packet: Connect, now: Instant) -> None:
        connection.version = packet.version
        connection.last_received = now.monotonic
        if packet.properties.maximum_packet_size is not None:
            connection.maximum_packet_size = packet.properties.maximum_packet_size
        refusal = self._refusal(packet)
        if refusal is not None:
            self._state.counters.refused_connects += 1
            connection.refuse(*refusal)
            return
        client_id = packet.client_id or self._new_client_id()
        session, is_present = self._session_for(client_id, packet, now)
        session.expiry_s = self._expiry_s(packet)
        session.will = packet.will
        keep_alive_s = self._keep_alive_s(packet)
        self._state.counters.connects += 1
        connection.send(Connack(is_present, ReasonCode.SUCCESS, self._answer(packet, client_id, keep_alive_s)))
        self._presence.watch(connection, keep_alive_s * _KEEP_ALIVE_GRACE, now)
        self._presence.attach(session, connection, self._window(packet), now)

    def _refusal(self, packet: Connect) -> tuple[ReasonCode, str] | None:
        limits = self._state.limits
        if packet.properties.authentication_method is not None:
            return ReasonCode.BAD_AUTHENTICATION_METHOD, "enhanced authentication is not supported"
        if not packet.client_id and not packet.clean_start and packet.version != MQTT_5_0:
            # MQTT 3.1.1, 3.1.3-8: a session that nobody could come back to.
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "a session needs a client identifier"
        if len(packet.client_id.encode()) > limits.client_id_bytes:
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "the client identifier is too long"
        if packet.will is not None and packet.will.topic.count("/") >= limits.topic_levels:
            return ReasonCode.TOPIC_NAME_INVALID, "the topic of the will has too many levels"
        if self._state.clients >= limits.connections:
            return ReasonCode.SERVER_BUSY, "too many connections"
        if self._state.sessions.is_full and packet.client_id not in self._state.sessions:
            return ReasonCode.QUOTA_EXCEEDED, "too many sessions"
        return None

    def _session_for(self, client_id: str, packet: Connect, now: Instant) -> tuple[Session, bool]:
        """The session and whether it was there before (MQTT-3.1.2-4 to -6). An older connection of it ends
        (MQTT-3.1.4-3).
        """
        sessions = self._state.sessions
        session = sessions.get(client_id)
        if session is not None and session.connection is not None:
            self._state.counters.takeovers += 1
            self._presence.expel(session.connection, ReasonCode.SESSION_TAKEN_OVER, "session taken over", now)
            session = sessions.get(client_id)  # gone, if it was to end with its connection
        if session is not None and packet.clean_start:
            self._presence.end(session, now)
            session = None
        if session is None:
            return sessions.create(client_id), False
        return session, True

    def _new_client_id(self) -> str:
        while True:
            client_id = f"auto-{self._random.getrandbits(96):024x}"
            if client_id not in self._state.sessions:
                return client_id

    def _expiry_s(self, packet: Connect) -> int:
        wish = packet.properties.session_expiry or 0
        if packet.version != MQTT_5_0:
            wish = 0 if packet.clean_start else NEVER_EXPIRES
        return min(wish, self._state.limits.session_expiry_s)

    def _keep_alive_s(self, packet: Connect) -> int:
        """3.1.1 has no way to tell a client that the server wants another one than it asked for."""
        limit = self._state.limits.keep_alive_s
        if limit and packet.version == MQTT_5_0 and not 0 < packet.keep_alive <= limit:
            return limit
        return packet.keep_alive

    def _window(self, packet: Connect) -> int:
        wish = packet.properties.receive_maximum or DEFAULT_RECEIVE_MAXIMUM
        return min(wish, self._state.limits.in_flight)

    def _answer(self, packet: Connect, client_id: str, keep_alive_s: int) -> ConnackProperties:
        """Only what differs from the protocol's defaults: some clients stumble over many properties."""
        limits = self._state.limits
        expiry_s = self._expiry_s(packet)
        return ConnackProperties(
            session_expiry=None if expiry_s == (packet.properties.session_expiry or 0) else expiry_s,
            receive_maximum=None if limits.receive_maximum == DEFAULT_RECEIVE_MAXIMUM else limits.receive_maximum,
            maximum_packet_size=limits.packet_bytes,
            assigned_client_id=None if packet.client_id else client_id,
            topic_alias_maximum=limits.topic_alias_maximum or None,
            server_keep_alive=None if keep_alive_s == packet.keep_alive else keep_alive_s,
        )
