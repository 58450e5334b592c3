"""Clients come and go: sessions get and lose their connection, outlive it, and end (MQTT 5.0, 4.1)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.packets import Pubrel, ReasonCode
from statestore_client.server.broker.message import will_bytes, will_packet
from statestore_client.server.broker.records import WillRecord
from statestore_client.server.broker.session import CloseReason, Connection
from statestore_client.server.broker.state import PendingDisconnect
from statestore_client.server.broker.subscriptions import session_changed
from statestore_client.wire.instant import Instant

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from statestore_client.mqtt.packets import Disconnect, Will
    from statestore_client.server.broker.admission import Permissions
    from statestore_client.server.broker.application import Application
    from statestore_client.server.broker.journal_writer import BrokerPersistence
    from statestore_client.server.broker.router import EffectRunner, Router
    from statestore_client.server.broker.scheduling import Timer
    from statestore_client.server.broker.session import Session
    from statestore_client.server.broker.state import State


@attrs.define(eq=False)
class SessionLifecycle:
    """Binds sessions to connections and unbinds them."""

    _state: State
    _router: Router
    _effects: EffectRunner

    # -- connections --------------------------------------------------------------------------------------------------

    def attach(self, session: Session, connection: Connection, window: int, now: Instant) -> None:
        """The session's client is here; send again what was in flight, then what waits. CONNACK went before."""
        timers = self._state.timers
        timers.cancel(session.expiry_timer)
        timers.cancel(session.will_timer)
        session.expiry_timer = session.will_timer = session.left_at = None
        self._state.clients += 1
        counters = self._state.counters
        counters.most_clients = max(counters.most_clients, self._state.clients)
        self._state.connection_quotas.take(connection, session.user)
        session.connection = connection
        connection.session = session
        self._state.sessions.client_came(session)
        session.inbound.resume(connection.receive_maximum)
        for packet_id in session.outbound.resume(window):
            connection.send(Pubrel(packet_id))
        if self._state.persistence is not None:
            self._write_down(session, self._state.persistence)
        self._router.send_pending(session, now)
        if session.waits_in:
            session_changed(session)
        if self._state.events is not None:
            self._state.events.connected(connection, session.client_id)

    def detach(
        self,
        connection: Connection,
        now: Instant,
        *,
        with_will: bool,
        lost: Callable[[Session, Instant], None] | None = None,
    ) -> None:
        """The connection is over, for whatever reason. Safe to call twice. ``lost`` is what becomes of its session,
        instead of :meth:`connection_lost`.
        """
        timers = self._state.timers
        timers.cancel(connection.timer)
        connection.timer = None
        session = connection.session
        self._state.budget.total -= connection.alias_bytes + connection.held_bytes
        connection.alias_bytes = connection.held_bytes = 0
        connection.held = None
        connection.topic_aliases.clear()
        connection.aliases = None
        if session is None or session.connection is not connection:
            return
        if self._state.events is not None:
            self._state.events.disconnected(connection, session.client_id)
        self._state.clients -= 1
        self._state.connection_quotas.give_back(connection)
        session.connection = None
        session.waiting0.clear()
        session.outbound.suspend()
        if session.shares:
            session_changed(session)
        for application in self._state.applications.all:
            self._tell_application(application, session.client_id, now)
        if not with_will:
            self.put_will(session, None)
        for topic_filter in [name for name, cursor in session.cursors.items() if not cursor.qos]:
            del session.cursors[topic_filter]
        (lost or self.connection_lost)(session, now)

    def expel(self, connection: Connection, reason_code: int, reason: str, now: Instant) -> None:
        """The broker ends a connection: DISCONNECT with the reason where the version has it, will, close."""
        connection.disconnect(reason_code, reason)
        self.detach(connection, now, with_will=True)

    def disconnect(self, connection: Connection, session: Session, packet: Disconnect, now: Instant) -> None:
        """DISCONNECT: the last packet of the client. Only the normal one discards the will (MQTT-3.14.4-3)."""
        expiry_s = packet.properties.session_expiry
        if expiry_s is not None:
            if expiry_s and session.ends_with_connection:
                # MQTT 5.0, 3.14.2.2.2: a session that was to end cannot be prolonged at its end.
                self.expel(connection, ReasonCode.PROTOCOL_ERROR, "session expiry was 0", now)
                return
            session.expiry_s = min(expiry_s, self._state.limits.session_expiry_s)
        with_will = packet.reason_code != ReasonCode.SUCCESS
        connection.close(CloseReason(packet.reason_code, "", by_peer=True))
        self.detach(connection, now, with_will=with_will)

    def _tell_application(self, application: Application, client_id: str, now: Instant) -> None:
        try:
            application.client_disconnected(client_id, now)
        except Exception as error:  # noqa: BLE001 - a fault of the application must not take the broker down
            self._state.reports.note_fault(error)

    def _write_down(self, session: Session, persistence: BrokerPersistence) -> None:
        """Its client has come, perhaps with another expiry or will. One that ends with its connection ends in a crash,
        too: of it, only the will survives.
        """
        if session.ends_with_connection:
            session.forget_records()
        if session.persister is not None:
            session.save()
        elif session.will is not None:
            persistence.await_will(session.client_id, WillRecord(session.user, session.will))

    # -- keep alive ---------------------------------------------------------------------------------------------------

    def watch(self, connection: Connection, silence_s: float, now: Instant) -> None:
        """Disconnect when nothing comes for ``silence_s``; 0 for never."""
        timers = self._state.timers
        timers.cancel(connection.timer)
        connection.timer = None
        connection.silence_s = silence_s
        if silence_s:
            connection.timer = timers.add(now.monotonic + silence_s, partial(self._check_silence, connection))

    def _check_silence(self, connection: Connection, now: Instant) -> None:
        due = connection.last_received + connection.silence_s
        if due > now.monotonic:
            connection.timer = self._state.timers.add(due, partial(self._check_silence, connection))
        elif connection.verification is not None and connection.session is None:
            connection.refuse(ReasonCode.SERVER_UNAVAILABLE, "the credentials could not be verified in time")
        elif connection.session is None:
            connection.close(CloseReason(ReasonCode.KEEP_ALIVE_TIMEOUT, "no CONNECT in time"))
        else:
            self.expel(connection, ReasonCode.KEEP_ALIVE_TIMEOUT, "keep alive", now)

    # -- the end of sessions ------------------------------------------------------------------------------------------

    def end(self, session: Session, now: Instant) -> None:
        """The session is over: expired, or taken over by a clean start. A will that waits goes out now (3.1.3.2.2)."""
        state = self._state
        state.timers.cancel(session.expiry_timer)
        state.timers.cancel(session.will_timer)
        session.expiry_timer = session.will_timer = None
        state.subscriptions.remove_all(session)
        self.send_will(session, now)  # while its client is still known: what it may do counts for its will, too
        state.sessions.remove(session)
        state.dropped_messages.ended(session)

    def connection_lost(self, session: Session, now: Instant) -> None:
        """From this moment on a will is delayed and the session expires, or it is over."""
        if session.ends_with_connection:
            self.end(session, now)
            return
        self._state.sessions.client_left(session)
        session.left_at = now.monotonic
        self.watch_end(session, now)
        self._delay_will(session, now)
        session.save()

    def watch_end(self, session: Session, now: Instant) -> None:
        """The session of an absent client ends when its time has come, or earlier when room is short."""
        ends_at, limit = session.ends_at, now.monotonic + self._state.limits.evict_after_s
        due = limit if ends_at is None else min(ends_at, limit)
        session.expiry_timer = self._state.timers.add(due, partial(self._check_end, session))

    def _check_end(self, session: Session, now: Instant) -> None:
        ends_at = session.ends_at
        if ends_at is not None and ends_at <= now.monotonic:
            self.end(session, now)
        elif self._state.is_short_of_room:
            # An automated response to a lack of resources: MQTT 5.0, 4.1.1 has it that sessions may end so.
            self._state.counters.evicted_sessions += 1
            self.end(session, now)
        else:
            self.watch_end(session, now)

    # -- wills: what goes out when a client is gone without a word (MQTT 5.0, 3.1.2.5, 3.1.3.2) ------------------------
    #
    # The delay of a will and the expiry of its session both start when the connection is lost; the will goes out at the
    # earlier of the two, and not at all when the client is back before, with or without its session.

    def put_will(self, session: Session, will: Will | None) -> None:
        """Replace the session's will."""
        self._state.budget.total += will_bytes(will) - will_bytes(session.will)
        session.will = will
        if will is None and self._state.persistence is not None:
            self._state.persistence.forget_will(session.client_id)

    def _delay_will(self, session: Session, now: Instant) -> None:
        """The will of a session that goes on: now, or after its delay, unless the end of the session is earlier."""
        delay_s = 0 if session.will is None else session.will.properties.will_delay or 0
        if delay_s:
            session.will_timer = self._state.timers.add(now.monotonic + delay_s, partial(self.send_will, session))
        elif session.will is not None:
            self.send_will(session, now)

    def send_will(self, session: Session, now: Instant) -> None:
        """The session's will goes out, if it has one."""
        will = session.will
        self.put_will(session, None)
        session.will_timer = None
        session.save()
        if will is not None:
            self._effects.publish_will(will_packet(will), session.client_id, now)


# -- permissions -------------------------------------------------------------------------------------------------------
#
# What the clients of sessions may do, asked again: after a restart, and when the rules have changed.


@attrs.define(eq=False)
class SessionPermissions:
    """Asks the gatekeeper. Without one, everybody may do everything."""

    _state: State
    _lifecycle: SessionLifecycle

    @property
    def rules(self) -> object:
        """Another object when they have changed."""
        return None if self._state.gatekeeper is None else self._state.gatekeeper.rules

    def ask(self, session: Session) -> None:
        """Of a session from a record. Its subscriptions stay as they are."""
        if self._state.gatekeeper is not None:
            session.permissions = self._state.gatekeeper.permissions(session.user, session.client_id)

    def renew(self, session: Session) -> None:
        """The same, and subscriptions that are not permitted end: the rules may have changed."""
        self.ask(session)
        session.has_lost_rights = True
        if session.permissions is not None:
            self._end_forbidden(session, session.permissions)

    def review(self, gone: Collection[str]) -> None:
        """Of all sessions. Those whose rules have changed are to be disconnected; those of users that are ``gone`` are
        to end, here or not, without their wills: nobody is left whose rights these would have.
        """
        gatekeeper = self._state.gatekeeper
        if gatekeeper is None:
            return
        for session in self._state.sessions.all():
            if session.user in gone:
                self._lifecycle.put_will(session, None)
                reason = "the user was removed"
                pending = PendingDisconnect(session, ReasonCode.ADMINISTRATIVE_ACTION, reason, ends_session=True)
                self._state.pending_disconnects.append(pending)
                continue
            permissions = gatekeeper.permissions(session.user, session.client_id)
            if permissions == session.permissions:
                continue
            session.permissions, session.has_lost_rights = permissions, True
            if permissions is not None:
                self._end_forbidden(session, permissions)
            if session.connection is not None:
                code, reason = ReasonCode.ADMINISTRATIVE_ACTION, "the access rules have changed"
                self._state.pending_disconnects.append(PendingDisconnect(session, code, reason))

    def _end_forbidden(self, session: Session, permissions: Permissions) -> None:
        """End the subscriptions that are no longer permitted."""
        for topic_filter in tuple(session.subscriptions):
            if not permissions.may_subscribe(topic_filter):
                self._state.reports.note_denial(session, ReasonCode.NOT_AUTHORIZED, "subscribe", topic_filter)
                session.cursors.pop(topic_filter, None)
                self._state.subscriptions.remove(session, topic_filter)


# -- awaited -----------------------------------------------------------------------------------------------------------
#
# Clients that are expected back: they were connected when the server before this one went, or this server has let them
# go, because it could not serve them for a while.
#
# None of them has lost its connection by its own doing, so each has a while to come back. One that does not has lost it
# in the moment when that is over: from then on a will is delayed and a session expires (MQTT 5.0, 3.1.2.5, 3.1.2.11.2),
# and a session that ends with its connection has ended. So a change of servers is not the death of all clients, and
# those who watch for wills are back before the first one.
#
# Nothing is written when they begin to be awaited. In the journal they are connected until they are not awaited any
# more, so the next server, if this one goes soon, awaits them anew.


#: Clients try again after one to four seconds at first, most of them at once.
GRACE_S: Final = 5.0

#: Of ten thousand clients that do not come back, each may have a will.
_AT_ONCE: Final = 64


@attrs.define(eq=False)
class ReconnectGrace:
    """Awaits them, and gives them up."""

    _state: State
    _lifecycle: SessionLifecycle
    _permissions: SessionPermissions
    _timer: Timer | None = None

    def begin(self, now: Instant) -> None:
        """Those in :attr:`.State.awaited` have :data:`GRACE_S` from now on."""
        awaited = self._state.awaited
        self._state.timers.cancel(self._timer)
        if awaited.sessions or awaited.wills:
            self._timer = self._state.timers.add(now.monotonic + GRACE_S, self._give_up)

    def let_go(self, session: Session, now: Instant) -> None:
        """Its connection was ended by this server, and so is no loss: :meth:`begin` comes next. Of a session that ends
        with it the will is left, as after a restart.
        """
        awaited = self._state.awaited
        if not session.ends_with_connection:
            awaited.sessions[session] = None
            return
        will, session.will = session.will, None  # it counts on, and is not sent
        self._lifecycle.end(session, now)
        if will is not None:
            record = awaited.wills[session.client_id] = WillRecord(session.user, will)
            if self._state.persistence is not None:
                self._state.persistence.await_will(session.client_id, record)

    def came_back(self, client_id: str, user: str | None, now: Instant) -> None:
        """Somebody connects under this client identifier: the one who is awaited, unless the user is another one."""
        record = self._state.awaited.wills.get(client_id)
        if record is None:
            return
        if record.user == user:
            self._take_back(client_id)
        else:
            self._send(client_id, now)

    def users_gone(self, gone: Collection[str]) -> None:
        """Of these nobody comes back, and nobody is left whose rights their wills would have."""
        for client_id, record in tuple(self._state.awaited.wills.items()):
            if record.user in gone:
                self._take_back(client_id)

    def _take_back(self, client_id: str) -> None:
        """The will is not sent."""
        self._forget(client_id)
        if self._state.persistence is not None:
            self._state.persistence.forget_will(client_id)

    def _give_up(self, now: Instant) -> None:
        """Some of those who did not come back, and others in the next turn."""
        awaited = self._state.awaited
        for client_id in [*awaited.wills][:_AT_ONCE]:
            self._send(client_id, now)
        for session in [*awaited.sessions][:_AT_ONCE]:
            del awaited.sessions[session]
            if session.connection is None and session.left_at is None and not session.is_over:
                self._lifecycle.connection_lost(session, now)
        if awaited.sessions or awaited.wills:
            self._timer = self._state.timers.add(now.monotonic, self._give_up)

    def _send(self, client_id: str, now: Instant) -> None:
        """The will of a session that is over: it needs one once more, because what its client may do counts."""
        record = self._forget(client_id)
        session = self._state.sessions.create(client_id, record.user)
        self._lifecycle.put_will(session, record.will)
        self._permissions.renew(session)
        self._lifecycle.end(session, now)

    def _forget(self, client_id: str) -> WillRecord:
        record = self._state.awaited.wills.pop(client_id)
        self._state.budget.total -= will_bytes(record.will)
        return record
