"""Clients in the log: who came, who is gone, and who was refused."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from statestore_client.mqtt.packets import ReasonCode
from statestore_client.server.runtime.observability.event_log import LOGGER, log_event, shortened

if TYPE_CHECKING:
    from statestore_client.server.broker import Connection
    from statestore_client.server.runtime.observability.refusal_log import RefusalLog

__all__ = ["log_connected", "log_gone"]

#: Connections that end with one of these have asked for what they may not have, or for too much.
_REFUSALS: Final = frozenset(
    {
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.SERVER_BUSY,
        ReasonCode.BAD_AUTHENTICATION_METHOD,
        ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
        ReasonCode.PACKET_TOO_LARGE,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.CONNECTION_RATE_EXCEEDED,
    }
)


def log_connected(connection: Connection) -> None:
    """It has a session."""
    if not LOGGER.isEnabledFor(logging.INFO):
        return
    session = connection.session
    if session is not None:
        log_event(
            logging.INFO,
            "connected",
            **shortened({"client": session.client_id, "user": session.user}),
            peer=connection.peer,
            version=connection.version,
            silence_s=connection.silence_s,
            expiry_s=session.expiry_s,
        )


def log_gone(refusals: RefusalLog, connection: Connection, code: int, by: str, after_s: float) -> None:
    """It has ended with this reason code, by the ``peer`` or the ``server``, this many seconds after it was accepted.

    A refusal is a warning. The user is whom the client has proved to be: some write a token where the name belongs, and
    so what was not proved is not logged.
    """
    is_refusal = by == "server" and (connection.was_refused or code in _REFUSALS)
    if not (is_refusal or LOGGER.isEnabledFor(logging.INFO)):
        return
    session, ending = connection.session, connection.ending
    event = "refused" if connection.was_refused else "disconnected"
    fields: dict[str, Any] = {
        "client": connection.client_id if session is None else session.client_id,
        "user": None if session is None else session.user,
        "code": f"{code:#04x}",
        "reason": "" if ending is None else ending.reason,
        "by": by,
        "after_s": round(after_s, 3),
    }
    if is_refusal:
        refusals.line(event, connection.peer, **fields)
    else:
        log_event(logging.INFO, event, peer=connection.peer, **shortened(fields))
