"""The server's log: one line per event, never a payload or a password. Topics and keys only if refused."""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["LOGGER", "log_event"]

LOGGER: Final = logging.getLogger("statestore_client.server")


def log_event(level: int, event: str, **fields: object) -> None:
    """Log ``event name=value ...``; the fields are also on the record, as ``record.fields``, for structured handlers.

    Values are written with ``repr``: client identifiers come from strangers and may hold line breaks.
    """
    if LOGGER.isEnabledFor(level):
        text = " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())])
        LOGGER.log(level, "%s", text, extra={"event": event, "fields": fields})
