"""What a server logs of refusals, and a client that guesses."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.server_clients import Wire
from support.waiting import eventually

from statestore_client.mqtt.packets import (
    Connack,
)
from statestore_client.server import EmbeddedServer

__all__ = ["BYSTANDER", "GUESSER", "LINES", "PAUSE_S", "Log", "guess"]

GUESSER, BYSTANDER = "127.0.0.1", "127.0.0.2"
#: Lines about one peer at once, and seconds until it has one more, as the documentation says.
LINES, PAUSE_S = 10, 10.0


class Log:
    """The lines of the server so far."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def records(self) -> list[Any]:
        return [record for record in list(self._caplog.records) if record.name == "statestore_client.server"]

    @property
    def warnings(self) -> list[tuple[str, dict[str, Any]]]:
        return [(record.event, record.fields) for record in self.records if record.levelno == logging.WARNING]

    def wait(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        eventually(lambda: len(self.warnings) >= count, f"{count} warnings")
        return self.warnings


def guess(server: EmbeddedServer, password: bytes, *, source: str = GUESSER, client_id: str = "c") -> int:
    """The reason code that a password gets."""
    with Wire(server, source=source) as wire:
        connack = wire.connect(client_id, username="tok3n-in-the-wrong-place", password=password)
        assert isinstance(connack, Connack)
        return connack.reason_code
