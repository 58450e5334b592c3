"""Clients that are expected back: they were connected when the server before this one went, or this server has let them
go, because it could not serve them for a while.

None of them has lost its connection by its own doing, so each has a while to come back. One that does not has lost it
in the moment when that is over: from then on a will is delayed and a session expires (MQTT 5.0, 3.1.2.5, 3.1.2.11.2),
and a session that ends with its connection has ended. So a change of servers is not the death of all clients, and those
who watch for wills are back before the first one.

Nothing is written when they begin to be awaited. In the journal they are connected until they are not awaited any more,
so the next server, if this one goes soon, awaits them anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.server.broker.persistence.records import WillRecord
from statestore_client.server.broker.session.wills import will_bytes

if TYPE_CHECKING:
    from collections.abc import Collection

    from statestore_client.server.broker.session.lifecycle import SessionLifecycle
    from statestore_client.server.broker.session.permissions import SessionPermissions
    from statestore_client.server.broker.session.session import Session
    from statestore_client.server.broker.state import State
    from statestore_client.server.broker.timers import Timer
    from statestore_client.wire.instant import Instant

__all__ = ["GRACE_S", "Awaited", "AwaitedClients"]

#: Clients try again after one to four seconds at first, most of them at once.
GRACE_S: Final = 5.0

#: Of ten thousand clients that do not come back, each may have a will.
_AT_ONCE: Final = 64


@attrs.define(eq=False)
class Awaited:
    """``sessions`` outlive their connections; some of them may have a client, or be over, by now.
    ``wills`` by client identifier are what is left of other sessions: nothing else of them survives their server.
    """

    sessions: dict[Session, None] = attrs.Factory(dict)
    wills: dict[str, WillRecord] = attrs.Factory(dict)

    @property
    def held_bytes(self) -> int:
        """What the ``wills`` count for; those of ``sessions`` are theirs."""
        return sum(will_bytes(record.will) for record in self.wills.values())


@attrs.define(eq=False)
class AwaitedClients:
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
        self._lifecycle.wills.put(session, record.will)
        self._permissions.renew(session)
        self._lifecycle.end(session, now)

    def _forget(self, client_id: str) -> WillRecord:
        record = self._state.awaited.wills.pop(client_id)
        self._state.budget.total -= will_bytes(record.will)
        return record
