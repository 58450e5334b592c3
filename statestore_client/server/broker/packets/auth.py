"""Verdicts that take time, and AUTH (MQTT 5.0, 4.12).

The methods that the server knows have one step: the data is in CONNECT, or in the AUTH that begins a renewal, and what
follows is the last word::

    CONNECT(method, data) -> CONNACK(method)            AUTH 0x19(method, data) -> AUTH 0x00(method)
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from statestore_client.mqtt.packets import Auth, AuthProperties, Disconnect, ReasonCode
from statestore_client.server.broker.admission import Admitted, Credentials, Refusal, Verification

if TYPE_CHECKING:
    from statestore_client.mqtt.packets import Connect, Packet
    from statestore_client.server.broker.admission import Gatekeeper, Verdict
    from statestore_client.server.broker.connection import Connection
    from statestore_client.server.broker.session.lifecycle import SessionLifecycle
    from statestore_client.server.broker.session.session import Session
    from statestore_client.server.broker.state import State
    from statestore_client.wire.instant import Instant

__all__ = ["AuthHandler"]


@attrs.define(eq=False)
class AuthHandler:
    """Waits for verdicts. Invariant: a connection waits for at most one."""

    _state: State
    _lifecycle: SessionLifecycle
    _gatekeeper: Gatekeeper | None

    # -- before CONNACK -----------------------------------------------------------------------------------------------

    def authenticate(self, connection: Connection, packet: Connect) -> Verdict | None:
        """The verdict on a CONNECT; None if it is being waited for."""
        method = packet.properties.authentication_method
        gatekeeper = self._gatekeeper
        if gatekeeper is None:
            return Admitted() if method is None else _unknown_method()
        credentials = Credentials(
            packet.client_id,
            connection.certificate,
            packet.username,
            packet.password,
            method,
            packet.properties.authentication_data,
        )
        verdict = gatekeeper.authenticate(credentials)
        if verdict is None:
            self._wait(Verification(connection, credentials, packet))
        return verdict

    def hold(self, connection: Connection, verification: Verification, packet: Packet) -> None:
        """Something came behind a CONNECT that is not answered yet. The runtime reads no more, so it is little."""
        if verification.credentials.method is not None and not isinstance(packet, Disconnect):
            # MQTT-3.1.2-30.
            connection.refuse(ReasonCode.PROTOCOL_ERROR, "only AUTH and DISCONNECT may come before CONNACK")
        else:
            verification.held.append(packet)

    # -- after CONNACK ------------------------------------------------------------------------------------------------

    def renew(self, connection: Connection, session: Session, packet: Auth, now: Instant) -> None:
        """AUTH: a client shows another token, before the last one expires."""
        method = packet.properties.authentication_method
        gatekeeper = self._gatekeeper
        if gatekeeper is None or connection.method is None or method is None:
            # MQTT-4.12.0-7: nothing of the kind was agreed upon in CONNECT.
            self._expel(connection, Refusal(ReasonCode.PROTOCOL_ERROR, "an AUTH without a method"), now)
            return
        if method != connection.method:  # MQTT-4.12.1-1
            self._expel(connection, _unknown_method(), now)
            return
        if packet.reason_code != ReasonCode.REAUTHENTICATE or connection.verification is not None:
            self._expel(connection, Refusal(ReasonCode.PROTOCOL_ERROR, "an AUTH that nobody asked for"), now)
            return
        credentials = Credentials(
            session.client_id, connection.certificate, method=method, data=packet.properties.authentication_data
        )
        verdict = gatekeeper.authenticate(credentials)
        if verdict is not None:
            self.renewed(connection, session, verdict, now)
            return
        verification = Verification(connection, credentials, None)
        self._wait(verification)
        due = now.monotonic + self._state.limits.connect_timeout_s
        self._state.timers.add(due, partial(self._expire, verification))

    def renewed(self, connection: Connection, session: Session, verdict: Verdict, now: Instant) -> None:
        """The verdict on a renewal. The connection stays that of the same user."""
        if isinstance(verdict, Refusal):
            code = verdict.reason_code
            if code == ReasonCode.SERVER_UNAVAILABLE:  # which DISCONNECT does not have
                code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
            self._expel(connection, Refusal(code, verdict.reason), now)
        elif verdict.user != session.user:
            self._expel(connection, Refusal(ReasonCode.NOT_AUTHORIZED, "the token of another user"), now)
        else:
            connection.send(Auth(ReasonCode.SUCCESS, AuthProperties(connection.method)))

    # -- both ---------------------------------------------------------------------------------------------------------

    def _wait(self, verification: Verification) -> None:
        verification.connection.verification = verification
        self._state.reports.note_verification(verification)

    def _expire(self, verification: Verification, now: Instant) -> None:
        if verification.is_current:
            verification.connection.verification = None
            refusal = Refusal(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "the token could not be verified in time")
            self._expel(verification.connection, refusal, now)

    def _expel(self, connection: Connection, refusal: Refusal, now: Instant) -> None:
        self._lifecycle.expel(connection, refusal.reason_code, refusal.reason, now)


def _unknown_method() -> Refusal:
    return Refusal(ReasonCode.BAD_AUTHENTICATION_METHOD, "this method of authentication is not available")
