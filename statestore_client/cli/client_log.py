"""What the log of a client puts on standard error while a command uses it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from statestore_client.core.actions import ConnectionState

_LOGGER: Final = logging.getLogger("statestore_client")


@contextmanager
def client_log(*, tells_of_connection: bool = True) -> Iterator[None]:
    """Warnings and errors; after a warning that the connection is lost, also the line that it stands again.

    Nothing of the connection for a command whose own error tells of it.
    """
    handler, level = logging.StreamHandler(), _LOGGER.level
    handler.addFilter(_Chosen(tells_of_connection))
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOGGER.setLevel(level)
        _LOGGER.removeHandler(handler)


class _Chosen(logging.Filter):
    """Belongs to one command, which has one client."""

    def __init__(self, tells_of_connection: bool) -> None:
        super().__init__()
        self._tells_of_connection = tells_of_connection
        self._was_warned = False

    def filter(self, record: logging.LogRecord) -> bool:
        is_loud = record.levelno >= logging.WARNING
        state = getattr(record, "connection_state", None)
        if state is None:
            return is_loud
        if state is ConnectionState.CONNECTED:
            is_loud, self._was_warned = self._was_warned, False
        else:
            self._was_warned = self._was_warned or is_loud
        return is_loud and self._tells_of_connection
