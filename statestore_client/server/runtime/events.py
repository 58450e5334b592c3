"""The server's log: one line per event, never a payload or a password. Topics and keys only if refused."""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime
from typing import Final

__all__ = ["LOGGER", "BurstLog", "JsonLines", "log_event"]

LOGGER: Final = logging.getLogger("statestore_client.server")

#: Of one kind of refusal; a client that tries in a loop must not fill the disk.
_LINES_PER_SECOND: Final = 20


def log_event(level: int, event: str, **fields: object) -> None:
    """Log ``event name=value ...``; the fields are also on the record, as ``record.fields``, for structured handlers.

    Values are written with ``repr``: client identifiers come from strangers and may hold line breaks.
    """
    if LOGGER.isEnabledFor(level):
        text = " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())])
        LOGGER.log(level, "%s", text, extra={"event": event, "fields": fields})


class BurstLog:
    """Logs refusals of one kind as warnings, some per second at most; what was left out is told with the next ones."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._second = 0
        self._lines = 0

    def line(self, **fields: object) -> None:
        second = int(time.monotonic())
        if second != self._second:
            if self._lines > _LINES_PER_SECOND:
                log_event(logging.WARNING, self._event, more=self._lines - _LINES_PER_SECOND)
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines <= _LINES_PER_SECOND:
            log_event(logging.WARNING, self._event, **fields)


class JsonLines(logging.Formatter):
    """One JSON object per line: ``time`` (UTC), ``level``, ``event`` and the event's fields.

    What is no event of ours has ``event`` "log", ``logger`` and ``message``. Everything but ASCII is escaped, so what
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
