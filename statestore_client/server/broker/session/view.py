"""What people look at: sessions as values. They do not change any more when the sessions do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from statestore_client.server.broker.limits import NEVER_EXPIRES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore_client.server.broker.session.session import Session

__all__ = ["SessionView", "view_of"]


@attrs.frozen(kw_only=True)
class SessionView:
    """One session at one moment.

    ``subscriptions`` maps topic filters to the granted QoS. ``queued`` messages did not go out yet, ``in_flight`` ones
    are not acknowledged by the client, and ``unreleased`` are QoS 2 messages of the client that wait for its PUBREL.
    ``expiry_s`` is how long the session outlives its connection, None for ever.
    """

    client_id: str
    is_connected: bool
    user: str | None
    subscriptions: Mapping[str, int]
    queued: int
    in_flight: int
    unreleased: int
    expiry_s: int | None
    has_will: bool


def view_of(session: Session) -> SessionView:
    return SessionView(
        client_id=session.client_id,
        is_connected=session.connection is not None,
        user=session.user,
        subscriptions={name: grant.qos for name, grant in session.subscriptions.items()},
        queued=len(session.outbound.waiting.items) + len(session.waiting0.items),
        in_flight=len(session.outbound.in_flight),
        unreleased=len(session.inbound.unreleased),
        expiry_s=None if session.expiry_s == NEVER_EXPIRES else session.expiry_s,
        has_will=session.will is not None,
    )
