"""Session take-over: one session per client identifier, and one connection per session (MQTT 5.0, 3.1.4, 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from statestore_client.mqtt.packets import ReasonCode

if TYPE_CHECKING:
    from statestore_client.server.broker.session.awaited import AwaitedClients
    from statestore_client.server.broker.session.lifecycle import SessionLifecycle
    from statestore_client.server.broker.session.session import Session
    from statestore_client.server.broker.state import State
    from statestore_client.wire.instant import Instant

__all__ = ["SessionTakeover"]


@attrs.define(eq=False)
class SessionTakeover:
    """Finds or makes the session of a client that may come in."""

    _state: State
    _lifecycle: SessionLifecycle
    _awaited: AwaitedClients

    def session_for(
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
            self._state.flapping.took_over(client_id, now.monotonic)
            self._lifecycle.expel(session.connection, ReasonCode.SESSION_TAKEN_OVER, "session taken over", now)
            session = sessions.get(client_id)  # gone, if it was to end with its connection
        if session is not None and clean_start:
            if was_away:
                # A new connection for the client identifier before the delay is over takes the will back, whatever
                # becomes of the session (MQTT-3.1.2-8). One that is taken over leaves its will (3.1.3.2.2).
                self._lifecycle.wills.put(session, None)
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
