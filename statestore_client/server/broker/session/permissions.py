"""What the clients of sessions may do, asked again: after a restart, and when the rules have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from statestore_client.mqtt.packets import ReasonCode
from statestore_client.server.broker.state import Expulsion

if TYPE_CHECKING:
    from collections.abc import Collection

    from statestore_client.server.broker.admission import Gatekeeper
    from statestore_client.server.broker.packets.subscribe import SubscribeHandler
    from statestore_client.server.broker.session.session import Session
    from statestore_client.server.broker.session.wills import Wills
    from statestore_client.server.broker.state import State

__all__ = ["SessionPermissions"]


@attrs.define(eq=False)
class SessionPermissions:
    """Asks the gatekeeper. Without one, everybody may do everything."""

    _state: State
    _gatekeeper: Gatekeeper | None
    _subscribe_handler: SubscribeHandler
    _wills: Wills

    @property
    def rules(self) -> object:
        """Another object when they have changed."""
        return None if self._gatekeeper is None else self._gatekeeper.rules

    def ask(self, session: Session) -> None:
        """Of a session from a record. Its subscriptions stay as they are."""
        if self._gatekeeper is not None:
            session.permissions = self._gatekeeper.permissions(session.user, session.client_id)

    def renew(self, session: Session) -> None:
        """The same, and subscriptions that are not permitted end: the rules may have changed."""
        self.ask(session)
        session.has_lost_rights = True
        if session.permissions is not None:
            self._subscribe_handler.review(session, session.permissions)

    def review(self, gone: Collection[str]) -> None:
        """Of all sessions. Those whose rules have changed are to be disconnected; those of users that are ``gone`` are
        to end, here or not, without their wills: nobody is left whose rights these would have.
        """
        gatekeeper = self._gatekeeper
        if gatekeeper is None:
            return
        for session in self._state.sessions.all():
            if session.user in gone:
                self._wills.put(session, None)
                reason = "the user was removed"
                expulsion = Expulsion(session, ReasonCode.ADMINISTRATIVE_ACTION, reason, ends_session=True)
                self._state.expulsions.append(expulsion)
                continue
            permissions = gatekeeper.permissions(session.user, session.client_id)
            if permissions == session.permissions:
                continue
            session.permissions, session.has_lost_rights = permissions, True
            if permissions is not None:
                self._subscribe_handler.review(session, permissions)
            if session.connection is not None:
                reason = "the access rules have changed"
                self._state.expulsions.append(Expulsion(session, ReasonCode.ADMINISTRATIVE_ACTION, reason))
