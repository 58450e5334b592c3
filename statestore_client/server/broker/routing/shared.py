"""Shared subscriptions: each message goes to one member, in turn (MQTT 5.0, 4.8.2).

Members are kept apart by what they can do: those that take messages as they come, those that are here and behind, and
those that are away. A member that turns out to be behind is put aside when its turn comes, and comes back when it has
caught up. So a turn costs the same, however many members there are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

if TYPE_CHECKING:
    from statestore_client.server.broker.routing.subscriptions import GrantedSubscription
    from statestore_client.server.broker.session.session import Session

__all__ = ["SharedSubscription", "caught_up", "session_changed"]

#: Members that are looked at for one message, or shares of one session for one event.
_LOOKS: Final = 64

_Turns: TypeAlias = "OrderedDict[Session, None]"


@attrs.define(eq=False)
class SharedSubscription:
    """The members of one shared subscription.

    Invariant: each member is in exactly one of ``_ready``, ``_behind`` and ``_away``, whose first one is next. One that
    is not ready has this share in its ``waits_in``.
    """

    grants: dict[Session, GrantedSubscription] = attrs.Factory(dict)
    _ready: _Turns = attrs.Factory(OrderedDict)
    _behind: _Turns = attrs.Factory(OrderedDict)
    _away: _Turns = attrs.Factory(OrderedDict)

    def add(self, session: Session, grant: GrantedSubscription) -> None:
        is_new = session not in self.grants
        self.grants[session] = grant
        if is_new:
            session.shares[self] = None
            self.sort(session)

    def discard(self, session: Session) -> None:
        if self.grants.pop(session, None) is None:
            return
        self._take_out(session)
        session.shares.pop(self, None)
        session.waits_in.pop(self, None)

    def _take_out(self, session: Session) -> None:
        for turns in (self._ready, self._behind, self._away):
            turns.pop(session, None)

    def sort(self, session: Session) -> None:
        """Put a member where it belongs, behind those that are there."""
        self._take_out(session)
        if session.is_flowing:
            self._ready[session] = None
            session.waits_in.pop(self, None)
        else:
            (self._away if session.connection is None else self._behind)[session] = None
            session.waits_in[self] = None

    def pick(self, has_room: Callable[[Session], bool]) -> Session | None:
        """Whose turn it is: a connected member whose queue is not growing, if there is one; else one that is connected;
        else the next one; of those rather one that has room. None if there are no members.
        """
        for session in [*islice(self._ready, _LOOKS)]:
            if session.is_flowing:
                self._ready.move_to_end(session)
                return session
            self.sort(session)
        first: Session | None = None
        for turns in (self._behind, self._away, self._ready):
            for session in [*islice(turns, _LOOKS)]:
                if has_room(session):
                    turns.move_to_end(session)
                    return session
                first = first or session
        if first is not None:
            self.sort(first)  # all are full: each loses something in turn
        return first


def session_changed(session: Session) -> None:
    """Its client came or left: its shares hear of it. Of more shares than usual, some hear when they pick it."""
    for group in [*islice(session.shares, _LOOKS)]:
        group.sort(session)


def caught_up(session: Session) -> None:
    """It takes messages as they come again."""
    for group in [*islice(session.waits_in, _LOOKS)]:
        group.sort(session)
