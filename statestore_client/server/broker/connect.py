"""CONNECT: who may in, which session is theirs, and what CONNACK tells them (MQTT 5.0, 3.1, 3.2)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

import attrs

from statestore_client.mqtt.packets import (
    DEFAULT_RECEIVE_MAXIMUM,
    MQTT_5_0,
    Auth,
    AuthProperties,
    Connack,
    ConnackProperties,
    Connect,
    Disconnect,
    ReasonCode,
    encode,
    topic_name_problem,
)
from statestore_client.server.broker.admission import Admitted, Credentials, Refusal
from statestore_client.server.broker.limits import LARGEST_PACKET_BYTES, NEVER_EXPIRES
from statestore_client.server.broker.message import will_bytes
from statestore_client.server.broker.quotas import CONNECTIONS, PER_ADDRESS
from statestore_client.server.broker.reports import DROPPED_MESSAGES
from statestore_client.server.broker.session import SESSIONS, CloseReason, OutgoingAliases, PendingAuth
from statestore_client.server.shares import PER_USER
from statestore_client.wire.administration import is_control_topic

if TYPE_CHECKING:
    from random import Random

    from statestore_client.mqtt.packets import Packet
    from statestore_client.server.broker.admission import Permissions, Verdict
    from statestore_client.server.broker.lifecycle import ReconnectGrace, SessionLifecycle
    from statestore_client.server.broker.overflow import OverflowPolicy
    from statestore_client.server.broker.session import Connection, Session
    from statestore_client.server.broker.state import State
    from statestore_client.wire.instant import Instant

#: A client may be silent for one and a half keep-alives (MQTT-3.1.2-22).
_KEEP_ALIVE_GRACE: Final = 1.5

#: What is said to a client that is one too many, by the name of the quota.
_TOO_MANY: Final = {
    CONNECTIONS: "too many connections",
    CONNECTIONS + PER_USER: "too many connections of this user",
    CONNECTIONS + PER_ADDRESS: "too many connections from this address",
    SESSIONS: "too many sessions",
    SESSIONS + PER_USER: "too many sessions of this user",
}

#: Text of MQTT is no longer (MQTT 5.0, 1.5.4).
_LONGEST_TEXT: Final = 65_535


@attrs.define(eq=False)
class ConnectHandler:
    """Turns a connection into the connection of a session."""

    _state: State
    _overflow: OverflowPolicy
    _lifecycle: SessionLifecycle
    _awaited: ReconnectGrace
    _random: Random

    def connect(self, connection: Connection, packet: Connect, now: Instant) -> None:
        connection.version = packet.version
        connection.client_id = packet.client_id
        connection.last_received = now.monotonic
        if packet.properties.maximum_packet_size is not None:
            connection.maximum_packet_size = packet.properties.maximum_packet_size
        connection.wants_reasons = packet.properties.request_problem_information == 1
        connection.receive_maximum = self._receive_maximum(packet)
        if packet.will is not None and is_control_topic(packet.will.topic):
            # It would give a command when nobody is there to answer for it: no such client is answered.
            self._state.counters.refused_connects += 1
            connection.was_refused = True
            connection.close(CloseReason(ReasonCode.NOT_AUTHORIZED, "a will for $CONTROL"))
            return
        refusal = self._refusal(packet, now)
        if refusal is not None:
            self._refuse(connection, refusal)
            return
        connection.method = packet.properties.authentication_method
        verdict = self._authenticate(connection, packet)
        if verdict is not None:
            self.verified(connection, packet, verdict, now)

    def verified(
        self, connection: Connection, packet: Connect, verdict: Verdict, now: Instant, *, was_held: bool = False
    ) -> None:
        """The verdict on the credentials is there, at once or after a while."""
        if isinstance(verdict, Refusal):
            self._refuse(connection, verdict)
            return
        client_id = packet.client_id or self._new_client_id()
        user, gatekeeper = verdict.user, self._state.gatekeeper
        permissions = None if gatekeeper is None else gatekeeper.permissions(user, client_id)
        refusal = (
            self._refusal(packet, now)
            or self._not_permitted(client_id, packet, user, permissions)
            or self._beyond_quota(connection, client_id, user)
        )
        if refusal is not None:
            self._refuse(connection, refusal)
            return
        if not was_held and self._flaps(client_id, now):
            self._hold(connection, packet, verdict, now)
            return
        expiry_s = self._expiry_s(packet)
        session, is_present = self._session_for(
            client_id, user, now, clean_start=packet.clean_start, is_lasting=expiry_s > 0
        )
        session.expiry_s = expiry_s
        self._lifecycle.put_will(session, packet.will)
        session.permissions = permissions
        connection.aliases = self._aliases(packet)
        keep_alive_s = self._keep_alive_s(packet)
        self._state.counters.connects += 1
        answer = self._answer(packet, client_id, keep_alive_s)
        connack = Connack(is_present and not packet.is_3_1, ReasonCode.SUCCESS, answer)
        connection.send(self._with_losses(connection, connack, session))
        self._lifecycle.watch(connection, keep_alive_s * _KEEP_ALIVE_GRACE, now)
        self._lifecycle.attach(session, connection, self._window(packet), now)

    def _with_losses(self, connection: Connection, connack: Connack, session: Session) -> Connack:
        """Tell the client what it has lost since its last connection, if it understands and accepts a packet of that
        size (MQTT-3.2.2-20).
        """
        dropped_messages = self._state.dropped_messages
        text = dropped_messages.notice_for(session.client_id, session.user) if connection.version == MQTT_5_0 else None
        if text is None:
            return connack
        properties = attrs.evolve(connack.properties, user_properties=((DROPPED_MESSAGES, text),))
        longer = attrs.evolve(connack, properties=properties)
        if len(encode(longer)) > connection.maximum_packet_size:
            return connack
        dropped_messages.forget(session.client_id)
        return longer

    def _refuse(self, connection: Connection, refusal: Refusal) -> None:
        self._state.counters.refused_connects += 1
        connection.refuse(refusal.reason_code, refusal.reason)

    # -- one session per client identifier, and one connection per session (MQTT 5.0, 3.1.4, 4.1) ----------------------

    def _session_for(
        self, client_id: str, user: str | None, now: Instant, *, clean_start: bool, is_lasting: bool
    ) -> tuple[Session, bool]:
        """The session and whether it was there before (MQTT-3.1.2-4 to -6). An older connection of it ends
        (MQTT-3.1.4-3). ``is_lasting``: a new one is to outlive its connections.
        """
        self._awaited.came_back(client_id, user, now)
        sessions = self._state.sessions
        session = sessions.get(client_id)
        was_away = session is not None and session.connection is None
        if session is not None and session.connection is not None:
            self._state.counters.takeovers += 1
            self._state.throttle.took_over(client_id, now.monotonic)
            self._lifecycle.expel(session.connection, ReasonCode.SESSION_TAKEN_OVER, "session taken over", now)
            session = sessions.get(client_id)  # gone, if it was to end with its connection
        if session is not None and clean_start:
            if was_away:
                # A new connection for the client identifier before the delay is over takes the will back, whatever
                # becomes of the session (MQTT-3.1.2-8). One that is taken over leaves its will (3.1.3.2.2).
                self._lifecycle.put_will(session, None)
            self._lifecycle.end(session, now)
            session = None
        if session is None:
            self._make_room(user, now)
            return sessions.create(client_id, user, is_lasting=is_lasting), False
        return session, True

    def _make_room(self, user: str | None, now: Instant) -> None:
        """End a session that nobody uses, if there are too many: otherwise no new client could ever come in."""
        sessions = self._state.sessions
        quota = sessions.shares.lacking(user, 1, 1)
        dispensable = None if quota is None else sessions.dispensable(user, quota)
        if dispensable is not None:
            self._state.counters.evicted_sessions += 1
            self._lifecycle.end(dispensable, now)

    # -- who steals the session of whom -------------------------------------------------------------------------------

    def _connection_of(self, client_id: str) -> Connection | None:
        session = self._state.sessions.get(client_id)
        return None if session is None else session.connection

    def _flaps(self, client_id: str, now: Instant) -> bool:
        is_taken = self._connection_of(client_id) is not None
        return is_taken and self._state.throttle.has_to_wait(client_id, now.monotonic)

    def _hold(self, connection: Connection, packet: Connect, verdict: Verdict, now: Instant) -> None:
        """Answer this CONNECT after a while. Of several that wait only the latest one still does."""
        state, client_id = self._state, packet.client_id
        earlier = state.throttle.held.get(client_id)
        if earlier is not None and earlier.is_current:
            reason = "another connection with this client identifier is waiting, too"
            self._refuse(earlier.connection, Refusal(ReasonCode.CONNECTION_RATE_EXCEEDED, reason))
        verification = PendingAuth(connection, Credentials(client_id), packet)
        connection.verification = state.throttle.held[client_id] = verification
        state.counters.held_connects += 1
        due = now.monotonic + state.limits.flapping_hold_s
        state.timers.add(due, partial(self._release, verification, verdict))

    def _release(self, verification: PendingAuth, verdict: Verdict, now: Instant) -> None:
        del now
        held, client_id = self._state.throttle.held, verification.credentials.client_id
        if held.get(client_id) is verification:
            del held[client_id]
        if verification.is_current:
            self._state.released.append((verification, verdict))

    # -- what is wrong with it ----------------------------------------------------------------------------------------

    def _beyond_quota(self, connection: Connection, client_id: str, user: str | None) -> Refusal | None:
        state = self._state
        lacking = state.connection_quotas.lacking(connection, user, self._connection_of(client_id))
        quota = lacking or state.sessions.lacking(client_id, user)
        return None if quota is None else self._too_many(quota)

    def _too_many(self, quota: str) -> Refusal:
        self._state.quota_refusals[quota] += 1
        code = ReasonCode.SERVER_BUSY if quota == CONNECTIONS else ReasonCode.QUOTA_EXCEEDED
        return Refusal(code, _TOO_MANY[quota])

    def _not_permitted(
        self, client_id: str, packet: Connect, user: str | None, permissions: Permissions | None
    ) -> Refusal | None:
        session = self._state.sessions.get(client_id)
        if session is not None and session.user != user:
            # What waits in it, its subscriptions and its locks are another user's.
            return Refusal(ReasonCode.NOT_AUTHORIZED, "this client identifier has a session of another user")
        if permissions is None:
            return None
        will = packet.will
        if permissions.refusal is None and will is not None and not self._may_leave(will.topic, permissions):
            return Refusal(ReasonCode.NOT_AUTHORIZED, "the topic of the will is not permitted")
        return permissions.refusal

    def _may_leave(self, topic: str, permissions: Permissions) -> bool:
        """Whether a will may have this topic. What it asks of the application is checked when it is sent."""
        return self._state.applications.find(topic) is not None or permissions.may_publish(topic)

    def _refusal(self, packet: Connect, now: Instant) -> Refusal | None:
        limits = self._state.limits
        if not packet.client_id and not packet.clean_start and packet.version != MQTT_5_0:
            # MQTT 3.1.1, 3.1.3-8: a session that nobody could come back to.
            return Refusal(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "a session needs a client identifier")
        if not self._fits(packet):
            return Refusal(ReasonCode.PACKET_TOO_LARGE, "CONNACK is larger than the maximum packet size")
        if len(packet.client_id.encode()) > limits.client_id_bytes:
            return Refusal(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "the client identifier is too long")
        if packet.will is not None and packet.will.topic.count("/") >= limits.topic_levels:
            return Refusal(ReasonCode.TOPIC_NAME_INVALID, "the topic of the will has too many levels")
        missing = None if packet.will is None else self._state.capabilities.refuse_message(packet.will)
        if missing is not None:
            return missing
        size = will_bytes(packet.will)
        if packet.will is not None and size - len(packet.will.block or b"") > limits.will_bytes:
            return Refusal(ReasonCode.QUOTA_EXCEEDED, "the will is too large")
        if size and not self._overflow.admits(size, size, now):
            return Refusal(ReasonCode.QUOTA_EXCEEDED, "there is no room for the will")
        connections, sessions = self._state.connection_quotas.shares, self._state.sessions
        if connections.total >= connections.most and self._connection_of(packet.client_id) is None:
            return self._too_many(CONNECTIONS)  # whoever it is: no time is spent on finding out
        if packet.client_id not in sessions and not sessions.has_room_for_name(packet.client_id):
            return Refusal(ReasonCode.QUOTA_EXCEEDED, "there is no room for the client identifier")
        return None

    def _new_client_id(self) -> str:
        while True:
            client_id = f"auto-{UUID(int=self._random.getrandbits(128), version=4)}"
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

    def _fits(self, packet: Connect) -> bool:
        """Whether the client takes a packet as large as its CONNACK (MQTT-3.1.2-24)."""
        maximum = packet.properties.maximum_packet_size
        if maximum is None:
            return True
        answer = self._answer(packet, packet.client_id or self._new_client_id(), self._keep_alive_s(packet))
        return len(encode(Connack(False, ReasonCode.SUCCESS, answer))) <= maximum

    def _aliases(self, packet: Connect) -> OutgoingAliases | None:
        """The topic aliases that this client lets us use."""
        maximum = min(packet.properties.topic_alias_maximum or 0, self._state.limits.topic_alias_maximum)
        return OutgoingAliases(maximum, self._state.budget) if maximum else None

    def _receive_maximum(self, packet: Connect) -> int:
        """A client that takes many messages at a time is large enough to have many of its own under way."""
        limits = self._state.limits
        return min(max(packet.properties.receive_maximum or 0, limits.usual_receive_maximum), limits.receive_maximum)

    def _response_information(self, packet: Connect, client_id: str) -> str | None:
        """Only on request (MQTT-3.1.2-28), and nothing that could not be part of a topic."""
        template = self._state.limits.response_information
        if not template or not packet.properties.request_response_information or topic_name_problem(client_id):
            return None
        text = template.replace("{client_id}", client_id)
        return text if len(text.encode()) <= _LONGEST_TEXT else None

    def _answer(self, packet: Connect, client_id: str, keep_alive_s: int) -> ConnackProperties:
        """Only what differs from the protocol's defaults: some clients stumble over many properties."""
        limits, window = self._state.limits, self._receive_maximum(packet)
        tells_size = packet.properties.request_problem_information == 1 or limits.packet_bytes != LARGEST_PACKET_BYTES
        expiry_s = self._expiry_s(packet)
        answer = ConnackProperties(
            session_expiry=None if expiry_s == (packet.properties.session_expiry or 0) else expiry_s,
            receive_maximum=None if window == DEFAULT_RECEIVE_MAXIMUM else window,
            maximum_packet_size=limits.packet_bytes if tells_size else None,
            assigned_client_id=None if packet.client_id else client_id,
            authentication_method=packet.properties.authentication_method,
            topic_alias_maximum=limits.topic_alias_maximum or None,
            response_information=self._response_information(packet, client_id),
            server_keep_alive=None if keep_alive_s == packet.keep_alive else keep_alive_s,
        )
        return self._state.capabilities.announce(answer)

    # -- verdicts that take time, and AUTH (MQTT 5.0, 4.12) ------------------------------------------------------------
    #
    # The methods that the server knows have one step: the data is in CONNECT, or in the AUTH that begins a renewal, and
    # what follows is the last word::
    #
    #     CONNECT(method, data) -> CONNACK(method)            AUTH 0x19(method, data) -> AUTH 0x00(method)
    #
    # Invariant: a connection waits for at most one verdict.

    # -- before CONNACK -----------------------------------------------------------------------------------------------

    def _authenticate(self, connection: Connection, packet: Connect) -> Verdict | None:
        """The verdict on a CONNECT; None if it is being waited for."""
        method = packet.properties.authentication_method
        gatekeeper = self._state.gatekeeper
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
            self._wait(PendingAuth(connection, credentials, packet))
        return verdict

    def hold(self, connection: Connection, verification: PendingAuth, packet: Packet) -> None:
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
        gatekeeper = self._state.gatekeeper
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
        verification = PendingAuth(connection, credentials, None)
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

    def _wait(self, verification: PendingAuth) -> None:
        verification.connection.verification = verification
        self._state.reports.note_verification(verification)

    def _expire(self, verification: PendingAuth, now: Instant) -> None:
        if verification.is_current:
            verification.connection.verification = None
            refusal = Refusal(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "the token could not be verified in time")
            self._expel(verification.connection, refusal, now)

    def _expel(self, connection: Connection, refusal: Refusal, now: Instant) -> None:
        self._lifecycle.expel(connection, refusal.reason_code, refusal.reason, now)


def _unknown_method() -> Refusal:
    return Refusal(ReasonCode.BAD_AUTHENTICATION_METHOD, "this method of authentication is not available")
