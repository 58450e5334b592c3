"""Clients come and go: sessions get and lose their connection, outlive it, and end (MQTT 5.0, 4.1)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from statestore_client.mqtt.packets import Pubrel, ReasonCode
from statestore_client.server.broker.connection import Connection, Ending
from statestore_client.server.broker.routing.shared import session_changed
from statestore_client.wire.instant import Instant

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.server.broker.application import Application
    from statestore_client.server.broker.events import BrokerEvents
    from statestore_client.server.broker.persistence.persister import BrokerPersistence
    from statestore_client.server.broker.routing.router import Router
    from statestore_client.server.broker.session.session import Session
    from statestore_client.server.broker.session.wills import Wills
    from statestore_client.server.broker.state import State

__all__ = ["SessionLifecycle"]


@attrs.define(eq=False)
class SessionLifecycle:
    """Binds sessions to connections and unbinds them."""

    _state: State
    _router: Router
    _application: Application | None
    wills: Wills
    _events: BrokerEvents | None = None

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
        self._router.pump(session, now)
        if session.waits_in:
            session_changed(session)
        if self._events is not None:
            self._events.connected(connection, session.client_id)

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
        if self._events is not None:
            self._events.disconnected(connection, session.client_id)
        self._state.clients -= 1
        self._state.connection_quotas.give_back(connection)
        session.connection = None
        session.waiting0.clear()
        session.outbound.suspend()
        if session.shares:
            session_changed(session)
        if self._application is not None:
            self._tell_application(self._application, session.client_id, now)
        if not with_will:
            self.wills.put(session, None)
        for topic_filter in [name for name, walk in session.walks.items() if not walk.qos]:
            del session.walks[topic_filter]
        (lost or self.connection_lost)(session, now)

    def expel(self, connection: Connection, reason_code: int, reason: str, now: Instant) -> None:
        """The broker ends a connection: DISCONNECT with the reason where the version has it, will, close."""
        connection.disconnect(reason_code, reason)
        self.detach(connection, now, with_will=True)

    def leave(self, connection: Connection, reason_code: int, now: Instant, *, with_will: bool) -> None:
        """The client said DISCONNECT."""
        connection.close(Ending(reason_code, "", by_peer=True))
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
        if session.persister is not None and session.ends_with_connection:
            session.persister.end(session)
            session.persist(None)
        if session.persister is not None:
            session.persister.save(session)
        else:
            persistence.note_will(session)

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
            connection.close(Ending(ReasonCode.KEEP_ALIVE_TIMEOUT, "no CONNECT in time"))
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
        self.wills.send(session, now)  # while its client is still known: what it may do counts for its will, too
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
        self.wills.connection_lost(session, now)
        if session.persister is not None:
            session.persister.save(session)

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
