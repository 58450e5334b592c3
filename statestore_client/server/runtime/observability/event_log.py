"""The server's log: one line per event, never a payload or a password. Topics and keys only if refused."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LOGGER", "LONGEST", "JsonLines", "log_event", "shortened"]

LOGGER: Final = logging.getLogger("statestore_client.server")

#: Characters of a field that strangers fill. Names and topics of MQTT may have 65,535 bytes.
LONGEST: Final = 200


def shortened(fields: Mapping[str, object]) -> dict[str, Any]:
    """The same with texts of at most ``LONGEST`` characters."""
    return {
        name: f"{value[:LONGEST]}..." if isinstance(value, str) and len(value) > LONGEST else value
        for name, value in fields.items()
    }


def log_event(level: int, event: str, *, error: BaseException | None = None, **fields: object) -> None:
    """Log ``event name=value ...``; the fields are also on the record, as ``record.fields``, for structured handlers.
    The traceback of an ``error`` follows.

    Values are written with ``repr``: client identifiers come from strangers and may hold line breaks.
    """
    if LOGGER.isEnabledFor(level):
        text = " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())])
        LOGGER.log(level, "%s", text, exc_info=error, extra={"event": event, "fields": fields})


class JsonLines(logging.Formatter):
    """One JSON object per line: ``time`` (UTC), ``level``, ``event`` and the event's fields.

    A record that is not such an event has ``event`` "log", ``logger`` and ``message``. Only ASCII is not escaped: what
    strangers send stays on its line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """As a string without line breaks."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line |= {"event": getattr(record, "event", "log"), **fields}
        else:
            line |= {"event": "log", "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=repr)
