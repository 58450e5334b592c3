"""Clients in the log: who came, and who is gone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from statestore_client.server.runtime.events import LOGGER, log_event

if TYPE_CHECKING:
    from statestore_client.server.broker import Connection

__all__ = ["log_connected", "log_gone"]


def log_connected(connection: Connection) -> None:
    """It has a session."""
    if not LOGGER.isEnabledFor(logging.INFO):
        return
    session = connection.session
    if session is not None:
        log_event(
            logging.INFO,
            "connected",
            client=session.client_id,
            user=session.user,
            peer=connection.peer,
            version=connection.version,
            silence_s=connection.silence_s,
            expiry_s=session.expiry_s,
        )


def log_gone(connection: Connection, code: int, by: str, after_s: float) -> None:
    """It has ended with this reason code, by the ``peer`` or the ``server``, so many seconds after it was accepted."""
    if not LOGGER.isEnabledFor(logging.INFO):
        return
    session, ending = connection.session, connection.ending
    log_event(
        logging.INFO,
        "refused" if connection.was_refused else "disconnected",
        client=connection.client_id if session is None else session.client_id,
        user=None if session is None else session.user,
        peer=connection.peer,
        code=f"{code:#04x}",
        reason="" if ending is None else ending.reason,
        by=by,
        after_s=round(after_s, 3),
    )
